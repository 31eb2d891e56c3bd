"""The filter in C: ``filter.c`` around the generated moments of ReLU, compiled on first use."""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
from collections.abc import Sequence

import torch
from torch import Tensor

from momentgen.inference.compiled import library
from momentgen.native import c_sources

_FIELDS = ("replicates", "data", "layers", "rule", "evidence", "samples", "weights", "threads", "x_stride")
_POINTERS = ("sizes", "mean", "var", "noise", "x", "y", "draws", "log_z", "skipped")


class _Problem(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_int64) for name in _FIELDS), *((name, ctypes.c_void_p) for name in _POINTERS))


def update(
    sizes: Sequence[int], settings: tuple[int, int, int], tensors: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Update means, variances and noise in place, datum by datum.

    Args:
        sizes: widths of the layers.
        settings: numbers of rule and evidence, and samples.
        tensors: means, variances, noise, features, targets and draws, contiguous, shaped as ``adf_problem`` in
            ``filter.c`` says.

    Returns:
        log Z of each datum, and how many updates of weights and noise were skipped.

    Raises:
        MemoryError: if there is no room for the work.
    """
    mean, x = tensors[0], tensors[3]
    assert mean is not None
    assert x is not None
    log_z = torch.zeros(len(mean), x.shape[1], dtype=torch.float64)
    skipped = torch.zeros(len(mean), 2, dtype=torch.int64)
    every = (torch.tensor(sizes, dtype=torch.int64), *tensors, log_z, skipped)
    # No thread without a replicate: idle ones would wait busily.
    threads = min(len(mean), torch.get_num_threads())
    shared = x[0].numel() if len(x) > 1 else 0
    numbers = (len(mean), x.shape[1], len(sizes) - 1, *settings, mean.shape[1], threads, shared)
    problem = _Problem(*numbers, *(None if tensor is None else tensor.data_ptr() for tensor in every))
    if not native(mean.dtype)(ctypes.byref(problem)):
        raise MemoryError("density filter: no memory for the units of one replicate")
    return log_z, skipped


@functools.cache
def native(dtype: torch.dtype) -> ctypes._NamedFuncPointer:
    """The filter for float32 or float64.

    Raises:
        MissingCompilerError: if this machine cannot compile C.
    """
    name, real = ("exact_float64", "double") if dtype == torch.float64 else ("exact", "float")
    relu = importlib.resources.files("momentgen.generated.relu").joinpath(f"{name}.c").read_text(encoding="utf-8")
    found = library("PBP and EBP", f"adf_{real}", c_sources.density_filter(real, relu)).adf_filter
    found.restype, found.argtypes = ctypes.c_int64, [ctypes.c_void_p]
    return found
