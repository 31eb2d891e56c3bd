"""Every function that the table has for ``Diagonal``, against a million samples, torch's Jacobian or torch itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sampling import assert_agrees, law_of, moments_of, normal_input
from torch import Tensor

from momentgen.errors import InputError, UnsupportedError
from momentgen.laws import Diagonal, diagonal, lower, point
from momentgen.laws.activations import UNDEFINED
from momentgen.laws.law import Law
from momentgen.laws.point import Point
from momentgen.laws.table import KINDS
from momentgen.runtime import Moments


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def fixed(*shape: int, seed: int = 100) -> Tensor:
    """A certain tensor."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _sparse() -> Tensor:
    return torch.where(fixed(4, 5) > 0, fixed(4, 5), 0.0).to_sparse()


def _twice() -> Tensor:
    """A sparse matrix that says one place twice: the two values add up."""
    return torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 2]], fixed(3), (2, 5))


# -------------------------------------------------------------------- linear

#: name of a function, with what is special -> (function, shapes of its random arguments).  All are linear in the
#: random arguments together, and are checked exactly: Var = J² v with torch's Jacobian J.
LINEAR: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "linear": (lambda x: F.linear(x, fixed(4, 5), fixed(4)), ((2, 5),)),
    "linear, by keyword": (lambda x: F.linear(input=x, weight=fixed(4, 5), bias=fixed(4)), ((2, 5),)),
    "linear, bias random": (lambda x, b: F.linear(x, fixed(4, 5), b), ((2, 5), (4,))),
    "linear, only the bias random": (lambda b: F.linear(fixed(2, 5), fixed(4, 5), b), ((4,),)),
    "linear, only the weight random": (lambda w: F.linear(fixed(2, 5), w, fixed(4)), ((4, 5),)),
    "conv1d": (lambda x: F.conv1d(x, fixed(3, 2, 2), fixed(3), dilation=2), ((1, 2, 6),)),
    "conv1d, no batch": (lambda x: F.conv1d(x, fixed(3, 2, 2), fixed(3)), ((2, 6),)),
    "conv1d, no batch, bias random": (lambda b: F.conv1d(fixed(2, 6), fixed(3, 2, 2), b), ((3,),)),
    "conv1d, padding same": (lambda x: F.conv1d(x, fixed(3, 2, 3), padding="same"), ((2, 2, 5),)),
    "conv2d": (lambda x: F.conv2d(x, fixed(4, 1, 3, 3), fixed(4), 2, 1, 1, 2), ((1, 2, 5, 5),)),
    "conv2d, by keyword": (lambda x: F.conv2d(x, weight=fixed(4, 2, 3, 3), bias=None, stride=2), ((1, 2, 5, 5),)),
    "conv2d, weight and bias random": (lambda w, b: F.conv2d(fixed(1, 2, 4, 4), w, b, padding=1), ((3, 2, 3, 3), (3,))),
    "conv2d, no batch, bias random": (lambda x, b: F.conv2d(x, fixed(3, 2, 3, 3), b), ((2, 4, 4), (3,))),
    "conv3d": (lambda x: F.conv3d(x, fixed(2, 1, 2, 2, 2), fixed(2)), ((1, 1, 3, 3, 3),)),
    "conv_transpose1d": (lambda x: F.conv_transpose1d(x, fixed(2, 3, 2), fixed(3)), ((1, 2, 3),)),
    "conv_transpose2d": (
        lambda x: F.conv_transpose2d(x, fixed(2, 3, 3, 3), fixed(3), stride=2, output_padding=1),
        ((1, 2, 3, 3),),
    ),
    "conv_transpose2d, weight and bias random": (
        lambda w, b: F.conv_transpose2d(fixed(1, 2, 3, 3), w, b, stride=2),
        ((2, 3, 3, 3), (3,)),
    ),
    "conv_transpose3d": (lambda x: F.conv_transpose3d(x, fixed(1, 2, 2, 2, 2)), ((1, 1, 2, 2, 2),)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, ceil_mode=True), ((1, 2, 6),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), ((1, 1, 5, 5),)),
    "avg_pool2d, padding not counted": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), ((1, 1, 5, 5),)),
    "avg_pool2d, ceil mode, padded": (lambda x: F.avg_pool2d(x, (3, 2), 2, 1, True), ((1, 1, 6, 4),)),
    "avg_pool2d, own divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), ((1, 1, 4, 4),)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), ((1, 1, 2, 4, 2),)),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 2), ((1, 1, 5),)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), ((1, 1, 5, 4),)),
    "adaptive_avg_pool2d, one size": (lambda x: F.adaptive_avg_pool2d(x, output_size=(None, 1)), ((1, 1, 5, 4),)),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, (1, None, 2)), ((1, 1, 2, 3, 3),)),
    "trace": (torch.trace, ((3, 3),)),
    "kron": (lambda x: torch.kron(x, fixed(4, 2)), ((2, 3),)),
    "kron, of fewer dimensions": (lambda x: torch.kron(fixed(4, 2), x), ((3,),)),
    "cross": (lambda x: torch.cross(fixed(3, 3), x, dim=1), ((3, 3),)),
    "cross, the default of linalg": (lambda x: torch.linalg.cross(x, fixed(3, 3)), ((3, 3),)),
    "linalg_vecdot": (lambda x: torch.linalg.vecdot(x, fixed(2, 3)), ((2, 3),)),
    "vdot": (lambda x: torch.vdot(fixed(5), x), ((5,),)),
    "chain_matmul": (lambda x: torch.chain_matmul(fixed(4, 2), fixed(2, 2), x), ((2, 3),)),
    "linalg_multi_dot": (lambda x: torch.linalg.multi_dot([fixed(4, 2), x, fixed(3, 4)]), ((2, 3),)),
    "trapezoid": (lambda x: torch.trapezoid(x, fixed(5).sort()[0]), ((2, 5),)),
    "trapz": (lambda x: torch.trapz(x, dx=0.5, dim=0), ((2, 5),)),
    "cumulative_trapezoid": (lambda x: torch.cumulative_trapezoid(x, dim=1), ((2, 5, 3),)),
    "gradient": (lambda x: torch.gradient(x, spacing=2.0)[1], ((3, 5),)),
    "gradient, at places": (
        lambda x: torch.gradient(x, spacing=(fixed(5).sort()[0],), dim=1, edge_order=2)[0],
        ((3, 5),),
    ),
    "grid_sample": (lambda x: F.grid_sample(x, fixed(2, 3, 3, 2).tanh(), align_corners=False), ((2, 2, 3, 4),)),
    "grid_sample, reflected": (
        lambda x: F.grid_sample(x, fixed(2, 3, 3, 2), "bilinear", "reflection", True),
        ((2, 1, 3, 4),),
    ),
    "affine_grid": (lambda x: F.affine_grid(x, [2, 1, 3, 4], align_corners=True), ((2, 2, 3),)),
    "mm, sparse": (lambda x: torch.sparse.mm(_sparse(), x), ((5, 3),)),
    "mm, sparse, twice the same place": (lambda x: torch.mm(_twice(), x), ((5, 3),)),
    "matmul, sparse by rows": (lambda x: _sparse().to_sparse_csr() @ x, ((5, 3),)),
    "matmul, a sparse one last": (lambda x: x @ _sparse(), ((3, 4),)),
    "addmm, sparse": (lambda b, x: torch.sparse.addmm(b, _sparse(), x, alpha=0.5), ((4, 3), (5, 3))),
    "linear, sparse": (lambda x: F.linear(x, _sparse().to_sparse_csr()), ((3, 5),)),
    "rfft": (lambda x: torch.view_as_real(torch.fft.rfft(x)), ((2, 5),)),
    "fft": (lambda x: torch.view_as_real(torch.fft.fft(x, n=7, dim=0, norm="ortho")), ((5, 2),)),
    "fft2": (lambda x: torch.view_as_real(torch.fft.fft2(x)), ((2, 3, 4),)),
    "rfft2": (lambda x: torch.view_as_real(torch.fft.rfft2(x, s=(3, 6))), ((2, 3, 4),)),
    "fftn": (lambda x: torch.fft.fftn(x).imag, ((2, 3),)),
    "rfftn": (lambda x: torch.fft.rfftn(x, dim=(0, 2)).real, ((2, 3, 4),)),
    "irfft": (lambda x: torch.fft.irfft(x, n=6), ((2, 4),)),
    "ifft": (lambda x: torch.fft.ifft(x).conj().imag, ((2, 4),)),
    "ifft2": (lambda x: torch.real(torch.fft.ifft2(x)), ((3, 4),)),
    "ifftn": (lambda x: torch.fft.ifftn(x, dim=1).real, ((2, 3),)),
    "irfftn": (lambda x: torch.fft.irfftn(x), ((2, 3),)),
    "irfft2": (lambda x: torch.fft.irfft2(torch.complex(x[0], x[1])), ((2, 3, 4),)),
    "hfft": (lambda x: torch.fft.hfft(torch.view_as_complex(x)), ((3, 4, 2),)),
    "ihfft": (lambda x: torch.imag(torch.fft.ihfft(x)), ((2, 4),)),
    "imag": (lambda x: torch.imag(torch.fft.rfft(x)), ((2, 4),)),
    "view_as_real": (lambda x: torch.view_as_real(torch.fft.rfft(x).conj().resolve_conj()), ((2, 4),)),
    "complex": (lambda x, y: torch.complex(x, y).imag, ((2, 3), (2, 3))),
    "view_as_complex": (lambda x: torch.view_as_complex(x).real, ((2, 3, 2),)),
    "conj": (lambda x: x.conj(), ((2, 3),)),
    "conj_physical": (lambda x: x.conj_physical(), ((2, 3),)),
    "resolve_conj": (lambda x: x.resolve_conj(), ((2, 3),)),
    "resolve_neg": (lambda x: x.resolve_neg(), ((2, 3),)),
    "hfft2": (lambda x: torch.fft.hfft2(x), ((2, 4),)),
    "ihfft2": (lambda x: torch.fft.ihfft2(x).real, ((2, 4),)),
    "hfftn": (lambda x: torch.fft.hfftn(x), ((2, 4),)),
    "ihfftn": (lambda x: torch.fft.ihfftn(x).real, ((2, 4),)),
    "mean": (lambda x: x.mean(), ((2, 3),)),
    "mean, a dim": (lambda x: x.mean(1), ((2, 3),)),
    "mean, dims kept": (lambda x: torch.mean(x, (0, -1), keepdim=True), ((2, 3, 2),)),
    "mean, axis": (lambda x: x.mean(axis=1, keepdims=True), ((2, 3),)),
    "mean, dim None": (lambda x: x.mean(dim=None, keepdim=True), ((2, 3),)),
    "mean, no dims": (lambda x: x.mean(()), ((2, 3),)),
    "sum": (lambda x: x.sum(), ((2, 3),)),
    "sum, a dim kept": (lambda x: x.sum(-1, True), ((2, 3),)),
    "sum, dims": (lambda x: torch.sum(x, dim=[0, 1]), ((2, 3, 2),)),
    "sum, axis": (lambda x: torch.sum(x, axis=0), ((2, 3),)),
    "cumsum": (lambda x: x.cumsum(1), ((2, 3),)),
    "cumsum, by keyword": (lambda x: torch.cumsum(x, dim=0), ((2, 3),)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2), ((1, 1, 3, 2),)),
    "interpolate, nearest-exact": (lambda x: F.interpolate(x, (5, 3), mode="nearest-exact"), ((1, 1, 3, 2),)),
    "interpolate, linear": (lambda x: F.interpolate(x, 7, mode="linear"), ((1, 1, 3),)),
    "interpolate, bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), ((1, 1, 3, 2),)),
    "interpolate, bilinear, smaller": (lambda x: F.interpolate(x, (2, 2), mode="bilinear"), ((1, 1, 5, 4),)),
    "interpolate, bilinear, antialias": (
        lambda x: F.interpolate(x, (2, 2), mode="bilinear", antialias=True),
        ((1, 1, 5, 4),),
    ),
    "interpolate, corners": (lambda x: F.interpolate(x, (5, 4), mode="bilinear", align_corners=True), ((1, 1, 3, 2),)),
    "interpolate, bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), ((1, 1, 3, 3),)),
    "interpolate, trilinear": (lambda x: F.interpolate(x, scale_factor=1.5, mode="trilinear"), ((1, 1, 2, 3, 2),)),
    "pad": (lambda x: F.pad(x, (1, 2)), ((1, 1, 3),)),
    "pad, by a constant": (lambda x: F.pad(x, (1, 2, 0, 1), value=3.0), ((1, 2, 3),)),
    "pad, negative": (lambda x: F.pad(x, (-1, 2)), ((1, 2, 3),)),
    "pad, reflect": (lambda x: F.pad(x, (1, 1), "reflect"), ((1, 1, 3),)),
    "pad, replicate": (lambda x: F.pad(x, (1, 1), mode="replicate"), ((1, 1, 3),)),
    "pad, circular": (lambda x: F.pad(x, (1, 1, 1, 0), mode="circular"), ((1, 1, 3, 3),)),
    "fold": (lambda x: F.fold(x, (3, 3), 2), ((1, 4, 4),)),
    "embedding_bag": (
        lambda w: F.embedding_bag(torch.tensor([[0, 2], [2, 1]]), fixed(3, 2), per_sample_weights=w, mode="sum"),
        ((2, 2),),
    ),
    "diff": (lambda x: torch.diff(x), ((2, 4),)),
    "diff, second, along a dim": (lambda x: x.diff(2, 0), ((4, 2),)),
    "diff, with ends": (lambda x, y: torch.diff(x, dim=1, prepend=y, append=fixed(2, 1)), ((2, 3), (2, 1))),
    # arithmetic
    "add": (lambda x, y: x + y, ((4,), (4,))),
    "add, broadcast": (lambda x, y: x + y, ((3, 1), (2,))),
    "add, a tensor": (lambda x: x + fixed(4), ((4,),)),
    "add, to a tensor": (lambda x: fixed(4) + x, ((4,),)),
    "add, a number": (lambda x: 2.5 + x, ((4,),)),
    "add, larger tensor": (lambda x: x + fixed(3, 1), ((4,),)),
    "add, larger tensor, flattened": (lambda x: (x + fixed(3, 1)).view(-1), ((4,),)),
    "add, alpha": (lambda x, y: torch.add(x, y, alpha=0.3), ((4,), (4,))),
    "add, alpha, a tensor": (lambda x: torch.add(fixed(4), x, alpha=3), ((4,),)),
    "add, by keyword": (lambda x, y: torch.add(x, other=y), ((4,), (4,))),
    "add, in place": (lambda x, y: x.clone().add_(y, alpha=2), ((4,), (4,))),
    "add, a mask": (lambda x: x + (fixed(4) > 0), ((4,),)),
    "sub": (lambda x, y: x - y, ((4,), (4,))),
    "sub, from a number": (lambda x: 1 - x, ((4,),)),
    "sub, from a tensor": (lambda x: fixed(4) - x, ((4,),)),
    "sub, alpha": (lambda x, y: x.sub(y, alpha=2), ((4,), (4,))),
    "rsub": (lambda x, y: torch.rsub(x, y), ((4,), (4,))),
    "rsub, alpha": (lambda x, y: torch.rsub(x, y, alpha=2), ((4,), (4,))),
    "mul": (lambda x: x * fixed(4), ((4,),)),
    "mul, reflected": (lambda x: 0.5 * x, ((4,),)),
    "mul, a mask": (lambda x: x * (fixed(2, 4) > 0), ((4,),)),
    "mul, integers": (lambda x: x * torch.arange(4), ((4,),)),
    "div": (lambda x: x / fixed(4), ((4,),)),
    "div, a number": (lambda x: x.div(-2), ((4,),)),
    "neg": (lambda x: -x, ((4,),)),
    "rdiv": (lambda x: torch.true_divide(x, 3.0), ((4,),)),
    # products with one random factor
    "matmul": (lambda x: x @ fixed(3, 2), ((2, 3),)),
    "matmul, from the left": (lambda x: fixed(2, 3) @ x, ((3,),)),
    "matmul, batches": (lambda x: torch.matmul(fixed(2, 1, 2, 3), x), ((3, 3, 2),)),
    "matmul, by keyword": (lambda x: torch.matmul(x, other=fixed(3, 2)), ((2, 3),)),
    "rmatmul": (lambda x: fixed(2, 3).__matmul__(x), ((3, 2),)),
    "mm": (lambda x: torch.mm(x, fixed(3, 2)), ((2, 3),)),
    "bmm": (lambda x: torch.bmm(fixed(2, 2, 3), x), ((2, 3, 2),)),
    "mv": (lambda x: torch.mv(fixed(2, 3), x), ((3,),)),
    "dot": (lambda x: torch.dot(x, fixed(3)), ((3,),)),
    "inner": (lambda x: torch.inner(x, fixed(4, 3)), ((2, 3),)),
    "outer": (lambda x: torch.outer(fixed(2), x), ((3,),)),
    "tensordot": (lambda x: torch.tensordot(x, fixed(3, 2, 2), dims=([1, 2], [0, 1])), ((2, 3, 2),)),
    "einsum": (lambda x: torch.einsum("bi,oi->bo", x, fixed(4, 3)), ((2, 3),)),
    "einsum, an ellipsis": (lambda x: torch.einsum("...i,io->...o", x, fixed(3, 2)), ((2, 2, 3),)),
    "einsum, no arrow": (lambda x: torch.einsum("bi,ij", x, fixed(3, 2)), ((2, 3),)),
    "einsum, one operand": (lambda x: torch.einsum("bij->bj", x), ((2, 3, 2),)),
    "einsum, a trace": (lambda x: torch.einsum("ii->", x), ((3, 3),)),
    "einsum, an index of one operand": (lambda x: torch.einsum("bi,jk->bj", x, fixed(2, 3)), ((2, 3),)),
    "bilinear": (lambda x: F.bilinear(x, fixed(2, 2), fixed(4, 3, 2), fixed(4)), ((2, 3),)),
    # composites
    "addmm": (lambda b, x: torch.addmm(b, x, fixed(3, 4), beta=0.5, alpha=2), ((4,), (2, 3))),
    "addmm, in place": (lambda b: b.clone().addmm_(fixed(2, 3), fixed(3, 4)), ((2, 4),)),
    "addbmm": (lambda b, x: torch.addbmm(b, x, fixed(2, 3, 4)), ((2, 4), (2, 2, 3))),
    "baddbmm": (lambda x: torch.baddbmm(fixed(1, 1, 4), x, fixed(2, 3, 4), alpha=0.5), ((2, 2, 3),)),
    "baddbmm, beta 0": (
        lambda x: torch.baddbmm(torch.full((1, 1, 4), math.nan).double(), x, fixed(2, 3, 4), beta=0),
        ((2, 2, 3),),
    ),
    "addmv": (lambda b, x: torch.addmv(b, fixed(4, 3), x), ((4,), (3,))),
    "addr": (lambda b, x: torch.addr(b, x, fixed(3)), ((2, 3), (2,))),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), ((4,), (4,))),
    "lerp, weights": (lambda a: torch.lerp(a, fixed(4), weight=fixed(4, seed=5)), ((4,),)),
    "lerp, random weights": (lambda w: torch.lerp(fixed(4), fixed(4, seed=5), w), ((4,),)),
    "addcmul": (lambda a, b: torch.addcmul(a, b, fixed(4), value=0.5), ((4,), (4,))),
    "addcdiv": (lambda a, b: torch.addcdiv(a, b, fixed(4), value=0.5), ((4,), (4,))),
    "batch_norm": (
        lambda x: F.batch_norm(x, fixed(3), fixed(3).square() + 1, fixed(3), fixed(3, seed=1)),
        ((2, 3, 2),),
    ),
    "batch_norm, torch's own": (
        lambda x: torch.batch_norm(
            x, fixed(3), fixed(3, seed=1), fixed(3, seed=2), fixed(3).square() + 1, False, 0.1, 1e-5, False
        ),
        ((2, 3, 2),),
    ),
    "instance_norm": (
        lambda x: F.instance_norm(x, fixed(3), fixed(3).square() + 1, use_input_stats=False),
        ((2, 3, 2),),
    ),
    "lp_pool1d": (lambda x: F.lp_pool1d(x, 1, 3, 2, ceil_mode=True), ((1, 2, 6),)),
    "lp_pool2d": (lambda x: F.lp_pool2d(x, 1, 2), ((1, 1, 4, 5),)),
    "lp_pool3d": (lambda x: F.lp_pool3d(x, 1, 2), ((1, 1, 2, 4, 2),)),
}

