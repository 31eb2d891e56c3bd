"""What the rules of ``Covariance`` share: linear maps on rows, sums of them, functions of one law, and Jacobians.

A function takes its mean from the rule of ``Diagonal``, and covariances by the Jacobian of that mean
(:func:`by_jacobian`).  The diagonal also has the part of that rule's variance that the Jacobian does not explain.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from momentgen.laws import affine
from momentgen.laws.arguments import all_replaced, rebuilt
from momentgen.laws.covariance import Covariance, covariance, source, symmetric
from momentgen.laws.covariance_graph import Node, Push, current
from momentgen.laws.diagonal import Diagonal, diagonal
from momentgen.laws.history import common_source, is_pointwise, leads_to_chain, out_of_place, start_of_both, value_at
from momentgen.laws.law import Law, Rule, laws_in, remember, rule, rule_of
from momentgen.laws.notes import note
from momentgen.laws.numerics.bounds import at_least
from momentgen.laws.numerics.forward import forward_derivative
from momentgen.laws.numerics.pairs import PairOp
from momentgen.laws.numerics.root import square_root
from momentgen.laws.point import Point
from momentgen.laws.table import Entry

__all__ = [
    "by_jacobian",
    "by_rows",
    "certain_as_tensor",
    "function_of",
    "joint",
    "linear_of",
    "note_curved",
    "numbered",
    "of_diagonal",
    "picked",
    "random_in",
    "room",
    "rows_at_once",
    "start_together",
    "stretched",
    "times",
]


_Rule = TypeVar("_Rule", bound=Rule)


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


def joint(*names: str) -> Callable[[_Rule], _Rule]:
    """Decorates the rule of ``Covariance`` for functions of these names or kinds."""

    def register(function: _Rule) -> _Rule:
        rule(Covariance, *names)(_promoted(function))
        return function

    return register


def room(entry: Entry, out: Tensor) -> None:
    """Whether there is memory for the covariance of ``out``; raises if not."""
    current().check_room(entry.name, out.numel(), out.dtype)


def linear_of(
    entry: Entry, mean: Tensor, parts: list[tuple[Covariance, Push | None]], own: Tensor | None = None
) -> Covariance:
    """A sum of linear maps of laws that may have anything to do with each other.

    Args:
        entry: the function's, for errors.
        mean: of the result.
        parts: laws and maps.
        own: *variances* of independent noise that is added, shape ``(N,)``, or its covariance, shape ``(N, N)``.
    """
    room(entry, mean)
    run = current()
    total: Tensor | None = None
    for law, push in parts:
        of_law: Tensor | None = None  # covariance of the law's values with the result
        for other, other_push in parts:
            found = run.cross(law.node, other.node)
            if found is not None:
                found = found if other_push is None else other_push(found)
                of_law = found if of_law is None else of_law + found
        back = cast(Tensor, of_law).mT
        back = back if push is None else push(back)
        total = back if total is None else total + back
    cov = symmetric(cast(Tensor, total))
    if own is not None:
        cov = cov + (own if own.dim() == 2 else torch.diag_embed(own))
    return covariance(mean, Node(cov, [(law.node, push) for law, push in parts]))


def by_rows(function: Callable[[Tensor], Tensor], shape: torch.Size, chunk: int | None = None) -> Push:
    """A linear function of tensors of that shape, on rows."""

    def one(row: Tensor) -> Tensor:
        return function(row.view(shape)).reshape(-1)

    def push(rows: Tensor) -> Tensor:
        return torch.vmap(one, chunk_size=chunk)(rows.contiguous())

    return push


def times(factor: Tensor) -> Push:
    """Each value times a number, a tensor of the values' shape or without dimensions."""
    flat = factor.reshape(-1)
    return lambda rows: rows * flat


def picked(index: Tensor) -> Push:
    """Each value of the result is a value of the argument; index 0 is the number 0, and others count from 1."""
    places, flat = (index - 1).clamp_min(0).long().reshape(-1), index.reshape(-1)

    def push(rows: Tensor) -> Tensor:
        return rows.index_select(1, places) * (flat > 0).to(rows.dtype)

    return push


def numbered(value: Tensor) -> Tensor:
    """The numbers of the places of a tensor, from 1, in its shape; a floating-point type, which all functions take."""
    return torch.arange(1, value.numel() + 1, dtype=torch.float64, device=value.device).view(value.shape)


def stretched(x: Covariance, shape: torch.Size) -> Push | None:
    """The values of ``x`` broadcast to a shape; None if that is theirs."""
    return None if x.shape == shape else picked(numbered(x._mean).expand(shape))


def random_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Covariance]:
    """The laws among arguments that are random, each once."""
    found = [law for law in laws_in((*args, *kwargs.values())) if isinstance(law, Covariance)]
    return list({id(law): law for law in found}.values())


