"""Rules compiled anew in this process, once a session: for what only the compiler knows, such as the programs."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from real_rules import ROOT, rules

from momentgen.compiler.certify.evidence import read_evidence
from momentgen.compiler.ir.program import Program
from momentgen.compiler.pipeline import compile_rule
from momentgen.rule import Accuracy
from momentgen.rule.files import evidence_path


@dataclass(frozen=True)
class Programs:
    """The files of a rule, and each variant's forward and backward program."""

    files: Mapping[str, str]
    of: Mapping[str, tuple[Program, Program]]


@functools.lru_cache
def compiled(name: str, *, exact_only: bool = False) -> Programs:
    """Compile a rule of ``rules/``, or its exact variant alone, in some seconds."""
    rule = rules()[name]
    if exact_only:
        rule = dataclasses.replace(rule, accuracy=Accuracy(ulp={"exact": rule.accuracy.ulp["exact"]}), variants={})
    result = compile_rule(rule, evidence=read_evidence(evidence_path(ROOT / "rules" / f"{name}.py"), name))
    return Programs(result.files, result.programs)
