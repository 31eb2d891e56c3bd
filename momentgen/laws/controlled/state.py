"""Where the rows of one call are, which tensors are random, and what rows say of each function that they call."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from momentgen.laws.nests import mapped
from momentgen.laws.table import Entry, names

#: functions with kinks or jumps, which all rows may be on one side of
_DECIDING: Final = frozenset(("maximum", "decision"))
_KINKED: Final = frozenset(
    names(
        "relu leaky_relu prelu rrelu elu celu selu relu6 hardtanh hardsigmoid hardswish hardshrink softshrink abs "
        "threshold clamp clamp_min clamp_max where masked_fill std std_mean norm vector_norm cdist lp_pool1d lp_pool2d "
        "lp_pool3d"
    )
)


class OtherFactsError(Exception):
    """The network is not what it was known to be: in facts of these names, or in any where none is named."""

    def __init__(self, **facts: Any) -> None:
        super().__init__()
        self.facts = facts


class Phase(enum.Enum):
    """What a call of the network is for, and whether it ``linearises`` the network."""

    #: rows run, and what they say of each function is recorded
    ROWS = "rows", False
    #: rows run, and what they draw is recorded
    DRAWS = "draws", False
    #: the network is linearised: a derivative is the mean of those that rows have recorded
    AVERAGES = "averages", True
    #: the network is linearised: derivatives are those of the row that runs
    DERIVATIVES = "derivatives", True

    def __init__(self, _: str, linearises: bool) -> None:
        self.linearises = linearises


class Source(NamedTuple):
    """Noise that enters the network.

    Attributes:
        leaf: the shift that it starts, all 0; derivatives by it are those by the noise.
        draws: the draws of rows, less their mean: in one tensor, shape ``(rows, *leaf)``, or one by one, of the shape
            of the leaf.  Noise that examples have in common has the leaf's shape without the examples.
        var: *variances* of independent values, as the draws shaped; of the diagonal where there is a factor.
        factor: of the covariance of an example's values, flattened, as that of :class:`~momentgen.JointMoments`.
        neighbour: covariance of each value of an example with the next one in flattened order, shape ``(n - 1,)``, or
            ``(batch, n - 1)``; None for independent values.
        place: of the noisy input among all; None for noise that the network draws.
        normal: whether A e of it counts as normal, as that of many values does; else ``draws`` tells its law.
    """

    leaf: Tensor
    draws: Callable[[range], Tensor | list[Tensor]]
    var: Tensor | float
    factor: Tensor | None = None
    neighbour: Tensor | None = None
    normal: bool = True
    place: int | None = None


#: draws noise of a shape, on the CPU, less its mean
Own = Callable[[tuple[int, ...]], Tensor]


def drawn_beside(shape: tuple[int, ...], var: Tensor | float, own: Own | None = None) -> Tensor:
    """Noise for a row in which the network did not draw: A e has the covariance that is known of it in every row."""
    return own(shape) if own is not None else torch.randn(shape) * torch.as_tensor(var).cpu() ** 0.5


def has_derivative(value: Any) -> bool:
    """Whether a value is a tensor of floating point or of complex numbers."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def has_kinks(entry: Entry | None, out: Any) -> bool:
    """Whether a function may have kinks or jumps, all rows being on one side; of one that is not known, any may."""
    return has_derivative(out) if entry is None else entry.kind in _DECIDING or entry.name in _KINKED


