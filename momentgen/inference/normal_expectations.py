"""Two expectations under one normal variable that no generated op has: E log Phi(F) and log E sigmoid(F).

What :mod:`momentgen.inference.likelihood` takes its probit and Bernoulli terms from.  Both are computed in float64,
whatever the dtype of the arguments, by fixed numbers of nodes, elementwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["at_nodes", "log_mean_exp", "log_mean_sigmoid", "mean_at_nodes", "mean_log_ndtr"]

#: nodes of the Gauss-Hermite rule, for variances up to 1, where both functions are analytic far beyond their scale
_NARROW = 40
#: nodes of the trapezoidal rule in u, x = c sinh(u), for larger variances
_WIDE = 256
#: that rule is fine where |x| is below 1, or below this part of the standard deviation of F, if that is more
_FINE = 1e-3
#: how many standard deviations of F that rule spans to each side of the mean
_SPAN = 10.0
#: beyond how many standard deviations from 0 the mean of F makes log Phi a parabola, or 0, where F has weight
_FAR = 8.0
#: steps that enclose a mode, which may be 2^40 standard deviations off, and steps that find it
_DOUBLINGS, _HALVINGS = 40, 60
#: terms of an accelerated alternating series; the error is below (3 + sqrt(8))^-n of the sum
_TERMS = 22


def _hermite() -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NARROW)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


def _alternating() -> Tensor:
    """Coefficients c with sum (-1)^k a_k ~ sum c_k a_k (Cohen, Rodriguez Villegas & Zagier 2000, algorithm 1)."""
    d = (3 + math.sqrt(8)) ** _TERMS
    d = (d + 1 / d) / 2
    b, c, found = -1.0, -d, []
    for k in range(_TERMS):
        c = b - c
        found.append(c / d)
        b *= (k + _TERMS) * (k - _TERMS) / ((k + 0.5) * (k + 1))
    return torch.tensor(found, dtype=torch.float64)


_NODES, _WEIGHTS = _hermite()
_SERIES = _alternating()


def _hazard(x: Tensor) -> Tensor:
    """The derivative of log Phi: phi(x) / Phi(x)."""
    return math.sqrt(2 / math.pi) / torch.special.erfcx(-x / math.sqrt(2))


def _hazard_slope(x: Tensor) -> Tensor:
    """The second derivative of log Phi, between -1 and 0."""
    hazard = _hazard(x)
    far = x < -100.0  # where x and the hazard cancel: their asymptotic series
    inverse = torch.where(far, x, 1.0).square().reciprocal()
    return torch.where(far, -1 + inverse * (1 - inverse * (6 - 50 * inverse)), -hazard * (x + hazard))


class _Narrow(torch.autograd.Function):
    """An expectation of variance at most 1 by Gauss-Hermite; partials by Price's theorem, which needs no 1/sigma."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, var: Tensor, of_log: bool) -> Tensor:
        x, weights = at_nodes(mean, var)
        if of_log:
            return (torch.special.log_ndtr(x) * weights).sum(-1)
        return (torch.nn.functional.logsigmoid(x) + weights.log()).logsumexp(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.of_log = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        mean, var = ctx.saved_tensors
        x, weights = at_nodes(mean, var)
        if ctx.of_log:
            slope, bend = _hazard(x), _hazard_slope(x)
        else:
            weights = torch.softmax(torch.nn.functional.logsigmoid(x) + weights.log(), -1)
            slope = torch.sigmoid(-x)
            bend = slope * (1 - 2 * torch.sigmoid(x))
        return grad * (weights * slope).sum(-1), grad * (weights * bend).sum(-1) / 2, None


def at_nodes(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Values of N(mean, var) at the nodes of the Gauss-Hermite rule, in a last dimension of their own, and weights.

    The variance is larger by the dtype's resolution, which gives derivatives at variance 0 too.
    """
    std = (var + torch.finfo(mean.dtype).eps).sqrt()
    return mean[..., None] + std[..., None] * _NODES.to(mean), _WEIGHTS.to(mean)


def mean_at_nodes(function: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor) -> Tensor:
    """E function(F), F ~ N(mean, var), by the trapezoidal rule; ``function`` is elementwise on ``(..., nodes)``.

    Nodes are 0.08 standard deviations apart, so that a function may bend within 0.02 of them.
    """
    m, v = mean.double(), var.double()
    std = (v + torch.finfo(m.dtype).eps).sqrt()
    t = torch.linspace(-_SPAN, _SPAN, _WIDE, dtype=m.dtype, device=m.device)
    values = function(m[..., None] + std[..., None] * t)
    return (values * torch.softmax(-0.5 * t.square(), 0)).sum(-1).to(mean.dtype)


def log_mean_exp(log_p: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor) -> Tensor:
    """Log E exp(log_p(F)), F ~ N(mean, var), for a concave ``log_p``, elementwise on ``(..., nodes)``.

    The nodes are those of the trapezoidal rule in u, f = mode + width sinh(u), about the integrand's mode.

    >>> log_mean_exp(lambda f: -0.5 * f.square(), torch.tensor([0.0]), torch.tensor([3.0])).exp()
    tensor([0.5000])
    """
    m = mean.double()[..., None]
    std = (var.double()[..., None] + torch.finfo(m.dtype).eps).sqrt()
    with torch.enable_grad():  # nodes are fixed: derivatives are those of the integrand

        def slope(t: Tensor) -> Tensor:  # of the integrand's logarithm
            value = log_p(m.detach() + std.detach() * t)
            return torch.autograd.grad(value.sum(), t, create_graph=True)[0] - t

        start = torch.zeros_like(m).requires_grad_()
        side = slope(start).detach().sign()
        near, far = torch.zeros_like(m), torch.ones_like(m)
        for number in range(_DOUBLINGS + _HALVINGS):
            at = far if number < _DOUBLINGS else 0.5 * (near + far)
            before = side * slope((side * at).requires_grad_()).detach() > 0  # the mode is beyond
            near = torch.where(before, at, near)
            far = torch.where(before, 2 * at if number < _DOUBLINGS else far, at)
        mode = (0.5 * side * (near + far)).requires_grad_()
        first = slope(mode)
        bend = torch.autograd.grad(first.sum(), mode)[0]
    width = (-bend).clamp_min(1).rsqrt()
    ends = torch.asinh(_SPAN / width)
    u = ends * torch.linspace(-1, 1, _WIDE, dtype=m.dtype, device=m.device)
    t = mode.detach() + width * u.sinh()
    log_weights = (width * u.cosh() * ends * (2 / (_WIDE - 1))).log() - 0.5 * t.square() - 0.5 * math.log(2 * math.pi)
    return (log_p(m + std * t) + log_weights).logsumexp(-1).to(mean.dtype)


def mean_log_ndtr(mean: Tensor, var: Tensor) -> Tensor:
    """E log Phi(F), F ~ N(mean, var), Phi the standard normal distribution function.

    Args:
        mean: any shape, floating point.
        var: *variances*, of the same shape, not negative.

    Returns:
        The expectation, of the arguments' shape and dtype, and differentiable.  Computed in float64, with an error of
        at most 1e-12·max(1, var, |value|).

    >>> mean_log_ndtr(torch.tensor([0.0, 0.0]), torch.tensor([0.0, 4.0]))
    tensor([-0.6931, -1.8536])
    """
    return _by_variance(mean, var, True, _wide)


def _by_variance(mean: Tensor, var: Tensor, of_log: bool, wide: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """An expectation by Gauss-Hermite up to variance 1 and by ``wide`` beyond, in the dtype of the mean."""
    m, v = mean.double(), var.double()
    narrow = _Narrow.apply(m, torch.where(v <= 1, v, 1.0), of_log)
    beyond = wide(torch.where(v > 1, m, 0.0), torch.where(v > 1, v, 1.0))
    found: Tensor = torch.where(v <= 1, narrow, beyond)
    return found.to(mean.dtype)


def _wide(m: Tensor, v: Tensor) -> Tensor:
    """E log Phi(F) for variances from 1 on, on a grid that is fine about 0, where log Phi bends, and coarse far off."""
    std = v.sqrt()
    near = m.abs() < _FAR * std
    at, scale = torch.where(near, m, 0.0), torch.where(near, std, 1.0)
    with torch.no_grad():  # derivatives are those of the density at fixed nodes
        fine = (_FINE * scale).clamp(min=1.0)
        low, high = torch.asinh((at - _SPAN * scale) / fine), torch.asinh((at + _SPAN * scale) / fine)
        step = (high - low) / (_WIDE - 1)
        u = low[..., None] + step[..., None] * torch.arange(_WIDE, dtype=m.dtype, device=m.device)
        x = u.sinh() * fine[..., None]
        values = torch.special.log_ndtr(x) * u.cosh() * (step * fine)[..., None]
    z = (x - at[..., None]) / scale[..., None]
    density = torch.exp(-z * z / 2) / (scale[..., None] * math.sqrt(2 * math.pi))
    far, weights = at_nodes(torch.where(near, 0.0, m), torch.where(near, 1.0, v))
    return torch.where(near, (values * density).sum(-1), (torch.special.log_ndtr(far) * weights).sum(-1))


def log_mean_sigmoid(mean: Tensor, var: Tensor) -> Tensor:
    """Logarithm of E sigmoid(F), F ~ N(mean, var), to the last digits in the tails too.

    Args:
        mean: any shape, floating point.
        var: *variances*, of the same shape, not negative.

    Returns:
        The logarithm, of the arguments' shape and dtype, and differentiable.  Computed in float64, with an error of
        at most 1e-13·max(1, |value|).

    Beyond variance 1 the expectation is a sum of two alternating series of scaled complementary error functions.
    They come from 1/(1 + exp(-f)) as a geometric series to each side of 0.  Their terms are moments of positive
    measures.  For these the acceleration of Cohen, Rodriguez Villegas & Zagier 2000 has a proven error relative to the
    first term.

    >>> log_mean_sigmoid(torch.tensor([0.0, -1e4]), torch.tensor([4.0, 0.5]))
    tensor([-6.9315e-01, -9.9998e+03])
    """
    return _by_variance(mean, var, False, _series)


def _series(m: Tensor, v: Tensor) -> Tensor:
    k = torch.arange(_TERMS, dtype=m.dtype, device=m.device)
    negative = _alternating_sum(m[..., None], v[..., None], k + 1)  # E exp(kF) [F < 0]
    positive = _alternating_sum(-m[..., None], v[..., None], k)  # E exp(-kF) [F > 0]
    return torch.logaddexp(negative, positive)


def _alternating_sum(m: Tensor, v: Tensor, k: Tensor) -> Tensor:
    """log sum_k (-1)^k E exp(kF) [F < 0], of one term after the other."""
    at = (m + k * v) / v.sqrt()
    right = at > 0
    scaled = -m * m / (2 * v) + (torch.special.erfcx(torch.where(right, at, 1.0) / math.sqrt(2)) / 2).log()
    plain = k * m + k * k * v / 2 + torch.special.log_ndtr(-torch.where(right, 0.0, at))
    log_terms = torch.where(right, scaled, plain)
    largest = log_terms.detach().amax(-1, keepdim=True)
    total = ((log_terms - largest).exp() * _SERIES.to(m)).sum(-1)
    return total.log() + largest[..., 0]
