r"""Sigmoids as Gaussian scale mixtures: F(x) ~ sum_i p_i Phi(s_i x), fitted in value and slope at once.

A mixture stays closed under a normal input, E Phi(s X) = Phi(s mu / sqrt(1 + s^2 v)), and an expectation
cannot enlarge a sup-error: the bound of the fit is the bound of the mean, for every mean and variance.
The same holds derivative by derivative.

Proven for the logistic sigmoid S, with e = S - mixture: the first three columns for a fit of the value alone, the
other three for a fit of value and slope together, ``value_tolerance=2e-8, slope_tolerance=1e-6``
(rounded to three digits):

=====  ==========  ==========  =================  ==========  ==========  =================
terms  sup |e|     sup |e'|    e'/S', |x| <= 8    sup |e|     sup |e'|    e'/S', |x| <= 8
=====  ==========  ==========  =================  ==========  ==========  =================
5      5.98e-07    2.71e-06    2.93e-03           1.86e-06    7.66e-06    9.31e-05
6      8.43e-08    4.30e-07    4.40e-04           2.49e-07    1.16e-06    1.24e-05
7      1.29e-08    7.29e-08    7.12e-05           3.42e-08    1.79e-07    1.71e-06
8      2.12e-09    1.31e-08    1.28e-05           5.24e-09    3.03e-08    2.62e-07
9      3.67e-10    2.46e-09    2.51e-06           9.11e-10    5.75e-09    4.56e-08
10     6.68e-11    4.80e-10    5.20e-07           1.67e-10    1.13e-09    8.35e-09
11     1.26e-11    9.68e-11    1.13e-07           3.14e-11    2.28e-10    1.57e-09
=====  ==========  ==========  =================  ==========  ==========  =================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flint import arb, arb_series, ctx
from mpmath import mp, mpf

from momentgen.compiler.approximate._convert import to_ball, upper
from momentgen.compiler.approximate.bound import BallFunction, prove_maximum
from momentgen.compiler.approximate.remez import Function
from momentgen.errors import BuildError

__all__ = ["LOGISTIC", "ScaleMixture", "Sigmoid", "prove_scale_mixture"]


@dataclass(frozen=True)
class Sigmoid:
    """An increasing F with F(-x) = 1 - F(x): what a scale mixture can stand for.

    Attributes:
        name: for messages.
        tail: 1 - F(x) for x >= 0, in mpmath, to full relative accuracy.
        slope: F'(x) for x >= 0, alike.
        ball: 1 - F on power series with ball coefficients (:data:`BallFunction`).
        remainder: (k, x) -> a bound of the k-th derivative of 1 - F beyond a ball x, decreasing in x.
        reach: the x from which ``remainder`` is negligible against any error of interest.
        scales: terms -> a first guess of the scales s_i.
    """

    name: str
    tail: Function
    slope: Function
    ball: BallFunction
    remainder: Callable[[int, arb], arb]
    reach: float
    scales: Callable[[int], list[float]]


@dataclass(frozen=True)
class ScaleMixture:
    """F(x) ~ sum_i weights_i Phi(scales_i x), with its errors.

    Attributes:
        weights: p_i > 0, summing to 1 within their digits.
        scales: s_i > 0, largest first.
        target: what it stands for.
        slope_range: the relative error of the slope is that on |x| <= slope_range.
        level: max(sup |e| / value_tolerance, relative slope error / slope_tolerance) of the fit: at most 1 where
            both tolerances are met.
        errors: reached sup |e^(k)| over the real line, k = 0, 1, ...; empty until proven.
        bounds: proven sup |e^(k)| over the real line, alike.
        slope_error: reached max |e'| / F' on |x| <= slope_range.
        slope_bound: the proven one.
        determined: whether the fit solves as many level equations as it has unknowns, and so has the same digits on
            every machine. A degenerate optimum (7 terms at the default tolerances is one) is good to some 10
            digits, and its last ones depend on the processor.
    """

    weights: tuple[mpf, ...]
    scales: tuple[mpf, ...]
    target: str
    slope_range: mpf
    level: mpf
    errors: tuple[mpf, ...] = ()
    bounds: tuple[mpf, ...] = ()
    slope_error: mpf | None = None
    slope_bound: mpf | None = None
    determined: bool = True

    def __call__(self, x: mpf) -> mpf:
        """The mixture at ``x``, in mpmath's working precision."""
        return (
            sum((p * mp.erfc(-s * x / mp.sqrt(2)) for p, s in zip(self.weights, self.scales, strict=True)), mpf(0)) / 2
        )

    def derivative(self, x: mpf) -> mpf:
        """Its slope at ``x``, alike."""
        return mp.fsum(p * s * mp.npdf(s * x) for p, s in zip(self.weights, self.scales, strict=True))


