"""Noise of a network's own: dropout, random slopes, drawn tensors.  Its moments, given those of what it acts on.

With q = 1 − p kept and torch's scaling by 1/q, dropout's Y = X B / q has mean m and variance (v + p m²) / q.  Both
terms are non-negative (Shekhovtsov & Flach 2018, section 3.2).  Dropout of whole channels has the same moments of
each unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.diagonal import Diagonal, made, pair, point, tensor_of
from momentgen.laws.law import remember, rule
from momentgen.laws.rules.elementwise import random_slope
from momentgen.laws.table import Entry, names


class Unit:
    """Noise of a unit's own, which can be drawn, and whose moments are known."""

    def plain(self, x: Tensor) -> Tensor:
        """What AP1 computes: the unit's mean at a certain value."""
        raise NotImplementedError

    def drawn(self, x: Tensor) -> Tensor:
        """One draw."""
        raise NotImplementedError

    def moments(self, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and *variance*, given those of the value; None is the variance of a certain one."""
        raise NotImplementedError


#: the entry with which a unit is called on a law: ``dispatch(UNIT, None, (law, unit), {})``
UNIT = Entry("unit", "noise", lambda x, unit: unit.drawn(x))

#: the value to which alpha dropout sets units, −scale·alpha of SELU.
_ALPHA = -1.7580993408473766

_DROPOUT = ("p", "training")
_SIGNATURES: dict[str, tuple[str, ...]] = {
    **{f"dropout{d}": _DROPOUT for d in ("", "1d", "2d", "3d")},
    "alpha_dropout": _DROPOUT,
    "feature_alpha_dropout": _DROPOUT,
    "rrelu": ("lower", "upper", "training"),
    "bernoulli": ("p",),
    "bernoulli_": ("p",),
    "normal_": ("mean", "std"),
    "uniform_": ("from", "to"),
    "scaled_dot_product_attention": ("key", "value", "attn_mask", "dropout_p"),
    "multi_head_attention_forward": (
        "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k", "bias_v",
        "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias", "training",
    ),
}  # fmt: skip


def _bound(entry: Entry, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = _SIGNATURES.get(entry.name, ())
    # torch.compile of old versions zips what is of one length only.
    return {**dict(zip(names[: len(args) - 1], args[1 : len(names) + 1], strict=True)), **kwargs}


def active(entry: Entry, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the call is random by itself."""
    bound = _bound(entry, args, kwargs)
    name = entry.name
    if entry is UNIT:
        return True
    if "dropout" in name:
        # torch.dropout's argument is called `train`; the alpha dropouts of F default to training=False.
        training = bound.get("training", bound.get("train", "alpha" not in name))
        return bool(training) and bound.get("p", 0.5) > 0
    if name == "rrelu":
        lower, upper = slopes(entry, args, kwargs)
        return bool(bound.get("training", False)) and upper > lower
    if name == "scaled_dot_product_attention":
        return bool(bound.get("dropout_p", 0.0) > 0)
    if name == "multi_head_attention_forward":
        return bool(bound.get("training", True) and bound.get("dropout_p", 0.0) > 0)
    if name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        # input, hx, params, has_biases, num_layers, dropout, train, ...; packed sequences have one argument more
        shift = 0 if isinstance(args[3], bool) else 1
        return bool(args[5 + shift] > 0 and args[6 + shift])
    return entry.kind == "noise"


def probability(entry: Entry, args: Any, kwargs: dict[str, Any]) -> float:
    """The probability with which dropout drops."""
    return _bound(entry, args, kwargs).get("p", 0.5)


def channels(name: str, dimensions: int) -> int:
    """How many dimensions in front count the channels that a dropout of channels drops; ``dropout2d`` takes a batch."""
    return 2 if name == "dropout2d" or dimensions == int(name[-2]) + 2 else 1


def slopes(entry: Entry, args: Any, kwargs: dict[str, Any]) -> tuple[float, float]:
    """The least and the largest slope of RReLU.

    Raises:
        InputError: if one of them is not a real number.
    """
    bound = _bound(entry, args, kwargs)
    found = bound.get("lower", 1 / 8), bound.get("upper", 1 / 3)
    try:
        return float(found[0]), float(found[1])
    except (TypeError, ValueError) as error:
        cause = f"{entry.name}: expected real slopes, got lower={found[0]!r}, upper={found[1]!r}"
        raise InputError(cause) from error


def expectation(entry: Entry, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor | None:
    """What AP1 takes for the call on certain values: its mean; None where torch's own function does not draw."""
    if not active(entry, args, kwargs):
        return None
    mean: Tensor
    if entry is UNIT:
        return args[1].plain(args[0])
    if entry.name == "rrelu":
        return F.leaky_relu(args[0], sum(slopes(entry, args, kwargs)) / 2)
    mean, _ = moments(entry, args[0], None, args, kwargs)
    return mean


def _drawn_alone(name: str, args: Any, bound: dict[str, Any]) -> tuple[Any, Any] | None:
    """Mean and *variance* of numbers that do not depend on the value; None of others."""
    if name in ("randn_like", "normal_"):
        return bound.get("mean", 0.0), bound.get("std", 1.0) ** 2
    if name in ("rand_like", "uniform_"):
        low, high = bound.get("from", 0.0), bound.get("to", 1.0)
        return (low + high) / 2, (high - low) ** 2 / 12
    if name == "randint_like":
        low, high = (0, *args[1:])[-2:] if len(args) > 1 else (bound.get("low", 0), bound["high"])
        return (low + high - 1) / 2, ((high - low) ** 2 - 1) / 12
    if name == "bernoulli_" or (name == "bernoulli" and bound.get("p") is not None):
        p = bound.get("p", 0.5)
        return p, p * (1 - p)
    return None


def moments(entry: Entry, mean: Tensor, var: Tensor | None, args: Any, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Mean and variance of an active call, from those of the value; None is the variance of a certain one."""
    if entry is UNIT:
        return args[1].moments(mean, var)
    bound, name = _bound(entry, args, kwargs), entry.name
    if (law := _drawn_alone(name, args, bound)) is not None:
        options = {key: value for key, value in kwargs.items() if key in ("dtype", "device")}
        like = torch.zeros_like(mean, **options) if "like" in name else torch.zeros_like(mean)
        return like + law[0], like + law[1]
    if name == "bernoulli":  # each value is a probability, and its mean is all that matters
        return mean, mean * (1 - mean)
    p = bound.get("p", 0.5)
    if p == 1:
        return torch.zeros_like(mean), torch.zeros_like(mean)
    kept = 1 - p
    if "alpha" in name:
        # Y = a (X B + α (1 − B)) + b with torch's a and b
        scale = (kept * (1 + p * _ALPHA**2)) ** -0.5
        spread = (mean - _ALPHA).square() * p
        return mean * (scale * kept), (spread if var is None else var + spread) * (scale**2 * kept)
    own = mean.square() * (p / kept)
    return mean, own if var is None else var / kept + own


# ----------------------------------------------------------------- the rule

#: dropout of whole channels
_CHANNELS = frozenset(names("dropout1d dropout2d dropout3d"))


@rule(Diagonal, "noise")
def _noise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not active(entry, args, kwargs):
        if entry.name == "rrelu":
            return F.leaky_relu(x, sum(slopes(entry, args, kwargs)) / 2)
        return x
    if entry.name in _CHANNELS:
        return _by_channel(entry, args, kwargs)
    mean, var = pair(x)
    if entry.name == "rrelu":
        lower, upper = slopes(entry, args, kwargs)
        return made(*random_slope(mean, torch.zeros_like(mean) if var is None else var, lower, upper))
    law = made(*moments(entry, mean, var, [tensor_of(value) for value in args], kwargs))
    if entry.name == "dropout" and type(x) is Diagonal:  # that attention knows its weights; noise is a source elsewhere
        return remember(law, entry, (x, probability(entry, args, kwargs)), {}, x)
    return law


def _by_channel(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dropout of whole channels: a product with noise that all values of a channel have in common."""
    x, p = args[0], probability(entry, args, kwargs)
    if p >= 1:
        return torch.zeros_like(x)
    batch = channels(entry.name, x.ndim)
    ones = torch.ones((*x.shape[:batch], *[1] * (x.ndim - batch)), dtype=x.dtype, device=x.device)
    scale: Any = point(ones, x._noise)
    return x * F.dropout(scale, p)
