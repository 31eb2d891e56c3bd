"""Draws in C, for the CPU: ``draw.c``, compiled on first use."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from momentgen.laws.values import readable
from momentgen.native import c_sources
from momentgen.runtime.kernel_cache import compile_and_load
from momentgen.runtime.toolchain import Unavailable, warn_once

__all__ = ["NativeDraws", "has_memory", "native_draws"]

_INT, _REAL, _POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


class NativeDraws:
    """The compiled functions for one dtype; all tensors are contiguous, of that dtype and on the CPU.

    Raises:
        Unavailable: if this machine cannot compile C.
    """

    def __init__(self, real: str) -> None:
        library = compile_and_load(f"tridiagonal_{real}", c_sources.tridiagonal(real))
        self._draw, self._slopes = library.draw, library.draw_slopes
        self._draw.argtypes = [_INT, _INT, _REAL, _REAL, *[_POINTER] * 3]
        self._slopes.argtypes = [_INT, _INT, _REAL, _REAL, *[_POINTER] * 5]
        self._draw.restype = self._slopes.restype = None

    def draw(self, mean: Tensor, noise: Tensor, tau: float, rho: float) -> Tensor:
        """Draws of the shape of ``noise``, ``(..., count)``; ``mean`` is ``(count,)``."""
        out = torch.empty_like(noise)
        count = mean.numel()
        self._draw(out.numel() // count, count, tau, rho, mean.data_ptr(), noise.data_ptr(), out.data_ptr())
        return out

    def slopes(self, mean: Tensor, noise: Tensor, grad: Tensor, tau: float, rho: float) -> tuple[Tensor, float, float]:
        """Derivatives in mean, τ and ρ of the inner product of ``grad`` and :meth:`draw`."""
        of_mean, sums, count = torch.zeros_like(mean), (ctypes.c_double * 2)(), mean.numel()
        tensors = (part.data_ptr() for part in (mean, noise, grad, of_mean))
        self._slopes(noise.numel() // count, count, tau, rho, *tensors, sums)
        return of_mean, sums[0], sums[1]


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor's values lie in memory as they are: not in wrappers, zero tensors, and views to be negated."""
    return (
        tensor.is_cpu
        and readable(tensor)
        and not (tensor._is_zerotensor() or tensor.is_neg() or torch._is_functional_tensor(tensor))
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
    )


@functools.cache
def native_draws(dtype: torch.dtype) -> NativeDraws | None:
    """The functions for a dtype, None where there are none."""
    real = {torch.float32: "float", torch.float64: "double"}.get(dtype)
    if real is None:
        return None
    try:
        return NativeDraws(real)
    except Unavailable as reason:
        warn_once("tridiagonal draws", f"the slower PyTorch code draws from tridiagonal posteriors: {reason}")
        return None