_MASK = torch.tensor([[True, False, True], [False, False, True]])
#: likewise, of functions that move, copy or convert values
MOVED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "view": (lambda x: x.view(3, -1), ((2, 3),)),
    "reshape": (lambda x: x.t().reshape(6), ((2, 3),)),
    "view_as": (lambda x: x.view_as(fixed(3, 2)), ((2, 3),)),
    "reshape_as": (lambda x: x.reshape_as(fixed(3, 2)), ((2, 3),)),
    "flatten": (lambda x: torch.flatten(x, 1), ((2, 3, 2),)),
    "ravel": (lambda x: x.ravel(), ((2, 3),)),
    "unflatten": (lambda x: x.unflatten(-1, (3, 2)), ((2, 6),)),
    "permute": (lambda x: x.permute(2, 0, 1), ((2, 3, 2),)),
    "permute, a tuple": (lambda x: torch.permute(x, (2, 0, 1)), ((2, 3, 2),)),
    "transpose": (lambda x: x.transpose(1, 2), ((2, 3, 2),)),
    "t": (lambda x: x.t(), ((2, 3),)),
    "T": (lambda x: x.T, ((2, 3),)),
    "mT": (lambda x: x.mT, ((2, 3, 2),)),
    "H": (lambda x: x.H, ((2, 3),)),
    "mH": (lambda x: x.mH, ((2, 3, 2),)),
    "swapaxes": (lambda x: x.swapaxes(0, 1), ((2, 3),)),
    "swapdims": (lambda x: torch.swapdims(x, 0, 1), ((2, 3),)),
    "movedim": (lambda x: x.movedim(0, -1), ((2, 3, 2),)),
    "moveaxis": (lambda x: torch.moveaxis(x, 0, -1), ((2, 3, 2),)),
    "squeeze": (lambda x: x.squeeze(1), ((2, 1, 3),)),
    "squeeze, all": (lambda x: x.squeeze(), ((2, 1, 3),)),
    "unsqueeze": (lambda x: x.unsqueeze(-1), ((2, 3),)),
    "unsqueeze, in place": (lambda x: x.clone().unsqueeze_(0), ((2, 3),)),
    "expand": (lambda x: x.expand(3, -1), ((1, 3),)),
    "expand_as": (lambda x: x.expand_as(fixed(4, 3)), ((1, 3),)),
    "broadcast_to": (lambda x: torch.broadcast_to(x, (2, 3)), ((3,),)),
    "broadcast_tensors": (lambda x, y: torch.broadcast_tensors(x, y)[1], ((3, 1), (2,))),
    "broadcast_tensors, with a tensor": (lambda x: torch.broadcast_tensors(fixed(2, 1), x)[1], ((3,),)),
    "repeat": (lambda x: x.repeat(2, 2), ((1, 3),)),
    "tile": (lambda x: torch.tile(x, (2,)), ((3,),)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, dim=1), ((2, 3),)),
    "roll": (lambda x: torch.roll(x, 1, 1), ((2, 3),)),
    "flip": (lambda x: x.flip(-1), ((2, 3),)),
    "fliplr": (lambda x: torch.fliplr(x), ((2, 3),)),
    "flipud": (lambda x: torch.flipud(x), ((2, 3),)),
    "rot90": (lambda x: torch.rot90(x), ((2, 3),)),
    "contiguous": (lambda x: x.t().contiguous(), ((2, 3),)),
    "clone": (lambda x: x.clone(), ((2, 3),)),
    "detach": (lambda x: x.detach() if isinstance(x, Law) else x, ((2, 3),)),
    "data": (lambda x: x.data if isinstance(x, Law) else x, ((2, 3),)),
    "narrow": (lambda x: x.narrow(1, 1, 2), ((2, 3),)),
    "select": (lambda x: x.select(1, -1), ((2, 3),)),
    "index_select": (lambda x: torch.index_select(x, 1, torch.tensor([2, 0, 0])), ((2, 3),)),
    "gather": (lambda x: x.gather(1, torch.tensor([[2, 0], [1, 1]])), ((2, 3),)),
    "take_along_dim": (lambda x: torch.take_along_dim(x, torch.tensor([[2, 0], [1, 1]]), 1), ((2, 3),)),
    "take": (lambda x: torch.take(x, torch.tensor([5, 0])), ((2, 3),)),
    "chunk": (lambda x: torch.chunk(x, 2, dim=1)[1], ((2, 3),)),
    "split": (lambda x: x.split(2, 1)[0], ((2, 3),)),
    "split, sizes": (lambda x: torch.split(x, [1, 2], dim=1)[1], ((2, 3),)),
    "split_with_sizes": (lambda x: x.split_with_sizes([1, 2], 1)[1], ((2, 3),)),
    "tensor_split": (lambda x: x.tensor_split(2, dim=1)[1], ((2, 3),)),
    "hsplit": (lambda x: torch.hsplit(x, 3)[1], ((2, 3),)),
    "vsplit": (lambda x: torch.vsplit(x, 2)[1], ((2, 3),)),
    "dsplit": (lambda x: torch.dsplit(x, 2)[1], ((1, 2, 4),)),
    "unbind": (lambda x: x.unbind(1)[2], ((2, 3),)),
    "unbind, by iteration": (lambda x: [*x][1], ((2, 3),)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), ((1, 4, 2, 2),)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), ((1, 1, 4, 4),)),
    "channel_shuffle": (lambda x: torch.channel_shuffle(x, 2), ((1, 4, 2, 2),)),
    "cat": (lambda x, y: torch.cat([x, y], 1), ((2, 2), (2, 1))),
    "cat, with a constant": (lambda x: torch.cat((fixed(2, 1), x), dim=1), ((2, 3),)),
    "cat, axis": (lambda x, y: torch.concatenate([x, y], axis=1), ((2, 2), (2, 1))),
    "stack": (lambda x, y: torch.stack([x, fixed(2), y], dim=-1), ((2,), (2,))),
    "hstack": (lambda x, y: torch.hstack([x, y]), ((2,), (2,))),
    "vstack": (lambda x, y: torch.vstack([x, y]), ((2,), (2,))),
    "dstack": (lambda x, y: torch.dstack([x, y]), ((2,), (2,))),
    "column_stack": (lambda x: torch.column_stack([x, fixed(2)]), ((2,),)),
    "unfold": (lambda x: x.unfold(1, 2, 1), ((2, 4),)),
    "unfold, patches": (lambda x: F.unfold(x, 2, padding=1), ((1, 2, 3, 3),)),
    "diagonal": (lambda x: x.diagonal(), ((3, 3),)),
    "diag_embed": (lambda x: torch.diag_embed(x), ((3,),)),
    "diag": (torch.diag, ((3, 3),)),
    "diagflat": (torch.diagflat, ((2, 2),)),
    "fftshift": (lambda x: torch.fft.fftshift(x, 1), ((2, 3),)),
    "ifftshift": (torch.fft.ifftshift, ((2, 3),)),
    "tril": (lambda x: x.tril(), ((3, 3),)),
    "triu": (lambda x: torch.triu(x, diagonal=1), ((3, 3),)),
    "masked_fill": (lambda x: x.masked_fill(_MASK, -2.0), ((2, 3),)),
    "masked_fill, by keyword": (lambda x: x.masked_fill(mask=_MASK, value=-2.0), ((2, 3),)),
    "masked_fill, by a tensor": (lambda x: x.masked_fill(_MASK, torch.tensor(3.0).double()), ((2, 3),)),
    "masked_fill, by a random value": (lambda x, y: x.masked_fill(_MASK, y), ((2, 3), ())),
    "masked_fill, in place": (lambda x: x.clone().masked_fill_(_MASK, 0), ((2, 3),)),
    "where": (lambda x, y: torch.where(_MASK, x, y), ((2, 3), (3,))),
    "where, with a number": (lambda x: torch.where(_MASK, 0.0, x), ((2, 3),)),
    "where, a method": (lambda x: x.where(_MASK, fixed(2, 3)), ((2, 3),)),
    "where, a method, both random": (lambda x, y: x.where(_MASK, y), ((2, 3), (2, 3))),
    "where, by keyword": (lambda x, y: torch.where(condition=_MASK, input=x, other=y), ((2, 3), (2, 3))),
    "getitem": (lambda x: x[:, 1:], ((2, 3),)),
    "getitem, ellipsis": (lambda x: x[..., None, -1], ((2, 3),)),
    "getitem, mask": (lambda x: x[_MASK], ((2, 3),)),
    "getitem, list": (lambda x: x[[1, 0, 1]], ((2, 3),)),
    "getitem, tensors": (lambda x: x[torch.tensor([0, 1]), torch.tensor([2, 0])], ((2, 3),)),
    "scatter": (lambda x, y: x.scatter(1, torch.tensor([[2], [0]]), y), ((2, 3), (2, 1))),
    "scatter, a number": (lambda x: x.scatter(1, torch.tensor([[2], [0]]), 1.5), ((2, 3),)),
    "scatter, into a constant": (lambda y: fixed(2, 3).scatter(1, torch.tensor([[2], [0]]), y), ((2, 1),)),
    "select_scatter": (lambda x, y: torch.select_scatter(x, y, 1, 0), ((2, 3), (2,))),
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 1, 0, 2), ((2, 3), (2, 2))),
    "index_fill": (lambda x: x.index_fill(1, torch.tensor([0]), 2.0), ((2, 3),)),
    "index_copy": (lambda x, y: x.index_copy(1, torch.tensor([2]), y), ((2, 3), (2, 1))),
    "atleast_1d": (lambda x: torch.atleast_1d(x), ((),)),
    "atleast_2d": (lambda x: torch.atleast_2d(x), ((3,),)),
    "atleast_3d": (lambda x: torch.atleast_3d(x), ((2, 3),)),
    "real": (lambda x: torch.real(x), ((3,),)),
    "adjoint": (lambda x: x.adjoint(), ((2, 3),)),
    "positive": (lambda x: +x, ((3,),)),
    "embedding": (lambda w: F.embedding(torch.tensor([[2, 0], [1, 1]]), w), ((3, 2),)),
    "masked_select": (lambda x: torch.masked_select(x, _MASK), ((2, 3),)),
    "to": (lambda x: x.to(torch.float64), ((2, 3),)),
    "to, like another": (lambda x: x.to(fixed(1)), ((2, 3),)),
    "double": (lambda x: x.double(), ((2, 3),)),
    "type_as": (lambda x: x.type_as(fixed(1)), ((2, 3),)),
    "type": (lambda x: x.type(torch.float64), ((2, 3),)),
    "cpu": (lambda x: x.cpu(), ((2, 3),)),
    "index_add": (lambda x, y: x.index_add(1, torch.tensor([2, 2]), y, alpha=0.5), ((2, 3), (2, 2))),
    "scatter_add": (lambda x, y: x.scatter_add(1, torch.tensor([[2, 2], [0, 1]]), y), ((2, 3), (2, 2))),
    "scatter_add, into zeros": (
        lambda y: torch.zeros(2, 3, dtype=torch.float64).scatter_add(1, torch.tensor([[2, 2], [0, 1]]), y),
        ((2, 2),),
    ),
}