def _logistic_remainder(k: int, x: arb) -> arb:
    # 1 - S(x) = sum_n (-1)^(n+1) exp(-n x), differentiated term by term and taken by absolute values:
    # sum n^k q^n <= q (1 + sum_{n>=1} (n+1)^k q^n), and (n+1)^k <= 2^(nk).
    q = (-x).exp()
    ratio = q * arb(2) ** k
    if not ratio < 1:
        raise ValueError(f"expected exp(x) > 2^{k} for a bound of derivative {k}, got x = {x.str(5, radius=False)}")
    return q / (1 - ratio)


def _logistic_scales(terms: int) -> list[float]:
    """Gauss quadrature of the exact mixing law: 2 K with K of Kolmogorov's distribution, in the log of the scale.

    Source: Andrews and Mallows 1974 (the logistic law as a normal scale mixture).
    """
    with mp.workdps(30):
        points = [mpf("0.15") + i * mpf("0.02") for i in range(150)]
        law = [sum((-1) ** (n + 1) * n * n * mp.exp(-2 * n * n * k * k) for n in range(1, 40)) * k for k in points]
        total = sum(law)
        law = [w / total for w in law]
        nodes = [mp.log(2 * k) for k in points]
        # Stieltjes: the recurrence of the orthogonal polynomials is the Jacobi matrix whose eigenvalues are the nodes.
        jacobi = mp.zeros(terms)
        before, now, norm_before, coupling = [mpf(0)] * len(nodes), [mpf(1)] * len(nodes), mpf(1), mpf(0)
        for n in range(terms):
            norm = mp.fsum(w * p * p for w, p in zip(law, now, strict=True))
            centre = mp.fsum(w * z * p * p for w, z, p in zip(law, nodes, now, strict=True)) / norm
            jacobi[n, n] = centre
            if n:
                coupling = norm / norm_before
                jacobi[n, n - 1] = jacobi[n - 1, n] = mp.sqrt(coupling)
            norm_before = norm
            after = [(z - centre) * p - coupling * q for z, p, q in zip(nodes, now, before, strict=True)]
            before, now = now, after
        logs = sorted(mp.eigsy(jacobi, eigvals_only=True))
        return [float(mp.exp(-z)) for z in logs]


#: The logistic sigmoid S(x) = 1/(1 + exp(-x)).
LOGISTIC = Sigmoid(
    name="logistic sigmoid",
    tail=lambda x: 1 / (1 + mp.exp(x)),
    slope=lambda x: 1 / (2 + mp.exp(x) + mp.exp(-x)),
    ball=lambda x: 1 / (1 + x.exp()),
    remainder=_logistic_remainder,
    reach=64.0,
    scales=_logistic_scales,
)


