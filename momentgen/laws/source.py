"""One source: what is known of a value that met a function of itself.

``x * sigmoid(x)`` is not a product of independent values.  A :class:`~momentgen.laws.diagonal.Diagonal` remembers the
function and the arguments that it came from, back to the last affine map.  Where two laws meet that are pointwise
functions of one law, their combination is a function of one normal value: the generated op where there is one (SiLU,
GELU, Mish and their like written by hand), scaling where all is affine, and quadrature otherwise.  The integral is put
off until somebody asks for the moments, since a longer expression may have an op.

Means over dimensions are remembered too: ``x - x.mean(dim)`` is exact, and a layer norm, an RMS norm, a softmax
written by hand are recognised.  Everything else that depends on one value in two ways (the branches of a residual
block around a linear layer) is taken as independent: that is what diagonal propagation is.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws.bounds import is_inside
from momentgen.laws.law import DEPTH, Law, dispatch, laws_in, new_law, versions
from momentgen.laws.notes import note
from momentgen.laws.table import Entry, names

#: mean and variance of a function of one value, from those of the value
MomentsOf = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

__all__ = [
    "MomentsOf",
    "await_writes",
    "chain",
    "combined",
    "common_source",
    "operand",
    "pending",
    "scaled",
    "settle",
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
        and _same(rest, others)
        and _same([*options.items()], [*other_options.items()])
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
    return under is law._of and not is_inside(entry.name, under)


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


def pending(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], source: Law) -> Any:
    """A pointwise function of ``source`` whose moments are computed when somebody asks for them."""
    law: Any = new_law(type(source), None)  # type: ignore[arg-type]
    law._noise = source._noise
    law._call, law._of, law._depth = (entry, args, kwargs), source, source._depth + 1
    law._seen = versions(args)
    of = cast(list[Law], expression(law, source))
    is_long = _length(law) > _LONGEST or len(of) > _MOST
    if is_long or (not torch.is_grad_enabled() and source.requires_grad) or _of_tensors(of):
        settle(law)  # at once: it is long enough, or gradients may be enabled again later, or tensors may be written to
        if source._depth >= DEPTH or len(of) > _MOST:
            note(f"{entry.name}: a function of many functions of one value, which is taken as normal from there on")
            law._call = law._of = None  # what it is a function of is let go
            law._depth, law._seen = 0, ()
    elif not torch.compiler.is_compiling():
        # before anything that it is a function of is written to
        for value in {id(part): part for inner in of for part in laws_in(inner._call[1])}.values():  # type: ignore[index]
            await_writes(value, law)
    return law


def await_writes(value: Law, law: Law) -> None:
    """Let ``law`` be computed before ``value``, or what it is a view of, is written to."""
    while True:
        if value._waiting is None:
            value._waiting = []
        value._waiting.append(weakref.ref(law))
        if len(value._waiting) > 64:
            value._waiting = [reference for reference in value._waiting if _is_pending(reference())]
        if value._view is None:
            return
        value = value._view[0]


def _is_pending(law: Law | None) -> bool:
    return law is not None and law._mean is None


def _of_tensors(laws: list[Law]) -> bool:
    """Whether an expression has tensors for constants."""
    return any(isinstance(value, Tensor) for law in laws for value in law._call[1])  # type: ignore[index]


def _length(law: Law) -> int:
    """How many functions an expression that is not integrated yet has."""
    if law._mean is not None:
        return 0
    args = () if law._call is None else law._call[1]
    return 1 + sum(_length(value) for value in laws_in(args))


#: an expression of more functions than this is integrated at once
_LONGEST = 12
#: an expression of more functions than this counts as a value of its own
_MOST = 24


def settle(law: Any) -> None:
    """Compute the moments of a pending law."""
    if law._later is not None:
        found, law._later = law._later(), None
        (law._mean, law._var), law._probes = found._parts(), found._probes
        return
    law._mean, law._var = law._integrated(_moments(law, law._of))


def _moments(law: Law, source: Law) -> MomentsOf:
    """What gives mean and variance of an expression, from those of its source."""
    from momentgen.laws.normal_form import known, normal_form
    from momentgen.laws.numerics.quadrature import quadrature

    between = cast(list[Law], expression(law, source))
    found = known(normal_form(law, source)) if len(between) <= _LONGEST else None
    if found is None:
        rule = text(law, source) if len(between) <= _LONGEST else f"{between[-1]._call[0].name}(…)"  # type: ignore[index]
        note(
            f"{rule}: integrated by quadrature; the rule Rule({name_of(law)!r}, f={rule}) would make it exact and fast"
        )
        return functools.partial(quadrature, functools.partial(value_at, law, source), **_nodes(between))
    scale, shift, inner, op = found

    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        m, v = op(mean * inner, var * (inner * inner)) if inner != 1 else op(mean, var)
        return (m if scale == 1 and shift == 0 else m * scale + shift), (v if scale == 1 else v * (scale * scale))

    return moments


#: functions with a jump, or a slope that is not bounded; and with a kink
_JUMPS = frozenset(names("threshold hardshrink unit_step"))
_KINKS = frozenset(
    names(
        "relu leaky_relu hardtanh relu6 hardsigmoid hardswish softshrink abs clamp clamp_min clamp_max elu celu selu "
        "softsign prelu sqrt rsqrt maximum minimum fmax fmin max min"
    )
)


def _nodes(laws: list[Law]) -> dict[str, Any]:
    """How many nodes an expression takes, and which: even ones where it has kinks or jumps.

    Args:
        laws: of the expression.
    """
    return nodes_for({law._call[0].name for law in laws})  # type: ignore[index]


def nodes_for(used: set[str]) -> dict[str, Any]:
    """How many nodes an expression of these functions takes, and which."""
    if used & _JUMPS:
        return {"nodes": 140, "even": True}
    return {"nodes": 48, "even": True} if used & _KINKS else {}


def text(law: Law, source: Law) -> str:
    """The expression as a formula in x."""
    if same_value(law, source):
        return "x"
    entry, args, _ = law._call  # type: ignore[misc]
    parts = [text(arg, source) if isinstance(arg, Law) else _number(arg) for arg in args]
    if entry.name in _SIGNS and len(parts) == 2:
        left, right = parts if entry.name not in ("rsub", "rdiv") else parts[::-1]
        return f"({left} {_SIGNS[entry.name]} {right})"
    return f"{entry.name}({', '.join(parts)})"


_SIGNS = {"add": "+", "sub": "-", "rsub": "-", "mul": "*", "div": "/", "rdiv": "/", "pow": "**"}


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "c" if isinstance(value, Tensor) else str(value)


def name_of(law: Law) -> str:
    """A name for the rule of an expression."""
    return "my_" + law._call[0].name  # type: ignore[index]


# ------------------------------------------------------------- two that meet


def combined(entry: Entry, a: Any, b: Any, kwargs: dict[str, Any]) -> Any:
    """``a`` and ``b`` combined, if they are functions of one value in a way that is understood; else None."""
    source = common_source(a, b)
    if source is None:
        return None
    found = _moved_alike(entry, a, b, kwargs)
    if found is not None:
        return found
    if is_pointwise(a, source) and is_pointwise(b, source):
        return pending(entry, (a, b), kwargs, start_of_both(a, b, source))
    from momentgen.laws import places, recognise

    found = recognise.combined(entry, a, b)
    return places.met(entry, a, b, kwargs) if found is None else found


def start_of_both(a: Law, b: Law, source: Law) -> Law:
    """What two functions of ``source`` are functions of, where it is a curved function itself."""
    from momentgen.laws.chains import start_of

    start = start_of(source)
    return source if start is None or not (is_pointwise(a, start) and is_pointwise(b, start)) else start


def _moved_alike(entry: Entry, a: Any, b: Any, kwargs: dict[str, Any]) -> Any:
    """Two values of one source that were moved in the same way: the movement of what they are together."""
    if a._made is None or b._made is None or a._made[0] is not b._made[0] or a._made[0].kind != "movement":
        return None
    move, (x, *rest), options = a._made
    _, (y, *others), other_options = b._made
    if (
        move.name in IDENTITIES
        or same_value(x, y)
        or not _same(rest, others)
        or not _same([*options.items()], [*other_options.items()])
    ):
        return None
    if not isinstance(x, Law) or not isinstance(y, Law) or common_source(x, y) is None:
        return None
    together = combined(entry, x, y, kwargs)
    if together is None:
        return None
    place = rest[-1]
    found = dispatch(move, move.call, (together, *rest[:-1]), options)
    return found if place is None else found[place]


def _same(a: Any, b: Any) -> bool:
    """Whether two arguments are the same, tensors by identity."""
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a is b
    return type(a) is type(b) and bool(a == b)


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