def inputs(shapes: tuple[tuple[int, ...], ...], **options: Any) -> list[Moments]:
    return [normal_input(*shape, seed=seed, **options) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("name", [*LINEAR, *MOVED])
def test_what_is_linear_has_the_mean_of_torch_and_the_variance_of_its_jacobian(name: str) -> None:
    function, shapes = {**LINEAR, **MOVED}[name]
    given = inputs(shapes)
    with torch.no_grad():
        found = moments_of(function(*[law_of(x) for x in given]), False)
        plain = function(*[x.mean.clone() for x in given])
        jacobians = torch.autograd.functional.jacobian(function, tuple(x.mean.clone() for x in given))
    want = torch.zeros_like(plain)
    for jacobian, x in zip(jacobians, given, strict=True):
        want = want + (jacobian.square().reshape(*plain.shape, -1) @ x.var.flatten())
    torch.testing.assert_close(found.mean, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.var, want, rtol=1e-12, atol=1e-15)


# --------------------------------------------------------------------- exact


@dataclass(frozen=True)
class Case:
    """A function of random arguments.

    Args:
        function: of laws.
        shapes: of the arguments.
        plain: the same of tensors, where it is not ``function``.
        bias: of an approximation: the largest bias of the mean in standard deviations, and of the standard deviation.
        batched: whether the first dimension, of size 1, takes the draws.
        options: of :func:`normal_input`.
        n: number of draws.
        noise: whether it is random by itself.
    """

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    plain: Callable[..., Any] | None = None
    bias: tuple[float, float] | None = None
    batched: bool = True
    options: tuple[tuple[str, Any], ...] = ()
    n: int = 1_000_000
    noise: bool = False


def each(function: Callable[..., Any], **options: Any) -> Case:
    """A case of a function of one value at a time."""
    return Case(function, ((1, 5),), **options)


_SLOPES = torch.tensor([0.25, -0.5, 1.0]).double()

#: name of a function, with what is special -> case: exact, given that the arguments are independent and normal
EXACT: dict[str, Case] = {
    # pointwise
    "relu": each(F.relu),
    "relu, in place": each(lambda x: F.relu(x.clone(), inplace=True)),
    "relu, its method in place": each(lambda x: x.clone().relu_()),
    "leaky_relu": each(lambda x: F.leaky_relu(x, 0.2)),
    "leaky_relu, by keyword": each(lambda x: F.leaky_relu(x, negative_slope=0.3)),
    "leaky_relu, default": each(F.leaky_relu),
    "sigmoid": each(torch.sigmoid),
    "sigmoid, special": each(torch.special.expit),
    "tanh": each(lambda x: x.tanh()),
    "silu": each(F.silu),
    "gelu": each(F.gelu),
    "gelu, tanh": each(lambda x: F.gelu(x, approximate="tanh")),
    "elu": each(lambda x: F.elu(x, 0.5)),
    "celu": each(lambda x: F.celu(x, alpha=0.7)),
    "selu": each(F.selu),
    "softplus": each(F.softplus),
    "softplus, parameters": each(lambda x: F.softplus(x, 2.0, 30)),
    "softsign": each(F.softsign),
    "softshrink": each(lambda x: F.softshrink(x, 0.3)),
    "hardshrink": each(lambda x: F.hardshrink(x, lambd=0.3)),
    "tanhshrink": each(F.tanhshrink),
    "mish": each(F.mish),
    "hardtanh": each(lambda x: F.hardtanh(x, -0.5, 2.0)),
    "relu6": each(F.relu6),
    "hardsigmoid": each(F.hardsigmoid),
    "hardswish": each(F.hardswish),
    "logsigmoid": each(F.logsigmoid),
    "threshold": each(lambda x: F.threshold(x, 0.1, -1.0)),
    "abs": each(torch.abs),
    "abs, builtin": each(abs),
    "erf": each(torch.erf),
    "cos": each(torch.cos),
    "sin": each(torch.sin),
    "exp": each(torch.exp, options=(("spread", 0.3),)),
    "square": each(torch.square),
    "normal_cdf": each(torch.special.ndtr),
    "atan": each(torch.arctan),
    "clamp": each(lambda x: x.clamp(-0.5, 0.3)),
    "clamp, by keyword": each(lambda x: torch.clamp(x, max=0.3, min=-0.1)),
    "clamp, only from below": each(lambda x: x.clamp(min=0.3)),
    "clamp, only from above": each(lambda x: torch.clip(x, max=0.3)),
    "clamp, both positive": each(lambda x: x.clamp(0.1, 0.9)),
    "clamp, both negative": each(lambda x: x.clamp(-0.9, -0.1)),
    "clamp, in place": each(lambda x: x.clone().clamp_(0, 1)),
    "clamp_min": each(lambda x: x.clamp_min(-0.2)),
    "clamp_max": each(lambda x: torch.clamp_max(x, 0.2)),
    "prelu": Case(lambda x: F.prelu(x, _SLOPES), ((1, 3, 2),)),
    "prelu, one slope": each(lambda x: F.prelu(x, torch.tensor([-1.0]).double())),
    "pow": each(lambda x: x**2),
    "pow, 1": each(lambda x: x**1),
    "pow, 3": each(lambda x: torch.pow(x, 3)),
    "pow, by keyword": each(lambda x: torch.pow(x, exponent=4)),
    "pow, in place": each(lambda x: x.clone().pow_(2)),
    # integrated by quadrature, which converges at once for these
    "expm1": each(torch.expm1, options=(("spread", 0.3),)),
    "exp2": each(torch.exp2, options=(("spread", 0.3),)),
    "sinh": each(torch.sinh, options=(("spread", 0.3),)),
    "cosh": each(torch.cosh, options=(("spread", 0.3),)),
    "asinh": each(torch.asinh),
    "erfc": each(torch.erfc),
    "sinc": each(torch.sinc, options=(("spread", 0.3),)),
    # products of two random arguments
    "add, of a square in place": each(lambda x: x.square().add_(1)),
    "mul": Case(lambda x, y: x * y, ((1, 4), (1, 4))),
    "mul, in place": Case(lambda x, y: x.clone().mul_(y), ((1, 4), (1, 4))),
    "mul, augmented": Case(lambda x, y: _augmented(x, y), ((1, 4), (1, 4))),
    "matmul": Case(lambda x, y: x @ y, ((1, 2, 3), (1, 3, 2))),
    "rmatmul": Case(lambda x, y: x.__rmatmul__(y) if isinstance(x, Law) else y @ x, ((1, 3, 2), (1, 2, 3))),
    "mm": Case(torch.mm, ((2, 3), (3, 2)), batched=False),
    "bmm": Case(torch.bmm, ((1, 2, 3), (1, 3, 2))),
    "mv": Case(torch.mv, ((2, 3), (3,)), batched=False),
    "dot": Case(torch.dot, ((3,), (3,)), batched=False),
    "inner": Case(torch.inner, ((2, 3), (2, 3)), batched=False),
    "outer": Case(torch.outer, ((2,), (3,)), batched=False),
    "tensordot": Case(lambda x, y: torch.tensordot(x, y, 1), ((2, 3), (3, 2)), batched=False),
    "einsum": Case(lambda x, y: torch.einsum("bij,bkj->bik", x, y), ((1, 2, 3), (1, 2, 3))),
    "einsum, an ellipsis": Case(lambda x, y: torch.einsum("...ij,...kj->...ik", x, y), ((1, 2, 3), (1, 2, 3))),
    "einsum, no arrow": Case(lambda x, y: torch.einsum("ij,jk", x, y), ((2, 3), (3, 2)), batched=False),
    "einsum, an index of one operand": Case(lambda x, y: torch.einsum("bi,bjk->bj", x, y), ((1, 3), (1, 2, 2))),
    "einsum, indices of one operand in both": Case(lambda x, y: torch.einsum("bi,bj->b", x, y), ((1, 3), (1, 2))),
    "einsum, an outer product": Case(lambda x, y: torch.einsum("bi,bj->bij", x, y), ((1, 2), (1, 3))),
    "einsum, a value with itself": Case(lambda x: torch.einsum("bi,bi->b", x, x), ((1, 3),)),
    "bilinear": Case(lambda x, y: F.bilinear(x, y, fixed(4, 3, 2), fixed(4)), ((1, 3), (1, 2))),
    "bilinear, all random": Case(
        lambda x, y, w, b: F.bilinear(x, y, w, b) if isinstance(x, Law) else torch.einsum("i,kij,j->k", x, w, y) + b,
        ((3,), (2,), (2, 3, 2), (2,)),
        batched=False,
    ),
    "bilinear, one value twice, all random": Case(
        lambda x, w: F.bilinear(x, x, w) if isinstance(x, Law) else torch.einsum("i,kij,j->k", x, w, x),
        ((3,), (2, 3, 3)),
        batched=False,
    ),
    "bilinear, one value twice": Case(lambda x: F.bilinear(x, x, fixed(4, 3, 3), fixed(4)), ((1, 3),)),
    "linear, weight random": Case(lambda x, w: F.linear(x, w), ((2, 3), (2, 3)), batched=False),
    "linear, all random": Case(lambda x, w, b: F.linear(x, w, bias=b), ((2, 3), (2, 3), (2,)), batched=False),
    "conv1d, all random": Case(
        lambda x, w, b: F.conv1d(x, w, b, padding=1), ((1, 2, 3), (1, 2, 2), (1,)), batched=False, n=200_000
    ),
    "conv2d, all random, in groups": Case(
        lambda x, w, b: F.conv2d(x, w, b, groups=2), ((1, 2, 3, 2), (2, 1, 2, 2), (2,)), batched=False, n=200_000
    ),
    "conv_transpose1d, all random": Case(
        lambda x, w: F.conv_transpose1d(x, w, stride=2), ((1, 2, 2), (2, 1, 2)), batched=False, n=200_000
    ),
    "addmm": Case(lambda b, x, y: torch.addmm(b, x, y, alpha=0.5), ((2,), (2, 3), (3, 2)), batched=False),
    "addbmm": Case(lambda b, x, y: torch.addbmm(b, x, y), ((1, 2), (2, 1, 2), (2, 2, 2)), batched=False),
    "baddbmm": Case(lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5), ((2,), (1, 2, 3), (1, 3, 2)), batched=False),
    "addmv": Case(lambda b, x, y: torch.addmv(b, x, y), ((2,), (2, 3), (3,)), batched=False),
    "addr": Case(lambda b, x, y: torch.addr(b, x, y), ((2, 3), (2,), (3,)), batched=False),
    "lerp": Case(torch.lerp, ((1, 4), (1, 4), (1, 4))),
    "lerp, of one value": each(lambda x: torch.lerp(x, torch.relu(x), 0.3), bias=(0.02, 0.03)),
    "addcmul": Case(lambda a, x, y: torch.addcmul(a, x, y, value=0.5), ((1, 4), (1, 4), (1, 4))),
    "glu": Case(F.glu, ((1, 6),)),
    "glu, along a dim": Case(lambda x: F.glu(x, dim=1), ((1, 2, 3),)),
    # maxima of two
    "maximum": Case(torch.maximum, ((1, 4), (1, 4))),
    "maximum, of a tensor": Case(lambda x: torch.maximum(fixed(4), x), ((1, 4),)),
    "minimum": Case(torch.minimum, ((1, 4), (1, 4))),
    "minimum, of a tensor": Case(lambda x: torch.minimum(x, fixed(4)), ((1, 4),)),
    "fmax": Case(torch.fmax, ((1, 4), (1, 4))),
    "fmin": Case(torch.fmin, ((1, 4), (1, 4))),
    "max": Case(torch.max, ((1, 4), (1, 4))),
    "min": Case(lambda x, y: torch.min(x, other=y), ((1, 4), (1, 4))),
    "max_pool1d": Case(lambda x: F.max_pool1d(x, 2), ((1, 1, 6),)),
    "max_pool1d, padded": Case(lambda x: F.max_pool1d(x, 2, 2, 1), ((1, 1, 5),)),
    "adaptive_max_pool1d": Case(lambda x: F.adaptive_max_pool1d(x, 3), ((1, 1, 6),)),
    # statistics
    "prod": Case(lambda x: x.prod(1), ((1, 3),)),
    "prod, kept": Case(lambda x: torch.prod(x, 1, keepdim=True), ((1, 2, 2),)),
    "prod, of all": Case(lambda x: x.prod(), ((2, 2),), batched=False),
    "var": Case(lambda x: x.var(1), ((1, 4),)),
    "var, biased": Case(lambda x: torch.var(x, 1, unbiased=False), ((1, 4),)),
    "var, biased, kept": Case(lambda x: x.var(1, False, True), ((1, 4),)),
    "var, of all": Case(lambda x: x.var(), ((2, 2),), batched=False),
    "var, of all, biased": Case(lambda x: x.var(False), ((2, 2),), batched=False),
    "var, correction": Case(lambda x: torch.var(x, dim=(1, 2), correction=0, keepdim=True), ((1, 2, 2),)),
    "var, correction 2, axis": Case(lambda x: x.var(axis=1, correction=2), ((1, 4),)),
    "var_mean": Case(lambda x: torch.var_mean(x, dim=1), ((1, 4),)),
    "var_mean, its mean": Case(lambda x: torch.var_mean(x, dim=1, keepdim=True)[1], ((1, 4),)),
    "std_mean, its mean": Case(lambda x: torch.std_mean(x, 1)[1], ((1, 4),)),
    # noise of a network's own
    "dropout": each(lambda x: F.dropout(x, 0.3), noise=True),
    "dropout, by torch": each(lambda x: torch.dropout(x, 0.3, True), noise=True),
    "dropout, in place": each(lambda x: F.dropout(x.clone(), 0.3, True, True), noise=True),
    "dropout1d": Case(lambda x: F.dropout1d(x, 0.3), ((1, 2, 2),), noise=True),
    "dropout2d": Case(lambda x: F.dropout2d(x, p=0.4), ((1, 2, 2, 1),), noise=True),
    "dropout3d": Case(lambda x: F.dropout3d(x), ((1, 2, 2, 1, 1),), noise=True),
    "alpha_dropout": each(lambda x: F.alpha_dropout(x, 0.3, True), noise=True),
    "feature_alpha_dropout": Case(lambda x: F.feature_alpha_dropout(x, 0.3, True), ((1, 2, 2),), noise=True),
    "rrelu": each(lambda x: F.rrelu(x, 0.1, 0.6, True), noise=True),
    "rrelu, defaults": each(lambda x: F.rrelu(x, training=True), noise=True),
    "rrelu, in evaluation": each(lambda x: F.rrelu(x, 0.1, 0.5)),
    "rrelu, by torch": each(lambda x: torch.rrelu(x, 0.1, 0.6, True), noise=True),
    "randn_like": each(lambda x: x + 0.5 * torch.randn_like(x), noise=True),
    "rand_like": each(lambda x: x * torch.rand_like(x), noise=True),
    "randint_like": each(lambda x: x + torch.randint_like(x, 1, 5), noise=True),
    "bernoulli": each(lambda x: torch.bernoulli(torch.sigmoid(x)), noise=True),
    "bernoulli, of a probability": each(lambda x: x * torch.bernoulli(x, 0.3), noise=True),
    "bernoulli_": Case(lambda x: x * x.new_empty(x.shape[0], 1).bernoulli_(0.7).div_(0.7), ((1, 4),), noise=True),
    "normal_": each(lambda x: x + torch.empty_like(x).normal_(1.0, 0.5), noise=True),
    "uniform_": each(lambda x: x + torch.empty_like(x).uniform_(-1, 2), noise=True),
    # norms, where they are affine
    "batch_norm, scale random": Case(
        lambda x, w, b: F.batch_norm(x, fixed(2), fixed(2).square() + 1, w, b), ((1, 2, 2), (2,), (2,)), batched=False
    ),
}


