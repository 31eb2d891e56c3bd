"""One-parameter families fitted by the largest divergence, as the papers do: R(a) ~ S(a/t), t by minimax.

Exact and fitted are variances of normals of one mean; the divergence of the fitted from the exact is
KL(N(m, exact) || N(m, fitted)) = (r - 1 - ln r)/2 with r = exact/fitted.

The objective is a maximum over the argument, so as a function of the parameter it has a kink where two
maxima trade places; golden section takes that as it comes.  Everything is evaluated in mpmath: the inner
maxima are located on a grid and then refined, so that the objective reported is the maximum itself.

Facts, for R(a) ~ S(a/t) on |a| <= 10, as alpha^2 + (1 - alpha^2) S(a/t) for leaky ReLU of slope
alpha: at 0.01, t = 0.375759 and KL = 0.0334471, a kink between a = -3.3229 and a = 0.1849.  For ReLU itself
(alpha = 0) the divergence has no bound: R falls like exp(-a^2/2) and S(a/t) like exp(a/t), so KL grows like a^2/4 as
a -> -infinity.  A range must be chosen with it: on [-3, 10] t = 0.370329 and KL = 0.0351080 (0.3729 in the paper is
between the two); on [-2, 10] t = 0.418775 and KL = 0.0325096.  Leaky ReLU's t serves ReLU with KL <= 0.0568 on
[-3, 10].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mpmath import mp, mpf, nstr

from momentgen.compiler.fit.remez import Function
from momentgen.compiler.fit.special import Number, to_mpf
from momentgen.errors import BuildError

_GOLDEN = (mp.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class ParameterFit:
    """The best parameter of a family, and what it reaches.

    Attributes:
        value: the parameter.
        objective: the objective reached, its maximum over the domain.
        domain: the range of the argument over which the maximum is taken.
        where: the arguments at which it is reached: two at a kink, one elsewhere.
    """

    value: mpf
    objective: mpf
    domain: tuple[mpf, mpf]
    where: tuple[mpf, ...]

    def facts(self, what: str, fitted_at: Mapping[str, float]) -> dict[str, Any]:
        """What a certificate says of the fit of the parameter ``what``, where others have these values."""
        return {
            what: float(nstr(self.value, 10)),
            "objective": "max_kl",
            "objective_reached": float(nstr(self.objective, 6)),
            "reached_at_a": [float(nstr(a, 6)) for a in self.where],
            "domain_a": [float(end) for end in self.domain],
            "fitted_at": dict(fitted_at),
        }


def fit_parameter(
    exact: Function,
    fitted: Callable[[mpf, mpf], mpf],
    *,
    bounds: tuple[Number, Number],
    domain: tuple[Number, Number] = (-10, 10),
    points: int = 400,
    what: str = "parameter",
) -> ParameterFit:
    """The t in ``bounds`` that minimises the maximum over the domain of the divergence of ``fitted(t, a)``.

    Args:
        exact: mpmath callable of the argument a; positive.
        fitted: mpmath callable of the parameter t and the argument a; alike.
        bounds: range of t, searched on a grid of 40 and from the best of it by golden section.
        domain: range of a.
        points: number of steps of the grid over a; must resolve the maxima.
        what: name of the parameter, for messages.

    Returns:
        The fit. t and the objective are good to ten digits.

    Raises:
        BuildError: stage ``approximate``, if the best t lies at an end of ``bounds``, where a wider range could do
            better, if a variance is not positive, or if the ranges make no sense.

    Source: Shekhovtsov, Flach and Busta, Feed-forward Uncertainty Propagation in Belief and Neural Networks, appendix
    D.1, for R(a) ~ S(a/t) under the maximal KL divergence.

    >>> fit = fit_parameter(lambda a: 1 + a * a, lambda t, a: t, bounds=(1, 2), domain=(-1, 1))
    >>> print(mp.nstr(fit.value, 5), mp.nstr(fit.objective, 4))
    1.4427 0.02983
    """
    with mp.workdps(30):
        low, high = to_mpf(bounds[0]), to_mpf(bounds[1])
        first, last = to_mpf(domain[0]), to_mpf(domain[1])
        if not (low < high and first < last and points >= 2):
            raise _error(what, f"expected bounds and domain (low, high) with low < high, got {bounds} and {domain}")
        grid = [first + (last - first) * i / points for i in range(points + 1)]
        truth = [exact(a) for a in grid]

        def misfit(t: mpf, a: mpf, value: mpf | None = None) -> mpf:
            real, near = exact(a) if value is None else value, fitted(t, a)
            if not (real > 0 and near > 0):
                place = f"{mp.nstr(real, 5)} and {mp.nstr(near, 5)} at a = {mp.nstr(a, 6)}, t = {mp.nstr(t, 6)}"
                raise _error(what, f"expected positive variances, got {place}")
            return (real / near - 1 - mp.log(real / near)) / 2

        def worst(t: mpf) -> tuple[mpf, tuple[mpf, ...]]:
            curve = [misfit(t, a, v) for a, v in zip(grid, truth, strict=True)]
            top, peaks = max(curve), []
            for i, here in enumerate(curve):
                left, right = max(i - 1, 0), min(i + 1, points)
                if here >= curve[left] and here >= curve[right] and here >= mpf("0.95") * top:
                    peaks.append(_golden(lambda a: -misfit(t, a), grid[left], grid[right], mpf("1e-13")))
            top = max(-peak for _, peak in peaks)
            return top, tuple(a for a, peak in peaks if -peak >= top * (1 - mpf("1e-7")))

        scan = [low + (high - low) * i / 40 for i in range(41)]
        levels = [max(misfit(t, a, v) for a, v in zip(grid, truth, strict=True)) for t in scan]
        best = levels.index(min(levels))
        if best in (0, len(scan) - 1):
            raise _error(
                what,
                f"the best value lies at {mp.nstr(scan[best], 6)}, an end of the bounds; expected it inside "
                f"({mp.nstr(low, 6)}, {mp.nstr(high, 6)})",
            )
        value, _ = _golden(lambda t: worst(t)[0], scan[best - 1], scan[best + 1], mpf("1e-11"))
        level, where = worst(value)
        places = tuple(mp.nint(a * 10**8) / 10**8 for a in where)
        return ParameterFit(mpf(mp.nstr(value, 11)), +level, (first, last), places)


def _error(what: str, cause: str) -> BuildError:
    return BuildError(what, "approximate", cause)


def _golden(function: Function, low: mpf, high: mpf, width: mpf) -> tuple[mpf, mpf]:
    """The minimum of a unimodal function on [low, high], and its value; the ends are candidates too."""
    ends = [(function(low), low), (function(high), high)]
    a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_a, at_b = function(a), function(b)
    while high - low > width:
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - _GOLDEN * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + _GOLDEN * (high - low)
            at_b = function(b)
    value, place = min([*ends, (at_a, a), (at_b, b)])
    return place, value
