"""Functions that are written over others: attention, gated units, ``addmm`` and its like.

Each is a few lines over functions of torch that laws have rules for.  So it serves every law that has those.  Attention
has a rule of its own for moments.  ``F.multi_head_attention_forward`` is run from torch's own code object.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from momentgen.laws.diagonal import Diagonal
from momentgen.laws.law import Law, Rule, rule
from momentgen.laws.table import Entry

__all__ = []


def _by_body(function: Any) -> Rule:
    """The rule of a function of torch.nn.functional whose body runs on laws, instead of handing itself to them."""
    asked = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    known = {**function.__globals__, **dict.fromkeys(asked, lambda *_: False)}
    body = types.FunctionType(function.__code__, known, function.__name__, function.__defaults__)
    defaults = function.__kwdefaults__ or {}

    def rule(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return body(*args, **{**defaults, **kwargs})

    return rule


_plain_dtype = F._none_or_dtype


def _dtype_of_mask(mask: Any) -> torch.dtype | None:
    """The type of a mask's numbers, also of a law: a mask may be an argument of the network."""
    return mask.dtype if isinstance(mask, Law) else _plain_dtype(mask)


# nn.MultiheadAttention and nn.Transformer ask it of their masks before they call a function that laws know.
F._none_or_dtype = _dtype_of_mask  # type: ignore[assignment]
rule(Diagonal, "multi_head_attention_forward")(_by_body(F.multi_head_attention_forward))


# ------------------------------------------------------------ the others


def _glu(x: Any, dim: int = -1) -> Any:
    first, second = x.chunk(2, dim)
    return first * torch.sigmoid(second)


def _times(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * factor


_WRITTEN: dict[str, Callable[..., Any]] = {
    "glu": _glu,
    "lerp": lambda input, end, weight: input * (1 - weight) + end * weight,
    "softmin": lambda input, dim=None, _stacklevel=3, dtype=None: F.softmax(-input, dim, dtype=dtype),
    "addcmul": lambda input, tensor1, tensor2, value=1: input + _times(tensor1 * tensor2, value),
    "addcdiv": lambda input, tensor1, tensor2, value=1: input + _times(tensor1 / tensor2, value),
    "trace": lambda input: input.diagonal().sum(),
    "linalg_vecdot": lambda x, y, dim=-1: (x * y).sum(dim),
    "vdot": lambda input, other: (input * other).sum(),
}


@rule(Diagonal, *_WRITTEN)
def _written_out(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _WRITTEN[entry.name](*args, **kwargs)


@rule(Diagonal, "addmm", "addbmm", "baddbmm", "addmv", "addr")
def _add_product(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    product = (torch.outer if entry.name == "addr" else torch.matmul)(args[1], args[2])
    product = _times(product.sum(0) if entry.name == "addbmm" else product, kwargs.get("alpha", 1))
    beta = kwargs.get("beta", 1)
    return product if beta == 0 else product + _times(args[0], beta)  # what is not added may be anything