def _augmented(x: Any, y: Any) -> Any:
    x = x * 1.0
    x *= y
    return x


#: rules that are approximations, with the bias that they are allowed here: of the mean in standard deviations, and of
#: the standard deviation.  What each takes is said behind it.
APPROXIMATE: dict[str, Case] = {
    "softmax": Case(lambda x: F.softmax(x, -1), ((1, 5),), bias=(0.02, 0.03)),  # LSE of the others as normal
    "softmax, dim 1": Case(lambda x: torch.softmax(x, dim=1), ((1, 4, 2),), bias=(0.02, 0.06)),
    "softmin": Case(lambda x: F.softmin(x, dim=-1), ((1, 5),), bias=(0.02, 0.06)),
    "log_softmax": Case(lambda x: F.log_softmax(x, -1), ((1, 5),), bias=(0.02, 0.03)),
    "layer_norm": Case(lambda x: F.layer_norm(x, (8,), fixed(8), fixed(8, seed=1)), ((1, 8),), bias=(0.01, 0.01)),
    "layer_norm, scale random": Case(
        lambda x, w, b: F.layer_norm(x, (4,), w, b), ((2, 4), (4,), (4,)), bias=(0.01, 0.01), batched=False
    ),
    "rms_norm": Case(lambda x: F.rms_norm(x, (8,), fixed(8)), ((1, 8),), bias=(0.01, 0.01)),
    "group_norm": Case(lambda x: F.group_norm(x, 2, fixed(4), fixed(4, seed=1)), ((1, 4, 2),), bias=(0.01, 0.01)),
    "instance_norm": Case(lambda x: F.instance_norm(x), ((1, 2, 5),), bias=(0.01, 0.01)),
    # statistics of the batch at their expectations: bias of order 1/n
    "batch_norm, training": Case(
        lambda x: F.batch_norm(x, None, None, training=True), ((32, 1),), bias=(0.1, 0.2), batched=False, n=200_000
    ),
    "normalize": Case(lambda x: F.normalize(x, dim=1), ((1, 5),), bias=(0.01, 0.01)),
    "sqrt": each(torch.sqrt, options=(("positive", True),), bias=(0.03, 0.03)),  # gamma in place of normal
    "rsqrt": each(torch.rsqrt, options=(("positive", True),), bias=(0.1, 0.15)),
    "reciprocal": each(torch.reciprocal, options=(("positive", True),), bias=(0.05, 0.15)),  # third order
    "div, by a random value": Case(
        lambda x, y: x / y, ((1, 4), (1, 4)), options=(("positive", True),), bias=(0.05, 0.15)
    ),
    "rdiv": each(lambda x: 2 / x, options=(("positive", True),), bias=(0.05, 0.15)),
    "addcdiv": Case(
        lambda a, x, y: torch.addcdiv(a, x, y),
        ((1, 3), (1, 3), (1, 3)),
        options=(("positive", True),),
        bias=(0.05, 0.15),
    ),
    "std": Case(lambda x: x.std(1), ((1, 8),), bias=(0.02, 0.03)),  # the root of a quadratic form, as gamma
    "std, of all": Case(lambda x: torch.std(x), ((2, 4),), bias=(0.02, 0.03), batched=False),
    "std_mean": Case(lambda x: torch.std_mean(x, 1), ((1, 8),), bias=(0.02, 0.03)),
    "norm": Case(lambda x: x.norm(dim=1), ((1, 6),), bias=(0.02, 0.03)),
    "cdist": Case(lambda x: torch.cdist(x, fixed(2, 4).double()), ((1, 1, 4),), bias=(0.02, 0.03)),
    "cdist, with itself": Case(lambda x: torch.cdist(x, x)[:, 0, 1:], ((1, 3, 6),), bias=(0.02, 0.03)),
    "norm, p, keepdim": Case(lambda x: torch.norm(x, 2, 1, True), ((1, 6),), bias=(0.02, 0.03)),
    "norm, of all": Case(lambda x: x.norm(), ((2, 3),), bias=(0.02, 0.03), batched=False),
    "norm, linalg": Case(lambda x: torch.linalg.norm(x, dim=-1), ((1, 6),), bias=(0.02, 0.03)),
    "norm, linalg, of a matrix": Case(lambda x: torch.linalg.norm(x), ((2, 3),), bias=(0.02, 0.03), batched=False),
    "vector_norm": Case(lambda x: torch.linalg.vector_norm(x, 2, 1), ((1, 6),), bias=(0.02, 0.03)),
    "vector_norm, axis": Case(lambda x: torch.linalg.vector_norm(x, dim=1), ((1, 6),), bias=(0.02, 0.03)),
    "lp_pool1d": Case(lambda x: F.lp_pool1d(x, 2, 3), ((1, 1, 6),), bias=(0.02, 0.03)),
    "lp_pool2d": Case(lambda x: F.lp_pool2d(x, 2.0, 2), ((1, 1, 2, 4),), bias=(0.02, 0.03)),
    "lp_pool3d": Case(lambda x: F.lp_pool3d(x, 2, 2), ((1, 1, 2, 2, 2),), bias=(0.02, 0.03)),
    # one integral, exact to 0.1 %
    "max, a dim": Case(lambda x: x.max(1)[0], ((1, 5),), bias=(0.005, 0.005)),
    "max, a dim kept": Case(lambda x: torch.max(x, dim=-1, keepdim=True).values, ((1, 2, 3),), bias=(0.005, 0.005)),
    "max, of all": Case(lambda x: x.max(), ((2, 3),), bias=(0.005, 0.005), batched=False),
    "min, a dim": Case(lambda x: torch.min(x, 1)[0], ((1, 5),), bias=(0.005, 0.005)),
    "min, of all": Case(lambda x: x.min(), ((2, 3),), bias=(0.005, 0.005), batched=False),
    "amax": Case(lambda x: x.amax((1, 2)), ((1, 2, 3),), bias=(0.005, 0.005)),
    "amax, of all": Case(lambda x: torch.amax(x), ((2, 3),), bias=(0.005, 0.005), batched=False),
    "amax, axis": Case(lambda x: x.amax(axis=1, keepdims=True), ((1, 5),), bias=(0.005, 0.005)),
    "amin": Case(lambda x: torch.amin(x, dim=-1, keepdim=True), ((1, 5),), bias=(0.005, 0.005)),
    "max_pool1d": Case(lambda x: F.max_pool1d(x, 3, 2, 1), ((1, 1, 7),), bias=(0.005, 0.005)),
    "max_pool1d, dilated": Case(lambda x: F.max_pool1d(x, 3, dilation=2, stride=1), ((1, 1, 7),), bias=(0.005, 0.005)),
    "max_pool2d": Case(lambda x: F.max_pool2d(x, 2, ceil_mode=True), ((1, 1, 3, 3),), bias=(0.005, 0.005)),
    "max_pool3d": Case(lambda x: F.max_pool3d(x, 2), ((1, 1, 2, 2, 2),), bias=(0.005, 0.005)),
    "adaptive_max_pool1d": Case(lambda x: F.adaptive_max_pool1d(x, 2), ((1, 1, 5),), bias=(0.005, 0.005)),
    "adaptive_max_pool2d": Case(lambda x: F.adaptive_max_pool2d(x, (1, 2)), ((1, 1, 2, 4),), bias=(0.005, 0.005)),
    "adaptive_max_pool3d": Case(lambda x: F.adaptive_max_pool3d(x, 1), ((1, 1, 2, 2, 2),), bias=(0.005, 0.005)),
}

