"""What stands in a moments network for each class and function of torch; :mod:`momentgen.nn.convert` reads it.

Three kinds of function: those that become a layer (activations, pools, dropout,
softmax), those with a rule of their own (linear maps, arithmetic), and those that
only move values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import momentgen.nn as layers
from momentgen.errors import InputError
from momentgen.nn import activation, functional
from momentgen.nn.conv import convolution
from momentgen.nn.layer import Layer, as_moments, certain
from momentgen.nn.shape import Identity, both
from momentgen.runtime import Moments

__all__ = [
    "DROPOUTS",
    "MOVES",
    "NAMES",
    "QUERIES",
    "RULES",
    "AlwaysDropout",
    "Entry",
    "function_rule",
    "item",
    "layer_for",
    "make_twin",
    "module_twin",
    "moved",
    "query",
]


# --------------------------------------------------------------------- modules


def module_twin(module: torch.nn.Module) -> type[Layer] | None:
    """The layer that stands for ``module``: by its exact class, for a subclass may do something else."""
    kind = type(module)
    if getattr(torch.nn, kind.__name__, None) is not kind:
        return None
    twin = getattr(layers, kind.__name__, None) if kind.__name__ in layers.layer_names() else None
    return twin if isinstance(twin, type) and issubclass(twin, Layer) else None


def make_twin(module: torch.nn.Module, twin: type[Layer]) -> Layer:
    """A layer over the same parameters and buffers as ``module``: the dictionaries themselves are shared."""
    layer = twin.__new__(twin)
    fresh = torch.nn.Module()
    hooks = {name: value for name, value in fresh.__dict__.items() if "hooks" in name}
    layer.__dict__.update(module.__dict__)
    layer.__dict__.update(hooks)
    if layer.__dict__.get("inplace"):
        layer.__dict__["inplace"] = False
    return layer


class Entry(Identity):
    """Where inputs enter: checked, and under ``sample`` drawn once, for all that use them.

    Args:
        mode: ``training`` for which the graph holds; None for both.
    """

    def __init__(self, mode: bool | None = None) -> None:
        super().__init__()
        self.mode = mode

    def propagate(self, value: Any) -> Any:
        if self.mode is not None and self.training != self.mode:
            now, then = ("training", "evaluation") if self.training else ("evaluation", "training")
            raise InputError(
                f"convert: the network computes something else in {now} than in {then}, in which it was converted; "
                f"convert it again in {now}"
            )
        if isinstance(value, Moments) or (isinstance(value, Tensor) and value.is_floating_point()):
            return super().propagate(value)
        return value  # indices, masks, numbers

    forward: Any = propagate


class AlwaysDropout(layers.Dropout):
    """Dropout that plain code calls with ``training=True`` in evaluation too."""

    def train(self, mode: bool = True) -> AlwaysDropout:
        super().train(True)
        return self


# ------------------------------------------------- functions that become layers


def _softmax(name: str) -> Callable[..., Layer]:
    def make(dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Layer:
        if dtype is not None:
            raise InputError(f"{name}: no rule for dtype={dtype}")
        return getattr(layers, name)(dim)  # type: ignore[no-any-return]

    return make


def _max_pool(name: str) -> Callable[..., Layer]:
    def make(
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Layer:
        return getattr(layers, name)(kernel_size, stride, padding, dilation, return_indices, ceil_mode)  # type: ignore[no-any-return]

    return make


_ACTIVATIONS = {function: row.layer for row in activation.ACTIVATIONS for function in row.functions}
_LAYERS: dict[str, Callable[..., Layer]] = {
    "softmax": _softmax("Softmax"),
    "log_softmax": _softmax("LogSoftmax"),
    **{f"max_pool{d}d": _max_pool(f"MaxPool{d}d") for d in (1, 2, 3)},
    **{f"avg_pool{d}d": getattr(layers, f"AvgPool{d}d") for d in (1, 2, 3)},
    **{f"adaptive_avg_pool{d}d": getattr(layers, f"AdaptiveAvgPool{d}d") for d in (1, 2, 3)},
    **{f"lp_pool{d}d": getattr(layers, f"LPPool{d}d") for d in (1, 2, 3)},
    **{f"adaptive_max_pool{d}d": getattr(layers, f"AdaptiveMaxPool{d}d") for d in (1, 2, 3)},
}
DROPOUTS = {
    "dropout": "Dropout",
    "dropout1d": "Dropout1d",
    "dropout2d": "Dropout2d",
    "dropout3d": "Dropout3d",
    "alpha_dropout": "AlphaDropout",
    "feature_alpha_dropout": "FeatureAlphaDropout",
}


def layer_for(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layer | None:
    """The layer for a call ``name(x, *args, **kwargs)`` of a function, or None if it becomes none.

    Raises:
        MissingRuleError: if its rule has not been built.
        InputError: for arguments that no layer takes.
    """
    if name in _ACTIVATIONS:
        row = _ACTIVATIONS[name]
        if error := activation.missing(row):
            raise error
        return activation.LAYERS[row](*args, **kwargs)
    make = _LAYERS.get(name)
    return None if make is None else make(*args, **kwargs)


# ----------------------------------------------- functions with their own rules


def _conv(name: str) -> Callable[..., Moments]:
    run = getattr(F, name)

    def rule(x: Moments, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Moments:
        return convolution(lambda value, w, b: run(value, w, b, *args, **kwargs), x, weight, bias)

    return rule


def _power(x: Moments, exponent: float) -> Moments:
    if exponent != 2:
        raise InputError(f"pow: a rule for the exponent 2 only, got {exponent!r}")
    return functional.mul(x, x)


def _square(x: Moments) -> Moments:
    return functional.mul(x, x)


def _maximum(x: Any, y: Any) -> Moments:
    return functional.maximum(as_moments("maximum", x), as_moments("maximum", y))


def _rule_sub(x: Any, y: Any) -> Moments:
    return functional.sub(y, x)


def _embedding(indices: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Moments:
    return certain(F.embedding(indices, weight, *args, **kwargs))


def _embedding_bag(indices: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Moments:
    return certain(F.embedding_bag(indices, weight, *args, **kwargs))


RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "add_", "iadd", "__add__", "__radd__", "__iadd__"), functional.add),
    **dict.fromkeys(("sub", "sub_", "isub", "subtract", "__sub__", "__isub__"), functional.sub),
    **dict.fromkeys(("rsub", "__rsub__"), _rule_sub),
    **dict.fromkeys(("mul", "mul_", "imul", "multiply", "__mul__", "__rmul__", "__imul__"), functional.mul),
    **dict.fromkeys(("div", "div_", "truediv", "itruediv", "divide", "__truediv__"), functional.div),
    **dict.fromkeys(("neg", "negative", "__neg__"), functional.neg),
    **dict.fromkeys(("matmul", "bmm", "mm", "__matmul__"), functional.matmul),
    **dict.fromkeys(("cat", "concat", "concatenate"), functional.cat),
    **dict.fromkeys(("pow", "__pow__"), _power),
    "square": _square,
    "stack": functional.stack,
    "mean": functional.mean,
    "sum": functional.sum,
    "maximum": _maximum,
    "max": _maximum,
    "linear": functional.linear,
    "bilinear": functional.bilinear,
    "embedding": _embedding,
    "embedding_bag": _embedding_bag,
    "batch_norm": functional.batch_norm,
    "layer_norm": functional.layer_norm,
    "group_norm": functional.group_norm,
    "rms_norm": functional.rms_norm,
    "pad": functional.pad,
    "interpolate": functional.interpolate,
    **{name: _conv(name) for name in ("conv1d", "conv2d", "conv3d")},
    **{name: _conv(name) for name in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")},
}
#: methods (and functions of torch of the same name) that move values, or copy them.
# fmt: off
MOVES = frozenset((
    "view", "reshape", "flatten", "ravel", "unflatten", "permute", "transpose", "t", "movedim", "moveaxis",
    "swapaxes", "swapdims", "squeeze", "unsqueeze", "expand", "expand_as", "broadcast_to", "repeat", "tile",
    "repeat_interleave", "roll", "flip", "rot90", "contiguous", "clone", "detach", "narrow", "select",
    "index_select", "gather", "chunk", "split", "tensor_split", "unbind", "to", "float", "double", "half",
    "bfloat16", "type_as", "cpu", "cuda", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "reshape_as",
    "view_as",
))
# fmt: on
#: what is asked of a tensor's form, not of its values.
# fmt: off
QUERIES = frozenset((
    "size", "dim", "ndimension", "numel", "nelement", "stride", "shape", "ndim", "dtype", "device",
    "is_floating_point", "element_size", "is_contiguous",
))
# fmt: on


def function_rule(name: str, *args: Any, **kwargs: Any) -> Any:
    """Run ``name`` by its rule where an argument is random, else as torch does."""
    if "input" in kwargs:
        args = (kwargs.pop("input"), *args)
    if name in ("cat", "concat", "concatenate", "stack") and not any(isinstance(x, Moments) for x in args[0]):
        return getattr(torch, name)(*args, **kwargs)
    if "other" in kwargs:
        args = (*args, kwargs.pop("other"))
    if "tensors" in kwargs:
        args = (kwargs.pop("tensors"), *args)
    return RULES[name](*args, **kwargs)


def item(x: Any, index: Any) -> Any:
    """``x[index]``."""
    return both(lambda part: part[index], x) if isinstance(x, Moments) else x[index]


def moved(name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The method ``name`` of a tensor, which moves values, on mean and variance alike."""
    if name in ("expand_as", "view_as", "reshape_as", "type_as"):
        args = tuple(arg.mean if isinstance(arg, Moments) else arg for arg in args)
    if not isinstance(x, Moments):
        return _move(name, x, *args, **kwargs)
    mean = _move(name, x.mean, *args, **kwargs)
    if isinstance(mean, Tensor):
        return both(lambda part: _move(name, part, *args, **kwargs), x)
    return tuple(map(Moments, mean, _move(name, x.var, *args, **kwargs)))


def _move(name: str, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    method = getattr(x, name, None)
    return method(*args, **kwargs) if method is not None else getattr(F, name)(x, *args, **kwargs)


def query(name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    """What is asked of a value's form."""
    found = getattr(x.mean if isinstance(x, Moments) else x, name)
    return found(*args, **kwargs) if callable(found) and not isinstance(found, torch.dtype | torch.device) else found


#: functions of torch and operator that fx may meet, by identity -> name.
NAMES: dict[Any, str] = {}
for _module in (torch, F, torch.special, operator):
    for _name in sorted({*RULES, *MOVES, *_ACTIVATIONS, *_LAYERS, *DROPOUTS}, key=lambda name: (name[0] == "_", name)):
        if (_found := getattr(_module, _name, None)) is not None and callable(_found):
            NAMES.setdefault(_found, _name)
