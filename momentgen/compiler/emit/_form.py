"""What the float64 renderers share: a real graph as straight sections and loops over tables of coefficients.

:mod:`momentgen.compiler.emit._loops` makes this form of a graph.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.kinds import CONDITIONS

__all__ = ["SURFACES", "Form", "Item", "Loop", "Section", "Surfaces", "Tables", "cells_of", "numbered", "offset_in"]

#: kinds of polynomials of two values
SURFACES = ("surface", "surface_y", "surface_z")


@dataclass(frozen=True)
class Item:
    """One operation: a node of the graph, or one of these.

    - ``polynomial`` of its first argument, ``payload`` the coefficients from high to low; with a second argument, that
      is the value before the first coefficient;
    - ``surface``, ``surface_y`` and ``surface_z``, a polynomial of the first two arguments, ``payload`` its patches by
      the third, the number of a cell, and its derivatives in the first and in the second;
    - ``cell``, a number of a cell that is known where the form is used, the ``payload``-th;
    - ``column``, the constant number ``payload`` in the row of a loop;
    - ``accumulator``, what loops have added up; ``same``, its argument.
    """

    kind: str
    args: tuple[int, ...] = ()
    payload: Any = None


@dataclass(frozen=True)
class Section:
    """Operations one after the other."""

    items: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """The same operations for every row of a table.

    Attributes:
        turns: how many rows the table has, which is its key among the :class:`Tables`.
        items: the operations of a turn.
        sums: accumulator -> pairs of values whose products it takes in at each turn, from 0 on.
    """

    turns: int
    items: tuple[int, ...]
    sums: Mapping[int, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class Surfaces:
    """What is wanted of one polynomial of two values, its value and derivatives: all of the same arguments."""

    items: tuple[int, ...]


class Tables:
    """The tables of the loops of some forms: one for each number of rows, whose columns the loops share."""

    def __init__(self) -> None:
        self._columns: dict[int, dict[tuple[float, ...], int]] = defaultdict(dict)

    def column(self, values: tuple[float, ...]) -> int:
        """The number of a column, made where there is none of these values."""
        columns = self._columns[len(values)]
        return columns.setdefault(values, len(columns))

    def take(self, others: Tables) -> None:
        """Become the same as others, which these were the beginning of."""
        self._columns = others._columns

    def rows(self) -> dict[int, list[tuple[float, ...]]]:
        """Number of rows -> rows."""
        return {turns: list(zip(*columns, strict=True)) for turns, columns in self._columns.items()}


@dataclass
class Form:
    """A graph for the float64 renderers.

    Attributes:
        inputs, params: as of the graph.
        items: all operations, by number.
        parts: what is to be computed, in order.
        outputs: name -> number.
        comments: number -> what it is.
    """

    inputs: tuple[str, ...]
    params: tuple[str, ...]
    items: dict[int, Item]
    parts: list[Section | Loop | Surfaces] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)
    comments: dict[int, str] = field(default_factory=dict)

    def uses(self) -> Counter[int]:
        """How often each value is read: in a loop, by an accumulator, or as an output."""
        found: Counter[int] = Counter(self.outputs.values())
        for part in self.parts:
            for index in part.items:
                found.update(self.items[index].args)
            if isinstance(part, Loop):
                for pairs in part.sums.values():
                    found.update(itertools.chain(*pairs))
        return found

    def crossing(self) -> list[int]:
        """Values that are read in another part than they are made in, in order; outputs are read in the last."""
        made = {index: number for number, part in enumerate(self.parts) for index in part.items}
        found: dict[int, None] = {}

        def read(number: int, indices: Iterable[int]) -> None:
            found.update(dict.fromkeys(index for index in indices if made.get(index, number) != number))

        for number, part in enumerate(self.parts):
            read(number, itertools.chain(*(self.items[index].args for index in part.items)))
            if isinstance(part, Loop):
                read(number, itertools.chain(*itertools.chain(*part.sums.values())))
        read(len(self.parts) - 1, self.outputs.values())
        return list(found)

    def without(self, unread: Collection[int]) -> Form:
        """The same but for operations that nothing reads."""
        parts: list[Section | Loop | Surfaces] = []
        for part in self.parts:
            items = tuple(index for index in part.items if index not in unread)
            if items or not isinstance(part, Section):
                parts.append(replace(part, items=items))
        return replace(self, parts=parts)

    def is_condition(self, index: int) -> bool:
        """Whether a value is true or false."""
        return self.items[index].kind in CONDITIONS


def cells_of(graph: Graph) -> dict[int, int]:
    """The nodes that are numbers of cells, with how many cells there are."""
    return {surface.cell: len(surface.patches) for surface in graph.surfaces.values() if len(surface.patches) > 1}


def numbered(graph: Graph) -> Graph:
    """The same nodes with one output, the number of the cell, of several grids at once, or of the side of a branch."""
    found = graph.without_outputs()
    number = found.const(0)
    if graph.branch is not None and not cells_of(graph):
        number = found.select(graph.branch, found.const(1), number)
    for cell, count in cells_of(graph).items():
        number = found.madd(number, found.const(count), cell)
    found.output("number", number)
    return found


def offset_in(cells: Mapping[int, int], place: int) -> str:
    """What makes the number in one grid of that in all, in C (of whole numbers); empty where there is one grid."""
    sizes = list(cells.values())
    after = math.prod(sizes[place + 1 :])
    return (f" / {after}" if after > 1 else "") + (f" % {sizes[place]}" if place else "")
