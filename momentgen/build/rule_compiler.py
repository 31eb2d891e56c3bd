"""The compiler as a build calls it: from a rule file to the texts of its files, in whichever process.

Importing this module imports no compiler, which takes a second; calling :func:`compile_file` does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from momentgen.errors import RuleError
from momentgen.rule.files import evidence_path

if TYPE_CHECKING:
    from momentgen.compiler.pipeline import CompiledRule


#: (rule name, rule file, progress) -> what it became; must be picklable, since workers call it
Compiler = Callable[[str, Path, Callable[[str], None]], "CompiledRule"]


def compile_file(rule: str, path: Path, progress: Callable[[str], None]) -> CompiledRule:
    """A :data:`Compiler`: compile the rule called ``rule`` in the file ``path``.

    Raises:
        RuleError: if the file is at fault.
        BuildError: if the rule cannot be compiled.
    """
    from momentgen.compiler.certify.evidence import read_evidence
    from momentgen.compiler.pipeline import compile_rule
    from momentgen.rule import load_rules

    progress("rule")
    for candidate in load_rules(path):
        if candidate.name == rule:
            return compile_rule(candidate, progress=progress, evidence=read_evidence(evidence_path(path), rule))
    raise RuleError(rule, f"expected {path.name} to define a rule of this name")
