"""The noise of a network's inputs: one draw for each row, in antithetic pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from momentgen.laws.numerics.root import square_root
from momentgen.runtime import JointMoments, Moments

__all__ = ["InputNoise"]


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
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + self._place) * 1_000_003 + number)
        # In float32 always: the same draws whatever the network's dtype.
        return torch.randn(shape, generator=generator, dtype=torch.float32).to(like.device, like.dtype)
