"""Roots: of variances, of covariance matrices, of sums of squares taken as gamma distributed; values within bounds.

Variances of certain values are exactly 0, and rounding makes some negative.  They are held at 0, and the derivative at
exactly 0 must stay.  That of ``torch.clamp`` at its bound is 1 before torch 2.14 and 0 since.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from momentgen.runtime import norms


def at_least(x: Tensor, bound: float) -> Tensor:
    """``x`` where it is at least ``bound``, and the bound elsewhere; NaN stays NaN.

    >>> x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    >>> at_least(x, 0).tolist(), torch.autograd.grad(at_least(x, 0).sum(), x)[0].tolist()
    ([0.0, 0.0, 2.0], [0.0, 1.0, 1.0])
    """
    return torch.where(x < bound, bound, x)


def at_most(x: Tensor, bound: float) -> Tensor:
    """``x`` where it is at most ``bound``, and the bound elsewhere; NaN stays NaN.

    >>> at_most(torch.tensor([0.0, 2.0]), 1)
    tensor([0., 1.])
    """
    return torch.where(x > bound, bound, x)


def square_root(var: Tensor) -> Tensor:
    """Standard deviations, with derivative 0 (and not infinity) at a variance of 0."""
    positive = var > 0
    return torch.where(positive, torch.where(positive, var, 1).sqrt(), var)


def scale_of(size: Tensor) -> Tensor:
    """The power of two next to each size, by which values of it have squares within range; 1 where it is 0 or none."""
    usable = (size > 0) & size.isfinite()
    return torch.ldexp(torch.ones_like(size), torch.frexp(torch.where(usable, size, 1)).exponent)


def root_of(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of √S of a sum S of squares of normal values, S taken as gamma distributed.

    S has mean m and variance V, and a = m²/V.  The mean is √m · Γ(a + ½) / (Γ(a) √a) and the variance m minus its
    square.  This is exact where S is certain, or a multiple of a chi-squared variable (inputs of mean 0 and one
    variance).  In between it is the two-moment approximation of Patnaik.

    Source: Patnaik 1949, The non-central χ²- and F-distributions and their applications, Biometrika 36.

    Args:
        mean: of S, any shape, in float64; NaN is returned where it is negative.
        var: *variance* of S, of the same shape.
    """
    some = mean > 0
    u = torch.where(some, var, 0) / torch.where(some, mean * mean, 1)  # 1/a
    # log of Γ(a + ½)² / (Γ(a)² a): its asymptotic series for large a, where the gamma functions cancel.
    small = u < 1 / 16
    a = 1 / torch.where(small, 1, u)
    few = 2 * (torch.lgamma(a + 0.5) - torch.lgamma(a)) - a.log()
    w = torch.where(small, u, 0)
    many = w * (-1 / 4 + w * w * (1 / 96 + w * w * (-1 / 320 + w * w * 17 / 7168)))
    log_share = torch.where(small, many, few)
    root = torch.where(mean >= 0, square_root(mean), torch.nan)
    return root * (log_share / 2).exp(), torch.where(mean >= 0, -mean * torch.expm1(log_share), torch.nan)


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors, as by torch; NaN for a matrix that is not finite, where torch fails.

    So an example beyond the range of a rule does not fail those beside it.  They are computed in float64: in float32
    LAPACK does not converge for one in ten singular matrices, such as those of units that are off.

    >>> eigh(torch.tensor([[2.0, 0.0], [0.0, math.nan]]))[0]
    tensor([nan, nan])
    """
    usable = matrix.isfinite().all(-1).all(-1)[..., None]
    values, vectors = torch.linalg.eigh(torch.where(usable[..., None], matrix, 0).double())
    values, vectors = torch.where(usable, values, math.nan), torch.where(usable[..., None], vectors, math.nan)
    return values.to(matrix.dtype), vectors.to(matrix.dtype)


def matrix_root(matrix: Tensor) -> Tensor:
    """The symmetric root of a positive semidefinite matrix, shape ``(..., K, K)``; negative eigenvalues count as 0.

    The root has a derivative for equal eigenvalues too, unlike other factors.  Where two eigenvalues are 0 it counts as
    0, which is right for the root's square as long as the matrix stays semidefinite.
    """
    if not matrix.numel():
        return matrix.clone()
    wide = matrix.detach()
    values, vectors = eigh(wide.float() if matrix.dtype in (torch.float16, torch.bfloat16) else wide)
    root: Tensor = _MatrixRoot.apply(matrix, vectors, at_least(values, 0).sqrt())
    return root


def balanced_root(matrix: Tensor) -> Tensor:
    """A root R of a covariance matrix, Rᵀ R, in which small variances beside large ones keep their digits.

    The root is taken in units of each value's standard deviation.  So rounding is relative to each variance and not to
    the largest.

    Args:
        matrix: symmetric and positive semidefinite, shape ``(..., K, K)``.

    >>> covariance = torch.tensor([[1.0, 1e-6], [1e-6, 1e-12]])
    >>> root = balanced_root(covariance)
    >>> torch.allclose(root.mT @ root, covariance, rtol=1e-5, atol=0)
    True
    """
    size = scale_of(at_least(matrix.detach().diagonal(dim1=-2, dim2=-1), 0).sqrt())
    root = matrix_root(matrix / size[..., :, None] / size[..., None, :])
    return root * size[..., None, :]


class _MatrixRoot(torch.autograd.Function):
    """See :func:`matrix_root`, of a matrix, its eigenvectors and the roots of its eigenvalues."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, vectors: Tensor, roots: Tensor) -> Tensor:
        root = (vectors * roots[..., None, :]) @ vectors.mT
        return ((root + root.mT) / 2).to(matrix.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output, *inputs[1:])
        ctx.save_for_forward(output, *inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _ChangeOfRoot.apply(*ctx.saved_tensors, grads[0]), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        return _ChangeOfRoot.apply(*ctx.saved_tensors, tangents[0])


class _ChangeOfRoot(torch.autograd.Function):
    """The derivative X of the root R along a change C of the matrix: R X + X R = C, a map that is its own transpose.

    Differentiated, that is R dX + dX R = dC - dR X - X dR: derivatives of any order are changes of the same root.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(root: Tensor, vectors: Tensor, roots: Tensor, change: Tensor) -> Tensor:
        wide = change.to(vectors.dtype)
        total = roots[..., :, None] + roots[..., None, :]
        inner = vectors.mT @ ((wide + wide.mT) / 2) @ vectors
        inner = torch.where(total > 0, inner / torch.where(total > 0, total, 1), 0)
        return (vectors @ inner @ vectors.mT).to(change.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3], output)
        ctx.save_for_forward(*inputs[:3], output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        *root, found = ctx.saved_tensors
        of_change: Any = _ChangeOfRoot.apply(*root, grads[0])
        return -(of_change @ found + found @ of_change), None, None, of_change

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        *root, found = ctx.saved_tensors
        of_root, _, _, change = tangents
        return _ChangeOfRoot.apply(*root, change - of_root @ found - found @ of_root)


def coordinates(root: Tensor) -> Tensor:
    """By what a linear part is multiplied for the standard normal values it is made of, shape ``(batch, K, d)``."""
    size = norms(root)  # outputs, and then values, each in its own unit
    unit = torch.where(size > 0, 1 / torch.where(size > 0, size, 1), 0)
    scaled = (root * unit[:, None]).double()
    extent = norms(scaled.mT)[..., None]
    scaled = torch.where(extent > 0, scaled / torch.where(extent > 0, extent, 1), 0)
    gram = scaled @ scaled.mT
    gram.diagonal(dim1=-2, dim2=-1).add_(torch.finfo(root.dtype).eps ** 0.6)  # values may be fewer than they seem
    factor, failed = torch.linalg.cholesky_ex(gram)
    sound = (failed == 0)[:, None, None]
    found = torch.cholesky_solve(scaled, torch.where(sound, factor, torch.eye(factor.shape[-1]).to(factor)))
    found = torch.where(sound & (extent > 0), found / torch.where(extent > 0, extent, 1), 0)
    return unit[..., None] * found.mT.to(root)


def with_common(root: Tensor, own: Tensor, linear: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """The root of the linear part with what remainders have in common with it, and what then remains.

    Only what chance does not explain counts.  Each output keeps its *variance*.

    Args:
        root: of the exact covariance of the linear part, shape ``(batch, d, K)``.
        own: the same, each output's times its coefficient.
        linear: A e of halves of pairs of rows, over the root of their number, shape ``(2 pairs, batch, K)``.
        rest: the remainders, whose squares add up to their *variances*, of the same shape.
    """
    values = torch.einsum("nbk,bkd->nbd", linear, coordinates(root))
    common = torch.einsum("nbd,nbk->bdk", values, rest)
    square, chance = common.square().sum(1), torch.einsum("nb,nbk->bk", values.square().sum(-1), rest.square())
    beyond = (square > chance) & square.isfinite()
    if not bool(beyond.any()):
        return own, rest
    common = common * torch.where(beyond, 1 - chance / torch.where(beyond, square, 1), 0)[:, None]
    common = torch.where(beyond[:, None], common, 0)
    var, moved = own.square().sum(1) + rest.square().sum(0), own + common
    exact = moved.square().sum(1)
    outside = exact > var  # by chance
    moved = moved * torch.where(outside, var / torch.where(outside, exact, 1), 1).sqrt()[:, None]
    left = rest - torch.einsum("nbd,bdk->nbk", values, common)
    square = left.square().sum(0)
    some = (exact < var) & (square > 0)
    left = left * torch.where(some, (var - exact) / torch.where(some, square, 1), 1).sqrt() * some
    return torch.where(beyond[:, None], moved, own), torch.where(beyond, left, rest)
