"""Rules of ``Covariance`` for functions that move, add or scale values, take them one at a time, or overwrite them.

Affine functions and movement are exact.  Functions of one value at a time have the moments that ``Diagonal`` has for
them, and covariances by an op of two values (:mod:`momentgen.laws.numerics.pairs`), or, where there is none, by Hermite
terms (:mod:`momentgen.laws.numerics.hermite`).
"""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws import affine, composite, noise, norms
from momentgen.laws.affine import VARIANCE
from momentgen.laws.chains import chained, start_of
from momentgen.laws.covariance import Covariance, covariance, fixed, source, symmetric
from momentgen.laws.covariance_graph import Node, Push
from momentgen.laws.covariance_linear import (
    all_replaced,
    by_rows,
    certain_as_tensor,
    linear_of,
    numbered,
    of_diagonal,
    picked,
    random_in,
    room,
    stretched,
    times,
)
from momentgen.laws.covariance_several import RULES as SEVERAL
from momentgen.laws.covariance_several import by_jacobian, function_of, note_curved, products, start_together
from momentgen.laws.diagonal import _LIKE_ANOTHER, _VALUE_NAMES, _VALUES, Diagonal, _where, diagonal, run_of
from momentgen.laws.law import OVERWRITTEN, Law, Rule, laws_in, remember, tensor_of, tensors_of
from momentgen.laws.movement import shares_memory
from momentgen.laws.numerics.dust import product
from momentgen.laws.point import Point, point
from momentgen.laws.pointwise import covariance_op, is_registered
from momentgen.laws.recognise import CASTS, RESHAPES
from momentgen.laws.source import CHOICES, common_source, is_pointwise
from momentgen.laws.table import TABLE, Entry, names
from momentgen.laws.unsupported import unsupported

__all__ = ["RULES"]


