"""Noise that enters a network, and that of its inputs: one draw for each row, in antithetic pairs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentgen.laws.numerics.root import square_root
from momentgen.runtime import JointMoments, Moments

__all__ = ["InputNoise", "Source", "drawn_beside"]


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
    """

    leaf: Tensor
    draws: Callable[[range], Tensor | list[Tensor]]
    var: Tensor | float
    factor: Tensor | None = None
    neighbour: Tensor | None = None


def drawn_beside(shape: tuple[int, ...], var: Tensor | float) -> Tensor:
    """Noise for a row in which the network did not draw: A e has the covariance that is known of it in every row."""
    return torch.randn(shape) * torch.as_tensor(var).cpu() ** 0.5


#: strata of the size of a standard normal number, each of the same probability: pairs of a block
_STRATA = 8
#: values up to which there are few
_FEW = 64
#: orders of the strata, shape ``(strata, orders)``
_ORDERS = torch.stack([torch.randperm(_STRATA, generator=torch.Generator().manual_seed(k)) for k in range(256)], 1)


class InputNoise:
    """Draws of one input's noise.

    Args:
        value: mean and variance, and the covariance where it has one.
        place: of the input among those that are random.
        seed: of the draws.
        shared: whether all examples have the same standard normal numbers, which dimension 0 then counts.
    """

    def __init__(self, value: Moments, place: int, seed: int, shared: bool) -> None:
        self.value, self._place, self._seed, self._shared = value, place, seed, shared
        #: numbers that all examples share, of the pairs so far
        self._drawn: dict[int, Tensor] = {}
        self._std = None if isinstance(value, JointMoments) else square_root(value.var)

    def values(self, rows: range) -> Tensor:
        """The input with the noise of each row, shape ``(rows, *shape)``."""
        mean = self.value.mean
        if self._std is None or self.value.noise is not None:
            return mean + self.rows(rows)
        return torch.addcmul(mean, self._std, self._signed(rows))

    def rows(self, rows: range) -> Tensor:
        """The noise of each row, shape ``(rows, *shape)``; rows 2 p and 2 p + 1 have opposite signs."""
        if self.value.noise is not None:
            return torch.stack([self._from_distribution(row) for row in rows])
        if self._std is not None:
            return self._std * self._signed(rows)
        assert isinstance(self.value, JointMoments)
        found = self._signed(rows).unsqueeze(-2) @ self.value.factor
        return found.reshape(len(rows), *self.value.mean.shape)

    def _signed(self, rows: range) -> Tensor:
        """Standard normal numbers of rows, of pairs with opposite signs, in front of one for the examples."""
        drawn = [-self._numbers_of(row) if row % 2 else self._numbers_of(row) for row in rows]
        numbers = drawn[0].unsqueeze(0) if len(drawn) == 1 else torch.stack(drawn)  # a view costs less than a stack
        return numbers.unsqueeze(1) if self._shared else numbers

    def _numbers_of(self, row: int) -> Tensor:
        """The standard normal numbers of a row's pair."""
        number, mean = row // 2 * 2, self.value.mean
        if isinstance(self.value, JointMoments):
            factor = self.value.factor
            shape = factor.shape[-2:-1] if self._shared else factor.shape[:-1]
        else:
            shape = mean.shape[1:] if self._shared else mean.shape
        if not self._shared:
            return self._drawn_for(number, tuple(shape), mean)
        if number not in self._drawn:
            self._drawn[number] = self._drawn_for(number, tuple(shape), mean)
        return self._drawn[number]

    def _from_distribution(self, row: int) -> Tensor:
        """A row's draw of a distribution; where that is symmetric the second row of a pair has the first one's."""
        noise, mean = self.value.noise, self.value.mean
        reflected = noise.is_symmetric and row % 2
        with torch.random.fork_rng([mean.device] if mean.is_cuda else []):
            torch.manual_seed(self._seed_of(row - 1 if reflected else row))
            found: Tensor = noise.draw()
        return -found if reflected else found

    def _seed_of(self, number: int) -> int:
        return ((self._seed * 1_000_003 + self._place) * 1_000_003 + number) % 2**62

    def _drawn_for(self, number: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Standard normal numbers of a pair; stratified where they are few."""
        if math.prod(shape) <= _FEW:
            return torch.from_numpy(_stratified(self._seed_of(0), number // 2, shape)).to(like.device, like.dtype)
        generator = torch.Generator().manual_seed(self._seed_of(number))
        # In float32 always: the same draws whatever the network's dtype.
        return torch.randn(shape, generator=generator, dtype=torch.float32).to(like.device, like.dtype)


@functools.lru_cache(maxsize=1024)
def _stratified(seed: int, pair: int, shape: tuple[int, ...]) -> Any:
    """Standard normal numbers: eight pairs in turn are in eight strata of each one's |z|.

    Cached from call to call, as an array: a tensor made in inference mode would be one of that mode for ever.

    So few pairs meet large noise of every value, where independent ones may miss it and not know.  Of many values some
    are large in every pair.
    """
    block, place = divmod(pair, _STRATA)
    generator = torch.Generator().manual_seed(seed + 2 * pair)
    within = torch.rand((2, *shape), generator=generator, dtype=torch.float32)
    orders = torch.randint(len(_ORDERS), shape, generator=torch.Generator().manual_seed(seed - 1 - block))
    share = (_ORDERS[place][orders] + within[0]) / _STRATA
    size = torch.erfinv(share.clamp_max_(1 - 2.0**-24)) * 2**0.5
    return torch.where(within[1] < 0.5, -size, size).numpy()