def prove_scale_mixture(
    mixture: ScaleMixture, target: Sigmoid = LOGISTIC, *, derivatives: int = 6, tolerance: float = 0.01
) -> ScaleMixture:
    """The same mixture with its errors proven, over the whole real line.

    The weights and scales are taken as they are: replace them first (``dataclasses.replace``) by the rounded
    ones that a program will hold, and the bounds are those of the rounded mixture.

    Args:
        mixture: what to prove.
        target: the sigmoid it stands for.
        derivatives: prove sup |e^(k)| for k = 0 .. derivatives.
        tolerance: the bounds are at most this much above the true suprema, relatively.

    Raises:
        BuildError: stage ``approximate``, if a bound within the tolerance is not found.
    """
    weights, scales = [to_ball(p) for p in mixture.weights], [to_ball(s) for s in mixture.scales]

    def tail_error(x: arb_series) -> arb_series:
        total = -target.ball(x)
        for p, s in zip(weights, scales, strict=True):
            total += (x * (s / arb(2).sqrt())).erfc() * (p / 2)
        return total

    def slope_ratio(x: arb_series) -> arb_series:
        truth = _derivative(target.ball, 1)(x)
        return _derivative(tail_error, 1)(x) / truth

    errors, bounds = [], []
    with mp.workprec(192), ctx.workprec(192):
        # Where the weights do not sum to 1 exactly, the two tails differ by as much.
        defect = upper(abs(sum(weights, arb(0)) - 1))
        beyond = [upper(_beyond(weights, scales, target, k)) for k in range(derivatives + 1)]
    for k in range(derivatives + 1):
        found = prove_maximum(
            _derivative(tail_error, k),
            (0, target.reach),
            tolerance=tolerance / 2,
            order=14,
            pieces=256,
            what=f"derivative {k} of the scale mixture for the {target.name}",
        )
        with mp.workprec(192):
            errors.append(found.lower)
            bounds.append(max(found.upper, beyond[k]) * (1 + mpf(2) ** -180) + (defect if k == 0 else 0))
    ratio = prove_maximum(
        slope_ratio,
        (0, mixture.slope_range),
        tolerance=tolerance / 2,
        order=14,
        pieces=64,
        what=f"relative slope error of the scale mixture for the {target.name}",
    )
    return replace(
        mixture, errors=tuple(errors), bounds=tuple(bounds), slope_error=ratio.lower, slope_bound=ratio.upper
    )


def _derivative(function: BallFunction, k: int) -> BallFunction:
    """The k-th derivative; only for the arguments x0 + h of :func:`prove_maximum`."""

    def derived(x: arb_series) -> arb_series:
        length, cap = x.prec, ctx.cap
        ctx.cap = cap + k
        try:
            series = function(arb_series([x[0], arb(1)], length + k))
            for _ in range(k):
                series = series.derivative()
            return series
        finally:
            ctx.cap = cap

    return derived


def _beyond(weights: list[arb], scales: list[arb], target: Sigmoid, k: int) -> arb:
    """A bound of |e^(k)| beyond ``target.reach``."""
    reach = arb(target.reach)
    total = target.remainder(k, reach)
    for p, s in zip(weights, scales, strict=True):
        y = s * reach
        if not y * y > k:
            raise BuildError(
                target.name, "approximate", f"expected scale * reach > sqrt({k}), got {y.str(5, radius=False)}"
            )
        if k == 0:
            total += p * (y / arb(2).sqrt()).erfc() / 2
            continue
        # |He_{k-1}| phi is at most the sum of |coefficient| y^j phi(y), and those decrease beyond sqrt(j).
        size = arb(0)
        for j, c in enumerate(_hermite(k - 1)):
            size += abs(c) * y**j
        total += p * s**k * size * (-y * y / 2).exp() / (2 * arb.pi()).sqrt()
    return total


def _hermite(n: int) -> list[int]:
    """Coefficients of the probabilists' Hermite polynomial He_n, low to high."""
    before, now = [0], [1]
    for m in range(n):
        after = [0, *now]
        for j, c in enumerate(before):
            after[j] -= m * c
        before, now = now, after
    return now
