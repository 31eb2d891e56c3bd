"""Linear functions of random arguments, and functions that move them: the cases of ``test_rules``.

Plain calls of every function are in ``test_every_function``.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


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
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x, fixed(2, 3, 3, 3), fixed(3), stride=2, output_padding=1),
        ((1, 2, 3, 3),)),
    "conv_transpose2d, weight and bias random": (lambda w, b: F.conv_transpose2d(fixed(1, 2, 3, 3), w, b, stride=2),
        ((2, 3, 3, 3), (3,))),
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
    "linalg_vecdot": (lambda x: torch.linalg.vecdot(x, fixed(2, 3)), ((2, 3),)),
    "vdot": (lambda x: torch.vdot(fixed(5), x), ((5,),)),
    "mm, sparse": (lambda x: torch.sparse.mm(_sparse(), x), ((5, 3),)),
    "mm, sparse, twice the same place": (lambda x: torch.mm(_twice(), x), ((5, 3),)),
    "matmul, sparse by rows": (lambda x: _sparse().to_sparse_csr() @ x, ((5, 3),)),
    "matmul, a sparse one last": (lambda x: x @ _sparse(), ((3, 4),)),
    "addmm, sparse": (lambda b, x: torch.sparse.addmm(b, _sparse(), x, alpha=0.5), ((4, 3), (5, 3))),
    "linear, sparse": (lambda x: F.linear(x, _sparse().to_sparse_csr()), ((3, 5),)),
    "mean, dims kept": (lambda x: torch.mean(x, (0, -1), keepdim=True), ((2, 3, 2),)),
    "mean, axis": (lambda x: x.mean(axis=1, keepdims=True), ((2, 3),)),
    "mean, dim None": (lambda x: x.mean(dim=None, keepdim=True), ((2, 3),)),
    "mean, no dims": (lambda x: x.mean(()), ((2, 3),)),
    "sum, dims": (lambda x: torch.sum(x, dim=[0, 1]), ((2, 3, 2),)),
    "sum, axis": (lambda x: torch.sum(x, axis=0), ((2, 3),)),
    "cumsum, by keyword": (lambda x: torch.cumsum(x, dim=0), ((2, 3),)),
    "less its mean": (lambda x: x - x.mean(1, keepdim=True), ((2, 5),)),
    "less its mean over two dims": (lambda x: x - x.mean((1, 2), keepdim=True), ((1, 2, 3),)),
    "its mean, less it": (lambda x: x.mean(-1)[..., None] - x, ((1, 4),)),
    "interpolate, nearest-exact": (lambda x: F.interpolate(x, (5, 3), mode="nearest-exact"), ((1, 1, 3, 2),)),
    "interpolate, linear": (lambda x: F.interpolate(x, 7, mode="linear"), ((1, 1, 3),)),
    "interpolate, bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), ((1, 1, 3, 2),)),
    "interpolate, bilinear, smaller": (lambda x: F.interpolate(x, (2, 2), mode="bilinear"), ((1, 1, 5, 4),)),
    "interpolate, bilinear, antialias": (lambda x: F.interpolate(x, (2, 2), mode="bilinear", antialias=True),
        ((1, 1, 5, 4),)),
    "interpolate, corners": (lambda x: F.interpolate(x, (5, 4), mode="bilinear", align_corners=True), ((1, 1, 3, 2),)),
    "interpolate, bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), ((1, 1, 3, 3),)),
    "interpolate, trilinear": (lambda x: F.interpolate(x, scale_factor=1.5, mode="trilinear"), ((1, 1, 2, 3, 2),)),
    "pad, by a constant": (lambda x: F.pad(x, (1, 2, 0, 1), value=3.0), ((1, 2, 3),)),
    "pad, negative": (lambda x: F.pad(x, (-1, 2)), ((1, 2, 3),)),
    "pad, reflect": (lambda x: F.pad(x, (1, 1), "reflect"), ((1, 1, 3),)),
    "pad, replicate": (lambda x: F.pad(x, (1, 1), mode="replicate"), ((1, 1, 3),)),
    "pad, circular": (lambda x: F.pad(x, (1, 1, 1, 0), mode="circular"), ((1, 1, 3, 3),)),
    "fold": (lambda x: F.fold(x, (3, 3), 2), ((1, 4, 4),)),
    # arithmetic
    "add, broadcast": (lambda x, y: x + y, ((3, 1), (2,))),
    "add, a tensor": (lambda x: x + fixed(4), ((4,),)),
    "add, to a tensor": (lambda x: fixed(4) + x, ((4,),)),
    "add, larger tensor": (lambda x: x + fixed(3, 1), ((4,),)),
    "add, larger tensor, flattened": (lambda x: (x + fixed(3, 1)).view(-1), ((4,),)),
    "add, alpha": (lambda x, y: torch.add(x, y, alpha=0.3), ((4,), (4,))),
    "add, alpha, a tensor": (lambda x: torch.add(fixed(4), x, alpha=3), ((4,),)),
    "add, by keyword": (lambda x, y: torch.add(x, other=y), ((4,), (4,))),
    "add, a mask": (lambda x: x + (fixed(4) > 0), ((4,),)),
    "sub, from a tensor": (lambda x: fixed(4) - x, ((4,),)),
    "sub, alpha": (lambda x, y: x.sub(y, alpha=2), ((4,), (4,))),
    "rsub, alpha": (lambda x, y: torch.rsub(x, y, alpha=2), ((4,), (4,))),
    "mul, reflected": (lambda x: 0.5 * x, ((4,),)),
    "mul, a mask": (lambda x: x * (fixed(2, 4) > 0), ((4,),)),
    "mul, integers": (lambda x: x * torch.arange(4), ((4,),)),
    "div, a number": (lambda x: x.div(-2), ((4,),)),
    "rdiv": (lambda x: torch.true_divide(x, 3.0), ((4,),)),
    # products with one random factor
    "matmul, from the left": (lambda x: fixed(2, 3) @ x, ((3,),)),
    "matmul, batches": (lambda x: torch.matmul(fixed(2, 1, 2, 3), x), ((3, 3, 2),)),
    "matmul, by keyword": (lambda x: torch.matmul(x, other=fixed(3, 2)), ((2, 3),)),
    "bmm": (lambda x: torch.bmm(fixed(2, 2, 3), x), ((2, 3, 2),)),
    "dot": (lambda x: torch.dot(x, fixed(3)), ((3,),)),
    "outer": (lambda x: torch.outer(fixed(2), x), ((3,),)),
    "einsum, an ellipsis": (lambda x: torch.einsum("...i,io->...o", x, fixed(3, 2)), ((2, 2, 3),)),
    "einsum, no arrow": (lambda x: torch.einsum("bi,ij", x, fixed(3, 2)), ((2, 3),)),
    "einsum, one operand": (lambda x: torch.einsum("bij->bj", x), ((2, 3, 2),)),
    "einsum, a trace": (lambda x: torch.einsum("ii->", x), ((3, 3),)),
    "einsum, an index of one operand": (lambda x: torch.einsum("bi,jk->bj", x, fixed(2, 3)), ((2, 3),)),
    # composites
    "addmm": (lambda b, x: torch.addmm(b, x, fixed(3, 4), beta=0.5, alpha=2), ((4,), (2, 3))),
    "addmm, in place": (lambda b: b.clone().addmm_(fixed(2, 3), fixed(3, 4)), ((2, 4),)),
    "addbmm": (lambda b, x: torch.addbmm(b, x, fixed(2, 3, 4)), ((2, 4), (2, 2, 3))),
    "baddbmm": (lambda x: torch.baddbmm(fixed(1, 1, 4), x, fixed(2, 3, 4), alpha=0.5), ((2, 2, 3),)),
    "baddbmm, beta 0": (lambda x: torch.baddbmm(torch.full((1, 1, 4), math.nan).double(), x, fixed(2, 3, 4), beta=0),
        ((2, 2, 3),)),
    "addmv": (lambda b, x: torch.addmv(b, fixed(4, 3), x), ((4,), (3,))),
    "addr": (lambda b, x: torch.addr(b, x, fixed(3)), ((2, 3), (2,))),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), ((4,), (4,))),
    "lerp, weights": (lambda a: torch.lerp(a, fixed(4), weight=fixed(4, seed=5)), ((4,),)),
    "lerp, random weights": (lambda w: torch.lerp(fixed(4), fixed(4, seed=5), w), ((4,),)),
    "addcmul": (lambda a, b: torch.addcmul(a, b, fixed(4), value=0.5), ((4,), (4,))),
    "addcdiv": (lambda a, b: torch.addcdiv(a, b, fixed(4), value=0.5), ((4,), (4,))),
    "batch_norm": (lambda x: F.batch_norm(x, fixed(3), fixed(3).square() + 1, fixed(3), fixed(3, seed=1)),
        ((2, 3, 2),)),
    "batch_norm, torch's own": (
        lambda x: torch.batch_norm(
            x, fixed(3), fixed(3, seed=1), fixed(3, seed=2), fixed(3).square() + 1, False, 0.1, 1e-5, False
        ),
        ((2, 3, 2),),
    ),
    "instance_norm": (lambda x: F.instance_norm(x, fixed(3), fixed(3).square() + 1, use_input_stats=False),
        ((2, 3, 2),)),
}  # fmt: skip

_MASK = torch.tensor([[True, False, True], [False, False, True]])
#: likewise, of functions that move, copy or convert values
MOVED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "conj": (lambda x: x.conj(), ((2, 3),)),
    "conj_physical": (lambda x: x.conj_physical(), ((2, 3),)),
    "resolve_conj": (lambda x: x.resolve_conj(), ((2, 3),)),
    "resolve_neg": (lambda x: x.resolve_neg(), ((2, 3),)),
    "permute, a tuple": (lambda x: torch.permute(x, (2, 0, 1)), ((2, 3, 2),)),
    "squeeze, all": (lambda x: x.squeeze(), ((2, 1, 3),)),
    "unsqueeze, in place": (lambda x: x.clone().unsqueeze_(0), ((2, 3),)),
    "broadcast_tensors, with a tensor": (lambda x: torch.broadcast_tensors(fixed(2, 1), x)[1], ((3,),)),
    "unbind, by iteration": (lambda x: [*x][1], ((2, 3),)),
    "cat, with a constant": (lambda x: torch.cat((fixed(2, 1), x), dim=1), ((2, 3),)),
    "cat, axis": (lambda x, y: torch.concatenate([x, y], axis=1), ((2, 2), (2, 1))),
    "unfold, patches": (lambda x: F.unfold(x, 2, padding=1), ((1, 2, 3, 3),)),
    "masked_fill, by keyword": (lambda x: x.masked_fill(mask=_MASK, value=-2.0), ((2, 3),)),
    "masked_fill, by a tensor": (lambda x: x.masked_fill(_MASK, torch.tensor(3.0).double()), ((2, 3),)),
    "masked_fill, by a random value": (lambda x, y: x.masked_fill(_MASK, y), ((2, 3), ())),
    "masked_fill, in place": (lambda x: x.clone().masked_fill_(_MASK, 0), ((2, 3),)),
    "where, with a number": (lambda x: torch.where(_MASK, 0.0, x), ((2, 3),)),
    "where, a method": (lambda x: x.where(_MASK, fixed(2, 3)), ((2, 3),)),
    "where, a method, both random": (lambda x, y: x.where(_MASK, y), ((2, 3), (2, 3))),
    "where, by keyword": (lambda x, y: torch.where(condition=_MASK, input=x, other=y), ((2, 3), (2, 3))),
    "getitem, ellipsis": (lambda x: x[..., None, -1], ((2, 3),)),
    "getitem, mask": (lambda x: x[_MASK], ((2, 3),)),
    "getitem, list": (lambda x: x[[1, 0, 1]], ((2, 3),)),
    "getitem, tensors": (lambda x: x[torch.tensor([0, 1]), torch.tensor([2, 0])], ((2, 3),)),
    "scatter, a number": (lambda x: x.scatter(1, torch.tensor([[2], [0]]), 1.5), ((2, 3),)),
    "scatter, into a constant": (lambda y: fixed(2, 3).scatter(1, torch.tensor([[2], [0]]), y), ((2, 1),)),
    "to, like another": (lambda x: x.to(fixed(1)), ((2, 3),)),
    "index_add": (lambda x, y: x.index_add(1, torch.tensor([2, 2]), y, alpha=0.5), ((2, 3), (2, 2))),
    "scatter_add": (lambda x, y: x.scatter_add(1, torch.tensor([[2, 2], [0, 1]]), y), ((2, 3), (2, 2))),
    "scatter_add, into zeros": (
        lambda y: torch.zeros(2, 3, dtype=torch.float64).scatter_add(1, torch.tensor([[2, 2], [0, 1]]), y), ((2, 2),)),
}  # fmt: skip
