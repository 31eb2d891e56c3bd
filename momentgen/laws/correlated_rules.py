"""Rules of ``Correlated``: one for functions of each value by itself, and one for all others.

Both stand on the rules of independent values.  Movement and affine functions are taken apart, since they map tangents
and deviations alike, in one call; maxima have a module of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws import affine, composite, noise
from momentgen.laws.adjoint import gain_of
from momentgen.laws.correlated import RUN, Correlated, correlated, deflated, exact, mixed, squared_length
from momentgen.laws.correlated_maximum import maximum
from momentgen.laws.diagonal import Diagonal, diagonal
from momentgen.laws.law import Law, laws_in, tensor_of, tensors_of
from momentgen.laws.maxima import is_monotone
from momentgen.laws.movement import shares_memory
from momentgen.laws.point import Point
from momentgen.laws.rules import diagonal_rule
from momentgen.laws.slopes import slope_of
from momentgen.laws.table import KINDS, Entry, names
from momentgen.laws.unsupported import unsupported

__all__: list[str] = []

#: the law of independent values that stands for a correlated one
Given = Callable[[Correlated], Any]


# ------------------------------------------------------------------ arguments


def _with(value: Any, given: Given) -> Any:
    """Arguments with something in the place of each correlated law, and the tensor of each certain one."""
    if isinstance(value, Correlated):
        return given(value)
    if isinstance(value, Point):
        return value._form()
    if type(value) in (tuple, list):
        return type(value)([_with(item, given) for item in value])
    return value


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any], given: Given) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple([_with(value, given) for value in args]), {key: _with(v, given) for key, v in kwargs.items()}


def _random(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Correlated]:
    found = {id(law): law for law in laws_in((*args, *kwargs.values())) if isinstance(law, Correlated)}
    return list(found.values())


def _by_rule(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], given: Given) -> Any:
    """The rule of independent values, on laws that ``given`` makes of the correlated ones."""
    own = diagonal_rule(entry.name, entry.kind)
    if own is None:
        raise unsupported(entry.call, laws_in((*args, *kwargs.values()))[0], None, entry)
    rest, named = _arguments(args, kwargs, given)
    return own(entry, rest, named)


def _alone(law: Correlated) -> Diagonal:
    """Mean and variance, with the history that tells functions of one value."""
    return law._joint.alone


def _independent(law: Correlated) -> Diagonal:
    """Mean and variance, without a history."""
    return diagonal(law._mean, law._var)


def _rest(law: Correlated) -> Diagonal:
    """The mean with D, the variance that the directions do not explain."""
    return diagonal(law._mean, (law._var - law._joint.explained).clamp_min(0))


# ----------------------------------------------------------------------- rows


class _Call:
    """A call as a function of the tensors that stand for its correlated laws."""

    def __init__(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.call, self.args, self.kwargs = entry.call, args, kwargs
        self.laws = _random(args, kwargs)

    def __call__(self, *values: Any) -> Any:
        own, named = _arguments(self.args, self.kwargs, self.in_place_of(values))
        return self.call(*own, **named)

    def in_place_of(self, values: Any) -> Given:
        """What gives each law its value."""
        place = {id(law): value for law, value in zip(self.laws, values, strict=True)}
        return lambda law: place[id(law)]

    def samples(self) -> Any:
        """Of each sample."""
        rows = [law._mean + law._joint.deviations for law in self.laws]
        return torch.vmap(self, randomness="different")(*rows)

    def along(self, rows: list[Tensor], function: Callable[..., Any] | None = None) -> Any:
        """Directional derivatives at the means, of the call or of another function of the same values."""
        at = tuple(law._mean.contiguous() for law in self.laws)  # forward mode writes beside it
        chosen = self if function is None else function
        return torch.vmap(lambda *t: torch.func.jvp(chosen, at, t)[1], randomness="different")(*rows)

    def tangents(self) -> list[Tensor]:
        """Of each law."""
        return [law._joint.tangents for law in self.laws]


def _stacked(law: Correlated) -> Tensor:
    """Tangents and deviations, which linear maps treat alike."""
    return torch.cat([law._joint.tangents, law._joint.deviations])


def _split(rows: Tensor, like: Correlated) -> tuple[Tensor, Tensor]:
    count = len(like._joint.tangents)
    return rows[:count], rows[count:]


def _channel(entry: Entry, mean: Tensor) -> int:
    """The dimension along which units are alike: channels of a convolution, features of all else."""
    of_space = entry.name.startswith(("conv", "avg_pool", "max_pool", "adaptive")) or mean.dim() == 4
    return 1 if of_space and mean.dim() > 2 else -1


# --------------------------------------------------------------------- affine

#: affine functions whose first dimension is the batch
_BATCHED = frozenset(
    ["linear", "batch_norm"]
    + [f"{name}{d}d" for name in ("conv", "conv_transpose", "avg_pool", "adaptive_avg_pool") for d in (1, 2, 3)]
)


def _linear_part(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    """An affine function without its constant, of rows of values."""
    own, named = _arguments(args[1:], kwargs, tensor_of)
    shape = args[0]._mean.shape
    if entry.name == "linear" or entry.name.startswith("conv"):
        bound = {**affine.bind(entry.name, own, named), "bias": None}

        def linear(x: Tensor) -> Tensor:
            return cast(Tensor, entry.call(x, **bound))

    else:
        zero = entry.call(torch.zeros_like(args[0]._mean), *own, **named)

        def linear(x: Tensor) -> Tensor:
            return cast(Tensor, entry.call(x, *own, **named) - zero)

    if entry.name in _BATCHED and len(shape) > 1 and shape[0] == 1:
        # An example is a batch of one, and rows may take the batch's place.
        return lambda rows: linear(rows.squeeze(1)).unsqueeze(1)
    return torch.vmap(linear)


def _affine(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if (dims := affine.pooled_to_one(entry.name, args, kwargs)) is not None:
        return x.mean(dims, keepdim=True)
    if not isinstance(x, Correlated) or len(_random(args, kwargs)) > 1 or entry.name == "diff":
        return _general(entry, args, kwargs)
    each = entry.name == "batch_norm"  # a function of each value by itself
    independent = x._joint.independent
    mean, var = _by_rule(entry, args, kwargs, _alone if independent or each else _rest)._parts()
    tangents, deviations = _split(_linear_part(entry, args, kwargs)(_stacked(x)), x)
    if not independent and not each:
        return mixed(mean, var, tangents, deviations, _channel(entry, mean))
    h = squared_length(tangents)
    return correlated(mean, torch.maximum(var, h), tangents, deviations, h, independent=each and independent)


# ------------------------------------------------------------------- movement

#: functions that put every value in one place
_ONCE = frozenset(
    names(
        "view reshape view_as reshape_as flatten ravel unflatten permute transpose t swapaxes swapdims movedim "
        "moveaxis squeeze unsqueeze roll flip fliplr flipud rot90 contiguous clone detach data narrow select chunk "
        "split split_with_sizes tensor_split hsplit vsplit dsplit unbind to float double half bfloat16 type_as type "
        "pixel_shuffle pixel_unshuffle channel_shuffle tril triu atleast_1d atleast_2d atleast_3d real positive"
    )
)


def _movement(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if entry.name == "cat" and isinstance(args[0], Law):
        return args[0]
    moved = _by_rule(entry, args, kwargs, _independent)
    call = _Call(entry, args, kwargs)
    first = call.laws[0]
    zero = call(*[torch.zeros_like(law._mean) for law in call.laws])

    def part(*values: Tensor) -> Any:
        out = call(*values)
        if isinstance(out, Tensor):
            return _less(out, zero)
        return tuple(_less(a, b) for a, b in zip(out, zero, strict=True))

    rows = torch.vmap(part)(*[_stacked(law) for law in call.laws])
    independent = first._joint.independent and entry.name in _ONCE

    def law(alone: Diagonal, own: Tensor) -> Correlated:
        mean, var = alone._parts()
        made = correlated(mean, var, *_split(own, first), independent=independent)
        if args[0] is first and shares_memory(entry, first._mean, mean, list(args[1:])):
            _share(first, made)
        return made

    if isinstance(moved, tuple | list):
        return type(moved)([law(one, own) for one, own in zip(moved, rows, strict=True)])
    if not isinstance(moved, Law):
        return moved
    return law(cast(Diagonal, moved), rows)


def _share(whole: Correlated, part: Correlated) -> None:
    """Let both know that they are in one memory."""
    sharing = whole._joint.sharing
    if not sharing:
        sharing.append(weakref.ref(whole))
    sharing.append(weakref.ref(part))
    part._joint = replace(part._joint, sharing=sharing)


def _less(value: Tensor, constant: Tensor) -> Tensor:
    """A moved value without what is put beside it, which may be infinite."""
    return torch.where(constant.isfinite(), value - constant, 0)


# --------------------------------------------------------- each value by itself


def _elementwise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of each value by itself: its own rule is exact for a normal value, however values hang together."""
    x = args[0]
    if not isinstance(x, Correlated) or len(_random(args, kwargs)) != 1:
        return _general(entry, args, kwargs)
    alone = _by_rule(entry, args, kwargs, _alone)
    if alone is x._joint.alone:
        return x
    rest, named = _arguments(args[1:], kwargs, tensor_of)
    joint, samples = x._joint, x._mean + x._joint.deviations
    if entry.name == "prelu":  # which has a channel dimension
        drawn = torch.vmap(lambda sample: entry.call(sample, *rest, **named))(samples)
    else:
        drawn = entry.call(samples, *rest, **named)
    tangents = gain_of(joint.alone, entry, entry.kind, rest, named) * joint.tangents
    monotone = None
    if is_monotone(entry, args, kwargs):
        snapshot = correlated(x._mean, x._var, joint.tangents, joint.deviations, joint.explained, alone=joint.alone)
        monotone = (entry, args[1:], kwargs, snapshot)
    return exact(alone, tangents, drawn - alone._parts()[0], independent=joint.independent, monotone=monotone)


