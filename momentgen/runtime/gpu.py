"""Triton kernels: CUDA and HIP.  Imported only when a tensor of such a device arrives."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentgen.errors import MomentgenError
from momentgen.runtime.toolchain import Unavailable

__all__ = ["TritonKernels", "launch_shape"]

# Heuristics, not autotuning, which makes first calls slow and timings differ from run to run.
_WARPS = 8  # more than 8 warps would leave a thread fewer than 255 registers
_FEW_WARPS = 4  # more programs than multiprocessors as early as possible
_SMALL = 1 << 18
_WARP = 32


def launch_shape(n: int, lane_elements: int) -> tuple[int, int]:
    """Elements and warps of a program of the grid, for ``n`` elements in all and so many in each lane of a warp."""
    warps = _FEW_WARPS if n <= _SMALL else _WARPS
    return warps * _WARP * lane_elements, warps


class TritonKernels:
    """The Triton kernels of one variant.

    Args:
        package: the generated package that holds ``VARIANT_triton.py``.
        name: the rule.
        variant: the variant.

    Raises:
        Unavailable: if Triton is not installed.
        MomentgenError: if the module is missing or lacks a kernel, so that the package is damaged.
    """

    def __init__(self, package: str, name: str, variant: str) -> None:
        try:
            importlib.import_module("triton")
        except ImportError as error:
            raise Unavailable(f"Triton does not import ({error})") from error
        path = f"{package}.{variant}_triton"
        self._kernels: dict[str, Any] = {}
        try:
            module = importlib.import_module(path)
            for which in ("forward", "backward"):
                self._kernels[which] = getattr(module, f"{name}_{variant}_{which}_kernel")
            self._lane_elements: int = module.LANE_ELEMENTS
            #: numbers that kernels with sums take in an array, and that array by device
            self._table: tuple[float, ...] = getattr(module, "TABLE", ())
            self._tables: dict[torch.device, Tensor] = {}
        except (ImportError, AttributeError) as error:
            raise MomentgenError(f"{name}: the Triton code of variant {variant} does not load: {error}") from error

    def launch(
        self, which: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], scalars: tuple[float, ...]
    ) -> None:
        """Run ``forward`` or ``backward``; tensors share one dense layout, of any 16 or 32 bit float dtype."""
        n = inputs[0].numel()
        if n == 0:
            return
        block, warps = launch_shape(n, self._lane_elements)
        grid = ((n + block - 1) // block,)
        with _on_device(inputs[0]):
            self._kernels[which][grid](
                *inputs,
                *outputs,
                *self._arrays(inputs[0].device),
                n,
                *scalars,
                BLOCK=block,
                num_warps=warps,
                enable_fp_fusion=False,  # contraction would change the certified bits
            )

    def _arrays(self, device: torch.device) -> list[Tensor]:
        """The array of ``TABLE``, where there is one."""
        if not self._table:
            return []
        if device not in self._tables:
            self._tables[device] = torch.tensor(self._table, dtype=torch.float64, device=device)
        return [self._tables[device]]


def _on_device(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    # Triton launches on the current device, which need not be the tensor's.
    if tensor.is_cuda and torch.cuda.current_device() != tensor.device.index:
        return torch.cuda.device(tensor.device)
    return contextlib.nullcontext()
