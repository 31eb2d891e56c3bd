"""The noise of a network's inputs: one draw for each row, in antithetic pairs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from momentgen.laws.numerics.root import square_root
from momentgen.runtime import JointMoments, Moments

__all__ = ["InputNoise"]


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
        #: a block of pairs, and which order the strata of each value have in it
        self._order: tuple[int, Tensor] | None = None
        self._std = None if isinstance(value, JointMoments) else square_root(value.var)

    def row(self, row: int) -> Tensor:
        """The noise of a row, of the input's shape; rows 2 p and 2 p + 1 have opposite signs."""
        number, sign = row // 2 * 2, 1 - 2 * (row % 2)
        mean = self.value.mean
        if isinstance(self.value, JointMoments):
            factor = self.value.factor
            shape = factor.shape[-2:-1] if self._shared else factor.shape[:-1]
            numbers = self._numbers(number, tuple(shape), mean) * sign
            return (numbers.unsqueeze(-2) @ factor).reshape(mean.shape)
        assert self._std is not None
        shape = mean.shape[1:] if self._shared else mean.shape
        return self._std * (self._numbers(number, tuple(shape), mean) * sign)

    def _numbers(self, number: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Standard normal numbers, of few values stratified: eight pairs in turn are in eight strata of each one's |z|.

        So few pairs meet large noise of every value, where independent ones may miss it and not know.  Of many values
        some are large in every pair.
        """
        generator = self._generator(number)
        if math.prod(shape) > _FEW:
            # In float32 always: the same draws whatever the network's dtype.
            return torch.randn(shape, generator=generator, dtype=torch.float32).to(like.device, like.dtype)
        block, place = divmod(number // 2, _STRATA)
        if self._order is None or self._order[0] != block:
            orders = torch.randint(len(_ORDERS), shape, generator=self._generator(-1 - block))
            self._order = block, orders
        within = torch.rand((2, *shape), generator=generator, dtype=torch.float32)
        share = (_ORDERS[place][self._order[1]] + within[0]) / _STRATA
        size = torch.erfinv(share.clamp_max_(1 - 2.0**-24)) * 2**0.5
        return torch.where(within[1] < 0.5, -size, size).to(like.device, like.dtype)

    def _generator(self, number: int) -> torch.Generator:
        return torch.Generator().manual_seed((self._seed * 1_000_003 + self._place) * 1_000_003 + number)
