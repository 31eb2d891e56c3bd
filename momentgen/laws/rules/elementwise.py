"""Functions of each value alone: sums, products, quotients, the generated ops, and what is made of them.

Of one source they are one function: :mod:`~momentgen.laws.programs` and :mod:`~momentgen.laws.patterns` know.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

import momentgen.generated
from momentgen.errors import InputError
from momentgen.laws import table
from momentgen.laws.activations import BY_FUNCTION, INTEGRATED, REGISTERED, UNDEFINED, Activation
from momentgen.laws.diagonal import Diagonal, Point, made, pair
from momentgen.laws.law import laws_in, remember, rule
from momentgen.laws.notes import note, unsupported
from momentgen.laws.numerics.root import root_of
from momentgen.laws.patterns import pattern
from momentgen.laws.programs import applied, integrated, note_if_related
from momentgen.laws.table import Entry
from momentgen.runtime import Op


@rule(Diagonal, "arithmetic")
def _arithmetic(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, x = entry.name, args[0]
    if name == "neg":
        if x._mean is None:
            return applied(entry, args, kwargs)
        mean, var = pair(x)
        return remember(made(-mean, var), entry, args, kwargs, x)
    y = args[1]
    if isinstance(x, Point) or isinstance(y, Point):  # a constant, as a tensor is
        x, y = args = (x._form() if isinstance(x, Point) else x, y._form() if isinstance(y, Point) else y)
    if kwargs.get("rounding_mode") is not None:
        raise unsupported(entry, laws_in(args)[0], "rounding is a decision on a random value")
    of_two = isinstance(x, Diagonal) and isinstance(y, Diagonal)
    if of_two or any(
        law._mean is None and isinstance(other, int | float)
        for law, other in ((x, y), (y, x))
        if isinstance(law, Diagonal)
    ):
        if (found := applied(entry, args, kwargs)) is not None:
            return found
        if of_two and (found := pattern(entry, x, y)) is not None:
            return found
        note_if_related(entry, x, y)
    (m1, v1), (m2, v2) = pair(x), pair(y)
    if (v2 is not None and name == "div") or (v1 is not None and name == "rdiv"):
        return quotient(entry, args, kwargs)
    law = made(entry.call(m1, m2, **kwargs), _combined_variance(name, m1, v1, m2, v2, kwargs.get("alpha", 1)))
    return law if v1 is not None and v2 is not None else remember(law, entry, args, kwargs, y if v1 is None else x)


def _combined_variance(name: str, m1: Any, v1: Tensor | None, m2: Any, v2: Tensor | None, alpha: float) -> Tensor:
    """Variance of a sum or product of independent values, at least one of them random."""
    if name in ("add", "sub", "rsub"):
        factors = (alpha * alpha, 1) if name == "rsub" else (1, alpha * alpha)
        terms = [v if k == 1 else k * v for k, v in zip(factors, (v1, v2), strict=True) if v is not None]
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]
    if name == "mul":
        if v1 is None or v2 is None:
            return m1 * m1 * v2 if v1 is None else m2 * m2 * v1
        return v1 * (v2 + m2 * m2) + m1 * m1 * v2
    return v1 / (m2 * m2) if v1 is not None else v2 / (m1 * m1)


def quotient(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A quotient with a random denominator, of independent values."""
    over, under = (args[0], args[1]) if entry.name == "div" else (args[1], args[0])
    if (found := applied(table.TABLE[torch.reciprocal], (under,), {})) is not None:
        return over * found
    note(
        "a quotient by a random value: its moments exist only where the denominator keeps away from 0. They are right "
        "to second order there, and only in size where the denominator is within some four standard deviations of 0"
    )
    m, v = reciprocal(*under._parts())
    m1, v1 = pair(over)
    law = made(m1 * m, _combined_variance("mul", m1, v1, m, v, 1))
    return law if v1 is not None else remember(law, entry, args, kwargs, under)


