"""Noise that enters a network, and that of its inputs: one draw per row and example, the first in antithetic pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from momentgen.laws.numerics.root import square_root
from momentgen.runtime import JointMoments, Moments

__all__ = ["BESIDE", "PAIRED_ROWS", "Given", "InputNoise", "Source", "drawn_beside"]


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


def drawn_beside(shape: tuple[int, ...], var: Tensor | float) -> Tensor:
    """Noise for a row in which the network did not draw: A e has the covariance that is known of it in every row."""
    return torch.randn(shape) * torch.as_tensor(var).cpu() ** 0.5


#: rows in antithetic pairs whatever the network: those that A is made of
PAIRED_ROWS: Final = 16
#: rows from this number on are in no answer: what tells of the noise alone draws them together
BESIDE: Final = 2**29
#: numbers of a call that are drawn once, and not anew for each use
_CACHED: Final = 2**22


class InputNoise:
    """Draws of one input's noise.

    Args:
        value: mean and variance, and the covariance where it has one.
        place: of the input among those that are random.
        seed: of the draws.

    Attributes:
        place: of the input.
        paired: whether all rows come in antithetic pairs, which tell the coefficient of the linear part best.  Where
            there is little of that, rows of their own tell more.
    """

    def __init__(self, value: Moments, place: int, seed: int) -> None:
        self.paired = True
        self.value, self.place, self._seed = value, place, seed
        #: standard normal numbers so far, by the seed of the row or pair, and how many they are
        self._drawn: dict[int, Tensor] = {}
        self._held = 0
        self._std = None if isinstance(value, JointMoments) else square_root(value.var)

    @property
    def is_known(self) -> bool:
        """Whether its covariance is known; without it noise is in the rows alone."""
        return self.value.noise is None or bool(self.value.noise.is_known)

    def values(self, rows: range) -> Tensor:
        """The input with the noise of each row, shape ``(rows, *shape)``."""
        return self.value.mean + self.rows(rows)

    def rows(self, rows: range) -> Tensor:
        """The noise of each row, shape ``(rows, *shape)``; in antithetic pairs at first."""
        if self.value.noise is not None and rows.start >= BESIDE:
            with self._seeded(rows.start):
                found: Tensor = self.value.noise.draws(len(rows))
            return found
        if self.value.noise is not None:
            return torch.stack([self._from_distribution(row) for row in rows])
        if self._std is not None:
            return self._std * self._signed(rows)
        assert isinstance(self.value, JointMoments)
        found = self._signed(rows).unsqueeze(-2) @ self.value.factor
        return found.reshape(len(rows), *self.value.mean.shape)

    def _signed(self, rows: range) -> Tensor:
        """Standard normal numbers of rows, in front those of the examples."""
        drawn = [self._normal(row - 1).neg() if self._reflected(row) else self._normal(row) for row in rows]
        return drawn[0].unsqueeze(0) if len(drawn) == 1 else torch.stack(drawn)  # a view costs less than a stack

    def _normal(self, row: int) -> Tensor:
        """A row's own standard normal numbers."""
        if row in self._drawn:
            return self._drawn[row]
        like = self.value.mean
        shape = self.value.factor.shape[:-1] if isinstance(self.value, JointMoments) else like.shape
        generator = torch.Generator().manual_seed(self._seed_of(row))
        # In float32 always: the same draws whatever the network's dtype.
        found = torch.randn(shape, generator=generator, dtype=torch.float32).to(like.device, like.dtype)
        if self._held + found.numel() <= _CACHED:
            self._drawn[row] = found
            self._held += found.numel()
        return found

    def _from_distribution(self, row: int) -> Tensor:
        """A row's draw of a distribution; where that is symmetric the second row of a pair has the first one's."""
        noise = self.value.noise
        reflected = noise.is_symmetric and self._reflected(row)
        with self._seeded(row - 1 if reflected else row):
            found: Tensor = noise.draw()
        return -found if reflected else found

    @contextmanager
    def _seeded(self, row: int) -> Iterator[None]:
        """Torch's own generator begins with a row's seed, mixed: its first uniform numbers of small seeds are alike."""
        mean = self.value.mean
        with torch.random.fork_rng([mean.device] if mean.is_cuda else []):
            torch.manual_seed(int(np.random.SeedSequence(self._seed_of(row)).generate_state(1)[0]))
            yield

    def _seed_of(self, number: int) -> int:
        return ((self._seed * 1_000_003 + self.place) * 1_000_003 + number) % 2**62

    def _reflected(self, row: int) -> bool:
        """Whether a row is the second of an antithetic pair."""
        return row % 2 > 0 and (row < PAIRED_ROWS or (self.paired and row < BESIDE))


class Given(InputNoise):
    """An input at given values in the place of draws.

    Args:
        at: computes the values of rows, whose numbers it takes.
        count: of rows; any beyond repeat the last.
    """

    def __init__(self, value: Moments, place: int, at: Callable[[Tensor], Tensor], count: int) -> None:
        super().__init__(value, place, 0)
        self._at, self.count = at, count

    def values(self, rows: range) -> Tensor:
        return self._at(torch.arange(rows.start, rows.stop).clamp_max(self.count - 1))

    def rows(self, rows: range) -> Tensor:
        return self.values(rows) - self.value.mean
