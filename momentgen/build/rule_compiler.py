"""The compiler as a build calls it: from a rule file to the texts of its files, in whichever process.

Importing this module imports no compiler, which takes a second; calling a :class:`RuleCompiler` does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from momentgen.build.output import VariantSummary
from momentgen.errors import RuleError
from momentgen.keep.code import code_digest
from momentgen.keep.kept import Kept
from momentgen.rule.files import evidence_path, load_rule_sources


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


@dataclass(frozen=True)
class _Cached:
    files: Mapping[str, str]
    variants: tuple[VariantSummary, ...]


#: digest of the code that this process imported the compiler from; empty as long as it has not
_imported = ""


@dataclass(frozen=True)
class RuleCompiler:
    """A :data:`Compiler`, with a cache of what it made.

    Attributes:
        code: :func:`~momentgen.keep.code.code_digest` of the compiler that is to be called.
        kept: rules compiled in earlier builds; None to do without.
    """

    code: str
    kept: Kept | None = None

    def __call__(self, rule: str, path: Path, progress: Callable[[str], None]) -> Compiled:
        """Compile the rule called ``rule`` in the file ``path``, unless the cache has its files.

        Raises:
            RuleError: if the file is at fault.
            BuildError: if the rule cannot be compiled.
        """
        progress("rule")
        (source,) = load_rule_sources(path)
        key = hashlib.sha256(f"{rule} {source.inputs} {self.code}".encode()).hexdigest()
        if self.kept is not None and (found := self.kept.get(key)) is not None:
            return _Cached(found["files"], tuple(VariantSummary(**variant) for variant in found["variants"]))
        compiled = self._anew(rule, path, progress)
        # If the code or the rule was edited meanwhile, nobody knows which state of it this was made from.
        unedited = _imported == self.code == code_digest() and load_rule_sources(path) == (source,)
        if self.kept is not None and unedited:
            found = {"files": dict(compiled.files), "variants": [asdict(variant) for variant in compiled.variants]}
            self.kept.put(key, found)
        return compiled

    def _anew(self, rule: str, path: Path, progress: Callable[[str], None]) -> Compiled:
        global _imported
        before = _imported or code_digest()
        from momentgen.compiler.certify.evidence import read_evidence
        from momentgen.compiler.pipeline import compile_rule
        from momentgen.rule import load_rules

        _imported = before
        for candidate in load_rules(path):
            if candidate.name == rule:
                compiled: Compiled = compile_rule(
                    candidate, progress=progress, evidence=read_evidence(evidence_path(path), rule)
                )
                return compiled
        raise RuleError(rule, f"expected {path.name} to define a rule of this name")
