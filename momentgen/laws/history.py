"""History: what a law remembers of the functions that made it, and what can be read from that.

A law remembers the call that it is the result of, back to the last affine map.  So two laws that meet may turn out to
be functions of one value (:func:`common_source`), element by element (:func:`is_pointwise`) or moved from one.  An
expression can be computed again for another argument (:func:`value_at`) or bounded (:func:`bounds`).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor

from momentgen.laws.dispatch import dispatch
from momentgen.laws.law import Law, laws_in
from momentgen.laws.table import Entry, names

__all__ = [
    "CHOICES",
    "IDENTITIES",
    "alike",
    "await_writes",
    "bounds",
    "chain",
    "common_source",
    "expression",
    "is_by_value",
    "is_closed",
    "is_inside",
    "is_pointwise",
    "leads_to_chain",
    "moved_law",
    "operand",
    "out_of_place",
    "same_arguments",
    "same_value",
    "scaled",
    "start_of",
    "start_of_both",
    "value_at",
    "walk",
]


def chain(law: Law) -> list[Law]:
    """The law, the law that it is a function of, and so on."""
    found: list[Law] = [law]
    while found[-1]._source is not None:
        found.append(found[-1]._source)
    return found


def common_source(a: Law, b: Law) -> Law | None:
    """The nearest law of which both are functions."""
    if a is b:
        return a
    if a._source is None and b._source is None:
        return None
    others = chain(b)
    for law in chain(a):
        for other in others:
            if same_value(law, other):
                return law
    return None


def same_value(a: Law, b: Law) -> bool:
    """Whether two laws are one value: the same object, or moved from one in the same way."""
    if a is b:
        return True
    if a._call is None or b._call is None or a._call[0].name != b._call[0].name or a._call[0].kind != "movement":
        return False
    if a._made is None or b._made is None:
        return False
    (_, (x, *rest), options), (_, (y, *others), other_options) = a._made, b._made
    return (
        isinstance(x, Law)
        and isinstance(y, Law)
        and same_arguments(rest, others)
        and same_arguments([*options.items()], [*other_options.items()])
        and same_value(x, y)
    )


def alike(a: Law, b: Law) -> bool:
    """Whether two laws are functions, element by element, of one."""
    source = common_source(a, b)
    return source is not None and is_pointwise(a, source) and is_pointwise(b, source)


# --------------------------------------------------------------- expressions


def expression(law: Law, source: Law) -> list[Law] | None:
    """The laws between ``source`` and ``law``, each once and after its arguments; None if it is no pointwise function.

    Args:
        law: the last of them, unless it is ``source`` itself.
        source: of which all of them are functions, element by element.
    """
    found: dict[int, Law] = {}
    return list(found.values()) if _collect(law, source, found) else None


def _collect(law: Law, source: Law, found: dict[int, Law]) -> bool:
    if id(law) in found or same_value(law, source):
        return True
    if law._made is None or law.shape != source.shape:
        return False
    entry, args, kwargs = law._made
    if not is_by_value(entry) or is_closed(law):
        return False
    if not all(_collect(part, source, found) for part in laws_in(args) + laws_in(kwargs.values())):
        return False
    found[id(law)] = law
    return True


def is_pointwise(law: Law, source: Law) -> bool:
    """Whether ``law`` is a function, element by element, of ``source``."""
    return expression(law, source) is not None


def is_by_value(entry: Entry) -> bool:
    """Whether a function makes each value of its result from the values in that place."""
    return entry.kind in ("pointwise", "arithmetic") or entry.name in IDENTITIES or entry.name in CHOICES


def is_closed(law: Law) -> bool:
    """Whether ``law`` was made by a root or a quotient, by a rule of its own: an integral would meet its poles."""
    entry, args, _ = law._call  # type: ignore[misc]
    if entry.name not in _CLOSED:
        return False
    under = args[1 if entry.name == "div" else 0]
    return under is law._of and len(laws_in(args)) == 1 and not is_inside(entry.name, under)


#: functions of which a value that they were closed on may not be any number
_CLOSED = frozenset(names("sqrt rsqrt reciprocal rdiv div"))
#: functions that choose, by a mask, among the values of one place
CHOICES = frozenset(names("where masked_fill"))
#: movements that leave every value in its place
IDENTITIES = frozenset(("clone", "contiguous", "detach", "positive", "data"))


def out_of_place(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call on laws, which overwrites none of them."""
    if entry.overwrites or entry.flag is not None:
        entry = Entry(entry.name, entry.kind, entry.call)
    return dispatch(entry, entry.call, args, kwargs)


