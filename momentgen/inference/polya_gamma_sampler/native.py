"""The compiled C of the sampler, called through ctypes."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from momentgen.inference.polya_gamma_sampler.envelope import ENVELOPE, Envelope
from momentgen.native import c_sources
from momentgen.runtime.kernel_cache import compile_and_load

__all__ = ["NativeSampler"]

_ARGUMENTS = (
    ctypes.c_int64,  # elements
    ctypes.c_void_p,  # z
    ctypes.c_void_p,  # b of each element, or null
    ctypes.c_int64,  # b of all
    ctypes.c_uint64,  # key
    ctypes.c_void_p,  # out
    ctypes.c_int,  # threads
)


class NativeSampler:
    """Draws by the C code, on all threads that torch may use.

    Args:
        envelope: the constants compiled in; others than the default are for tests of the tests.

    Raises:
        Unavailable: if this machine cannot compile C.
    """

    def __init__(self, envelope: Envelope = ENVELOPE) -> None:
        library = compile_and_load("polya_gamma", c_sources.polya_gamma(envelope.defines()))
        self._functions = {
            dtype: library[f"polya_gamma_{name}"]
            for dtype, name in ((torch.float32, "float32"), (torch.float64, "float64"))
        }
        for function in self._functions.values():
            function.argtypes, function.restype = _ARGUMENTS, None

    def __call__(self, z: Tensor, counts: Tensor | None, draws: int, key: Tensor) -> Tensor:
        """Draws for a contiguous CPU tensor ``z``; ``counts``, if any, is b as int64, of its shape and contiguous."""
        out = torch.empty_like(z)
        self._functions[z.dtype](
            z.numel(),
            z.data_ptr(),
            None if counts is None else counts.data_ptr(),
            draws,
            int(key) % 2**64,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out