# Recurrent cells take h and c, or the gates, as independent of each other.
_W = tuple(0.5 * fixed(*shape, seed=20 + k) for k, shape in enumerate(((8, 3), (8, 2), (8,), (8,))))
_G = tuple(part[:6] for part in _W)
_R = tuple(part[:2] for part in _W)
#: (query, key, value) of attention
_QKV = ((1, 2, 3), (1, 4, 3), (1, 4, 2))
_BOOL = torch.tensor([[True, False, True, True], [True, True, False, False]])
_FLOAT = torch.tensor([[0.0, -math.inf, 0.5, -1.0], [0.3, 0.0, -math.inf, 0.2]]).double()


def _cells() -> dict[str, Case]:
    step: dict[str, Any] = {"bias": (0.08, 0.15)}
    return {
        "lstm_cell": Case(lambda x, h, c: torch.lstm_cell(x, (h, c), *_W), ((1, 3), (1, 2), (1, 2)), **step),
        "lstm_cell, c": Case(lambda x, h, c: torch.lstm_cell(x, (h, c), *_W)[1], ((1, 3), (1, 2), (1, 2)), **step),
        "gru_cell": Case(lambda x, h: torch.gru_cell(x, h, *_G), ((1, 3), (1, 2)), **step),
        "rnn_tanh_cell": Case(lambda x, h: torch.rnn_tanh_cell(x, h, *_R), ((1, 3), (1, 2)), bias=(0.005, 0.005)),
        "rnn_relu_cell": Case(lambda x, h: torch.rnn_relu_cell(x, h, *_R), ((1, 3), (1, 2)), bias=(0.005, 0.005)),
        "lstm": Case(lambda x, h, c: _run("lstm", x, (h, c), _W), ((1, 1, 3), (1, 1, 2), (1, 1, 2)), **step),
        "gru": Case(lambda x, h: _run("gru", x, h, _G), ((1, 1, 3), (1, 1, 2)), **step),
        "rnn_tanh": Case(lambda x, h: _run("rnn_tanh", x, h, _R), ((1, 1, 3), (1, 1, 2)), bias=(0.005, 0.005)),
        "rnn_relu": Case(lambda x, h: _run("rnn_relu", x, h, _R), ((1, 1, 3), (1, 1, 2)), bias=(0.005, 0.005)),
    }


