"""Covariances of functions of jointly normal values, from derivatives of their means.

For X jointly normal and f taken value by value, Cov(f(X_i), f(X_j)) = Σ_k c_k(i) c_k(j) C_ij^k / k!, with Hermite
coefficients c_k = E f^(k)(X) (Mehler's formula).  They are derivatives of m = E f(X) in mean and variance, since m
solves the heat equation ∂²m/∂μ² = 2 ∂m/∂v:

    c_1 = ∂m/∂μ,  c_2 = 2 ∂m/∂v,  c_3 = 2 ∂²m/∂v∂μ,  c_4 = 4 ∂²m/∂v².

A sum that is cut off lacks a part of the exact variance that is not negative.  The exact variance stands on the
diagonal.  So the matrix is positive semidefinite: elementwise products of such matrices, plus a diagonal that is not
negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentgen.laws.numerics.root import square_root

__all__ = ["MOST_TERMS", "Expansion", "Function", "covariance", "expansion"]

#: terms of the sum that can be had
MOST_TERMS = 4

#: mean and variance of a function of one value, from those of the value
Function = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Expansion(NamedTuple):
    """What a function of values one at a time makes of them; all tensors of one shape.

    Args:
        mean: of the function.
        var: its *variance*, exact.
        slope: c_1, what it does to covariances with other values.
        higher: c_k v^(k/2) / √k! for k = 2 and on, of which the squares are shares of the variance.
    """

    mean: Tensor
    var: Tensor
    slope: Tensor
    higher: tuple[Tensor, ...]


def expansion(function: Function, mean: Tensor, var: Tensor, terms: int) -> Expansion:
    """Moments of a function of single values, and the coefficients of its covariances.

    The coefficients are scaled down where, by rounding, their squares add up to more than the variance.

    Args:
        function: mean and variance of the function, differentiable (twice for more than two terms).
        mean: of the values.
        var: their *variances*, of the same shape.
        terms: from 1 to 4.
    """
    vjp: Any = torch.func.vjp
    out, pull, out_var = vjp(function, mean, var, has_aux=True)
    slope, by_var = pull(torch.ones_like(out))
    certain = var == 0
    safe = torch.where(certain, 1, var)
    sd = square_root(var)
    higher: list[Tensor] = []
    if terms > 1:
        higher.append(torch.where(certain, 0, 2 * var * by_var))
    if terms > 2:

        def rise(m: Tensor, v: Tensor) -> Tensor:
            inner, own_pull, _ = vjp(function, m, v, has_aux=True)
            found: Tensor = own_pull(torch.ones_like(inner))[1]
            return found

        second, of_second = vjp(rise, mean, safe)
        by_both, by_var_twice = of_second(torch.ones_like(second))
        scaled = [2 * by_both * var * sd, 4 * by_var_twice * var * var][: terms - 2]
        higher += [torch.where(certain, 0, part) for part in scaled]
    higher = [part / math.sqrt(math.factorial(k)) for k, part in enumerate(higher, 2)]
    share = (slope * sd).square()
    for part in higher:
        share = share + part.square()
    share, whole = share.detach(), out_var.detach()
    scale = torch.where(share > whole, (whole / torch.where(share > 0, share, 1)).sqrt(), 1).to(out.dtype)
    return Expansion(out, out_var, slope * scale, tuple(part * scale for part in higher))


def covariance(of: Expansion, var: Tensor, cov: Tensor) -> Tensor:
    """The covariance matrix of the function of all values.

    Args:
        of: the function's expansion, its tensors flattened to shape ``(N,)``.
        var: *variances* of the values, shape ``(N,)``.
        cov: their covariance, shape ``(N, N)``.
    """
    found = cov * (of.slope[:, None] * of.slope)
    if of.higher:
        certain = var == 0
        inverse = torch.where(certain, 0, torch.where(certain, 1, var).rsqrt())
        correlation = cov * inverse[:, None] * inverse
        rest: Any = 0.0
        for part in reversed(of.higher):
            rest = part[:, None] * part + correlation * rest
        found = found + correlation.square() * rest
    return torch.diagonal_scatter(found, of.var)
