"""Evidence: what exhaustive runs over all float32 means have found, kept as data beside the rules.

``benchmarks/exhaust.py`` writes ``rules/evidence/NAME.json``; a build reads it.  A run speaks for one program: its
digest is that of what it computes.  Where it is the program that was compiled, the
certificate says so and takes in the maxima; in any case the worst inputs are measured again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from momentgen.compiler.certify.points import Points
from momentgen.compiler.ir.program import Program
from momentgen.errors import RuleError

ALL_INPUTS = 1 << 32


def program_digest(programs: Sequence[Program]) -> str:
    """SHA-256 of what programs compute, in whatever order, from which inputs.

    >>> from momentgen.compiler.ir.program import Builder
    >>> def squared(first):
    ...     b = Builder("f", inputs=("x", "y"))
    ...     squares = {name: b.mul(b.input(name), b.input(name)) for name in first}
    ...     b.output("z", b.sub(squares["x"], squares["y"]))
    ...     return b.build()
    >>> program_digest([squared("xy")]) == program_digest([squared("yx")])
    True
    """
    text = []
    for program in programs:
        values: list[str] = []  # of each, the digest of its expression, which says what its operands are
        for ins in program.instructions:
            words = (ins.op.value, ins.type.value, str(ins.bits), str(ins.name), *(values[a] for a in ins.args))
            values.append(_digest(" ".join(words)))
        text += [*program.inputs, *program.params, *(f"{name} {values[index]}" for name, index in program.outputs)]
    return _digest("\n".join(text))


def _digest(text: str) -> str:
    return f"h{hashlib.sha256(text.encode()).hexdigest()}"


@dataclass(frozen=True)
class OutputEvidence:
    """One output over all means.

    Attributes:
        ulp: the largest error where the exact value is a normal number, measured against balls.
        mean: the input that has it.
        exact: the exact output there, in float64.
        histogram_ulp: inputs by error, by the reference.
        absolute_below_normal: largest absolute error where the exact value is below the normal range.
        ulp_subnormal_mean: as ``ulp``, over subnormal means, which no certificate covers.
        worst: the worst inputs, with their errors in ulp.
    """

    ulp: float
    mean: float
    exact: float
    histogram_ulp: Mapping[str, int]
    absolute_below_normal: float
    ulp_subnormal_mean: float
    worst: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Run:
    """One program over all float32 means.

    Attributes:
        program: :func:`program_digest` of forward and backward.
        setting: values of the rule's parameters.
        var: variance of the input.
        inputs: how many means were run; 2^32 are all.
        nan_inputs: how many of them were NaN; each gave NaN in all outputs.
        reference_error_ulp: largest error of the fast reference found, over ``reference_points``.
        limits: outputs at infinite means.
        outputs: by name.
    """

    program: str
    setting: Mapping[str, float]
    var: float
    inputs: int
    nan_inputs: int
    reference_error_ulp: float
    reference_points: int
    limits: Mapping[str, Mapping[str, str]]
    outputs: Mapping[str, OutputEvidence]

    @property
    def covers(self) -> str:
        """In words, for the certificate."""
        at = ", ".join(f"{name} = {value:g}" for name, value in {"var": self.var, **self.setting}.items())
        return f"all 2^32 means at {at}"

    def summary(self) -> dict[str, Any]:
        """For the certificate: without the list of worst inputs."""
        data = asdict(self)
        del data["program"]
        for output in data["outputs"].values():
            del output["worst"]
        return data


@dataclass(frozen=True)
class Evidence:
    """What is known of one rule.

    Attributes:
        rule: its name.
        variants: the runs of each variant's latest program, one a setting.
        missed: by variant, the (mean, var) at which some program, of now or earlier, missed the goal; kept for good.
    """

    rule: str
    variants: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)
    missed: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    def of(self, variant: str, program: str) -> tuple[Run, ...]:
        """Runs over all means of the program with this digest."""
        return tuple(r for r in self.variants.get(variant, ()) if r.program == program and r.inputs == ALL_INPUTS)

    def worst_points(self, variant: str) -> Points:
        """The worst inputs of a variant's latest program, which may not be the one at hand."""
        runs = self.variants.get(variant, ())
        return _points({(m, run.var) for run in runs for output in run.outputs.values() for m, _ in output.worst})

    def missed_points(self, variant: str) -> Points:
        """The inputs at which some program of a variant has missed the goal."""
        return _points(self.missed.get(variant, ()))

    def to_json(self) -> str:
        """The file's text; the same evidence gives the same bytes."""
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"


def read_evidence(path: Path, rule: str) -> Evidence:
    """The evidence of ``rule`` in the file ``path``; empty where there is no such file.

    Raises:
        RuleError: if the file is not evidence of this rule.
    """
    if not path.is_file():
        return Evidence(rule)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["rule"] != rule:
            raise ValueError(f"it speaks for the rule {data['rule']!r}")
        missed = {name: tuple((float(mean), float(var)) for mean, var in at) for name, at in data["missed"].items()}
        return Evidence(rule, {name: tuple(map(_run, runs)) for name, runs in data["variants"].items()}, missed)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        cause = f"{path.parent.name}/{path.name}: expected evidence as `benchmarks/exhaust.py` writes it, got {error!r}"
        raise RuleError(rule, f"{cause}; remove the file and run the script again") from error


def _points(pairs: Iterable[tuple[float, float]]) -> Points:
    array = np.array(sorted(pairs), np.float32).reshape(-1, 2)
    return np.ascontiguousarray(array[:, 0]), np.ascontiguousarray(array[:, 1])


def _run(data: Mapping[str, Any]) -> Run:
    outputs = {
        name: OutputEvidence(**{**output, "worst": tuple((float(m), float(u)) for m, u in output["worst"])})
        for name, output in data["outputs"].items()
    }
    return Run(**{**data, "outputs": outputs})
