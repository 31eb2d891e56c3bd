"""Draws, trace and log determinant of a tridiagonal posterior, with gradients by hand.

Autograd would make three times the passes over the elements, and some forty nodes for the scalars.  The second stage of
:mod:`momentgen.inference.tridiagonal`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from momentgen.inference.tridiagonal.correlation import LEAST_MEAN, Correlation, Factor, log, log1p, tau_and_slope
from momentgen.inference.tridiagonal.native import has_memory, native_draws

__all__ = ["Draw", "LogDet", "Trace"]


class Draw(torch.autograd.Function):
    """m + τ|m| e, e the correlated noise."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, delta: Tensor, gamma: Tensor, noise: Tensor) -> Tensor:
        flat, noise = mean.reshape(-1), noise.contiguous()
        ctx.shape, ctx.native = mean.shape, None
        ctx.tau = tau, _ = tau_and_slope(delta)
        ctx.correlation = Correlation(gamma)
        ctx.save_for_backward(flat, noise)
        if not torch.compiler.is_compiling() and has_memory(flat) and has_memory(noise):
            ctx.native = native_draws(mean.dtype)
        if ctx.native is not None:
            drawn: Tensor = ctx.native.draw(flat, noise, tau, ctx.correlation.rho)
            return drawn
        factor = Factor(flat.numel(), ctx.correlation, mean.device)
        correlated = _correlated(noise, factor.own, factor.below)
        return torch.addcmul(flat, flat.abs().clamp_min_(LEAST_MEAN).mul_(tau), correlated)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        (flat, noise), (tau, tau_slope), correlation = ctx.saved_tensors, ctx.tau, ctx.correlation
        if ctx.native is not None and has_memory(grad):
            of_mean, of_tau, of_rho = ctx.native.slopes(flat, noise, grad.contiguous(), tau, correlation.rho)
            scalars = grad.new_tensor([of_tau * tau_slope, of_rho * correlation.slope])
            return of_mean.view(ctx.shape), scalars[0], scalars[1], None
        factor = Factor(flat.numel(), correlation, grad.device)
        correlated = _correlated(noise, factor.own, factor.below)
        of_noise = grad * flat.abs().clamp_min_(LEAST_MEAN)  # over τ
        of_tau = torch.linalg.vecdot(of_noise, correlated).sum()
        of_rho = torch.linalg.vecdot(of_noise, _correlated(noise, *factor.slopes())).sum()
        # The sign of m, 0 where |m| counts as 1e-6.
        slope = F.hardshrink(flat, LEAST_MEAN).sign_().mul_(tau)
        of_mean = torch.addcmul(grad, slope * correlated, grad)
        if noise.dim() > 1:
            of_mean = of_mean.flatten(0, -2).sum(0)
        of_gamma = (of_rho * (correlation.slope * tau)).to(grad.dtype)
        return of_mean.view(ctx.shape), of_tau * tau_slope, of_gamma, None


def _correlated(noise: Tensor, own: Tensor, below: Tensor) -> Tensor:
    """A lower bidiagonal matrix, a Cholesky factor or its derivative, times vectors ``(..., count)``.

    Args:
        noise: the vectors.
        own: first elements of the diagonal; the last stands for all further ones.
        below: of the subdiagonal, likewise.
    """
    own, below = own.to(noise.dtype), below.to(noise.dtype)
    head, count = len(own), noise.shape[-1]
    if head == count:
        found = noise * own
        found[..., 1:].addcmul_(noise[..., :-1], below[:-1])
        return found
    found = noise * own[-1]
    found[..., 1:].addcmul_(noise[..., :-1], below[-1])
    torch.mul(noise[..., :head], own, out=found[..., :head])
    found[..., 1:head].addcmul_(noise[..., : head - 1], below[:-1])
    return found


class Trace(torch.autograd.Function):
    """Sum of the variances, τ² Σ |m|²."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, delta: Tensor) -> Tensor:
        flat = mean.reshape(-1).abs().clamp_min_(LEAST_MEAN)
        squares = torch.linalg.vecdot(flat, flat)
        ctx.tau = tau, _ = tau_and_slope(delta)
        ctx.save_for_backward(mean, squares)
        return squares * (tau * tau)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (mean, squares), (tau, tau_slope) = ctx.saved_tensors, ctx.tau
        of_mean = F.hardshrink(mean, LEAST_MEAN).mul_(grad * (2 * tau * tau))
        return of_mean, grad * squares * (2 * tau * tau_slope)


class LogDet(torch.autograd.Function):
    """Log determinant of the covariance: that of the correlation, and twice the logs of all τ|m|."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, delta: Tensor, gamma: Tensor) -> Tensor:
        ctx.tau, ctx.correlation = tau_and_slope(delta), Correlation(gamma)
        ctx.save_for_backward(mean)
        of_scales = mean.abs().clamp_min_(LEAST_MEAN).log_().sum()
        return (2 * of_scales + _log_det(mean.numel(), ctx.tau[0], ctx.correlation)).to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (mean,), (tau, tau_slope) = ctx.saved_tensors, ctx.tau
        of_mean = torch.where(mean.abs() > LEAST_MEAN, 2 * grad / mean, 0)
        of_gamma = grad * _log_det_slope(mean.numel(), ctx.correlation)
        return of_mean, grad * (2 * mean.numel() * tau_slope / tau), of_gamma.to(grad.dtype)


def _log_det(count: int, tau: Any, of: Correlation) -> Any:
    """Log determinant of ``count`` elements with standard deviations τ."""
    # 1 - x = root/limit
    return 2 * count * log(tau) + (count + 1) * log(of.limit) + log1p(-(of.x ** (count + 1))) - log(of.root)


def _log_det_slope(count: int, of: Correlation) -> Any:
    """Its derivative in γ."""
    last = of.x**count
    of_rho = (count + 1) * (0.5 * of.root_slope / of.limit - last * of.x_slope / (1 - last * of.x))
    return (of_rho - of.root_slope / of.root) * of.slope
