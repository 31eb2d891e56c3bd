"""The logistic transform S(X), X ~ N(mu, v): its exact variant, and the tolerance it is measured by.

The graphs are written by :mod:`momentgen.compiler.stabilise.mixture_graph`, the truth comes from
:mod:`momentgen.compiler.stabilise.mixture_truth`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt

from momentgen.compiler.approximate import Polynomial, ScaleMixture
from momentgen.compiler.derive import Derivation
from momentgen.compiler.real import Graph, evaluate_float64
from momentgen.compiler.stabilise.mixture_graph import NODES, SWITCH, WEIGHTS, build_graph, mixture_for
from momentgen.compiler.stabilise.mixture_truth import bernoulli_truth, logistic_truth
from momentgen.compiler.stabilise.stable import OUTPUTS, PARTIALS, Stable
from momentgen.errors import BuildError
from momentgen.rule import Rule
from momentgen.symbols import S, x

__all__ = ["Tolerance", "applies", "stable_variants"]

PARTIALS_SHARE = 1e-5  # error allowed to a partial, relative to its largest value at that variance


# --- measure ---------------------------------------------------------------------
@dataclass(frozen=True)
class Tolerance:
    """Errors over what the rule allows; survives pickling.

    The mean and the variance within ``mean_abs`` and ``var_abs``; the variance within ``var_rel`` of itself for
    |mu| and v up to ``box`` too; partials within 1e-5 of the largest value over mu that they have at that variance
    (the smaller of its bounds for v → 0 and v → ∞; those of m(1 - m) for a ``bernoulli`` output).  Below the normal
    range, 2^-126 is allowed.
    """

    mean_abs: float
    var_abs: float
    var_rel: float
    box: tuple[float, float, float]
    bernoulli: bool = False

    def allowed(self, output: str, exact: npt.NDArray[np.float64], mu: Any, v: Any) -> npt.NDArray[np.float64]:
        """The error allowed at each point."""
        with np.errstate(all="ignore"):
            v = np.maximum(v, 1e-300)
            if output == "mean":
                return np.full_like(exact, self.mean_abs)
            if output == "var":
                low, high, most = self.box
                inside = (low <= mu) & (mu <= high) & (v <= most)
                limit = np.where(inside, np.minimum(self.var_abs, self.var_rel * np.abs(exact)), self.var_abs)
            else:
                scales: Mapping[str, Any] = {
                    "dmean_dmu": np.minimum(0.25, 0.399 / np.sqrt(v)),
                    "dmean_dvar": np.minimum(0.0481, 0.121 / v),
                    "dvar_dmu": np.minimum(0.0358 * v, 0.168 / np.sqrt(v)),
                    "dvar_dvar": np.minimum(0.0625, 0.0841 / v),
                }
                if self.bernoulli:
                    scales = {
                        **scales,
                        "dvar_dmu": np.minimum(0.0962, 0.168 / np.sqrt(v)),
                        "dvar_dvar": np.minimum(0.03125, 0.0841 / v),
                    }
                limit = PARTIALS_SHARE * scales[output]
            return np.maximum(limit, 2.0**-126)

    def __call__(
        self,
        output: str,
        computed: npt.NDArray[np.float32],
        exact: npt.NDArray[np.float64],
        mean: npt.NDArray[np.float32],
        var: npt.NDArray[np.float32],
    ) -> npt.NDArray[np.float64]:
        allowed = self.allowed(output, exact, mean.astype(np.float64), var.astype(np.float64))
        error = np.abs(computed.astype(np.float64) - exact) / allowed
        return np.where(np.isfinite(computed), error, np.inf)


# --- strategy --------------------------------------------------------------------
def applies(derivation: Derivation) -> bool:
    """Whether the rule is S(x) itself, of a normal input, with a scale mixture to stand for it."""
    rule, surrogate = derivation.rule, derivation.surrogate
    return surrogate is not None and surrogate.of in ("logistic", S(x)) and rule.f == S(x) and rule.input == "normal"


def stable_variants(derivation: Derivation) -> list[Stable]:
    """The variant ``exact`` of the logistic transform.

    Raises:
        BuildError: if the mixture asked for does not reach its sup-error, or the accuracy asked for is relative
            where the far form would have to give it.
    """
    rule, surrogate = derivation.rule, derivation.surrogate
    if surrogate is None:
        raise BuildError(rule.name, "stabilise", "expected a scale mixture as surrogate, got none", rule.f)
    tolerance = _tolerance(rule)
    mixture = mixture_for(surrogate.terms, surrogate.sup_error, 24)
    wide = mixture_for(11, surrogate.sup_error, 53)

    def build(*, float64: bool, outputs: tuple[str, ...]) -> tuple[Graph, tuple[Polynomial, ...]]:
        return build_graph(wide if float64 else mixture, float64=float64, outputs=outputs, bernoulli=rule.bernoulli)

    forward, fits = build(float64=False, outputs=OUTPUTS)
    partials, more = build(float64=False, outputs=PARTIALS)
    return [
        Stable(
            variant="exact",
            forward=forward,
            partials=partials,
            forward64=build(float64=True, outputs=OUTPUTS)[0],
            partials64=build(float64=True, outputs=PARTIALS)[0],
            truth=bernoulli_truth if rule.bernoulli else logistic_truth,
            vanishes=not rule.bernoulli,
            measure=tolerance,
            goal=1.0,
            aim=0.8,
            unit="tolerance",
            box={"mu": (-12.0, 12.0), "log2_var": (-40.0, 30.0)},
            fits=tuple(dict.fromkeys((*fits, *more))),
            facts=_facts(tolerance, mixture, wide, build_graph(mixture, float64=False, outputs=OUTPUTS)[0]),
            doc=(
                f"for v < {mpmath.nstr(SWITCH, 5)} a symmetric rule by the addition formula of tanh; above, "
                f"{len(mixture.weights)} normal distribution functions and S^2 = S - S'"
            ),
        )
    ]


def _tolerance(rule: Rule) -> Tolerance:
    goal = rule.accuracy
    if goal.mean_abs is None or goal.var_abs is None or goal.ulp:
        raise BuildError(rule.name, "stabilise", "expected an accuracy of mean_abs and var_abs for a surrogate", goal)
    box = goal.var_rel_domain
    if rule.bernoulli and box is not None:
        cause = "a draw of 0 or 1 has a variance of m(1 - m), whose accuracy is absolute: expected no var_rel"
        raise BuildError(rule.name, "stabilise", cause, goal)
    if box is None or goal.var_rel is None:
        return Tolerance(goal.mean_abs, goal.var_abs, 1.0, (0.0, 0.0, 0.0), rule.bernoulli)
    if box.v[1] > SWITCH:
        raise BuildError(
            rule.name,
            "stabilise",
            f"expected var_rel_domain within v <= {mpmath.nstr(SWITCH, 5)}, where the variance is relatively accurate",
            goal,
        )
    return Tolerance(goal.mean_abs, goal.var_abs, goal.var_rel, (box.mu[0], box.mu[1], box.v[1]))


def _facts(tolerance: Tolerance, mixture: ScaleMixture, wide: ScaleMixture, forward: Graph) -> dict[str, Any]:
    """What the certificate says of the two forms, measured around the switch."""
    mu = np.linspace(0, 4, 33).astype(np.float32)
    switch = np.full_like(mu, float(SWITCH))
    below = np.nextafter(switch, np.float32(0))
    near, exact = (evaluate_float64(forward, {"mean": mu, "var": v}) for v in (below, switch))
    truth = logistic_truth(mu, below, {})
    m, slope, var = (truth[name] for name in ("mean", "dmean_dmu", "var"))
    index = forward.outputs["var"]
    mean_gap = np.abs(near[forward.outputs["mean"]] - exact[forward.outputs["mean"]]).max()
    return {
        "switch": float(SWITCH),
        "near_rule": {"nodes": list(NODES), "weights": list(WEIGHTS)},
        "near_variance_error_at_switch": _digits(np.max(np.abs(near[index] / var - 1))),
        "far_condition_at_switch": _digits(np.max((m * (1 - m) + slope) / var)),
        "far_variance_error_at_switch": _digits(np.max(np.abs(exact[index] - var))),
        "gap_of_mean_at_switch": _digits(mean_gap),
        "mixture": _mixture_facts(mixture),
        "mixture_float64": _mixture_facts(wide),
        "partials_tolerance": f"{PARTIALS_SHARE:g} of the largest value over mu at that variance",
        "var_rel": tolerance.var_rel,
    }


def _mixture_facts(mixture: ScaleMixture) -> dict[str, Any]:
    return {
        "weights": [float(p) for p in mixture.weights],
        "scales": [float(s) for s in mixture.scales],
        "sup_error_of_derivatives": [_digits(b) for b in mixture.bounds],
    }


def _digits(value: Any) -> float:
    return float(f"{float(value):.3g}")
