"""One call of a function that has a random argument, and what the rows say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.laws.controlled.noise import PAIRED_ROWS
from momentgen.laws.controlled.stack import Stack
from momentgen.laws.controlled.state import Phase, State, has_derivative
from momentgen.laws.nests import mapped, tensors_in
from momentgen.laws.table import KINKED, Entry, names

__all__ = ["Call", "Record", "Rule", "Tangent", "has_kinks"]

#: functions with kinks or jumps, which all rows may be on one side of
_DECIDING: Final = frozenset(("maximum", "decision"))
_KINKED: Final = KINKED.union(
    names("where masked_fill std std_mean norm vector_norm lp_pool1d lp_pool2d lp_pool3d cdist")
)


def has_kinks(entry: Entry | None, out: Any) -> bool:
    """Whether a function may have kinks or jumps, all rows being on one side; of one that is not known, any may."""
    return has_derivative(out) if entry is None else entry.kind in _DECIDING or entry.name in _KINKED


class Record:
    """What the rows say of one call: sums of quantities that are averaged, and what it drew."""

    __slots__ = ("_state", "_sums", "noise", "seeded")

    def __init__(self) -> None:
        #: each sum, of how many rows, and along which dimension rows go together
        self._sums: dict[int, tuple[Tensor, int, int | None]] = {}
        #: draws of a source, by row
        self.noise: dict[int, Tensor] = {}
        #: whether every row draws the same numbers, since the network seeds the generator
        self.seeded = False
        self._state: Tensor | None = None

    def add(self, place: int, value: Tensor, stack: Stack, count: int, keeps_graph: bool) -> None:
        """Add of ``count`` rows to the sum ``place``, which starts anew where the shape changes from row to row."""
        along = stack.dimension(value.shape)
        value = value if stack.rows == 1 else stack.total(value, count)
        value = value if keeps_graph else value.detach()
        if place in self._sums and self._sums[place][0].shape == value.shape:
            total, before, known = self._sums[place]
            total = total + value if keeps_graph else total.add_(value)
            self._sums[place] = total, before + count, known if along is None else along
        else:
            self._sums[place] = value if keeps_graph else value.clone(), count, along

    def release(self) -> None:
        """Forget everything but what was drawn."""
        self._sums = {}

    def draws_by(self, state: Tensor) -> None:
        """The present row will draw from a generator in this state."""
        self.seeded |= self._state is not None and torch.equal(self._state, state)
        self._state = state

    def has(self, place: int) -> bool:
        """Whether anything was added."""
        return place in self._sums

    def average(self, place: int, rows: int) -> Tensor:
        """The mean of what was added, for so many rows together."""
        total, count, along = self._sums[place]
        mean = total / count
        return mean if rows == 1 or along is None else torch.cat([mean] * rows, along)


class Call:
    """One call of a function that has a random argument.

    Attributes:
        function: torch's.
        entry: what the table knows of it; None for a function that it does not know.
        args: plain tensors and whatever else.
        kwargs: likewise.
        state: of the rows.
        record: of the calls in the same place of the other rows.
        out: the result.
    """

    __slots__ = ("args", "entry", "function", "kwargs", "out", "place", "record", "state")

    def __init__(
        self,
        state: State,
        record: Record,
        function: Any,
        entry: Entry | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.state, self.record = state, record
        self.function, self.entry, self.args, self.kwargs = function, entry, args, kwargs
        self.out: Any = None
        self.place = 0

    def run(self) -> None:
        """Compute the result as it is."""
        self.out = self.function(*self.args, **self.kwargs)

    @property
    def name(self) -> str:
        """The function's one name."""
        return self.entry.name if self.entry is not None else getattr(self.function, "__name__", "")

    def random(self, value: Any) -> bool:
        """Whether ``value`` is a random tensor; values in common are apart."""
        return self.state.moves(value)

    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments."""
        return tensors_in((*self.args, *self.kwargs.values()))

    def of(self, values: list[Tensor], others: dict[int, Tensor] | None = None) -> Callable[..., Any]:
        """The function of some of its tensors alone, with ``others`` in the place of tensors by their identity."""
        known = others or {}

        def function(*given: Tensor) -> Any:
            places = {**known, **dict(zip(map(id, values), given, strict=True))}
            args, kwargs = mapped(lambda value: places.get(id(value), value), (self.args, self.kwargs))
            return self.function(*args, **kwargs)

        return function

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by its place or name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def average(self, value: Tensor | Callable[[], Tensor], every: bool = True) -> Callable[[], Tensor]:
        """The mean of a quantity over the rows; to be called where the network is linearised.

        Args:
            value: of this row, or what computes it.
            every: whether every row counts; else the first half does, as for what is dear to compute.
        """
        state, place = self.state, self.place
        self.place += 1
        rows = state.stack.rows
        count = rows if every else min(max(rows - 1 - state.row + PAIRED_ROWS // 2, 0), rows)
        if (state.linearises or not count) and self.record.has(place):
            return lambda: self.record.average(place, state.stack.rows)
        value = value if isinstance(value, Tensor) else value()
        if state.phase is Phase.ROWS and not state.constant(value):
            state.curved = True
            self.record.add(place, value, state.stack, max(count, 1), state.keeps_graph)
        return lambda: value


#: computes 0 with the derivative of a result
Tangent = Callable[[], Tensor]
#: computes ``call.out`` and records what the row says; None where the function has no derivative
Rule = Callable[[Call], Tangent | None]