def of_diagonal(entry: Entry) -> Rule:
    """The rule that ``Diagonal`` has for a function."""
    return cast(Rule, rule_of(Diagonal, entry.name, entry.kind))


def certain_as_tensor(law: Law) -> Any:
    """The tensor of a certain value, other laws as they are; for :func:`all_replaced`."""
    return law._form() if isinstance(law, Point) else law


# ------------------------------------------------------------- functions


def _results(found: Any) -> Iterator[Diagonal]:
    for item in found if isinstance(found, tuple | list) else (found,):
        if isinstance(item, Diagonal):
            yield item


def function_of(
    entry: Entry,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    start: Covariance,
    terms: int | None = None,
    exact: PairOp | None = None,
) -> Covariance:
    """A call as one function of the values of ``start``, of which the laws among its arguments are functions.

    Args:
        entry: of the function.
        args: of the call.
        kwargs: of the call.
        start: the value.
        terms: of the Hermite sum; None for as many as the run is set to.
        exact: the covariance of the function of two values.
    """
    if any(value is not start for value in random_in(args, kwargs)):
        terms = min(2, current().terms)  # a chain: not all functions of torch can be differentiated three times

    def function(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        x = diagonal(mean, var)
        own, named = all_replaced(args, kwargs, lambda law: value_at(law, start, x))
        found = out_of_place(entry, own, named)
        return cast(tuple[Tensor, Tensor], found._parts())

    return cast(Covariance, remember(start.by_moments(function, terms, exact), entry, args, kwargs, start))


def start_together(entry: Entry, a: Any, b: Any) -> Covariance | None:
    """The value of which both are functions, element by element; None if they are not, or are not both random."""
    if not isinstance(a, Covariance) or not isinstance(b, Covariance):
        return None
    source = common_source(a, b)
    if source is None or not (is_pointwise(a, source) and is_pointwise(b, source)):
        return None
    return cast(Covariance, start_of_both(a, b, source))


def note_curved(entry: Entry, x: Covariance, y: Covariance) -> None:
    """Say so where two functions of one value meet in several places: they are taken as jointly normal."""
    if common_source(x, y) is not None and (leads_to_chain(x) or leads_to_chain(y)):
        note(f"{entry.name}: functions of one value, moved, are taken as jointly normal")


def by_jacobian(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The mean of ``Diagonal``'s rule, covariances by its Jacobian, the rest of the rule's variance on the diagonal."""
    rule, laws = of_diagonal(entry), random_in(args, kwargs)
    # The maps must not keep the laws alive, whose covariances are let go when nobody can ask for them.
    alone = {id(law): diagonal(law._mean, law._var) for law in laws}
    args, kwargs = all_replaced(args, kwargs, lambda law: alone.get(id(law), law))
    inputs = list(alone.values())
    kept: list[Any] = []

    def moments(*means: Tensor) -> tuple[Tensor, Tensor]:
        known = {id(law): diagonal(mean, law._var) for law, mean in zip(inputs, means, strict=True)}
        own, named = all_replaced(args, kwargs, lambda law: known.get(id(law), law))
        found = rule(entry, own, named)
        parts = [law._parts() for law in _results(found)]
        kept[:] = [found]
        return tuple(torch.cat([part[k].reshape(-1) for part in parts]) for k in (0, 1))  # type: ignore[return-value]

    mean, var = moments(*[law._mean for law in inputs])
    found = kept[0]
    room(entry, mean)

    def tangent(place: int, row: Tensor) -> Tensor:
        def of_one(value: Tensor) -> Tensor:
            return moments(*[value if k == place else law._mean for k, law in enumerate(inputs)])[0]

        return cast(Tensor, forward_derivative(of_one, [inputs[place]._mean], [row]))

    parts: list[tuple[Covariance, Push | None]] = [
        (law, by_rows(functools.partial(tangent, place), law.shape, rows_at_once(law, mean)))
        for place, law in enumerate(laws)
    ]
    explained: Tensor | None = None
    for law, push in parts:
        columns = cast(Push, push)(torch.diag_embed(square_root(law._var).reshape(-1)))
        own = columns.square().sum(0)
        explained = own if explained is None else explained + own
    rest = at_least(var - cast(Tensor, explained), 0)
    whole = linear_of(entry, mean, parts, rest)
    if isinstance(found, Diagonal):
        return whole.view(found.shape)
    pieces = iter(whole.split([law.numel() for law in _results(found)]))
    items = [next(pieces).view(item.shape) if isinstance(item, Diagonal) else item for item in found]
    return rebuilt(found, items)


#: numbers that a rule holds at once for each value of its argument, such as nodes of an integral
_NODES = 64


def rows_at_once(law: Covariance, out: Tensor) -> int:
    """How many rows a rule's derivative takes at once, within the memory of the run."""
    run = current()
    each = (law.numel() + out.numel()) * out.dtype.itemsize * _NODES * run.batch
    return max(1, min(law.numel(), run.memory // each))
