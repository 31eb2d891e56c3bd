"""``Diagonal``: mean and variance of each value, taken as independent and, where a function is not affine, normal.

This is AP2 (Shekhovtsov & Flach 2018).  The rules here are for functions that move or add values.  Pointwise functions
are in :mod:`~momentgen.laws.pointwise`; functions of several random values in :mod:`~momentgen.laws.products`,
:mod:`~momentgen.laws.maxima`, :mod:`~momentgen.laws.norms` and :mod:`~momentgen.laws.statistics`; those written over
others in :mod:`~momentgen.laws.composite`.  Variances here are sums of non-negative terms.

A value met with itself, or with a function of itself, is not taken as independent: see :mod:`~momentgen.laws.source`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws import affine, half, noise, precision, source
from momentgen.laws.affine import VARIANCE
from momentgen.laws.bounds import is_inside
from momentgen.laws.chains import start_of
from momentgen.laws.coefficients import is_linear_map, noise_of_weight
from momentgen.laws.law import Law, Rule, laws_in, new_law, register_pytree, remember, tensor_of, tensors_of
from momentgen.laws.movement import moved
from momentgen.laws.notes import note
from momentgen.laws.numerics.dust import product
from momentgen.laws.point import Point, point, written
from momentgen.laws.table import TABLE, Entry
from momentgen.laws.unsupported import unsupported
from momentgen.runtime import Moments

__all__ = ["Diagonal", "diagonal", "mean_of", "pair", "run_of", "var_of"]


@register_pytree
class Diagonal(Law):
    """Mean and variance of independent values.

    >>> x = diagonal(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
    >>> (2 * x + 1).moments().var
    tensor([4., 0.])
    """

    __slots__ = ()
    RANK = 1

    def moments(self) -> Moments:
        """Mean and variance."""
        found = Moments(*pair(self))
        return found if self._dtype is None else half.narrowed(found, self.dtype)

    def _form(self) -> Tensor:
        if self._view is not None:
            self._refresh()
        if self._mean is None:  # not integrated yet: a function of its source, and of that one's shape
            return cast(Law, self._of)._form()
        return self._mean

    def _parts(self) -> tuple[Tensor, ...]:
        if self._view is not None:
            self._refresh()
        if self._mean is None:
            precision.internally(source.settle, self)
        return (self._mean, self._var)

    def _integrated(self, moments: source.MomentsOf) -> tuple[Tensor, Tensor]:
        """Mean and variance of a function of the law's source, by what has them from those of the source."""
        return moments(*pair(self._of))

    def _met(
        self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], mean: Tensor, var: Tensor, explained: Any
    ) -> Diagonal:
        """A law of that mean and *variance*, of which the linear part of a call explains so much."""
        return made(mean, var)

    @classmethod
    def _promoted(cls, law: Law) -> tuple[Tensor, ...]:
        parts = law._parts()
        return parts if len(parts) == 2 else (parts[0], torch.zeros_like(parts[0]))


def diagonal(mean: Tensor, var: Tensor) -> Diagonal:
    """Independent values of that mean and variance, two tensors of one shape, dtype and device."""
    law: Diagonal = new_law(Diagonal, mean, var)
    law._noise = Diagonal
    return law


def pair(value: Any) -> tuple[Any, Any]:
    """Mean and variance of a law, a tensor or a number; the variance of what is certain is None."""
    if isinstance(value, Diagonal):
        parts = value._parts()
        return parts[0], parts[1]
    if isinstance(value, Point):
        return value._form(), None
    return value, None


def mean_of(value: Any) -> Any:
    """The mean; tuples and lists item by item."""
    if isinstance(value, Diagonal):
        return value._parts()[0]
    if type(value) in (tuple, list):
        return type(value)([mean_of(item) for item in value])
    return tensor_of(value)


def var_of(value: Any) -> Any:
    """The variance, 0 of what is certain; tuples and lists item by item."""
    if isinstance(value, Diagonal):
        return value._parts()[1]
    if type(value) in (tuple, list):
        return type(value)([var_of(item) for item in value])
    mean = tensor_of(value)
    return torch.zeros_like(mean) if isinstance(mean, Tensor) else 0.0


def made(mean: Tensor, var: Tensor) -> Diagonal:
    """A law of an output: the variance in the mean's dtype and shape."""
    if var.dtype is not mean.dtype:
        var = var.to(mean.dtype)
    if var.shape != mean.shape:
        var = var.expand(mean.shape)
    return diagonal(mean, var)


# -------------------------------------------------------------------- affine