def _run(name: str, x: Any, hx: Any, weights: tuple[Tensor, ...]) -> Any:
    """One layer of torch, over a batch of sequences of one step."""
    hx = tuple(part.transpose(0, 1) for part in hx) if isinstance(hx, tuple) else hx.transpose(0, 1)
    return getattr(torch, name)(x, hx, list(weights), True, 1, 0.0, False, False, True)[0]


# Queries, keys and values as independent; the law of the log-odds as normal.
ATTENTION: dict[str, Case] = {
    "scaled_dot_product_attention": Case(F.scaled_dot_product_attention, _QKV, bias=(0.03, 0.06)),
    "scaled_dot_product_attention, bool mask": Case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, _BOOL), _QKV, bias=(0.03, 0.08)
    ),
    "scaled_dot_product_attention, float mask": Case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=_FLOAT), _QKV, bias=(0.03, 0.08)
    ),
    "scaled_dot_product_attention, lowest numbers": Case(
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, _FLOAT.nan_to_num(neginf=torch.finfo(torch.float64).min)
        ),
        _QKV,
        bias=(0.03, 0.08),
    ),
    "scaled_dot_product_attention, causal, scale": Case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5), _QKV, bias=(0.03, 0.08)
    ),
    "scaled_dot_product_attention, values certain": Case(
        lambda q, k: F.scaled_dot_product_attention(q, k, fixed(1, 4, 2)), _QKV[:2], bias=(0.05, 0.2)
    ),
    "scaled_dot_product_attention, only values random": Case(
        lambda v: F.scaled_dot_product_attention(fixed(1, 2, 3), fixed(1, 4, 3), v), _QKV[2:], bias=(0.005, 0.005)
    ),
    "scaled_dot_product_attention, grouped queries": Case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        ((1, 2, 2, 2), (1, 1, 3, 2), (1, 1, 3, 2)),
        bias=(0.03, 0.08),
    ),
    "scaled_dot_product_attention, dropout": Case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.3), _QKV, bias=(0.03, 0.08), noise=True
    ),
    "multi_head_attention_forward": Case(
        lambda x: _multi_head(x.transpose(0, 1)).transpose(0, 1), ((1, 3, 4),), bias=(0.6, 0.4), n=200_000
    ),
    "multi_head_attention_forward, with weights": Case(
        lambda x: _multi_head(x.transpose(0, 1), True).transpose(0, 1), ((1, 3, 4),), bias=(0.6, 0.4), n=200_000
    ),
}


