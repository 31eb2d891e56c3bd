"""The public function: what it takes, its key, and the opaque torch operator behind it.

==================== =======================================================================
tensors              served by
==================== =======================================================================
CPU                  the compiled C; without a compiler the PyTorch code, with a warning
CUDA/HIP             the PyTorch code
other devices        copied to the CPU and back, with a warning
==================== =======================================================================
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import forward_ad

from momentgen.errors import InputError
from momentgen.inference.polya_gamma_sampler.native import NativeSampler
from momentgen.inference.polya_gamma_sampler.portable import portable_draws
from momentgen.runtime.inputs import has_elements, kind
from momentgen.runtime.toolchain import Unavailable, warn_once

if TYPE_CHECKING:
    from jaxtyping import Float, Integer

__all__ = ["polya_gamma"]

#: b of one element: the draws are numbered in 32 bits.
_MOST = 2**31 - 1
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
#: private in torch; without it a transform fails with torch's message, not ours
_transforming = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


def polya_gamma(
    b: int | Integer[Tensor, "*#shape"], z: Float[Tensor, "*shape"], *, generator: torch.Generator | None = None
) -> Float[Tensor, "*shape"]:
    """Exact draws from the Pólya-gamma distribution PG(b, z), one for each element of ``z``.

    PG(b, z) is the law of (1/2π²) Σ_k g_k / ((k - ½)² + z²/4π²), g_k ~ Gamma(b, 1); its mean is b tanh(z/2)/(2z).

    Args:
        b: each result is the sum of b draws from PG(1, z).  An integer ≥ 0, or a tensor of integers that
            broadcasts to the shape of ``z``.  Time grows with b.  Where b is 0 the result is 0.
        z: the tilt; a float32 or float64 tensor of any shape, of either sign, of any finite size.
        generator: gives the 64 bits that all draws of a call follow from; torch's own for the device of ``z`` by
            default.  The same state gives the same draws whatever the number of threads and the strides of ``z``;
            on other devices, up to rounding.

    Returns:
        A contiguous tensor of the shape, dtype and device of ``z``.  All is computed in float64 and rounded once.

    Raises:
        InputError: if ``z`` is not a strided tensor of float32 or float64, or holds NaN or an infinity.  If ``b`` is
            not an integer, is negative or 2³¹ and more, or does not broadcast to ``z``.  If ``z`` requires a gradient
            where gradients are recorded: a draw has no derivative in ``z``, so pass ``z.detach()``.  Inside transforms
            of ``torch.func`` such as ``vmap``: the function is elementwise, so call it on the whole batch.

    Source: Polson, Scott and Windle, JASA 2013; Devroye, Stat. Probab. Lett. 2009; the package's docstring.

    >>> z = torch.tensor([0.0, 1.0, -1.0, 1e4], dtype=torch.float64)
    >>> draws = polya_gamma(1, z.expand(10_000, 4), generator=torch.Generator().manual_seed(0))
    >>> [round(float(mean), 2) for mean in draws.mean(0)]
    [0.25, 0.23, 0.23, 0.0]
    """
    _check_z(z)
    counts, draws = _check_b(b, z)
    return _draws(z, counts, draws, _key(z, generator))


def _check_z(z: object) -> None:
    if not isinstance(z, Tensor):
        raise InputError(f"polya_gamma: z must be a torch.Tensor, got {type(z).__name__}")
    if not has_elements(z) or z.layout is not torch.strided:
        raise InputError(f"polya_gamma: expected a strided tensor for z, got {kind(z)}")
    if z.dtype not in (torch.float32, torch.float64):
        raise InputError(f"polya_gamma: z must be float32 or float64, got {str(z.dtype).removeprefix('torch.')}")
    if not torch.compiler.is_compiling() and _transforming():
        raise InputError(
            "polya_gamma: expected a call outside torch.func (vmap, grad, jvp); a draw has no derivative, and the "
            "function is elementwise: call it on the whole batch"
        )
    if (z.requires_grad and torch.is_grad_enabled()) or _has_tangent(z):
        raise InputError(
            "polya_gamma: z requires a gradient, and a draw has no derivative in z; use z.detach() or torch.no_grad()"
        )


def _has_tangent(z: Tensor) -> bool:
    """Whether forward mode carries a tangent along."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return False
    return forward_ad.unpack_dual(z).tangent is not None


