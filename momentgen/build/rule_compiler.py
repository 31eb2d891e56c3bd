"""The compiler as a build calls it: from a rule file to the texts of its files, in whichever process.

Importing this module imports no compiler, which takes a second; calling a :class:`RuleCompiler` does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from momentgen.errors import RuleError
from momentgen.keep.kept import Kept
from momentgen.keep.meaning import Sources
from momentgen.rule.files import evidence_path


class Compiled(Protocol):
    """What the compiler hands back for one rule (``momentgen.compiler.pipeline.CompiledRule``)."""

    @property
    def files(self) -> Mapping[str, str]:
        """Text of each file of the rule's directory, the manifest left out."""

    @property
    def variants(self) -> Sequence[Any]:
        """One summary a variant: ``name``, ``bounds``, ``operations``."""


#: (rule name, rule file, progress) -> Compiled; must be picklable, since workers call it
Compiler = Callable[[str, Path, Callable[[str], None]], Compiled]

#: whether this process imported the compiler from sources that were known just before; None as long as it has not
_knowingly: bool | None = None


@dataclass(frozen=True)
class RuleCompiler:
    """A :data:`Compiler`, with a memory of earlier builds.

    Attributes:
        sources: of the compiler that is to be called.
        kept: results of earlier builds; None to do without.
    """

    sources: Sources
    kept: Kept | None = None

    def __call__(self, rule: str, path: Path, progress: Callable[[str], None]) -> Compiled:
        """Compile the rule called ``rule`` in the file ``path``.

        Raises:
            RuleError: if the file is at fault.
            BuildError: if the rule cannot be compiled.
        """
        # What is kept says by which code it was found: nothing is, where other code may have been imported.
        kept = self.kept if self._import_knowingly() else None
        from momentgen.compiler.certify.evidence import read_evidence
        from momentgen.compiler.keeping import Keeper
        from momentgen.compiler.pipeline import compile_rule
        from momentgen.compiler.reduction import compile_reduction
        from momentgen.rule import load_reductions, load_rules

        progress("rule")
        for candidate in load_rules(path):
            if candidate.name == rule:
                evidence = read_evidence(evidence_path(path), rule)
                memory = None if kept is None else Keeper(candidate, evidence, kept, self.sources)
                compiled: Compiled = compile_rule(candidate, progress=progress, evidence=evidence, memory=memory)
                return compiled
        for reduction in load_reductions(path):
            if reduction.name == rule:
                written: Compiled = compile_reduction(reduction, progress=progress)
                return written
        raise RuleError(rule, f"expected {path.name} to define a rule of this name")

    def _import_knowingly(self) -> bool:
        global _knowingly
        if _knowingly is None:
            _knowingly = "momentgen.compiler" not in sys.modules and self.sources.are_current()
        return _knowingly