def _multi_head(x: Any, weights: bool = False) -> Any:
    return F.multi_head_attention_forward(
        x, x, x, 4, 2, fixed(12, 4), fixed(12, seed=1), None, None, False, 0.0, fixed(4, 4, seed=2), fixed(4, seed=3),
        training=False, need_weights=weights,
    )[0]  # fmt: skip


APPROXIMATE.update(_cells())
APPROXIMATE.update(ATTENTION)


def key(case: Case) -> list[Moments]:
    return inputs(case.shapes, **dict(case.options))


@pytest.mark.parametrize("name", EXACT)
def test_exact_rules_are_within_four_standard_errors_of_a_million_samples(name: str) -> None:
    case = EXACT[name]
    assert_agrees(case.function, *key(case), plain=case.plain, batched=case.batched, n=case.n, bias=case.bias)


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximate_rules_are_within_their_stated_bias_of_samples(name: str) -> None:
    case = APPROXIMATE[name]
    assert_agrees(case.function, *key(case), plain=case.plain, batched=case.batched, n=case.n, bias=case.bias)


# --------------------------------------------------------------------- point

_PLAIN: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    **{name: (*found, {}) for table in (LINEAR, MOVED) for name, found in table.items()},
    **{
        f"{kind}: {name}": (case.plain or case.function, case.shapes, dict(case.options))
        for kind, table in (("exact", EXACT), ("approximate", APPROXIMATE))
        for name, case in table.items()
        if not case.noise
    },
}


@pytest.mark.parametrize("name", _PLAIN)
def test_a_point_has_the_result_of_the_plain_function_bit_for_bit(name: str) -> None:
    function, shapes, options = _PLAIN[name]
    given = [x.mean for x in inputs(shapes, **options)]
    with torch.no_grad():
        found, want = function(*[point(x.clone()) for x in given]), function(*[x.clone() for x in given])
    for got, plain in zip(*(part if isinstance(part, tuple) else (part,) for part in (found, want)), strict=True):
        assert isinstance(got, Point)
        assert torch.equal(got.value.nan_to_num(7.5), plain.nan_to_num(7.5))


_NOISY = {name: case for name, case in {**EXACT, **APPROXIMATE}.items() if case.noise}


@pytest.mark.parametrize("name", _NOISY)
def test_noise_on_a_point_is_a_diagonal_if_it_is_asked_for_and_its_mean_if_not(name: str) -> None:
    case = _NOISY[name]
    given = [x.mean for x in inputs(case.shapes)]
    with torch.no_grad():
        law = case.function(*[point(x.clone(), Diagonal) for x in given])
        certain = case.function(*[diagonal(x.clone(), torch.zeros_like(x)) for x in given])
        mean = case.function(*[point(x.clone()) for x in given])
    assert isinstance(law, Diagonal)
    assert isinstance(mean, Point)
    torch.testing.assert_close(law.moments().mean, certain.moments().mean)
    torch.testing.assert_close(law.moments().var, certain.moments().var)
    torch.testing.assert_close(mean.value, certain.moments().mean)


# ----------------------------------------------------------------- recurrent

_LAYERS = {
    "lstm": lambda **o: torch.nn.LSTM(3, 2, **o),
    "lstm, projected": lambda **o: torch.nn.LSTM(3, 4, proj_size=2, **o),
    "gru": lambda **o: torch.nn.GRU(3, 2, **o),
    "rnn_tanh": lambda **o: torch.nn.RNN(3, 2, **o),
    "rnn_relu": lambda **o: torch.nn.RNN(3, 2, nonlinearity="relu", **o),
}
_FORMS = ({}, {"num_layers": 2}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True, "batch_first": True})