def _arithmetic(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = _Call(entry, args, kwargs)
    first = call.laws[0]
    once = len(call.laws) == 1 and sum(value is first for value in (*args, *kwargs.values())) == 1
    if once and (entry.name == "rdiv" or (entry.name == "div" and args[0] is not first)):
        return _general(entry, args, kwargs)
    alone = _by_rule(entry, args, kwargs, _alone)
    if once:
        tangents, deviations = _split(call.along([_stacked(first)]), first)
        return exact(alone, tangents, deviations, independent=first._joint.independent)
    if alone._made is not None and alone._of is not None:
        # One source: its rule is exact, as it is for a function written in one.
        return exact(alone, call.along(call.tangents()), call.samples() - alone._parts()[0])
    return _general(entry, args, kwargs)


def _noise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not noise.active(entry, args, kwargs):
        return _elementwise(entry, args, kwargs) if entry.name == "rrelu" else x
    run = RUN.get()
    alone = _by_rule(entry, args, kwargs, _alone) if isinstance(x, Correlated) else _of_certain(entry, args, kwargs)
    mean, var = alone._parts()
    if not isinstance(x, Correlated):
        return correlated(mean, var, *run.source(mean, var), independent=True)
    joint = x._joint
    gain = gain_of(joint.alone, entry, "noise", *_arguments(args[1:], kwargs, tensor_of))
    tangents, draws = run.source(mean, (var - gain.square() * x._var).clamp_min(0))
    return exact(
        alone, gain * joint.tangents + tangents, gain * joint.deviations + draws, independent=joint.independent
    )


def _of_certain(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return diagonal_rule(entry.name, "noise")(entry, args, kwargs)  # type: ignore[misc]


# --------------------------------------------------------------------- others


def _general(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Any function that independent values have a rule for."""
    found = _by_rule(entry, args, kwargs, _independent)
    if isinstance(found, tuple | list):
        return type(found)([_one_of(entry, args, kwargs, found, place) for place in range(len(found))])
    return _one_of(entry, args, kwargs, found, None)


def _one_of(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any, place: int | None) -> Any:
    """One of a function's results, or its only one, of which ``results`` is what independent values give."""

    def taken(results: Any) -> Any:
        return results if place is None else results[place]

    found = taken(results)
    if not isinstance(found, Law):
        return found
    call = _Call(entry, args, kwargs)
    first = call.laws[0]
    mean, whole = found._parts()
    slope = None
    if len(call.laws) == 1 and args[0] is first:
        slope = slope_of(entry, args, kwargs, first._var, mean, whole)

    def rule(*means: Tensor) -> Tensor:
        given = call.in_place_of([diagonal(m, law._var) for law, m in zip(call.laws, means, strict=True)])
        return cast(Tensor, taken(_by_rule(entry, args, kwargs, given))._parts()[0])

    tangents = call.along(call.tangents(), rule if slope is None else slope)
    if entry.name in _BILINEAR and len(call.laws) == 2:
        mean = mean + _shared(call)
    if entry.kind == "normalise":
        before, after = first._var, _rest(first)._var
        usable = before > 0
        prior = torch.where(usable, whole * after / torch.where(usable, before, 1), whole)
    else:
        prior = taken(_by_rule(entry, args, kwargs, _rest))._parts()[1]
    return mixed(mean, prior, tangents, taken(call.samples()) - mean, _channel(entry, mean))


#: functions that are linear in each of two factors
_BILINEAR = frozenset(names("mul matmul mm bmm mv dot inner outer"))


def _shared(call: _Call) -> Tensor:
    """What the covariance of two factors adds to the mean of their product."""
    together = torch.vmap(call)
    rest = [deflated(law._joint.deviations, law._joint.tangents) for law in call.laws]
    return cast(Tensor, together(*call.tangents()).sum(0) + together(*rest).mean(0))


def _creation(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = laws_in((*args, *kwargs.values()))[0]
    values, named = tensors_of(args, kwargs)
    out = entry.call(*values, **named)
    if not out.is_floating_point() or not isinstance(x, Correlated):
        return out
    zero = torch.zeros_like(out)
    rows = [zero.expand(len(own), *out.shape) for own in (x._joint.tangents, x._joint.deviations)]
    return correlated(out, zero, *rows, independent=True)


Correlated.RULES = {
    **{kind: _general for kind in KINDS if kind not in ("decision", "write")},
    **{name: Diagonal.RULES[name] for name in ("query", "refusal")},
    "affine": _affine,
    "batch_norm": _affine,
    "movement": _movement,
    "pointwise": _elementwise,
    "arithmetic": _arithmetic,
    "noise": _noise,
    "creation": _creation,
    "maximum": maximum,
    **composite.RULES,
    "scaled_dot_product_attention": composite.attention_by_parts,
}
