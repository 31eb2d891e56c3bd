"""Where the rows of one call are, which tensors are random, and what the functions that were met are like."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.controlled.noise import Source
from momentgen.laws.controlled.stack import Stack, UnstackedError

__all__ = ["Phase", "State", "has_derivative", "tangent"]


class Phase(enum.Enum):
    """What a call of the network is for."""

    #: rows run, and what they say of each function is recorded
    ROWS = enum.auto()
    #: rows run, and what they draw is recorded
    DRAWS = enum.auto()
    #: the network is linearised: a derivative is the mean of those that rows have recorded
    AVERAGES = enum.auto()
    #: the network is linearised: derivatives are those of the row that runs
    DERIVATIVES = enum.auto()


def has_derivative(value: Any) -> bool:
    """Whether a value is a tensor of floating point or of complex numbers."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


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
        stack: the rows that run together.
        row: the number of the last of them.
        curved: whether any function was not linear in what is random.
        kinked: whether one may have kinks or jumps.
        ruled: whether rows record the derivatives of all that are not linear.
        ended: functions at which a derivative ends for an error.
        sources: noise that has entered the network where it was linearised.
    """

    keeps_graph: bool
    stack: Stack
    phase: Phase = Phase.ROWS
    row: int = -1
    curved: bool = False
    kinked: bool = False
    ruled: bool = True
    ended: set[str] = field(default_factory=set)
    sources: list[Source] = field(default_factory=list)
    _leaves: dict[Any, Tensor] = field(default_factory=dict)
    _random: dict[int, tuple[weakref.ref[Tensor], bool]] = field(default_factory=dict)
    _constants: dict[int, Tensor] = field(default_factory=dict)

    @property
    def linearises(self) -> bool:
        """Whether the network is linearised in this call."""
        return self.phase in (Phase.AVERAGES, Phase.DERIVATIVES)

    def begin(self, rows: int) -> None:
        """The next rows begin, or the network is called for its derivatives."""
        self.stack = self.stack._replace(rows=rows)
        self.row += 0 if self.linearises else rows
        self._random.clear()

    def linearise(self, phase: Phase) -> None:
        """The network is linearised from here on, anew if it was before."""
        self.phase = phase
        self.sources.clear()
        self._leaves.clear()

    def draws_now(self) -> None:
        """The network draws, which rows do by themselves."""
        if self.stack.rows > 1:
            raise UnstackedError

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

    def moves(self, value: Any) -> bool:
        """Whether a value is a random tensor that examples do not have in common."""
        return self.knows(value) and not self._random[id(value)][1]

    def follow(self, value: Any, common: bool = False) -> None:
        """The tensor, or all in a tuple, is random from now on; whether it is a value in common."""
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
