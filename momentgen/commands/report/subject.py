"""One rule under the report's eye: the rule, its committed kernels, its exact values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import sympy

from momentgen.build.built import Built, CommittedKernel, read_built
from momentgen.compiler.derive import Derivation, derive
from momentgen.compiler.strategies.tolerance import Parametric, ParametricTruth, closed_form_truth
from momentgen.errors import MomentgenError
from momentgen.rule import Rule
from momentgen.rule.symbols import x

F64 = npt.NDArray[np.float64]
EXACT = "exact"


@dataclass(frozen=True)
class Subject:
    """A rule of one random variable, at the default values of its parameters.

    Attributes:
        rule, derivation: what the formulas are.
        setting: parameter name -> value.
        built: the variants as committed.
    """

    rule: Rule
    derivation: Derivation
    setting: Mapping[str, float]
    built: Mapping[str, Built]

    @cached_property
    def kernels(self) -> Mapping[str, CommittedKernel]:
        """Variant -> its committed C, compiled."""
        return {name: CommittedKernel(variant, self.setting) for name, variant in self.built.items()}

    def balls(self, mean: npt.NDArray[np.float32], var: npt.NDArray[np.float32]) -> Mapping[str, F64]:
        """Moments of f and their partials by name, by ball arithmetic, var > 0."""
        if self.derivation.var is not None:
            return closed_form_truth(self.derivation)(mean, var, self.setting)
        return ParametricTruth(Parametric.of(self.rule), by_balls=True)(mean, var, self.setting)


def subject_of(rule: Rule, package: Path) -> Subject:
    """``rule`` as built to ``package``.

    Raises:
        MomentgenError: if it is not built there, is no function of one random variable, or has no exact variant.
        BuildError: if it cannot be derived.
    """
    built = {variant.variant: variant for variant in read_built(package, rule.name)}
    if EXACT not in built or not all(variant.is_univariate for variant in built.values()):
        raise MomentgenError(f"rule {rule.name}: expected a function of one random variable with an exact variant")
    rule = rule.in_formulas
    return Subject(rule, derive(rule), rule.defaults, built)


def activation(rule: Rule, setting: Mapping[str, float]) -> Callable[[F64], F64]:
    """f on float64 arrays, to be drawn; not for measuring.

    >>> f = activation(Rule("relu", f=sympy.Max(x, 0)), {})
    >>> f(np.array([-1.0, 2.0]))
    array([0., 2.])
    """
    f = rule.f.subs({p.symbol: setting[p.name] for p in rule.parameters})
    plain = {
        "Phi": np.vectorize(lambda z: math.erfc(-z / math.sqrt(2)) / 2, otypes=[float]),
        "phi": lambda z: np.exp(-z * z / 2) / math.sqrt(2 * math.pi),
        "S": lambda z: (1 + np.tanh(z / 2)) / 2,
        "erf": np.vectorize(math.erf, otypes=[float]),
        "erfc": np.vectorize(math.erfc, otypes=[float]),
        # At a jump the upper value, as the rules have it.
        "Heaviside": lambda z, *_: np.where(z >= 0, 1.0, 0.0),
    }
    function = sympy.lambdify([x], f, modules=[plain, "numpy"])

    def evaluate(values: F64) -> F64:
        with np.errstate(all="ignore"):
            return np.broadcast_to(np.asarray(function(values), np.float64), values.shape).copy()

    return evaluate