def _check_b(b: object, z: Tensor) -> tuple[Tensor | None, int]:
    """b as a tensor of the shape of z, or None and an integer."""
    if isinstance(b, Tensor):
        if not has_elements(b) or b.layout is not torch.strided or b.dtype not in _INTEGERS:
            what = str(b.dtype).removeprefix("torch.") if has_elements(b) else ""
            raise InputError(f"polya_gamma: b must be an int or a strided tensor of integers, got {kind(b)} {what}")
        if b.device != z.device and b.dim() > 0:
            raise InputError(f"polya_gamma: expected b and z on one device, got b on {b.device}, z on {z.device}")
        try:
            return b.to(z.device).expand(z.shape), 0
        except RuntimeError:
            raise InputError(
                f"polya_gamma: expected b to broadcast to the shape of z, {tuple(z.shape)}, got {tuple(b.shape)}"
            ) from None
    try:
        draws = None if isinstance(b, bool) else operator.index(b)  # type: ignore[arg-type]
    except TypeError:
        draws = None
    if draws is None:
        raise InputError(f"polya_gamma: b must be an int or a strided tensor of integers, got {b!r}")
    if not 0 <= draws <= _MOST:
        raise InputError(f"polya_gamma: b must be from 0 to {_MOST}, got {draws}")
    return None, draws


def _key(z: Tensor, generator: torch.Generator | None) -> Tensor:
    """64 random bits on the device of z."""
    if z.is_meta:
        return torch.empty((), dtype=torch.int64, device="meta")
    if generator is not None:
        if not isinstance(generator, torch.Generator):
            raise InputError(f"polya_gamma: generator must be a torch.Generator, got {type(generator).__name__}")
        source = generator.device
    else:
        source = z.device if z.is_cpu or z.is_cuda else torch.device("cpu")
    return torch.randint(-(2**63), 2**63 - 1, (), generator=generator, device=source).to(z.device)


# ---------------------------------------------------------------- what is computed


# Opaque to torch and without derivative, so that compiled and exported code can hold it.
@torch.library.custom_op("momentgen::polya_gamma", mutates_args=())
def _draws(z: Tensor, counts: Tensor | None, draws: int, key: Tensor) -> Tensor:
    z = z.detach().contiguous()
    if counts is not None:
        counts = counts.to(torch.int64).contiguous()
    if z.numel() == 0:
        return torch.empty_like(z)
    if not (z.is_cpu or z.is_cuda):
        warn_once(
            f"polya_gamma {z.device.type}",
            f"there is no Pólya-gamma sampler for {z.device.type} tensors: they are copied to the CPU, the draws back",
        )
        return _draws(z.cpu(), None if counts is None else counts.cpu(), draws, key.cpu()).to(z.device)
    _check_values(z, counts)
    if z.is_cpu:
        if not isinstance(native := _native(), Unavailable):
            return native(z, counts, draws, key)
        warn_once("polya_gamma cpu", f"the slower PyTorch code draws Pólya-gamma variables on cpu: {native}")
    return portable_draws(z, counts, draws, key)


@_draws.register_fake
def _(z: Tensor, counts: Tensor | None, draws: int, key: Tensor) -> Tensor:
    return torch.empty(z.shape, dtype=z.dtype, device=z.device)


def _check_values(z: Tensor, counts: Tensor | None) -> None:
    """Refuse what has no draw; on a GPU this waits for the device once."""
    ends = torch.stack(torch.aminmax(z))
    if not bool(ends.isfinite().all()):
        bad = (~z.reshape(-1).isfinite()).nonzero()[0]
        raise InputError(f"polya_gamma: z must be finite, got {z.reshape(-1)[bad].item()} at element {bad.item()}")
    if counts is not None:
        lowest, highest = torch.stack(torch.aminmax(counts)).tolist()
        if lowest < 0 or highest > _MOST:
            raise InputError(f"polya_gamma: b must be from 0 to {_MOST}, got {lowest if lowest < 0 else highest}")


@functools.cache
def _native() -> NativeSampler | Unavailable:
    """The C code, compiled on first use, or why this machine cannot compile it."""
    try:
        return NativeSampler()
    except Unavailable as error:
        return error