class _Tangent(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, value: Tensor) -> Tensor:
        return value.new_zeros(()).expand(value.shape)

    @staticmethod
    def backward(_: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def tangent(value: Tensor) -> Tensor:
    """0 with the derivative of a value."""
    found: Tensor = _Tangent.apply(value)
    return found


@dataclass
class State:
    """The state of one call's rows.

    Attributes:
        keeps_graph: whether the answer will be differentiated.
        batch: number of examples; 1 where all of the network's values belong to one.
        rows: how many run together, one after another in the batch; 1 for a call as the user made it.
        row: the number of the last of them.
        curved: whether any function was not linear in what is random.
        kinked: whether one may have kinks or jumps.
        ruled: whether rows record the derivatives of all that are not linear.
        ended: functions at which a derivative ends for an error.
        sources: noise that has entered the network where it was linearised.
    """

    keeps_graph: bool
    batch: int = 1
    rows: int = 1
    phase: Phase = Phase.ROWS
    row: int = -1
    curved: bool = False
    kinked: bool = False
    ruled: bool = True
    ended: set[str] = field(default_factory=set)
    sources: list[Source] = field(default_factory=list)
    _leaves: dict[Any, Tensor] = field(default_factory=dict)
    _random: dict[int, tuple[weakref.ref[Tensor], Any]] = field(default_factory=dict)
    _constants: dict[int, Tensor] = field(default_factory=dict)
    #: by function, shape, and how often it has been called so in the row
    _records: dict[tuple[Any, Any, int], Record] = field(default_factory=dict)
    _met: dict[tuple[Any, Any], int] = field(default_factory=dict)

    def begin(self, rows: int) -> None:
        """The next rows begin, or the network is called for its derivatives."""
        self.rows = rows
        self.row += 0 if self.phase.linearises else rows
        self._random.clear()
        self._met.clear()

    def release(self) -> None:
        """Slopes are not needed any more: A is known.  They are most of what a call holds."""
        for record in self._records.values():
            record.sums.clear()

    def forget_draws(self) -> None:
        """What was drawn so far is not needed any more."""
        for record in self._records.values():
            record.noise.clear()

    def call(self, function: Any, entry: Entry | None, args: Any, kwargs: Any, given: list[Tensor]) -> Call:
        """A call, with the record of the n-th call in a row of this function on this shape."""
        shape = self._of_row(args[0].shape) if args and isinstance(args[0], Tensor) else None
        kind = function if entry is None else entry.name
        count = self._met[kind, shape] = self._met.get((kind, shape), 0) + 1
        if (kind, shape, count) not in self._records:
            self._records[kind, shape, count] = Record()
        return Call(self, self._records[kind, shape, count], function, entry, args, kwargs, given)

    def linearise(self, phase: Phase) -> None:
        """The network is linearised from here on, anew if it was before."""
        self.phase = phase
        self.sources.clear()
        self._leaves.clear()

    def draws_now(self) -> None:
        """The network draws, which rows do by themselves."""
        if self.rows > 1:
            raise OtherFactsError(most=1)

    def dimension(self, shape: torch.Size) -> int | None:
        """Which dimension counts rows, and in each what one row has; None for what all have in common."""
        if self.rows == 1:
            return None
        whole = self.rows * self.batch
        return next((place for place, size in enumerate(shape) if size and size % whole == 0), None)

    def _of_row(self, shape: torch.Size) -> torch.Size:
        """The shape that one row has."""
        place = self.dimension(shape)
        return shape if place is None else torch.Size([*shape[:place], shape[place] // self.rows, *shape[place + 1 :]])

    def leaf(self, key: Any, make: Callable[[], Tensor | None], source: Callable[[Tensor], Source]) -> Tensor | None:
        """Where the derivative by some noise starts, one in all calls; None where ``make`` makes none."""
        if key not in self._leaves:
            if (leaf := make()) is None:
                return None
            self._leaves[key] = leaf.requires_grad_()
            with torch.set_grad_enabled(self.keeps_graph):
                self.sources.append(source(leaf))
        return self._leaves[key]

    def knows(self, value: Any) -> bool:
        """Whether a value is a random tensor."""
        found = self._random.get(id(value))
        return found is not None and found[0]() is value

    def common(self, value: Any) -> Any:
        """What is known of a value that all examples have in common; None for others."""
        return self._random[id(value)][1] if self.knows(value) else None

    def moves(self, value: Any) -> bool:
        """Whether a value is a random tensor that examples do not have in common."""
        return self.knows(value) and self._random[id(value)][1] is None

    def computed(self, call: Call, is_random: bool) -> None:
        """A function has been called; its result ``is_random`` as far as the arguments tell."""
        self.kinked |= has_kinks(call.entry, call.out)
        if is_random and self.common(call.out) is None:  # what is drawn in place may be in common
            self.follow(call.out)

    def follow(self, value: Any, common: Any = None) -> None:
        """Take the tensor, or all in a tuple, for random; ``common`` is what is known of a value in common."""
        if isinstance(value, list | tuple):
            for part in value:
                self.follow(part)
        elif has_derivative(value):
            self._random[id(value)] = weakref.ref(value), common

    def fix(self, values: Iterable[Tensor]) -> None:
        """These tensors are the same in every row: parameters, buffers, certain inputs."""
        self._constants.update((id(value), value) for value in values)

    def constant(self, value: Tensor) -> bool:
        """Whether a tensor is known to be the same in every row."""
        return self._constants.get(id(value)) is value


class Record:
    """What the rows say of one call: sums of quantities that are averaged, and what it drew."""

    __slots__ = ("_state", "noise", "seeded", "sums")

    def __init__(self) -> None:
        #: each sum, of how many rows, and along which dimension rows go together
        self.sums: dict[int, tuple[Tensor, int, int | None]] = {}
        #: draws of a source, by row
        self.noise: dict[int, Tensor] = {}
        #: whether every row draws the same numbers, since the network seeds the generator
        self.seeded = False
        self._state: Tensor | None = None

    def add(self, place: int, value: Tensor, state: State) -> None:
        """Add the rows' value to the sum ``place``, which starts anew where the shape changes from row to row."""
        along, rows, keeps = state.dimension(value.shape), state.rows, state.keeps_graph
        if along is not None:  # not by unflatten, which torch.vmap has no rule for
            shape = value.shape
            value = value.reshape(*shape[:along], rows, shape[along] // rows, *shape[along + 1 :]).sum(along)
        elif rows > 1:
            value = value * rows
        value = value if keeps else value.detach()
        if place in self.sums and self.sums[place][0].shape == value.shape:
            total, before, known = self.sums[place]
            total = total + value if keeps else total.add_(value)
            self.sums[place] = total, before + rows, known if along is None else along
        else:
            self.sums[place] = value if keeps else value.clone(), rows, along

    def draws_by(self, state: Tensor) -> None:
        """The present row will draw from a generator in this state."""
        self.seeded |= self._state is not None and torch.equal(self._state, state)
        self._state = state

    def average(self, place: int, rows: int) -> Tensor:
        """The mean of what was added, for so many rows together."""
        total, count, along = self.sums[place]
        mean = total / count
        return mean if rows == 1 or along is None else torch.cat([mean] * rows, along)


@dataclass(slots=True)
class Call:
    """One call of a function that has a random argument.

    Attributes:
        record: of the calls in the same place of the other rows.
        function: torch's.
        entry: what the table knows of it; None for a function that it does not know.
        args: plain tensors and whatever else, as ``kwargs``.
        given: the tensors among the arguments.
        out: the result.
        name: the function's one name.
        moves: of each, whether it is random and not a value in common.
        common: those that are values in common.
    """

    state: State
    record: Record
    function: Any
    entry: Entry | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: list[Tensor]
    out: Any = None
    place: int = 0
    name: str = field(init=False)
    moves: list[bool] = field(init=False)
    common: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.name = getattr(self.function, "__name__", "") if self.entry is None else self.entry.name
        self.moves = list(map(self.state.moves, self.given))
        self.common = [value for value in self.given if self.state.common(value) is not None]

    def run(self) -> None:
        """Compute the result as it is."""
        self.out = self.function(*self.args, **self.kwargs)

    def derivative(
        self,
        values: list[Tensor],
        at: Sequence[Tensor],
        directions: Iterable[Tensor],
        others: dict[int, Tensor] | None = None,
    ) -> Any:
        """The derivative of the results along one direction of each of these arguments, by forward mode.

        Args:
            values: those arguments.
            at: where each of them is.
            directions: of each.
            others: what is in the place of other tensors, by their identity.
        """

        def function(*given: Tensor) -> Any:
            places = {**(others or {}), **dict(zip(map(id, values), given, strict=True))}
            args, kwargs = mapped(lambda value: places.get(id(value), value), (self.args, self.kwargs))
            return self.function(*args, **kwargs)

        jvp: Any = torch.func.jvp
        return jvp(function, tuple(value.contiguous() for value in at), tuple(directions))[1]  # it writes beside them

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by its place or name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def average(self, value: Tensor | Callable[[], Tensor]) -> Callable[[], Tensor]:
        """The mean over the rows of a quantity, or of what computes it; called where the network is linearised."""
        state, place = self.state, self.place
        self.place += 1
        if state.phase.linearises and place in self.record.sums:
            return lambda: self.record.average(place, state.rows)
        value = value if isinstance(value, Tensor) else value()
        if state.phase is Phase.ROWS and not state.constant(value):
            state.curved = True
            self.record.add(place, value, state)
        return lambda: value


#: computes 0 with the derivative of a result
Tangent = Callable[[], Tensor]
#: computes ``call.out`` and records what the row says; None where the function has no derivative
Rule = Callable[[Call], Tangent | None]