def _affine(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, rest = args[0], args[1:]
    if entry.name == "diff":
        return _difference(entry, args, kwargs)
    if laws_in(rest) or laws_in(kwargs.values()):
        return _random_coefficients(entry, args, kwargs)
    mean, var = pair(x)
    if var is None:
        raise unsupported(entry.call, laws_in(args)[0], "only its first argument may be random", entry)
    if kwargs and "dtype" in kwargs:
        mean, var = mean.to(kwargs["dtype"]), var.to(kwargs["dtype"])
        kwargs = {name: value for name, value in kwargs.items() if name != "dtype"}
    bound = affine.bind(entry.name, rest, kwargs)
    affine.check(entry.name, mean, bound)
    run = run_of(entry)
    out = run(mean, *rest, **kwargs)
    if entry.name in ("mean", "sum"):
        from momentgen.laws.recognise import variance

        if (found := variance(entry, x, rest, kwargs)) is not None:
            return found
        law = made(out, VARIANCE[entry.name](entry.call, var, *rest, **kwargs))
        return remember(law, entry, args, kwargs, x)
    return made(out, _second(entry, VARIANCE[entry.name], var, bound))


def run_of(entry: Entry) -> Callable[..., Any]:
    """What computes the mean of an affine function."""
    if entry.name == "linear":
        return affine.linear
    return functools.partial(product, entry.call) if is_linear_map(entry.name) else entry.call


def _linear(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A linear map of certain coefficients, the most frequent function, with nothing in its way."""
    x = args[0]
    if kwargs or type(x) is not Diagonal or len(args) < 2 or isinstance(args[1], Law) or isinstance(args[-1], Law):
        return _affine(entry, args, kwargs)
    mean, var = x._parts()
    weight = args[1]
    if mean.dim() == 0 or mean.shape[-1] != weight.shape[-1]:
        affine.check("linear", mean, {"weight": weight})
    out = affine.linear(mean, *args[1:])
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(mean.device.type):
        return made(out, _second(entry, VARIANCE["linear"], var, {"weight": weight}))
    return diagonal(out, affine.linear_variance(var, weight))


def _second(entry: Entry, function: Any, var: Tensor, bound: dict[str, Any]) -> Tensor:
    """A product of second moments, outside float16 autocast, where squares of weights underflow."""
    kind = var.device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) is torch.float16:
        with torch.autocast(kind, enabled=False):
            wide = {name: value.float() if _is_real(value) else value for name, value in bound.items()}
            return function(entry.call, var.float(), **wide)
    return function(entry.call, var, **bound)


def _is_real(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _random_coefficients(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A linear map or convolution whose weight or bias is random: W_m² v + W_v (v + m²), two products."""
    if not is_linear_map(entry.name):
        raise unsupported(entry.call, laws_in(args)[0], "only its first argument may be random", entry)
    bound = affine.bind(entry.name, args[1:], kwargs)
    weight, bias = bound.pop("weight"), bound.pop("bias", None)
    (m, v), (w, w_var), (b, b_var) = pair(args[0]), pair(weight), pair(bias)
    affine.check(entry.name, m, {"weight": w, **bound})
    out = run_of(entry)(m, w, b, **bound)
    var = None if v is None else _second(entry, VARIANCE[entry.name], v, {"weight": w, **bound})
    if w_var is not None:
        own = noise_of_weight(entry.call, entry.name, m, v, w_var, weight._joint, bound)
        var = own if var is None else var + own
    if b_var is not None:
        shape = [-1] if entry.name == "linear" else [-1] + [1] * int(entry.name[-2])
        of_bias = b_var.view(shape)
        var = of_bias.expand(out.shape) if var is None else var + of_bias
    return made(out, cast(Tensor, var))


def _difference(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.diff``: binomial coefficients, squared."""
    bound = {**dict(zip(("input", "n", "dim", "prepend", "append"), args, strict=False)), **kwargs}
    x, n, dim = bound["input"], bound.get("n", 1), bound.get("dim", -1)
    ends = (bound.get("prepend"), x, bound.get("append"))
    mean = torch.cat([mean_of(part) for part in ends if part is not None], dim)
    var = torch.cat([var_of(part) for part in ends if part is not None], dim)
    size = max(mean.shape[dim] - n, 0)
    total = torch.zeros_like(var.narrow(dim, 0, size))
    for k in range(n + 1):
        total = total + math.comb(n, k) ** 2 * var.narrow(dim, min(k, var.shape[dim] - size), size)
    return made(torch.diff(mean, n, dim), total)


# ------------------------------------------------------------------ movement

#: functions that put values of several arguments together: the places of those that are values
_VALUES: dict[str, tuple[int, ...]] = {
    "cat": (0,), "stack": (0,), "hstack": (0,), "vstack": (0,), "dstack": (0,), "column_stack": (0,),
    "where": (1, 2), "masked_fill": (0, 2), "scatter": (0, 3), "select_scatter": (0, 1), "slice_scatter": (0, 1),
    "index_fill": (0, 3), "index_copy": (0, 3), "index_add": (0, 3), "scatter_add": (0, 3), "embedding": (1,),
    "broadcast_tensors": tuple(range(64)),
}  # fmt: skip
_VALUE_NAMES = ("tensors", "input", "other", "value", "src", "source", "weight")


#: functions that take a tensor for its form
_LIKE_ANOTHER = frozenset(("view_as", "reshape_as", "expand_as", "type_as", "to"))


def _is_random(value: Any) -> bool:
    """Whether there is anything uncertain in an argument."""
    return isinstance(value, Diagonal) or (type(value) in (tuple, list) and any(_is_random(item) for item in value))


def _where(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Condition and both values of ``torch.where``, of which the method has another order."""
    names = ("condition", "input", "other") if entry.call is torch.where else ("input", "condition", "other")
    bound = {**dict(zip(names, args, strict=False)), **kwargs}
    bound.setdefault("input", bound.pop("self", None))
    if len(bound) != 3 or _is_random(bound["condition"]):
        raise unsupported(entry.call, laws_in(bound.values())[0], "where a random value is not 0 is a decision", entry)
    return bound["condition"], bound["input"], bound["other"]


def _movement(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    places = _VALUES.get(entry.name)
    if places is None:
        if not isinstance(args[0], Law):
            raise unsupported(entry.call, laws_in(args)[0], "only its first argument may be random", entry)
        if entry.name not in _LIKE_ANOTHER and any(map(_is_random, (*args[1:], *kwargs.values()))):
            raise unsupported(entry.call, args[0], "indices cannot be random", entry)
        found = moved(entry, args, kwargs)
        if isinstance(found, Law) and not found.dtype.is_floating_point:
            raise unsupported(entry.call, args[0], f"a random value cannot become {found.dtype}", entry)
        return found
    if entry.name == "where":
        args, kwargs, entry = _where(entry, args, kwargs), {}, TABLE[torch.where]
    elif entry.name == "masked_fill" and kwargs:
        bound = {**dict(zip(("input", "mask", "value"), args, strict=False)), **kwargs}
        args, kwargs = (bound["input"], bound["mask"], bound["value"]), {}
    elif entry.call is torch.embedding:
        places = (0,)
    for place, value in enumerate(args):
        if place not in places and _is_random(value):
            raise unsupported(entry.call, laws_in(args)[0], "indices and masks cannot be random", entry)
    if kwargs.get("reduce", "add") not in ("add", "sum"):
        raise unsupported(entry.call, laws_in(args)[0], "of reductions sums have a rule", entry)
    if entry.name == "cat" and isinstance(args[0], Law):
        return args[0]  # code that asks isinstance(x, Tensor) takes a law for the list that it did not make of it
    variances = [var_of(value) if place in places else tensor_of(value) for place, value in enumerate(args)]
    of_named = {name: var_of(v) if name in _VALUE_NAMES else tensor_of(v) for name, v in kwargs.items()}
    means = [mean_of(value) for value in args]
    named = {name: mean_of(value) for name, value in kwargs.items()}
    if "alpha" in of_named:
        of_named["alpha"] = of_named["alpha"] ** 2
    out, var = entry.call(*means, **named), entry.call(*variances, **of_named)
    if not isinstance(out, Tensor):
        return tuple(made(m, v) for m, v in zip(out, var, strict=True))
    law = made(out, var)
    laws = laws_in(args)
    if entry.name in source.CHOICES and laws:
        of = source.common_source(laws[0], laws[-1])
        if of is not None and all(source.is_pointwise(value, of) for value in laws):
            return remember(law, entry, args, kwargs, of)
    return law


# ---------------------------------------------------------------- arithmetic


def _arithmetic(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, x = entry.name, args[0]
    if name == "neg":
        if x._mean is None:
            return source.pending(entry, args, kwargs, x._of)
        mean, var = pair(x)
        return remember(made(-mean, var), entry, args, kwargs, x)
    if len(args) == 1:
        args, kwargs = (x, kwargs["other"]), {key: value for key, value in kwargs.items() if key != "other"}
    y = args[1]
    if isinstance(x, Point) or isinstance(y, Point):  # a constant, as a tensor is
        x, y = args = (x._form() if isinstance(x, Point) else x, y._form() if isinstance(y, Point) else y)
    if kwargs.get("rounding_mode") is not None:
        raise unsupported(entry.call, laws_in(args)[0], "rounding is a decision on a random value", entry)
    for law, other in ((x, y), (y, x)):  # a pending law and a number: pending
        if isinstance(law, Diagonal) and law._mean is None and isinstance(other, int | float):
            return source.pending(entry, args, kwargs, law._of)  # type: ignore[arg-type]
    if isinstance(x, Diagonal) and isinstance(y, Diagonal):
        found = source.combined(entry, x, y, kwargs)
        if found is not None:
            return found
    (m1, v1), (m2, v2) = pair(x), pair(y)
    if (v2 is not None and name == "div") or (v1 is not None and name == "rdiv"):
        return _quotient(entry, args, kwargs)
    law = made(entry.call(m1, m2, **kwargs), _combined_variance(name, m1, v1, m2, v2, kwargs.get("alpha", 1)))
    return law if v1 is not None and v2 is not None else remember(law, entry, args, kwargs, y if v1 is None else x)


def _combined_variance(name: str, m1: Any, v1: Tensor | None, m2: Any, v2: Tensor | None, alpha: float) -> Tensor:
    """Variance of a sum or product of independent values, at least one of them random."""
    if name in ("add", "sub", "rsub"):
        if alpha != 1:
            v2 = None if v2 is None else alpha * alpha * v2
            if name == "rsub":
                v1, v2 = (None if v1 is None else alpha * alpha * v1), (None if v2 is None else v2 / (alpha * alpha))
        if v1 is None or v2 is None:
            return v2 if v1 is None else v1  # type: ignore[return-value]
        return v1 + v2
    if name == "mul":
        if v1 is None:
            return m1 * m1 * v2
        if v2 is None:
            return m2 * m2 * v1
        return v1 * (v2 + m2 * m2) + m1 * m1 * v2
    return v1 / (m2 * m2) if v1 is not None else v2 / (m1 * m1)


def _quotient(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A quotient with a random denominator, of independent values."""
    over, under = (args[0], args[1]) if entry.name == "div" else (args[1], args[0])
    if is_inside("reciprocal", under) and start_of(under) is not None:
        return over * torch.reciprocal(under)
    note(
        "a quotient by a random value: its moments exist only where the denominator keeps away from 0; right to second "
        "order there, and an order of magnitude where the denominator is nearer to 0 than some four standard deviations"
    )
    m, v = reciprocal(*under._parts())
    m1, v1 = pair(over)
    law = made(m1 * m, _combined_variance("mul", m1, v1, m, v, 1))
    return law if v1 is not None else remember(law, entry, args, kwargs, under)


def reciprocal(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of 1/X, for X that keeps away from 0.

    With c = var/mean² the mean is (1 + c)/mean and the variance c (1 + 8c)/mean², to second order.  Moments of a normal
    variable's reciprocal do not exist; what is left out is 0.05 % of σ at c = 0.0025 and 1 % at 0.01.  The two are
    continued to larger c so that they stay bounded by the noise: 1/X is of the order of 1/√var there, and no more is
    said.
    """
    m, v = mean.double(), var.double()
    random = v > 0
    square = torch.where(random, m * m, 1)
    spread = torch.where(random, v, 0)
    about = torch.sign(m) * (square + 2.5 * spread) / (square + spread) ** 1.5
    inverse = torch.where(random, about, 1 / torch.where(random, 1.0, m))
    return inverse.to(mean.dtype), (spread * (square + 20 * spread) / (square + 4 * spread) ** 3).to(mean.dtype)


# --------------------------------------------------------------------- noise


def _noise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not noise.active(entry, args, kwargs):
        if entry.name == "rrelu":
            return torch.nn.functional.leaky_relu(x, sum(noise.slopes(entry, args, kwargs)) / 2)
        return x
    mean, var = pair(x)
    if entry.name == "rrelu":
        from momentgen.laws.pointwise import random_slope

        lower, upper = noise.slopes(entry, args, kwargs)
        return made(*random_slope(mean, torch.zeros_like(mean) if var is None else var, lower, upper))
    law = made(*noise.moments(entry, mean, var, [tensor_of(value) for value in args], kwargs))
    if entry.name == "dropout" and type(x) is Diagonal:  # that attention knows its weights; noise is a source elsewhere
        return remember(law, entry, (x, noise.probability(entry, args, kwargs)), {}, x)
    return law


# ------------------------------------------------------------------ creation


def _creation(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A value like another: certain, and of floating dtypes ready to be overwritten by random values."""
    x = args[0] if isinstance(args[0], Law) else laws_in(args)[0]
    if any(map(_is_random, (*args[1:], *kwargs.values()))):
        raise unsupported(entry.call, x, "a random value cannot be copied so; use clone()", entry)
    values, named = tensors_of(args, kwargs)
    out = entry.call(*values, **named)
    return point(out, x._noise or Diagonal) if out.is_floating_point() else out


def _query(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values, named = tensors_of(args, kwargs)
    return entry.call(*values, **named)


def _refused(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return False


_OWN: dict[str, Rule] = {
    "affine": _affine,
    "linear": _linear,
    "movement": _movement,
    "arithmetic": _arithmetic,
    "noise": _noise,
    "creation": _creation,
    "query": _query,
    "refusal": _refused,
    "write": written,
}
Diagonal.RULES = dict(_OWN)