def value_at(law: Law, source: Law, x: Any) -> Any:
    """What ``law`` is where ``source`` is ``x``, a tensor or another law."""
    known: dict[int, Any] = {}

    def value(given: Any) -> Any:
        if not isinstance(given, Law):
            return given
        if id(given) in known:
            return known[id(given)]
        if same_value(given, source):
            return x
        entry, args, kwargs = given._call  # type: ignore[misc]
        if entry.name in IDENTITIES:
            found = value(args[0])
        else:
            own, named = tuple(map(value, args)), {name: value(arg) for name, arg in kwargs.items()}
            call: Callable[..., Any] = entry.call
            found = out_of_place(entry, own, named) if isinstance(x, Law) else call(*own, **named)
        known[id(given)] = found
        return found

    return value(law)


#: movements that put other values beside those that they move
_FILLING = frozenset(names("tril triu diag_embed diag diagflat unfold"))


def start_of(law: Law) -> Law | None:
    """The value that ``law`` is a nonlinear function of, element by element; None if there is none.

    >>> import torch
    >>> from momentgen.laws import diagonal
    >>> x = diagonal(torch.zeros(2), torch.ones(2))
    >>> start_of(2 * torch.tanh(x)) is x, start_of(2 * x)
    (True, None)
    """
    found: Law | None = None
    while (made := law._made) is not None:
        entry, args, _ = made
        of = law._of
        if of is None or of.shape != law.shape:
            break
        if not is_by_value(entry) or is_closed(law):
            break
        laws = laws_in(args)
        if entry.kind == "pointwise" or len(laws) > 1 or laws[0] is not of:
            found = of
        law = of
    return found


def start_of_both(a: Law, b: Law, source: Law) -> Law:
    """What two functions of ``source`` are functions of, where it is a curved function itself."""
    start = start_of(source)
    return source if start is None or not (is_pointwise(a, start) and is_pointwise(b, start)) else start


def moved_law(law: Law) -> Law | None:
    """The moved law that ``law`` is, times a number and plus a number; None if there is none."""
    while (made := law._made) is not None:
        entry, args, _ = made
        if entry.kind == "movement" and entry.name not in IDENTITIES:
            return law
        if law._of is None or (entry.kind != "arithmetic" and entry.name not in IDENTITIES):
            return None
        if entry.name in ("rdiv",) or any(isinstance(value, Tensor) for value in args):
            return None
        if len(laws_in(args)) != 1 or not isinstance(args[0] if entry.name == "div" else law._of, Law):
            return None
        law = law._of
    return None


def leads_to_chain(law: Law) -> bool:
    """Whether ``law``, moved or not, is a chain."""
    while start_of(law) is None:
        place = moved_law(law)
        if place is None or cast(Any, place._made)[0].name in _FILLING:
            return False
        law = cast(Any, place._made)[1][0]
    return True


def operand(law: Law, *names: str) -> Law | None:
    """The first argument of the function that ``law`` is the result of, if it is one of ``names``; else None."""
    if law._made is None or law._made[0].name not in names:
        return None
    first = law._made[1][0]
    return first if isinstance(first, Law) else None


def scaled(law: Law) -> Law:
    """``law`` without movements that leave values in place."""
    while law._made is not None and law._made[0].name in IDENTITIES and isinstance(law._made[1][0], Law):
        law = law._made[1][0]
    return law


def walk(law: Law, *names: str) -> tuple[Any, ...] | None:
    """Arguments of the function that ``law`` is the result of, if its name is one of ``names``."""
    law = scaled(law)
    if law._made is None or law._made[0].name not in names:
        return None
    return law._made[1]


