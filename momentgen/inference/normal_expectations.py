"""Expectations under one normal variable that no generated op has: of any function, and log E of a likelihood.

What :mod:`momentgen.inference.likelihood` and the likelihoods beside it take their terms from.  All are computed in
float64, whatever the dtype of the arguments, by fixed numbers of nodes, elementwise.  Variances are larger by 1e-12,
which gives derivatives at variance 0 too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

#: nodes of the trapezoidal rule, and how many standard deviations it spans to each side
_NODES, _SPAN = 256, 10.0
#: added to variances
_LEAST = 1e-12
#: steps that enclose a mode, which may be 2^40 standard deviations off, and steps that find it
_DOUBLINGS, _HALVINGS = 40, 60
#: from where on downwards the derivative of torch's log Phi loses its digits
_FAR = -1e4
#: terms of an accelerated alternating series; the error is below (3 + sqrt(8))^-n of the sum
_TERMS = 22


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


_SERIES = _alternating()


def at_nodes(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Values of N(mean, var) at the nodes of the trapezoidal rule, in a last dimension of their own, and weights.

    Nodes are 0.08 standard deviations apart, so that a function may bend within 0.02 of them.
    """
    std = (var.double() + _LEAST).sqrt()
    t = torch.linspace(-_SPAN, _SPAN, _NODES, dtype=torch.float64, device=mean.device)
    return mean.double()[..., None] + std[..., None] * t, torch.softmax(-0.5 * t.square(), 0)


def mean_at_nodes(function: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor) -> Tensor:
    """E function(F), F ~ N(mean, var), by the trapezoidal rule; ``function`` is elementwise on ``(..., nodes)``."""
    x, weights = at_nodes(mean, var)
    return (function(x) * weights).sum(-1).to(mean.dtype)


def log_ndtr(x: Tensor) -> Tensor:
    """Log Phi(x), Phi the standard normal distribution function, with its derivative for any x."""
    far = x < _FAR
    tail = torch.where(far, x, -1.0)
    asymptotic = -0.5 * tail.square() - (-tail).log() - 0.5 * math.log(2 * math.pi)
    return torch.where(far, asymptotic, torch.special.log_ndtr(torch.where(far, 0.0, x)))


def log_mean_exp(log_p: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor) -> Tensor:
    """Log E exp(log_p(F)), F ~ N(mean, var), for a concave ``log_p``, elementwise on ``(..., nodes)``.

    The nodes are those of the trapezoidal rule in u, f = mode + width sinh(u), about the integrand's mode.

    >>> log_mean_exp(lambda f: -0.5 * f.square(), torch.tensor([0.0]), torch.tensor([3.0])).exp()
    tensor([0.5000])
    """
    m = mean.double()[..., None]
    std = (var.double()[..., None] + _LEAST).sqrt()
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
    u = ends * torch.linspace(-1, 1, _NODES, dtype=m.dtype, device=m.device)
    t = mode.detach() + width * u.sinh()
    log_weights = (width * u.cosh() * ends * (2 / (_NODES - 1))).log() - 0.5 * t.square() - 0.5 * math.log(2 * math.pi)
    return (log_p(m + std * t) + log_weights).logsumexp(-1).to(mean.dtype)


def log_mean_sigmoid(mean: Tensor, var: Tensor) -> Tensor:
    """Logarithm of E sigmoid(F), F ~ N(mean, var), to the last digits in the tails too.

    Args:
        mean: any shape, floating point.
        var: *variances*, of the same shape, not negative.

    Returns:
        The logarithm, of the arguments' shape and dtype, and differentiable.  Computed in float64, with an error of
        at most 1e-12·max(1, |value|).

    The expectation is a sum of two alternating series of scaled complementary error functions.
    They come from 1/(1 + exp(-f)) as a geometric series to each side of 0.  Their terms are moments of positive
    measures.  For these the acceleration of Cohen, Rodriguez Villegas & Zagier 2000 has a proven error relative to the
    first term.

    >>> log_mean_sigmoid(torch.tensor([0.0, -1e4]), torch.tensor([4.0, 0.5]))
    tensor([-6.9315e-01, -9.9998e+03])
    """
    m, v = mean.double(), var.double() + _LEAST
    k = torch.arange(_TERMS, dtype=m.dtype, device=m.device)
    negative = _alternating_sum(m[..., None], v[..., None], k + 1)  # E exp(kF) [F < 0]
    positive = _alternating_sum(-m[..., None], v[..., None], k)  # E exp(-kF) [F > 0]
    return torch.logaddexp(negative, positive).to(mean.dtype)


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
