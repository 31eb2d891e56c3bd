"""``debug``, and variances that float32 does not hold: what looks at the results of rules.

Off by default: to look at values stops a GPU, and compiled code has none.

A σ of 1e-24 has a variance that is 0 in float32, and one of 1e25 an infinite one.  An output that shows either is a
reason to run the network once more, by ``ap2``, and to look at what every function returns.  A function is to blame
where float64 holds the variance that it makes of its arguments.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from momentgen.errors import InputError, MomentgenError, UnsupportedError
from momentgen.laws.diagonal import Diagonal, Point, diagonal, point
from momentgen.laws.law import Law, Rule
from momentgen.laws.nests import Kept, leaves_of
from momentgen.laws.notes import place, seen_by_compiler, within
from momentgen.laws.table import KINDS, Entry
from momentgen.runtime import Moments
from momentgen.runtime.inputs import least, readable

_on: ContextVar[bool] = ContextVar("momentgen_debug")
active: Any = seen_by_compiler(_on)


class debug(within):  # noqa: N801 - a context manager, named as it is used
    """Within the context every rule's result is looked at; NaN, infinity or a negative variance raises where it arises.

    For eager mode: the values of compiled code are not looked at.

    Raises:
        MomentgenError: from the network, naming the function, the module and the line.

    >>> import torch, momentgen
    >>> x = momentgen.Moments(torch.tensor([float("nan")]), torch.ones(1))
    >>> with momentgen.debug():
    ...     momentgen.nn.ReLU()(x)
    Traceback (most recent call last):
    ...
    momentgen.errors.MomentgenError: relu, in ...: 1 of 1 values of the mean are not finite
    """

    def __init__(self) -> None:
        super().__init__(_on, True)


def inspect(entry: Any, rule: Any, args: tuple[Any, ...], kwargs: dict[str, Any], laws: list[Any]) -> None:
    """Look at the laws in the result of a rule; what looks does not look at what itself computes."""
    with within(_on, False):
        _function.get()(entry, rule, args, kwargs, laws)


def _finite(entry: Any, rule: Any, args: tuple[Any, ...], kwargs: dict[str, Any], laws: list[Any]) -> None:
    """Raise a ``MomentgenError`` for what is not finite, or a negative variance."""
    name = entry.name
    for law in laws:
        for what, part in zip(("mean", "variance"), law._parts(), strict=False):
            wrong = ~part.detach().isfinite() if part.is_floating_point() else None
            if wrong is not None and bool(wrong.any()):
                raise MomentgenError(
                    f"{name}{place()}: {int(wrong.sum())} of {part.numel()} values of the {what} are not finite"
                )
            if what == "variance" and bool((part < 0).any()):
                raise MomentgenError(f"{name}{place()}: a variance is negative, {part.min().item():g}")


#: what looks at every rule's result
_function: ContextVar[Callable[..., None]] = ContextVar("momentgen_looks", default=_finite)


#: functions that scale a variance; others may make it as small as 0 by saturating
_SCALING = frozenset([*KINDS["affine"], *KINDS["arithmetic"], *KINDS["product"], "square", "pow", "reciprocal", "sqrt"])

#: networks whose outputs of variance 0 have been looked at, and are certain
_certain: weakref.WeakSet[Any] = weakref.WeakSet()


def refuse(where: Any, out: Any, given: Any, again: Callable[[], Any]) -> None:
    """Raise where an output's variance is 0, infinite or NaN because the dtype does not hold variances on the way.

    Raises:
        InputError: naming the function, the module and the line.
    """
    # a JointMoments would warn of what is taken out by name
    parts = [tuple.__iter__(leaf) for leaf in leaves_of(out) if isinstance(leaf, Moments)]
    parts += [iter(leaf._parts()) for leaf in leaves_of(out) if type(leaf) is Diagonal]
    ends = [_ends(var) for mean, var in parts if readable(mean) and var.numel()]
    infinite = not all(math.isfinite(largest) for _, largest in ends)
    if not infinite and (where in _certain or all(smallest > 0 for smallest, _ in ends)):
        return
    variances = [leaf.var for leaf in leaves_of(given) if isinstance(leaf, Moments) and isinstance(leaf.var, Tensor)]
    if not any(readable(var) and bool((var > 0).any()) for var in variances):
        return
    try:
        kept = Kept(where)
    except InputError:  # it holds a random value since this call, and does not run again
        return
    refused = contextlib.suppress(UnsupportedError)  # of ap2, asked for or not
    with torch.random.fork_rng(), within(_function, _look), within(_on, True), refused:
        again()
    kept.restore()
    _certain.add(where)


def _ends(var: Tensor) -> tuple[float, float]:
    """Of the largest variances of each value of the last dimension: the smallest, 0 without digits, and the largest."""
    largest = var.detach().reshape(-1, var.shape[-1] if var.dim() else 1).amax(0)
    smallest, end = (float(part) for part in largest.aminmax())
    return (0.0 if smallest < least(var.dtype) else smallest), end


def _look(entry: Entry, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], laws: list[Any]) -> None:
    """Raise where float64 holds a variance that a result does not, of arguments that are sound."""
    for number, law in enumerate(laws):
        if type(law) is not Diagonal:
            continue
        mean, var = (part.detach() for part in law._parts())
        infinite = mean.isfinite() & ~var.isfinite()
        zero = entry.name in _SCALING and not bool((var >= least(var.dtype)).any())
        if not var.numel() or not (zero or bool(infinite.any())):
            continue
        exact = _in_float64(rule, entry, args, kwargs, number)
        if exact is None or exact.shape != var.shape:
            continue
        largest, tiny = exact.amax(), torch.finfo(var.dtype).tiny
        below = zero and bool((largest > 0) & (largest < least(var.dtype)) & (largest.sqrt() >= tiny))
        if below or bool((infinite & exact.isfinite()).any()):
            size = float((largest if below else exact[infinite & exact.isfinite()].amax()).sqrt())
            raise InputError(
                f"{entry.name}{place()}: {var.dtype} does not hold the variance of a standard deviation of {size:.2g}, "
                f"which becomes {0 if below else 'infinite or NaN'}; use float64, other units within the "
                'network, or method="controlled"'
            )


def _in_float64(rule: Rule, entry: Entry, args: Any, kwargs: Any, number: int) -> Tensor | None:
    """The variance of a result by float64; None where an argument has another law or a variance that is none."""
    wide: dict[int, Any] = {}

    def is_law(value: Any) -> bool:
        return isinstance(value, Law)

    def widened(value: Any) -> Any:
        if not is_law(value):
            return value.detach().double() if isinstance(value, Tensor) and value.is_floating_point() else value
        if id(value) not in wide:
            parts = [part.detach().double() for part in value._parts()]
            wide[id(value)] = diagonal(*parts) if type(value) is Diagonal else point(parts[0], value._noise)
        return wide[id(value)]

    held = list(filter(is_law, pytree.tree_leaves((args, kwargs), is_leaf=is_law)))
    if any(type(law) not in (Diagonal, Point) for law in held):
        return None
    if not all(bool(part.isfinite().all()) for law in held if type(law) is Diagonal for part in law._parts()):
        return None
    own, named = pytree.tree_map(widened, (args, kwargs), is_leaf=is_law)
    found = rule(entry, own, named)
    law = found[number] if isinstance(found, tuple | list) else found
    return law._parts()[1].detach() if type(law) is Diagonal else None
