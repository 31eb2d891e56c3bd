"""The public function: what it takes, its key, and the call of the compiled C."""

from __future__ import annotations

import ctypes
import functools
import operator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.compiled import library
from momentgen.native import c_sources
from momentgen.runtime.inputs import has_elements, kind

if TYPE_CHECKING:
    from jaxtyping import Float, Integer


#: b of one element: the draws are numbered in 32 bits.
_MOST = 2**31 - 1
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_ARGUMENTS = (
    ctypes.c_int64,  # elements
    ctypes.c_void_p,  # z
    ctypes.c_void_p,  # b of each element, or null
    ctypes.c_int64,  # b of all
    ctypes.c_uint64,  # key
    ctypes.c_void_p,  # out
    ctypes.c_int,  # threads
)


def polya_gamma(
    b: int | Integer[Tensor, "*#shape"], z: Float[Tensor, "*shape"], *, generator: torch.Generator | None = None
) -> Float[Tensor, "*shape"]:
    """Exact draws from the Pólya-gamma distribution PG(b, z), one for each element of ``z``.

    PG(b, z) is the law of (1/2π²) Σ_k g_k / ((k - ½)² + z²/4π²), g_k ~ Gamma(b, 1); its mean is b tanh(z/2)/(2z).

    Args:
        b: each result is the sum of b draws from PG(1, z).  An integer ≥ 0, or a tensor of integers that
            broadcasts to the shape of ``z``.  Time grows with b.  Where b is 0 the result is 0.
        z: the tilt; a float32 or float64 tensor of any shape, of either sign, of any finite size.  Draws are made on
            the CPU, and copied to its device.
        generator: gives the 64 bits that all draws of a call follow from; torch's own by default.  The same state gives
            the same draws whatever the number of threads and the strides of ``z``.

    Returns:
        A contiguous tensor of the shape, dtype and device of ``z``.  All is computed in float64 and rounded once.

    Raises:
        InputError: if ``z`` is not a strided tensor of float32 or float64, or holds NaN or an infinity.  If ``b`` is
            not an integer, is negative or 2³¹ and more, or does not broadcast to ``z``.  If ``z`` requires a gradient
            where gradients are recorded: a draw has no derivative in ``z``, so pass ``z.detach()``.
        MissingCompilerError: on a machine without a C compiler and without a wheel's kernels.

    Source: Polson, Scott and Windle, JASA 2013; Devroye, Stat. Probab. Lett. 2009; the head of ``polya_gamma.c``.

    >>> z = torch.tensor([0.0, 1.0, -1.0, 1e4], dtype=torch.float64)
    >>> draws = polya_gamma(1, z.expand(10_000, 4), generator=torch.Generator().manual_seed(0))
    >>> [round(float(mean), 2) for mean in draws.mean(0)]
    [0.25, 0.23, 0.23, 0.0]
    """
    _check_z(z)
    counts, draws = _checked_b(b, z)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputError(f"polya_gamma: generator must be a torch.Generator, got {type(generator).__name__}")
    device = torch.device("cpu") if generator is None else generator.device
    key = int(torch.randint(-(2**63), 2**63 - 1, (), generator=generator, device=device))
    return draws_by(sampler(), z.detach().cpu().contiguous(), counts, draws, key).to(z.device)


def _check_z(z: object) -> None:
    if not isinstance(z, Tensor):
        raise InputError(f"polya_gamma: z must be a torch.Tensor, got {type(z).__name__}")
    if not has_elements(z) or z.layout is not torch.strided:
        raise InputError(f"polya_gamma: expected a strided tensor for z, got {kind(z)}")
    if z.dtype not in (torch.float32, torch.float64):
        raise InputError(f"polya_gamma: z must be float32 or float64, got {str(z.dtype).removeprefix('torch.')}")
    if z.requires_grad and torch.is_grad_enabled():
        raise InputError(
            "polya_gamma: z requires a gradient, and a draw has no derivative in z; use z.detach() or torch.no_grad()"
        )
    if not bool(z.isfinite().all()):
        bad = (~z.reshape(-1).isfinite()).nonzero()[0]
        raise InputError(f"polya_gamma: z must be finite, got {z.reshape(-1)[bad].item()} at element {bad.item()}")


def _checked_b(b: object, z: Tensor) -> tuple[Tensor | None, int]:
    """b as a contiguous tensor of int64 of the shape of z on the CPU, or None and an integer."""
    if isinstance(b, Tensor):
        if not has_elements(b) or b.layout is not torch.strided or b.dtype not in _INTEGERS:
            what = str(b.dtype).removeprefix("torch.") if has_elements(b) else ""
            raise InputError(f"polya_gamma: b must be an int or a strided tensor of integers, got {kind(b)} {what}")
        try:
            counts = b.cpu().to(torch.int64).expand(z.shape).contiguous()
        except RuntimeError:
            raise InputError(
                f"polya_gamma: expected b to broadcast to the shape of z, {tuple(z.shape)}, got {tuple(b.shape)}"
            ) from None
        wrong = counts[(counts < 0) | (counts > _MOST)]
        if len(wrong):
            raise InputError(f"polya_gamma: b must be from 0 to {_MOST}, got {wrong[0].item()}")
        return counts, 0
    try:
        draws = None if isinstance(b, bool) else operator.index(b)  # type: ignore[arg-type]
    except TypeError:
        draws = None
    if draws is None:
        raise InputError(f"polya_gamma: b must be an int or a strided tensor of integers, got {b!r}")
    if not 0 <= draws <= _MOST:
        raise InputError(f"polya_gamma: b must be from 0 to {_MOST}, got {draws}")
    return None, draws


@functools.cache
def sampler(source: str | None = None) -> ctypes.CDLL:
    """The compiled C; another source is for tests of the tests."""
    found = library("polya_gamma", "polya_gamma", c_sources.polya_gamma() if source is None else source)
    for function in (found.polya_gamma_float32, found.polya_gamma_float64):
        function.argtypes, function.restype = _ARGUMENTS, None
    return found


def draws_by(compiled: ctypes.CDLL, z: Tensor, counts: Tensor | None, draws: int, key: int) -> Tensor:
    """Draws for a contiguous CPU tensor ``z``; ``counts``, if any, is b as int64, of its shape and contiguous."""
    out = torch.empty_like(z)
    function = compiled.polya_gamma_float32 if z.dtype == torch.float32 else compiled.polya_gamma_float64
    several = None if counts is None else counts.data_ptr()
    function(z.numel(), z.data_ptr(), several, draws, key % 2**64, out.data_ptr(), torch.get_num_threads())
    return out