def same_arguments(a: Any, b: Any) -> bool:
    """Whether two arguments are the same, tensors by identity."""
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(same_arguments(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a is b
    return type(a) is type(b) and bool(a == b)


# ------------------------------------------------------------------- writes


def await_writes(value: Law, law: Law) -> None:
    """Let ``law`` be computed before ``value``, or what it is a view of, is written to."""
    while True:
        if value._waiting is None:
            value._waiting = []
        value._waiting.append(weakref.ref(law))
        if len(value._waiting) > 64:
            # those that are there still, and not computed yet
            value._waiting = [own for own in value._waiting if (waits := own()) is not None and waits._mean is None]
        if value._view is None:
            return
        value = value._view[0]


# ------------------------------------------------------------------- bounds

Interval = tuple[float, float]
_ALL: Interval = (-math.inf, math.inf)
_POSITIVE: Interval = (0.0, math.inf)
#: of functions that are never 0
_ABOVE = math.ulp(0.0)
#: ranges of functions of one value, with their default arguments
_RANGES: dict[str, Interval] = {
    **dict.fromkeys(names("square abs relu"), _POSITIVE),
    **dict.fromkeys(names("exp exp2 softplus"), (_ABOVE, math.inf)),
    "sigmoid": (_ABOVE, 1.0), **dict.fromkeys(names("normal_cdf hardsigmoid"), (0.0, 1.0)),
    **dict.fromkeys(names("tanh erf sin cos softsign hardtanh"), (-1.0, 1.0)),
    "relu6": (0.0, 6.0), "cosh": (1.0, math.inf), "erfc": (0.0, 2.0), "silu": (-0.28, math.inf),
    "gelu": (-0.18, math.inf), "elu": (-1.0, math.inf), "expm1": (-1.0, math.inf), "logsigmoid": (-math.inf, 0.0),
    "atan": (-math.pi / 2, math.pi / 2),
}  # fmt: skip
#: where functions are defined and finite; the ends are not
_DOMAINS: dict[str, Interval] = {
    **dict.fromkeys(names("sqrt rsqrt reciprocal rdiv div log log2 log10 lgamma digamma"), _POSITIVE),
    **dict.fromkeys(names("acos asin atanh erfinv"), (-1.0, 1.0)),
    "log1p": (-1.0, math.inf), "acosh": (1.0, math.inf), "tan": (-math.pi / 2, math.pi / 2), "logit": (0.0, 1.0),
}  # fmt: skip


def is_inside(name: str, law: Any) -> bool:
    """Whether the function is defined and finite for every number that ``law`` may be.

    >>> import torch
    >>> from momentgen.laws import diagonal
    >>> x = diagonal(torch.zeros(2), torch.ones(2))
    >>> is_inside("sqrt", x * x + 1), is_inside("log", x)
    (True, False)
    """
    domain = _DOMAINS.get(name)
    if domain is None:
        return False
    low, high = bounds(law)
    return low > domain[0] and (high < domain[1] or domain[1] == math.inf)


def bounds(value: Any) -> Interval:
    """The least and the largest number that an expression may be, as far as its functions tell."""
    if isinstance(value, bool) or not isinstance(value, Law | int | float):
        return _ALL
    if not isinstance(value, Law):
        return float(value), float(value)
    if value._made is None:
        return _ALL
    entry, args, kwargs = value._made
    if entry.kind == "arithmetic" and not kwargs:
        return _of_arithmetic(entry, args)
    if entry.kind == "pointwise":
        if entry.name == "pow" and isinstance(args[1], int) and args[1] % 2 == 0 and args[1] > 0:
            return _POSITIVE
        return _RANGES.get(entry.name, _ALL) if len(args) == 1 and not kwargs else _ALL
    if entry.name in ("clone", "contiguous", "detach", "positive", "data"):
        return bounds(args[0])
    return _ALL


def _of_arithmetic(entry: Entry, args: tuple[Any, ...]) -> Interval:
    first = bounds(args[0])
    if entry.name == "neg":
        return -first[1], -first[0]
    second = bounds(args[1])
    if entry.name == "add":
        return first[0] + second[0], first[1] + second[1]
    if entry.name in ("sub", "rsub"):
        first, second = (first, second) if entry.name == "sub" else (second, first)
        return first[0] - second[1], first[1] - second[0]
    if entry.name == "mul" and len({id(law) for law in laws_in(args)}) == 1 and len(laws_in(args)) == 2:
        return _POSITIVE
    if entry.name == "div" and not isinstance(args[1], Law) and second[0] != 0:
        second = (1 / second[0], 1 / second[1])
    elif entry.name != "mul":
        return _ALL
    ends = [a * b if a and b else 0.0 for a in first for b in second]
    return min(ends), max(ends)
