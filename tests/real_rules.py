"""The ops of ``momentgen.generated`` as tests take them: all rules and variants, and what is known of each f."""

import dataclasses
import functools
import math
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import momentgen.generated
from momentgen.compiler.certify.evidence import read_evidence
from momentgen.compiler.derive import derive, derive_joint
from momentgen.compiler.ir.program import Program
from momentgen.compiler.ir.stable import OUTPUTS, Stable
from momentgen.compiler.measure.ulp import SMALLEST_NORMAL, unit
from momentgen.compiler.pipeline import compile_rule
from momentgen.compiler.strategies import stabilise
from momentgen.compiler.strategies.joint.joint import stabilise_joint
from momentgen.rule import Accuracy, Rule, load_rules
from momentgen.rule.files import evidence_path
from momentgen.rule.inputs import partial_names
from momentgen.runtime import Op

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Setting = Mapping[str, float]

ROOT = Path(__file__).parents[1]
#: of :func:`torch.Tensor` or arrays alike: f(x, **params)
Function = Callable[..., F64]


@dataclass(frozen=True)
class Facts:
    """What mathematics says of an activation f; None where it says nothing.

    Attributes:
        f: on float64 arrays, with the parameters by name.
        low, high: infimum and supremum of f, from the parameters.
        increasing, convex: as it says.
        degree: f(cx) = c^degree·f(x) for c > 0.
        even: f(-x) = f(x).
        absolute: where the accuracy asked for is absolute instead of in ulp.
    """

    f: Function
    low: Callable[..., float] = lambda **_: 0.0
    high: Callable[..., float] = lambda **_: math.inf
    increasing: bool = True
    convex: bool = False
    degree: int | None = 1
    even: bool = False
    absolute: float = 0.0


def _leaky(x: F64, negative_slope: float) -> F64:
    return np.where(x > 0, x, negative_slope * x)


def _logistic(x: F64) -> F64:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


FACTS: dict[str, Facts] = {
    "relu": Facts(lambda x: np.maximum(x, 0.0), convex=True),
    "leaky_relu": Facts(_leaky, low=lambda negative_slope: 0.0 if negative_slope == 0 else -math.inf, convex=True),
    "abs": Facts(np.abs, increasing=False, convex=True, even=True),
    "heaviside": Facts(lambda x: (x >= 0).astype(np.float64), high=lambda **_: 1.0, degree=0),
    "logistic_transform": Facts(_logistic, high=lambda **_: 1.0, degree=None, absolute=3e-7),
}


#: the rules that the facts above tell of; others have tests of their own
NAMES = tuple(name for name in momentgen.generated.__all__ if name in FACTS)
ALL = [(name, variant) for name in NAMES for variant in getattr(momentgen.generated, name).variants]
#: the variants that are f's own moments, not an approximation with an error of its own
FAITHFUL = [(name, variant) for name, variant in ALL if variant in ("exact", "tight")]


def op_of(name: str) -> Op:
    """The public op."""
    op: Op = getattr(momentgen.generated, name)
    return op


def source_of(name: str, variant: str, suffix: str) -> str:
    """Text of a generated file, e.g. suffix ``.c`` or ``_triton.py``."""
    return (ROOT / "generated" / name / f"{variant}{suffix}").read_text(encoding="utf-8")


@functools.lru_cache
def rules() -> Mapping[str, Rule]:
    """All rules by name."""
    return {rule.name: rule for rule in load_rules(ROOT / "rules")}


@functools.lru_cache
def stables(name: str) -> Mapping[str, Stable]:
    """The stable form of each variant, with its exact values; of rules of one value or of two."""
    rule = rules()[name]
    if len(rule.inputs) > 1 or rule.noise is not None:
        found = stabilise_joint(derive_joint(rule))
    else:
        found = stabilise(derive(rule))
    return {stable.variant: stable for stable in found}


def settings_of(name: str) -> list[dict[str, float]]:
    """Parameters at the default, and each at both ends and in between."""
    op = op_of(name)
    default = {p.name: float(p.default or 0.0) for p in op.parameters}
    settings = [default]
    for p in op.parameters:
        settings += [{**default, p.name: p.low + share * (p.high - p.low)} for share in (0.0, 0.37, 1.0)]
    return settings


def scalars_of(name: str, variant: str, setting: Setting) -> tuple[float, ...]:
    """What the float32 kernels take after the tensors."""
    return op_of(name)._kernels[variant].scalars(tuple(setting.values()))


def all_of(name: str, variant: str, points: Sequence[F32], backend: str = "c", **params: float) -> dict[str, F32]:
    """Every output and partial of an op of any inputs, by one backend."""
    op = op_of(name)
    partials = zip(*partial_names(op.input_names).values(), strict=True)
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in points]
    one, zero = torch.ones_like(tensors[0]), torch.zeros_like(tensors[0])
    results = list(op.kernel("forward", variant=variant, backend=backend)(*tensors, **params))
    for seeds in ((one, zero), (zero, one)):
        results += op.kernel("backward", variant=variant, backend=backend)(*tensors, *seeds, **params)
    names = (*OUTPUTS, *(partial for of_output in partials for partial in of_output))
    return {key: tensor.numpy() for key, tensor in zip(names, results, strict=True)}


def goal_of(name: str, variant: str) -> float:
    """The promise in ulp."""
    return {"exact": 8.0, "tight": 2.0}[variant]


def slack(name: str, variant: str, *values: Any) -> F64:
    """How far a computed value may be from the exact one, summed over ``values``: in ulp, or 2^-126 below normal."""
    total = np.zeros(np.shape(values[0]))
    for value in values:
        size = np.abs(np.asarray(value, np.float64))
        # The exact value may lie in the next binade: one more ulp on that account.
        in_ulp = np.where(size >= SMALLEST_NORMAL, (goal_of(name, variant) + 1) * unit(size), SMALLEST_NORMAL)
        total = total + (FACTS[name].absolute or in_ulp)
    return total


def fresh_seed(*names: str) -> int:
    """Another seed each run, but on a build server the same."""
    if os.environ.get("CI"):
        return zlib.crc32("/".join(names).encode())
    return int(np.random.SeedSequence().generate_state(1)[0])


def each(pairs: list[tuple[str, str]]) -> pytest.MarkDecorator:
    """Parametrise over rules and variants."""
    return pytest.mark.parametrize(("name", "variant"), pairs, ids=[f"{n}-{v}" for n, v in pairs])


def moments(name: str, variant: str, mean: F32, var: F32, setting: Setting) -> tuple[F32, F32]:
    """The op as a user calls it, on arrays."""
    out = op_of(name)(torch.from_numpy(mean.copy()), torch.from_numpy(var.copy()), variant=variant, **setting)
    return out.mean.numpy(), out.var.numpy()


# Rules compiled anew in this process, once a session: for what only the compiler knows, such as the programs.
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
