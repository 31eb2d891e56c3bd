"""The maximum over windows in C, for the CPU: ``maximum.c``, compiled on first use."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.numerics.maximum_integral import RULES, legendre
from momentgen.laws.numerics.maximum_rule import definitions
from momentgen.native import c_sources
from momentgen.runtime.kernel_cache import compile_and_load
from momentgen.runtime.toolchain import Unavailable, warn_once

__all__ = ["NativeMaximum", "native_maximum"]

_NUMBERS = ("rows", "windows", "n", "size", "nodes", "threads")
_POINTERS = ("table", "places", "weights", "mean", "var", "grad_of_mean", "grad_of_var", "out_mean", "out_var")


class _Problem(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("reach_square", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in _POINTERS),
    )


class NativeMaximum:
    """The compiled functions for one dtype; all tensors are contiguous, of that dtype and on the CPU.

    Args:
        dtype: float32 or float64.

    Raises:
        Unavailable: if this machine cannot compile C.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        real = "double" if dtype == torch.float64 else "float"
        self._rule = RULES[dtype]
        self._real = ctypes.c_double if dtype == torch.float64 else ctypes.c_float
        library = compile_and_load(f"maximum_of_windows_{real}", c_sources.maximum_of_windows(definitions(real)))
        self._moments, self._gradients = library.maximum_moments, library.maximum_gradients
        for function in (self._moments, self._gradients):
            function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int64

    def moments(self, mean: Tensor, var: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the maximum of each window, each of shape ``(rows, windows)``.

        Args:
            mean: shape ``(rows, size)``.
            var: *variances*, of the same shape.
            table: shape ``(windows, n)``, int64: the values of a row that each window has; -1 is an empty place.

        Raises:
            MemoryError: if there is no room for the elements of some windows.
        """
        found = mean.new_empty(len(mean), len(table)), mean.new_empty(len(mean), len(table))
        self._run(self._moments, mean, var, table, (None, None), found)
        return found

    def gradients(
        self, mean: Tensor, var: Tensor, grad_of_mean: Tensor, grad_of_var: Tensor, table: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of mean and variance, each of shape ``(rows, size)``; of the results' ``(rows, windows)``."""
        found = torch.zeros_like(mean), torch.zeros_like(var)
        self._run(self._gradients, mean, var, table, (grad_of_mean, grad_of_var), found)
        return found

    def _run(
        self,
        function: Callable[..., int],
        mean: Tensor,
        var: Tensor,
        table: Tensor,
        grads: tuple[Tensor | None, Tensor | None],
        found: tuple[Tensor, Tensor],
    ) -> None:
        rows, (windows, n) = len(mean), table.shape
        nodes = self._rule.nodes(n)
        numbers = (rows, windows, n, mean.shape[1], nodes, torch.get_num_threads() if rows * windows > 64 else 1)
        places = [ctypes.addressof(part) for part in _places(nodes, self._real)]
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in (mean, var, *grads, *found)]
        if not function(
            ctypes.byref(_Problem(*numbers, self._rule.reach_square(n), table.data_ptr(), *places, *pointers))
        ):
            raise MemoryError(f"maximum: no memory for windows of {n} values")


@functools.cache
def _places(nodes: int, real: Any) -> tuple[ctypes.Array[Any], ctypes.Array[Any]]:
    places, weights = legendre(nodes)
    return (real * nodes)(*places), (real * nodes)(*weights)


@functools.cache
def native_maximum(dtype: torch.dtype) -> NativeMaximum | None:
    """The functions for a dtype, None where there are none."""
    if dtype not in RULES:
        return None
    try:
        return NativeMaximum(dtype)
    except Unavailable as reason:
        warn_once("maximum of windows", f"the slower PyTorch code computes maxima of more than two values: {reason}")
        return None