def reciprocal(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of 1/X, for X that keeps away from 0.

    With c = var/mean² the mean is (1 + c)/mean and the variance c (1 + 8c)/mean², to second order.  Moments of a normal
    variable's reciprocal do not exist; what is left out is 0.05 % of σ at c = 0.0025 and 1 % at 0.01.  Beyond, the two
    stay bounded by the noise: they only tell that 1/X is of the order of 1/√var there.
    """
    m, v = mean.double(), var.double()
    random = ~(v <= 0)  # also where it is NaN
    square = torch.where(random, m * m, 1)
    spread = torch.where(random, v, 0)
    about = torch.sign(m) * (square + 2.5 * spread) / (square + spread) ** 1.5
    inverse = torch.where(random, about, 1 / torch.where(random, 1.0, m))
    return inverse.to(mean.dtype), (spread * (square + 20 * spread) / (square + 4 * spread) ** 3).to(mean.dtype)


def op_and_parameters(row: Activation, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Op, dict[str, float]]:
    """The op that serves a call, and its parameters.

    Raises:
        InputError: for a parameter with which the op is not the function.
    """
    names = (*row.parameters, *row.at_least)
    given: dict[str, Any] = {**dict(zip(names, rest, strict=False)), **kwargs}
    for name, least in row.at_least.items():
        if name in given and not _number(row, name, given[name]) >= least:
            raise InputError(
                f"{row.layer}: expected {name} >= {least:g}, where the rule {row.op!r} holds, got {given[name]!r}"
            )
    name = row.alternatives.get(given.get("approximate"), row.op)
    params = {word: _number(row, word, given.get(word, default)) for word, default in row.parameters.items()}
    return getattr(momentgen.generated, name), params


def _number(row: Activation, name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.requires_grad:
        return cast(float, value)  # the op takes it, or says that it does not
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{row.layer}: expected a number for {name}, got {type(value).__name__}") from None


@rule(Diagonal, "pointwise")
def _pointwise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, name = args[0], entry.name
    if not isinstance(x, Diagonal) or laws_in(args[1:]) or laws_in(kwargs.values()):
        law = laws_in((*args, *kwargs.values()))[0]
        which = "the base of a power" if name == "pow" else "its first argument"
        raise unsupported(entry, law, f"only {which} may be random")
    if x._history is not None and (found := applied(entry, args, kwargs)) is not None:
        return found
    if name in UNDEFINED:
        raise unsupported(entry, x, "it is not defined for every value that a normal variable takes")
    row = BY_FUNCTION.get(name)
    if name in REGISTERED:
        op, words = REGISTERED[name]
        if len(args) > len(words) + 1:
            raise unsupported(entry, x, f"{op.name} was made known without a parameter for {args[-1]!r}")
        found = op(*pair(x), **{**dict(zip(words, args[1:], strict=False)), **kwargs})
    elif row is not None and name != "square":
        op, params = op_and_parameters(row, args[1:], kwargs)
        found = op(*pair(x), **cast(Any, params))
    elif name in INTEGRATED:
        return integrated(entry, args, kwargs)
    else:
        return _WRITTEN_OUT[name](entry, x, args, kwargs)
    return remember(made(*found), entry, args, kwargs, x)


def _power(entry: Entry, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Powers: 2 in closed form (mean m² + v, variance 2v² + 4m²v), others that are whole by exact quadrature."""
    exponent: Any = 2 if entry.name == "square" else kwargs["exponent"] if "exponent" in kwargs else args[1]
    args = args if entry.name == "square" else (x, exponent)
    if isinstance(exponent, Tensor) and exponent.numel() != 1:
        raise unsupported(entry, x, f"one exponent has a rule, got a tensor of shape {tuple(exponent.shape)}")
    if exponent == 2:
        mean, var = pair(x)
        square = mean * mean
        return remember(made(square + var, 2 * var * (var + 2 * square)), entry, args, {}, x)
    if exponent == 1:
        return x
    for known, function in ((0.5, torch.sqrt), (-0.5, torch.rsqrt), (-1, torch.reciprocal)):
        if exponent == known:
            return function(x)
    if isinstance(exponent, int | float) and exponent == int(exponent) and 0 <= exponent <= _EXACT:
        return integrated(entry, args, {})
    raise unsupported(entry, x, f"whole exponents from 0 to {_EXACT}, ±0.5 and -1 have a rule, got {exponent!r}")


#: 24 nodes integrate polynomials up to degree 47 exactly, and a variance has twice the exponent
_EXACT = 23


def _clamp(entry: Entry, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = {"clamp_min": ("min",), "clamp_max": ("max",)}.get(entry.name, ("min", "max"))
    bound = {**dict(zip(names, args[1:], strict=False)), **kwargs}
    low: Any = bound.get("min")
    high: Any = bound.get("max")
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        raise unsupported(entry, x, "bounds must be numbers")
    mean, var = pair(x)
    low, high = (None if bound is not None and abs(bound) == math.inf else bound for bound in (low, high))
    if high is None and low is None:
        return x
    if high is None or low is None:
        sign, bound = (1, low) if high is None else (-1, high)
        found = momentgen.generated.relu(sign * (mean - bound), var)
        law = made(bound + sign * found.mean, found.var)
    else:
        law = made(*_between(mean, var, float(low), float(high)))
    return remember(law, entry, args, kwargs, x)


def _between(mean: Tensor, var: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Clamped on both sides.

    The rule is hardtanh's, whose bounds are on both sides of 0, the upper one from 1/64 to 64: others are mirrored,
    shifted and scaled there.
    """
    if low >= high:
        return torch.full_like(mean, high), torch.zeros_like(var)
    sign = -1 if low + high < 0 else 1
    low, high = (low, high) if sign > 0 else (-high, -low)
    shift = max(low, 0.0)
    scale = 1.0 if 1 / 64 <= high - shift <= 64 else high - shift
    found = momentgen.generated.hardtanh(
        (sign * mean - shift) / scale,
        var / (scale * scale),
        min_val=(low - shift) / scale,
        max_val=(high - shift) / scale,
    )
    return sign * (found.mean * scale + shift), found.var * (scale * scale)


def _prelu(entry: Entry, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    weight: Tensor = args[1] if len(args) > 1 else kwargs["weight"]
    mean, var = pair(x)
    if weight.numel() == 1:
        weight = weight.view(())
    elif mean.dim() > 1:
        weight = weight.view(-1, *[1] * (mean.dim() - 2))
    law = made(*_bent(mean, var, weight, 1.0))
    return remember(law, entry, (x, weight), {}, x)


def _bent(mean: Tensor, var: Tensor, before: Any, after: Any) -> tuple[Tensor, Tensor]:
    """Moments of a X⁺ − b X⁻, of the slopes b before 0 and a after it: X⁺X⁻ = 0.

    The three terms of the variance keep at least 3/4 of their absolute sum, so nothing cancels.
    """
    relu = momentgen.generated.relu
    (up, up_var), (down, down_var) = relu(mean, var), relu(-mean, var)
    total = after * after * up_var + before * before * down_var + 2 * after * before * up * down
    return after * up - before * down, total


def random_slope(mean: Tensor, var: Tensor, lower: float, upper: float) -> tuple[Tensor, Tensor]:
    """RReLU in training: its slope, uniform, taken analytically."""
    first, second = _bent(mean, var, (lower + upper) / 2, 1.0)
    down = momentgen.generated.relu(-mean, var)
    return first, second + (upper - lower) ** 2 / 12 * (down.var + down.mean * down.mean)


def _sqrt(entry: Entry, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    note("sqrt: the value under the root is taken as gamma distributed, and NaN where its mean is negative")
    mean, var = pair(x)
    m, v = root_of(mean.double(), var.double())
    return remember(made(m.to(mean.dtype), v.to(mean.dtype)), entry, args, kwargs, x)


def _rsqrt(entry: Entry, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    root = _sqrt(table.TABLE[torch.sqrt], x, args, kwargs)
    law = made(*reciprocal(*pair(root)))
    return remember(law, entry, args, kwargs, x)


_WRITTEN_OUT: dict[str, Callable[..., Any]] = {
    "clamp": _clamp, "clamp_min": _clamp, "clamp_max": _clamp, "pow": _power, "square": _power, "prelu": _prelu,
    "sqrt": _sqrt, "rsqrt": _rsqrt, "reciprocal": lambda entry, x, *_: quotient(table.TABLE[torch.div], (1.0, x), {}),
}  # fmt: skip
