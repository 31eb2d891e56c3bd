"""The filter in C: ``filter.c`` around the generated moments of ReLU, compiled on first use."""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from momentgen.inference.compiled import library
from momentgen.native import c_sources

__all__ = ["Native", "native"]

_FIELDS = ("replicates", "data", "layers", "rule", "evidence", "samples", "weights", "threads", "x_stride")
_POINTERS = ("sizes", "mean", "var", "noise", "x", "y", "draws", "log_z", "skipped")


class _Problem(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_int64) for name in _FIELDS), *((name, ctypes.c_void_p) for name in _POINTERS))


@dataclass(frozen=True)
class Native:
    """The compiled filter for one dtype."""

    library: ctypes.CDLL

    def __call__(
        self,
        sizes: Sequence[int],
        rule: int,
        evidence: int,
        samples: int,
        mean: Tensor,
        var: Tensor,
        noise: Tensor,
        x: Tensor,
        y: Tensor,
        draws: Tensor | None,
        log_z: Tensor,
        skipped: Tensor,
    ) -> None:
        """Update ``mean``, ``var``, ``noise`` and ``skipped`` in place, datum by datum, and write ``log_z``.

        All tensors are contiguous and on the CPU, shaped as ``adf_problem`` in ``filter.c`` says.

        Raises:
            MemoryError: if there is no room for the work.
        """
        widths = torch.tensor(sizes, dtype=torch.int64)
        numbers = (len(mean), x.shape[1], len(sizes) - 1, rule, evidence, samples, mean.shape[1])
        # No thread without a replicate: idle ones would wait busily.
        threads = min(len(mean), torch.get_num_threads())
        tensors = (widths, mean, var, noise, x, y, draws, log_z, skipped)
        problem = _Problem(
            *numbers,
            threads,
            x[0].numel() if len(x) > 1 else 0,
            *(None if tensor is None else tensor.data_ptr() for tensor in tensors),
        )
        if not self.library.adf_filter(ctypes.byref(problem)):
            raise MemoryError("density filter: no memory for the units of one replicate")


@functools.cache
def native(dtype: torch.dtype) -> Native:
    """The filter for float32 or float64.

    Raises:
        MissingCompilerError: if this machine cannot compile C.
    """
    name, real = ("exact_float64", "double") if dtype == torch.float64 else ("exact", "float")
    relu = importlib.resources.files("momentgen.generated.relu").joinpath(f"{name}.c").read_text(encoding="utf-8")
    found = library("PBP and EBP", f"adf_{real}", c_sources.density_filter(real, relu))
    found.adf_filter.restype = ctypes.c_int64
    found.adf_filter.argtypes = [ctypes.c_void_p]
    return Native(found)
