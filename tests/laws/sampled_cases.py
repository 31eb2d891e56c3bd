"""Functions of random arguments that are compared with samples, exact and approximate: the cases of ``test_rules``.

Plain calls of one function are in ``test_every_function``; these have arguments, shapes or operands beside those.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from laws.linear_cases import fixed

from momentgen.laws.law import Law


@dataclass(frozen=True)
class Case:
    """A function of random arguments.

    Args:
        function: of laws.
        shapes: of the arguments.
        bias: of an approximation: the largest bias of the mean in standard deviations, and of the standard deviation.
        batched: whether the first dimension, of size 1, takes the draws.
        options: of :func:`normal_input`.
        n: number of draws.
        noise: whether it is random by itself.
    """

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
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
    "leaky_relu, by keyword": each(lambda x: F.leaky_relu(x, negative_slope=0.3)),
    "gelu, tanh": each(lambda x: F.gelu(x, approximate="tanh")),
    "softplus, parameters": each(lambda x: F.softplus(x, 2.0, 30)),
    "abs, builtin": each(abs),
    "clamp, by keyword": each(lambda x: torch.clamp(x, max=0.3, min=-0.1)),
    "clamp, only from below": each(lambda x: x.clamp(min=0.3)),
    "clamp, only from above": each(lambda x: torch.clip(x, max=0.3)),
    "clamp, both positive": each(lambda x: x.clamp(0.1, 0.9)),
    "clamp, both negative": each(lambda x: x.clamp(-0.9, -0.1)),
    "prelu": Case(lambda x: F.prelu(x, _SLOPES), ((1, 3, 2),)),
    "prelu, one slope": each(lambda x: F.prelu(x, torch.tensor([-1.0]).double())),
    "pow, 1": each(lambda x: x**1),
    "pow, by keyword": each(lambda x: torch.pow(x, exponent=4)),
    # products of two random arguments
    "add, of a square in place": each(lambda x: x.square().add_(1)),
    "matmul": Case(lambda x, y: x @ y, ((1, 2, 3), (1, 3, 2))),
    "rmatmul": Case(lambda x, y: x.__rmatmul__(y) if isinstance(x, Law) else y @ x, ((1, 3, 2), (1, 2, 3))),
    "mm": Case(torch.mm, ((2, 3), (3, 2)), batched=False),
    "mv": Case(torch.mv, ((2, 3), (3,)), batched=False),
    "inner": Case(torch.inner, ((2, 3), (2, 3)), batched=False),
    "tensordot": Case(lambda x, y: torch.tensordot(x, y, 1), ((2, 3), (3, 2)), batched=False),
    "einsum": Case(lambda x, y: torch.einsum("bij,bkj->bik", x, y), ((1, 2, 3), (1, 2, 3))),
    "einsum, an ellipsis": Case(lambda x, y: torch.einsum("...ij,...kj->...ik", x, y), ((1, 2, 3), (1, 2, 3))),
    "einsum, no arrow": Case(lambda x, y: torch.einsum("ij,jk", x, y), ((2, 3), (3, 2)), batched=False),
    "einsum, an index of one operand": Case(lambda x, y: torch.einsum("bi,bjk->bj", x, y), ((1, 3), (1, 2, 2))),
    "einsum, indices of one operand in both": Case(lambda x, y: torch.einsum("bi,bj->b", x, y), ((1, 3), (1, 2))),
    "einsum, an outer product": Case(lambda x, y: torch.einsum("bi,bj->bij", x, y), ((1, 2), (1, 3))),
    "linear, weight random": Case(lambda x, w: F.linear(x, w), ((2, 3), (2, 3)), batched=False),
    "linear, all random": Case(lambda x, w, b: F.linear(x, w, bias=b), ((2, 3), (2, 3), (2,)), batched=False),
    "conv1d, all random": Case(lambda x, w, b: F.conv1d(x, w, b, padding=1), ((1, 2, 3), (1, 2, 2), (1,)),
        batched=False, n=200_000),
    "conv2d, all random, in groups": Case(lambda x, w, b: F.conv2d(x, w, b, groups=2),
        ((1, 2, 3, 2), (2, 1, 2, 2), (2,)), batched=False, n=200_000),
    "conv_transpose1d, all random": Case(lambda x, w: F.conv_transpose1d(x, w, stride=2), ((1, 2, 2), (2, 1, 2)),
        batched=False, n=200_000),
    "addmm": Case(lambda b, x, y: torch.addmm(b, x, y, alpha=0.5), ((2,), (2, 3), (3, 2)), batched=False),
    "addbmm": Case(lambda b, x, y: torch.addbmm(b, x, y), ((1, 2), (2, 1, 2), (2, 2, 2)), batched=False),
    "baddbmm": Case(lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5), ((2,), (1, 2, 3), (1, 3, 2)), batched=False),
    "addmv": Case(lambda b, x, y: torch.addmv(b, x, y), ((2,), (2, 3), (3,)), batched=False),
    "addr": Case(lambda b, x, y: torch.addr(b, x, y), ((2, 3), (2,), (3,)), batched=False),
    "addcmul": Case(lambda a, x, y: torch.addcmul(a, x, y, value=0.5), ((1, 4), (1, 4), (1, 4))),
    "glu, along a dim": Case(lambda x: F.glu(x, dim=1), ((1, 2, 3),)),
    # maxima of two
    "maximum, of a tensor": Case(lambda x: torch.maximum(fixed(4), x), ((1, 4),)),
    "minimum, of a tensor": Case(lambda x: torch.minimum(x, fixed(4)), ((1, 4),)),
    "min": Case(lambda x, y: torch.min(x, other=y), ((1, 4), (1, 4))),
    "max_pool1d, padded": Case(lambda x: F.max_pool1d(x, 2, 2, 1), ((1, 1, 5),)),
    "adaptive_max_pool1d": Case(lambda x: F.adaptive_max_pool1d(x, 3), ((1, 1, 6),)),
    # statistics
    "var, biased, kept": Case(lambda x: x.var(1, False, True), ((1, 4),)),
    "var, of all": Case(lambda x: x.var(), ((2, 2),), batched=False),
    "var, of all, biased": Case(lambda x: x.var(False), ((2, 2),), batched=False),
    "var, correction": Case(lambda x: torch.var(x, dim=(1, 2), correction=0, keepdim=True), ((1, 2, 2),)),
    "var, correction 2, axis": Case(lambda x: x.var(axis=1, correction=2), ((1, 4),)),
    "var_mean, its mean": Case(lambda x: torch.var_mean(x, dim=1, keepdim=True)[1], ((1, 4),)),
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
    "batch_norm, scale random": Case(lambda x, w, b: F.batch_norm(x, fixed(2), fixed(2).square() + 1, w, b),
        ((1, 2, 2), (2,), (2,)), batched=False),
}  # fmt: skip


#: rules that are approximations, with the bias that they are allowed here: of the mean in standard deviations, and of
#: the standard deviation.  What each takes is said behind it.
APPROXIMATE: dict[str, Case] = {
    "layer_norm": Case(lambda x: F.layer_norm(x, (8,), fixed(8), fixed(8, seed=1)), ((1, 8),), bias=(0.01, 0.01)),
    "layer_norm, scale random": Case(lambda x, w, b: F.layer_norm(x, (4,), w, b), ((2, 4), (4,), (4,)),
        bias=(0.01, 0.01), batched=False),
    "rms_norm": Case(lambda x: F.rms_norm(x, (8,), fixed(8)), ((1, 8),), bias=(0.01, 0.01)),
    "group_norm": Case(lambda x: F.group_norm(x, 2, fixed(4), fixed(4, seed=1)), ((1, 4, 2),), bias=(0.01, 0.01)),
    # statistics of the batch at their expectations: bias of order 1/n
    "batch_norm, training": Case(lambda x: F.batch_norm(x, None, None, training=True), ((32, 1),), bias=(0.1, 0.2),
        batched=False, n=200_000),
    "sqrt": each(torch.sqrt, options=(("positive", True),), bias=(0.03, 0.03)),  # gamma in place of normal
    "rsqrt": each(torch.rsqrt, options=(("positive", True),), bias=(0.1, 0.15)),
    "reciprocal": each(torch.reciprocal, options=(("positive", True),), bias=(0.05, 0.15)),  # third order
    "div, by a random value": Case(lambda x, y: x / y, ((1, 4), (1, 4)), options=(("positive", True),),
        bias=(0.05, 0.15)),
    "rdiv": each(lambda x: 2 / x, options=(("positive", True),), bias=(0.05, 0.15)),
    "addcdiv": Case(lambda a, x, y: torch.addcdiv(a, x, y), ((1, 3), (1, 3), (1, 3)), options=(("positive", True),),
        bias=(0.05, 0.15)),
    "std, of all": Case(lambda x: torch.std(x), ((2, 4),), bias=(0.02, 0.03), batched=False),
    "std_mean": Case(lambda x: torch.std_mean(x, 1), ((1, 8),), bias=(0.02, 0.03)),
    "norm, p, keepdim": Case(lambda x: torch.norm(x, 2, 1, True), ((1, 6),), bias=(0.02, 0.03)),
    "norm, of all": Case(lambda x: x.norm(), ((2, 3),), bias=(0.02, 0.03), batched=False),
    "norm, linalg": Case(lambda x: torch.linalg.norm(x, dim=-1), ((1, 6),), bias=(0.02, 0.03)),
    "norm, linalg, of a matrix": Case(lambda x: torch.linalg.norm(x), ((2, 3),), bias=(0.02, 0.03), batched=False),
    "vector_norm, axis": Case(lambda x: torch.linalg.vector_norm(x, dim=1), ((1, 6),), bias=(0.02, 0.03)),
    # one integral, exact to 0.1 %
    "min, of all": Case(lambda x: x.min(), ((2, 3),), bias=(0.005, 0.005), batched=False),
    "amax": Case(lambda x: x.amax((1, 2)), ((1, 2, 3),), bias=(0.005, 0.005)),
    "amax, of all": Case(lambda x: torch.amax(x), ((2, 3),), bias=(0.005, 0.005), batched=False),
    "amax, axis": Case(lambda x: x.amax(axis=1, keepdims=True), ((1, 5),), bias=(0.005, 0.005)),
    "max_pool1d": Case(lambda x: F.max_pool1d(x, 3, 2, 1), ((1, 1, 7),), bias=(0.005, 0.005)),
    "max_pool1d, dilated": Case(lambda x: F.max_pool1d(x, 3, dilation=2, stride=1), ((1, 1, 7),), bias=(0.005, 0.005)),
    "max_pool2d": Case(lambda x: F.max_pool2d(x, 2, ceil_mode=True), ((1, 1, 3, 3),), bias=(0.005, 0.005)),
    "adaptive_max_pool1d": Case(lambda x: F.adaptive_max_pool1d(x, 2), ((1, 1, 5),), bias=(0.005, 0.005)),
    "adaptive_max_pool2d": Case(lambda x: F.adaptive_max_pool2d(x, (1, 2)), ((1, 1, 2, 4),), bias=(0.005, 0.005)),
}  # fmt: skip

#: (query, key, value) of attention
_QKV = ((1, 2, 3), (1, 4, 3), (1, 4, 2))
_BOOL = torch.tensor([[True, False, True, True], [True, True, False, False]])
_FLOAT = torch.tensor([[0.0, -math.inf, 0.5, -1.0], [0.3, 0.0, -math.inf, 0.2]]).double()


def _attention(**given: Any) -> Callable[..., Any]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **given)


_LOWEST, _SDPA = _FLOAT.nan_to_num(neginf=torch.finfo(torch.float64).min), "scaled_dot_product_attention"
# Queries, keys and values as independent; the law of the log-odds as normal.
ATTENTION: dict[str, Case] = {
    _SDPA: Case(_attention(), _QKV, bias=(0.03, 0.06)),
    f"{_SDPA}, bool mask": Case(_attention(attn_mask=_BOOL), _QKV, bias=(0.03, 0.08)),
    f"{_SDPA}, float mask": Case(_attention(attn_mask=_FLOAT), _QKV, bias=(0.03, 0.08)),
    f"{_SDPA}, lowest numbers": Case(_attention(attn_mask=_LOWEST), _QKV, bias=(0.03, 0.08)),
    f"{_SDPA}, causal, scale": Case(_attention(is_causal=True, scale=0.5), _QKV, bias=(0.03, 0.08)),
    f"{_SDPA}, values certain": Case(lambda q, k: _attention()(q, k, fixed(1, 4, 2)), _QKV[:2], bias=(0.05, 0.2)),
    f"{_SDPA}, only values random": Case(
        lambda v: _attention()(fixed(1, 2, 3), fixed(1, 4, 3), v), _QKV[2:], bias=(0.005, 0.005)
    ),
    f"{_SDPA}, grouped queries": Case(
        _attention(enable_gqa=True), ((1, 2, 2, 2), (1, 1, 3, 2), (1, 1, 3, 2)), bias=(0.03, 0.08)
    ),
    f"{_SDPA}, dropout": Case(_attention(dropout_p=0.3), _QKV, bias=(0.03, 0.08), noise=True),
    **{
        f"multi_head_attention_forward{name}": Case(
            lambda x, weights=weights: _multi_head(x.transpose(0, 1), weights).transpose(0, 1),
            ((1, 3, 4),), bias=(0.6, 0.4), n=200_000,
        )
        for name, weights in (("", False), (", with weights", True))
    },
}  # fmt: skip


def _multi_head(x: Any, weights: bool = False) -> Any:
    return F.multi_head_attention_forward(
        x, x, x, 4, 2, fixed(12, 4), fixed(12, seed=1), None, None, False, 0.0, fixed(4, 4, seed=2), fixed(4, seed=3),
        training=False, need_weights=weights,
    )[0]  # fmt: skip


APPROXIMATE.update(ATTENTION)
