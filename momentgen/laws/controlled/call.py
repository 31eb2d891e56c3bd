"""One call of a function that has a random argument, and what the rows say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from momentgen.laws.controlled.stack import Stack
from momentgen.laws.table import KINKED, Entry, names

if TYPE_CHECKING:
    from momentgen.laws.controlled.shift import Shift

__all__ = ["Call", "Record", "Rule", "Shifted", "has_derivative", "has_kinks"]

#: computes the shift of a result, or those of its parts in a tuple; None where the shift ends
Shifted = Callable[[], Any]

#: functions with kinks or jumps, which all rows may be on one side of
_DECIDING: Final = frozenset(("maximum", "decision"))
_KINKED: Final = KINKED.union(
    names("where masked_fill std std_mean norm vector_norm lp_pool1d lp_pool2d lp_pool3d cdist")
)


def has_kinks(entry: Entry | None, out: Any) -> bool:
    """Whether a function may have kinks or jumps, all rows being on one side; of one that is not known, any may."""
    return has_derivative(out) if entry is None else entry.kind in _DECIDING or entry.name in _KINKED


def has_derivative(value: Any) -> bool:
    """Whether a value is a tensor of floating point or of complex numbers."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


class Record:
    """What the rows say of one call: sums of quantities that are averaged, and graphs of single rows."""

    __slots__ = ("_counts", "_state", "_sums", "graphs", "noise", "seeded")

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._counts: list[int] = []
        #: (inputs, outputs) of stacks whose graph is kept
        self.graphs: list[tuple[list[Tensor], list[Tensor], Stack]] = []
        #: draws of a source, by row
        self.noise: dict[int, Tensor] = {}
        #: whether every row draws the same numbers, since the network seeds the generator
        self.seeded = False
        self._state: Tensor | None = None

    def add(self, place: int, value: Tensor, keeps_graph: bool, count: int = 1) -> None:
        """Add of ``count`` rows to the sum ``place``, which starts anew where the shape changes from row to row."""
        if place < len(self._sums) and self._sums[place].shape == value.shape:
            self._sums[place] = self._sums[place] + value if keeps_graph else self._sums[place].add_(value.detach())
            self._counts[place] += count
            return
        self._sums[place:] = [value if keeps_graph else value.detach().clone()]
        self._counts[place:] = [count]

    def release(self) -> None:
        """Forget everything but what was drawn.  Derivatives that may yet be asked for hold lists of their own."""
        self._sums, self._counts, self.graphs = [], [], []

    def draws_by(self, state: Tensor) -> None:
        """The present row will draw from a generator in this state."""
        self.seeded |= self._state is not None and torch.equal(self._state, state)
        self._state = state

    def has(self, place: int) -> bool:
        """Whether anything was added."""
        return place < len(self._sums)

    def average(self, place: int) -> Tensor:
        """The mean of what was added."""
        return self._sums[place] / self._counts[place]


class Call:
    """One call of a function that has a random argument.

    Attributes:
        function: torch's.
        entry: what the table knows of it; None for a function that it does not know.
        args: plain tensors and whatever else.
        kwargs: likewise.
        mode: the shift.
        record: of the calls in the same place of the other rows.
    """

    __slots__ = ("args", "entry", "function", "kwargs", "mode", "out", "place", "record")

    def __init__(
        self, mode: Shift, function: Any, entry: Entry | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.mode, self.function, self.entry, self.args, self.kwargs = mode, function, entry, args, kwargs
        self.out: Any = None
        self.record: Record = mode.record_of(self)
        self.place = 0

    def run(self) -> None:
        """Compute the result as it is."""
        self.out = self.function(*self.args, **self.kwargs)

    @property
    def name(self) -> str:
        """The function's one name."""
        return self.entry.name if self.entry is not None else getattr(self.function, "__name__", "")

    def random(self, value: Any) -> bool:
        """Whether ``value`` is a random tensor, noise in common of all examples left out: its shift is apart."""
        return isinstance(value, Tensor) and self.mode.knows(value) and not self.mode.common.knows(value)

    def shift(self, value: Tensor) -> Tensor:
        """The shift of a random tensor."""
        return self.mode.of(value)

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by its place or name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def average(self, value: Tensor | Callable[[], Tensor], every: bool = True) -> Callable[[], Tensor]:
        """The mean over the rows of a quantity; to be called in the last row, when all have been added.

        Args:
            value: of this row, or what computes it.
            every: whether every row counts; else every other pair does, as for what is dear to compute.
        """
        place, self.place = self.place, self.place + 1
        stack = self.mode.stack
        first = self.mode.row + 1 - stack.rows
        counted = [k for k in range(stack.rows) if every or (first + k) % 4 < 2]
        if not counted and self.record.has(place):
            return lambda: self.record.average(place)
        value = value if isinstance(value, Tensor) else value()
        if self.mode.draws_only or self.mode.constant(value):
            constant = value if self.mode.keeps_graph else value.detach()
            return lambda: constant
        self.mode.curved = True
        counted = counted or [0]
        value = value if stack.rows == 1 else stack.total(value, counted)
        self.record.add(place, value, self.mode.keeps_graph, len(counted))
        return lambda: self.record.average(place)


#: a rule: computes ``call.out`` and records what the row says; returns what computes the shift
Rule = Callable[[Call], Shifted | None]