@pytest.mark.parametrize("options", [*_FORMS, {"bias": False}], ids=str)
@pytest.mark.parametrize("name", _LAYERS)
def test_recurrent_layers_on_certain_values_are_torchs(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = _LAYERS[name](**options).double()
    x = fixed(4, 2, 3)
    want, _ = layer(x)
    with torch.no_grad():
        exact, state = layer(point(x))
        found, _ = layer(diagonal(x, torch.zeros_like(x)))
    assert torch.equal(exact.value, want)
    assert isinstance(state[0] if isinstance(state, tuple) else state, Point)
    torch.testing.assert_close(found.moments().mean, want)
    assert found.moments().var.abs().max() < 1e-15


@pytest.mark.parametrize("name", _LAYERS)
def test_recurrent_layers_of_several_steps_are_near_samples(name: str) -> None:
    torch.manual_seed(name == "rnn_relu")  # with which no unit of it is always off
    layer = _LAYERS[name](batch_first=True).double()
    x = normal_input(1, 3, 3, least=0.02, spread=0.1)
    # The gates of a step share its input, and the steps its state: both are taken as independent.
    assert_agrees(lambda x: layer(x)[0], x, bias=(0.15, 0.6), n=100_000, chunk=10_000)


def test_dropout_between_recurrent_layers_adds_variance() -> None:
    torch.manual_seed(0)
    layer = torch.nn.GRU(3, 2, num_layers=2, dropout=0.4).double()
    x = fixed(2, 1, 3)
    out, _ = layer(point(x, Diagonal))
    assert isinstance(out, Diagonal)
    assert (out.moments().var > 0).all()


def test_a_packed_sequence_is_refused_by_name() -> None:
    layer = torch.nn.LSTM(3, 2).double()
    packed = torch.nn.utils.rnn.pack_padded_sequence(fixed(4, 2, 3), torch.tensor([4, 2]))
    data = law_of(normal_input(6, 3))
    with pytest.raises(UnsupportedError, match="packed"):
        layer(torch.nn.utils.rnn.PackedSequence(data, packed.batch_sizes))


def test_multi_head_attention_as_a_module_on_certain_values_is_torchs() -> None:
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(4, 2, batch_first=True).double().eval()
    x = fixed(2, 3, 4)
    mask = torch.tensor([[False, False, True], [False, False, False]])
    want, weights = layer(x, x, x, key_padding_mask=mask)
    with torch.no_grad():
        found, own = layer(diagonal(x, torch.zeros_like(x)), *[diagonal(x, torch.zeros_like(x))] * 2, mask)
        exact, _ = layer(point(x), point(x), point(x), mask)
    torch.testing.assert_close(found.moments().mean, want)
    torch.testing.assert_close(own.moments().mean, weights)
    torch.testing.assert_close(exact.value, want)


# --------------------------------------------------------------------- forms

CREATED: dict[str, Callable[[Any], Any]] = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 2.5),
    "new_zeros": lambda x: x.new_zeros(2, 2),
    "new_ones": lambda x: x.new_ones((3,)),
    "new_full": lambda x: x.new_full((3,), 1.5),
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0]),
}
SHAPED: dict[str, Callable[[Any], Any]] = {
    "empty_like": torch.empty_like,
    "new_empty": lambda x: x.new_empty(3),
    "new_empty_strided": lambda x: x.new_empty_strided((2, 2), (1, 2)),
}
QUERIED: dict[str, Callable[[Any], Any]] = {
    "size": lambda x: (x.size(), x.size(1), x.size(dim=0), x.shape),
    "dim": lambda x: (x.dim(), x.ndim),
    "ndimension": lambda x: x.ndimension(),
    "numel": lambda x: (x.numel(), torch.numel(x)),
    "nelement": lambda x: x.nelement(),
    "stride": lambda x: (x.stride(), x.stride(0)),
    "is_floating_point": lambda x: (x.is_floating_point(), torch.is_floating_point(x)),
    "is_complex": lambda x: x.is_complex(),
    "element_size": lambda x: (x.element_size(), x.itemsize),
    "is_contiguous": lambda x: x.is_contiguous(),
    "get_device": lambda x: x.get_device(),
    "storage_offset": lambda x: x.storage_offset(),
    "is_inference": lambda x: x.is_inference(),
    "is_signed": lambda x: x.is_signed(),
    "is_conj": lambda x: x.is_conj(),
    "is_neg": lambda x: x.is_neg(),
    "isnan": lambda x: x.isnan().tolist(),
    "isinf": lambda x: torch.isinf(x).tolist(),
    "isfinite": lambda x: x.isfinite().tolist(),
    "isposinf": lambda x: x.isposinf().tolist(),
    "isneginf": lambda x: x.isneginf().tolist(),
    "is_same_size": lambda x: x.is_same_size(torch.zeros(2, 3)),
    "dim_order": lambda x: x.dim_order(),
    "result_type": lambda x: torch.result_type(x, 1.0),
    "dtype": lambda x: (x.dtype, x.device, x.layout, x.is_cuda, x.is_cpu, x.requires_grad, len(x)),
}
#: functions that have a rule or a kind with a rule, and are covered elsewhere
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(KINDS["write"], "test_in_place.py"),
    **dict.fromkeys(KINDS["refusal"], "multi-head attention modules above ask them"),
    **dict.fromkeys(UNDEFINED, "test_decisions.py: refused by name"),
    "logsumexp": "test_decisions.py: refused by name",
    "native_channel_shuffle": "channel_shuffle, which calls it; torch has no derivative of it",
    **dict.fromkeys(("float", "half", "bfloat16", "cuda", "requires_grad_"), "conversions, below"),
}


@pytest.mark.parametrize("name", [*CREATED, *SHAPED])
def test_a_tensor_like_a_random_value_is_certain(name: str) -> None:
    function = {**CREATED, **SHAPED}[name]
    x = normal_input(2, 3)
    found, want = function(law_of(x)), function(x.mean)
    assert isinstance(found, Point)
    assert found.shape == want.shape
    assert found.dtype == want.dtype
    assert (lower(found).var == 0).all()
    if name in CREATED:
        assert torch.equal(lower(found).mean, want)
        assert torch.equal(function(point(x.mean)).value, want)


def test_a_mask_like_a_random_value_is_a_tensor() -> None:
    assert type(torch.ones_like(law_of(normal_input(2)), dtype=torch.bool)) is Tensor
    with pytest.raises(UnsupportedError):
        torch.zeros(1).new_tensor(law_of(normal_input(2)))
    with pytest.raises(UnsupportedError, match="full_like"):
        torch.full_like(law_of(normal_input(2)), law_of(normal_input()))


@pytest.mark.parametrize("name", QUERIED)
def test_the_form_of_a_random_value_is_that_of_a_tensor(name: str) -> None:
    x = normal_input(2, 3)
    want = QUERIED[name](x.mean)
    assert QUERIED[name](law_of(x)) == want
    assert QUERIED[name](point(x.mean)) == want


@pytest.mark.parametrize("function", [lambda x: x.float(), lambda x: x.half(), lambda x: x.bfloat16()])
def test_conversions_convert_mean_and_variance(function: Callable[[Any], Any]) -> None:
    x = normal_input(4)
    found = function(law_of(x)).moments()
    assert torch.equal(found.mean, function(x.mean))
    assert torch.equal(found.var, function(x.var))


def test_gradients_are_asked_for_in_place() -> None:
    law = law_of(normal_input(4)).requires_grad_()
    assert law.requires_grad


def test_every_function_of_the_table_with_a_rule_has_a_case() -> None:
    tables = (LINEAR, MOVED, EXACT, APPROXIMATE, CREATED, SHAPED, QUERIED)
    cased = {name.split(",")[0] for table in tables for name in table}
    rules = Diagonal.RULES
    for kind, names in KINDS.items():
        for name in names:
            if name in rules or kind in rules:
                assert name in cased or name in ELSEWHERE, f"{kind} {name} has a rule and no case"


def test_half_a_class_of_norm_is_refused_by_name() -> None:
    x = law_of(normal_input(3, 3))
    for call in (
        lambda: x.norm(1),
        lambda: x.norm(math.inf, dim=0),
        lambda: torch.linalg.norm(x, 2),
        lambda: torch.linalg.norm(x, 2, dim=(0, 1)),
        lambda: torch.norm(x, "nuc"),
        lambda: x.logsumexp(0),
        lambda: torch.cumprod(x, 0),
        lambda: F.normalize(x, p=1),
        lambda: torch.einsum("ij,jk,kl->il", x, x, x),
        lambda: F.adaptive_max_pool1d(x, 1, return_indices=True),
        lambda: x @ x,
        lambda: torch.einsum("ij,jk->ik", x, x),
    ):
        with pytest.raises((UnsupportedError, InputError)):
            call()


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_without_a_batch_is_that_of_a_batch_of_one_where_all_values_have_one_variance(dims, transposed):
    convolution = getattr(F, f"conv_transpose{dims}d" if transposed else f"conv{dims}d")
    weight = torch.linspace(-1, 1, 4 * 2**dims).view(2, 2, *[2] * dims)
    mean = torch.linspace(-1, 1, 2 * 3**dims).view(2, *[3] * dims)
    var = torch.tensor(0.3).expand(mean.shape)
    found = convolution(diagonal(mean, var), weight).moments()
    expected = convolution(diagonal(mean[None], var[None]), weight).moments()
    torch.testing.assert_close(found.mean, expected.mean[0])
    torch.testing.assert_close(found.var, expected.var[0])


def test_prelu_of_a_number_is_a_number():
    found = F.prelu(diagonal(torch.tensor(0.6), torch.tensor(0.3)), torch.tensor([0.25])).moments()
    expected = F.prelu(diagonal(torch.tensor([0.6]), torch.tensor([0.3])), torch.tensor([0.25])).moments()
    assert found.mean.shape == found.var.shape == ()
    torch.testing.assert_close((found.mean, found.var), (expected.mean[0], expected.var[0]))