def _promoted(rule: Rule) -> Rule:
    """Noise of the network's own may have made independent values of certain ones: they are a law like others."""

    @functools.wraps(rule)
    def run(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(isinstance(law, Diagonal) for law in laws_in((*args, *kwargs.values()))):
            known: dict[int, Covariance] = {}

            def change(law: Law) -> Law:
                if isinstance(law, Diagonal) and id(law) not in known:
                    known[id(law)] = source(law._mean, law._var, name=entry.name)
                return known.get(id(law), law)

            args, kwargs = all_replaced(args, kwargs, change)
        return rule(entry, tuple(map(affine.dense, args)), kwargs)

    return run


# --------------------------------------------------------------------- affine


def _affine(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = _linear_map(entry, args, kwargs)
    if entry.name in ("mean", "sum") and isinstance(args[0], Covariance):
        return remember(found, entry, args, kwargs, args[0])
    return found


def _linear_map(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = all_replaced(args, kwargs, certain_as_tensor)
    x, rest = args[0], args[1:]
    if not isinstance(x, Covariance) or laws_in((*rest, *kwargs.values())) or entry.name not in VARIANCE:
        return by_jacobian(entry, args, kwargs)
    bound = affine.bind(entry.name, rest, kwargs)
    affine.check(entry.name, x._mean, bound)
    mean = run_of(entry)(x._mean, *rest, **kwargs)
    shape = x.shape
    if entry.name == "linear":
        weight = bound["weight"]

        def push(rows: Tensor) -> Tensor:
            return product(F.linear, rows.reshape(-1, *shape), weight).reshape(len(rows), -1)

        return linear_of(entry, mean, [(x, push)])
    if "weight" in bound:
        options = {name: value for name, value in bound.items() if name not in ("weight", "bias")}
        filtered = by_rows(lambda row: entry.call(row, bound["weight"], None, **options), shape)
        return linear_of(entry, mean, [(x, functools.partial(product, filtered))])
    if entry.name == "pad" and bound.get("mode", "constant") == "constant":
        return linear_of(entry, mean, [(x, by_rows(lambda row: F.pad(row, bound["pad"]), shape))])
    return linear_of(entry, mean, [(x, by_rows(lambda row: entry.call(row, *rest, **kwargs), shape))])


# ------------------------------------------------------------------- movement

#: functions that add values up where they meet, so that their indices say nothing
_ADDING = ("index_add", "scatter_add")
_CASTS = CASTS | {"cpu", "cuda", "detach", "data", "requires_grad_", "positive", "real"}
_IN_ORDER = RESHAPES | {"contiguous", "clone", "ravel", "reshape_as"}


def _movement(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if entry.name in _VALUES:
        return _put_together(entry, args, kwargs)
    found = _moved_values(entry, args, kwargs)
    for place, law in enumerate(found if isinstance(found, tuple | list) else [found]):
        if isinstance(law, Covariance) and law is not args[0]:
            remember(law, entry, (*args, None if law is found else place), kwargs, args[0])
    return found


def _moved_values(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not isinstance(x, Covariance):
        raise unsupported(entry.call, random_in(args, kwargs)[0], "only its first argument may be random", entry)
    if entry.name not in _LIKE_ANOTHER and random_in(args[1:], kwargs):
        raise unsupported(entry.call, x, "indices cannot be random", entry)
    rest = [tensor_of(value) for value in args[1:]]
    named = {name: tensor_of(value) for name, value in kwargs.items()}
    mean = entry.call(x._mean, *rest, **named)
    if isinstance(mean, Tensor) and not mean.is_floating_point():
        raise unsupported(entry.call, x, f"a random value cannot become {mean.dtype}", entry)
    if mean is x._mean:
        return x
    if entry.name in _CASTS:

        def cast_like(rows: Tensor) -> Tensor:
            return cast(Tensor, entry.call(rows, *rest, **named))

        node = Node(cast_like(x.cov), [(x.node, cast_like)])
        return covariance(mean, node, of=x if shares_memory(entry, x._mean, mean, rest) else None)
    if entry.name in _IN_ORDER:
        return covariance(
            mean, x.node, x._var.reshape(mean.shape), x if shares_memory(entry, x._mean, mean, rest) else None
        )
    index = entry.call(numbered(x._mean), *rest, **named)
    if isinstance(mean, Tensor):
        return _moved(entry, x, mean, index, rest)
    parts = [_moved(entry, x, part, own, rest) for part, own in zip(mean, index, strict=True)]
    return type(mean)(parts) if type(mean) in (tuple, list) else tuple(parts)


def _moved(entry: Entry, x: Covariance, mean: Tensor, index: Tensor, rest: list[Any]) -> Covariance:
    room(entry, mean)
    push = picked(index)
    node = Node(push(push(x.cov).mT), [(x.node, push)])
    return covariance(mean, node, of=x if shares_memory(entry, x._mean, mean, rest) else None)


def _put_together(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Functions of several values that put each of them into a place: ``cat``, ``where`` and the like."""
    places = _VALUES[entry.name]
    if entry.name == "cat" and isinstance(args[0], Law):
        return args[0]  # code that asks isinstance(x, Tensor) takes a law for the list that it did not make of it
    if entry.name == "where":
        args, kwargs, entry = _where(entry, args, kwargs), {}, TABLE[torch.where]
        if random_in((args[0],), {}):
            raise unsupported(entry.call, random_in(args, {})[0], "where a random value is not 0 is a decision", entry)
    elif entry.name == "masked_fill" and kwargs:
        bound = {**dict(zip(("input", "mask", "value"), args, strict=False)), **kwargs}
        args, kwargs = (bound["input"], bound["mask"], bound["value"]), {}
    elif entry.call is torch.embedding:
        places = (0,)
    for place, value in enumerate(args):
        if place not in places and random_in((value,), {}):
            raise unsupported(entry.call, random_in(args, {})[0], "indices and masks cannot be random", entry)
    if kwargs.get("reduce", "add") not in ("add", "sum"):
        raise unsupported(entry.call, random_in(args, kwargs)[0], "of reductions sums have a rule", entry)
    means, named = tensors_of(args, kwargs)
    mean = entry.call(*means, **named)
    adding = entry.name in _ADDING or "reduce" in kwargs
    laws = random_in(args, kwargs)

    def call(of: Law, value: Tensor) -> Any:
        """The linear part in one law: ``value`` for it, 0 for all else that is a value."""

        def change(other: Any) -> Any:
            if other is of:
                return value
            if isinstance(other, Law | Tensor):
                return torch.zeros_like(tensor_of(other), dtype=value.dtype)
            if type(other) in (tuple, list):
                return type(other)([change(item) for item in other])
            return 0.0 if isinstance(other, int | float) else other

        own = [change(item) if place in places else tensor_of(item) for place, item in enumerate(args)]
        rest = {name: change(v) if name in _VALUE_NAMES else tensor_of(v) for name, v in kwargs.items()}
        return entry.call(*own, **rest)

    def remembered(law: Covariance) -> Covariance:
        of = common_source(laws[0], laws[-1]) if entry.name in CHOICES else None
        if of is None or not all(is_pointwise(value, of) for value in laws):
            return law
        return cast(Covariance, remember(law, entry, args, kwargs, of))

    if not isinstance(mean, Tensor):  # broadcast_tensors
        return tuple(torch.broadcast_to(value, part.shape) for value, part in zip(args, mean, strict=True))
    parts: list[tuple[Covariance, Push | None]] = []
    for law in laws:
        if adding:
            parts.append((law, by_rows(functools.partial(call, law), law.shape)))
        else:
            parts.append((law, picked(call(law, numbered(law._mean)))))
    return remembered(linear_of(entry, mean, parts))


# ----------------------------------------------------------------- arithmetic


def _arithmetic(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and entry.name != "neg":
        args, kwargs = (args[0], kwargs["other"]), {key: value for key, value in kwargs.items() if key != "other"}
    args = tuple(map(_certain, args))
    laws = random_in(args, {})
    if len(laws) == 1 and len(args) - 1 == sum(not isinstance(value, Covariance) for value in args):
        return remember(_computed(entry, args, kwargs), entry, args, kwargs, laws[0])
    start = start_together(entry, *args)
    if start is None:
        if len(laws) == 2:
            note_curved(entry, *laws)
        return _computed(entry, args, kwargs)
    curved = [start_of(value) is not None for value in args]
    if all(curved) or (any(curved) and entry.name not in ("add", "sub", "rsub")) or "div" in entry.name:
        return function_of(entry, args, kwargs, start)
    return remember(_computed(entry, args, kwargs), entry, args, kwargs, start)


def _certain(value: Any) -> Any:
    return value._form() if isinstance(value, Point) else value


def _computed(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, x = entry.name, args[0]
    if name == "neg":
        return linear_of(entry, -x._mean, [(x, torch.neg)])
    if kwargs.get("rounding_mode") is not None:
        raise unsupported(entry.call, random_in(args, {})[0], "rounding is a decision on a random value", entry)
    a, b = args
    dtype = torch.result_type(tensor_of(a), tensor_of(b))
    a, b = (value.to(dtype) if isinstance(value, Covariance) else value for value in (a, b))
    if name in ("rsub", "rdiv"):
        name, a, b = name[1:], b, a
    if name == "div":
        if isinstance(b, Covariance):
            return a * torch.reciprocal(cast(Any, b))
        name, b = "mul", 1 / b
    if name == "mul":
        if isinstance(a, Covariance) and isinstance(b, Covariance):
            return products(entry, a, b)
        law: Any = a if isinstance(a, Covariance) else b
        factor: Any = b if law is a else a
        mean = law._mean * factor
        stretch = stretched(law, mean.shape)
        scale = factor.expand(mean.shape) if isinstance(factor, Tensor) else mean.new_full((), float(factor))
        return linear_of(entry, mean, [(law, _after(stretch, times(scale)))])
    sign = kwargs.get("alpha", 1) * (1 if name == "add" else -1)
    mean = tensor_of(a) + sign * tensor_of(b)
    parts: list[tuple[Covariance, Push | None]] = []
    for value, factor in ((a, 1), (b, sign)):
        if isinstance(value, Covariance):
            stretch = stretched(value, mean.shape)
            parts.append(
                (value, stretch if factor == 1 else _after(stretch, functools.partial(torch.mul, other=factor)))
            )
    if len(parts) == 1 and parts[0][1] is None:
        return covariance(mean, parts[0][0].node, parts[0][0]._var)
    return linear_of(entry, mean, parts)


def _after(first: Push | None, second: Push) -> Push:
    return second if first is None else lambda rows: second(first(rows))


# ------------------------------------------------------------------ pointwise


def _pointwise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], terms: int | None = None) -> Any:
    x = args[0]
    args, kwargs = all_replaced(args, kwargs, certain_as_tensor)
    if not isinstance(x, Covariance) or len(laws_in((*args, *kwargs.values()))) > 1:
        raise unsupported(entry.call, random_in(args, kwargs)[0], "only its first argument may be random", entry)
    if entry.kind == "pointwise" and (whole := chained(entry, args, kwargs, function_of)) is not None:
        return whole
    exact = None if is_registered(entry.name) else covariance_op(entry, args[1:], kwargs)
    return function_of(entry, args, kwargs, x, terms, exact)


def _batch_norm(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    order = norms._BATCH_OF_TORCH if entry.call is torch.batch_norm else norms._BATCH
    bound = {**dict(zip(order, args[1:], strict=False)), **kwargs}
    if bound.get("training"):
        why = "the examples of a batch are propagated one by one, so that a batch has no statistics; use eval()"
        raise unsupported(entry.call, random_in(args, kwargs)[0], why, entry)
    if isinstance(args[0], Covariance) and len(random_in(args, kwargs)) == 1:
        return _pointwise(entry, args, kwargs, terms=1)
    return by_jacobian(entry, args, kwargs)


# --------------------------------------------------------------------- noise

#: noise that does not depend on the value that it is given
_NEW = frozenset(names("randn_like rand_like randint_like normal_ uniform_ bernoulli_"))


def _noise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not noise.active(entry, args, kwargs):
        if entry.name == "rrelu":
            return F.leaky_relu(x, sum(noise.slopes(entry, args, kwargs)) / 2)
        return x
    together = entry.name in ("dropout1d", "dropout2d", "dropout3d")
    if isinstance(x, Point) or entry.name in _NEW:
        plain, named = tensors_of(args, kwargs)
        if together:
            return _noise(entry, (fixed(plain[0]), *plain[1:]), named)
        mean, var = of_diagonal(entry)(
            entry, (diagonal(plain[0], torch.zeros_like(plain[0])), *plain[1:]), named
        )._parts()
        return source(mean, var, name=entry.name)
    if entry.name == "feature_alpha_dropout":
        raise unsupported(entry.call, x, "what the values of a dropped channel have in common has no rule", entry)
    if together:
        return _channel_dropout(entry, x, noise.probability(entry, args, kwargs))
    return _pointwise(entry, args, kwargs, terms=1 if "dropout" in entry.name else None)


def _channel_dropout(entry: Entry, x: Any, p: float) -> Any:
    """Dropout of whole channels, whose values fall together: Cov = (C + p m mᵀ)/q within a channel, and C between."""
    if p >= 1:
        return fixed(torch.zeros_like(x._mean))
    dims = x.ndim - int(entry.name[-2])
    channels = math.prod(x.shape[:dims])
    number = torch.arange(channels, device=x.device).repeat_interleave(x.numel() // max(channels, 1))
    share = (number[:, None] == number).to(x.dtype) * (p / (1 - p))
    mean = x._mean.reshape(-1)
    cov = x.cov + share * (x.cov + mean[:, None] * mean)
    return covariance(x._mean, Node(symmetric(cov), [(x.node, None)]))


# ---------------------------------------------------------- creation and writes


def _creation(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A value like another: certain, and ready to be overwritten by random ones."""
    if random_in(args[1:], kwargs):
        raise unsupported(
            entry.call, random_in(args, kwargs)[0], "a random value cannot be copied so; use clone()", entry
        )
    values, named = tensors_of(args, kwargs)
    out = entry.call(*values, **named)
    return point(out, Covariance) if out.is_floating_point() else out


def _query(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values, named = tensors_of(args, kwargs)
    return entry.call(*values, **named)


def _refused(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return False


def _written(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target, *rest = args
    law = random_in(args, kwargs)[0]
    if not isinstance(target, Law):
        raise unsupported(entry.call, law, OVERWRITTEN, entry)
    if entry.name in ("fill_", "zero_"):
        value = rest[0] if rest else 0.0
        if isinstance(value, Covariance):
            _assign(target, value.expand(target.shape))
        else:
            _assign(target, torch.zeros_like(target._form()) + tensor_of(value))
        return target
    if entry.name == "copy_":
        value = tensor_of(rest[0]) if not isinstance(rest[0], Covariance) else rest[0]
        _assign(target, value.expand(target.shape).to(target.dtype))
        return target
    if entry.name == "set_" or kwargs.get("accumulate", rest[2] if len(rest) > 2 else False):
        raise unsupported(entry.call, law, "it is not written in place under this law; use the result", entry)
    if random_in((rest[0],), {}):
        raise unsupported(entry.call, law, "indices cannot be random", entry)
    index, value = tensor_of(rest[0]), rest[1] if isinstance(rest[1], Covariance) else tensor_of(rest[1])
    mean = target._form()
    picked = numbered(mean)[index]
    places = picked.reshape(-1).long() - 1
    own = torch.as_tensor(tensor_of(value), dtype=mean.dtype, device=mean.device)
    new = mean.reshape(-1).index_copy(0, places, own.expand(picked.shape).reshape(-1)).view(mean.shape)
    parts: list[tuple[Covariance, Push | None]] = []
    if isinstance(target, Covariance):
        parts.append((target, lambda rows: rows.index_fill(1, places, 0.0)))
    if isinstance(value, Covariance):
        size = mean.numel()
        value = value.expand(picked.shape)
        parts.append((value, lambda rows: rows.new_zeros(len(rows), size).index_copy(1, places, rows)))
    _assign(target, linear_of(entry, new, parts))
    return None if entry.name == "setitem" else target


def _assign(target: Law, new: Any) -> None:
    target._assign(new)


_OWN: dict[str, Rule] = {
    "affine": _affine,
    "movement": _movement,
    "arithmetic": _arithmetic,
    "pointwise": _pointwise,
    "noise": _noise,
    "batch_norm": _batch_norm,
    "query": _query,
    "creation": _creation,
    "write": _written,
    "refusal": _refused,
    **SEVERAL,
}

#: rules of Covariance, by name and kind
RULES: dict[str, Rule] = {**composite.RULES, **{name: _promoted(rule) for name, rule in _OWN.items()}}
