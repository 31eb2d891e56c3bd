"""Few noisy values: rows at quasi-random points in the place of draws.

Up to three noisy values of an example fill their space evenly: rows take the points of scrambled Sobol sequences in
turn.  Of functions with kinks, on which cubature rules do not agree, such rows find moments more accurately than as
many draws.  Each sequence is a sample of its own, so that their differences tell the error.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.laws.controlled.estimate import Estimate, Rows, tails
from momentgen.laws.controlled.network import BESIDE, InputNoise
from momentgen.runtime import Moments

__all__ = ["PointNoise", "by_sequences", "turned"]

#: sequences, whose points the rows take in turn
SEQUENCES: Final = 4
#: so many errors by as many sequences hold 95 %: half of Student's t
_WIDER: Final = 1.6
#: part of the error of as many draws that the one by few sequences is at least, as they may agree by chance
_BY_CHANCE: Final = 0.25
#: points are from the centre by less than this probability leaves out
_LEAST: Final = 1e-12
#: logarithm of the points of a sequence that are made together, at least
_AT_ONCE: Final = 6


class PointNoise(InputNoise):
    """One input's noise at quasi-random points.

    Args:
        value: the input.
        place: of it among those that are random.
        seed: of the points, the same for all inputs.
        root: its noise as a map of standard normal values, shape ``(B, d, n)``; see ``cubature.roots_of``.
    """

    def __init__(self, value: Moments, place: int, seed: int, root: Tensor) -> None:
        super().__init__(value, place, seed)
        self._root = root

    def rows(self, rows: range) -> Tensor:
        if rows.start >= BESIDE:  # draws that are independent of all rows
            return super().rows(rows)
        each = 2 ** max(math.ceil(math.log2(rows.stop / SEQUENCES)), _AT_ONCE)
        points = _points(self._root.shape[1], self._seed, each)[rows.start : rows.stop]
        moved = torch.einsum("nd,bdk->nbk", points.to(self._root), self._root)
        moved = moved.reshape(len(rows), *self.value.mean.shape)
        if self._noise is not None:
            moved = self._noise.of_normal(moved).to(self.value.mean.dtype)
        return moved


def turned(roots: list[Tensor], seed: int) -> list[Tensor]:
    """The roots of all inputs, turned otherwise for each example, so that examples err otherwise."""
    batch, count = max(map(len, roots)), roots[0].shape[1]
    generator = torch.Generator().manual_seed(seed % 2**62)
    turn = torch.linalg.qr(torch.randn(batch, count, count, generator=generator, dtype=torch.float64)).Q
    turn = turn * torch.randint(2, (batch, 1, count), generator=generator).mul(2).sub(1)
    return [turn.to(root) @ root for root in roots]


@functools.lru_cache(maxsize=8)
def _points(count: int, seed: int, each: int) -> Tensor:
    """Standard normal points, ``each`` of a sequence, by rows, shape ``(SEQUENCES * each, count)``."""
    engine: Any = torch.quasirandom.SobolEngine
    seeds = range(SEQUENCES * seed, SEQUENCES * (seed + 1))
    with torch.inference_mode(False):  # a later call may need its derivatives
        drawn = [engine(count, scramble=True, seed=one % 2**62).draw(each, dtype=torch.float64) for one in seeds]
        return torch.special.ndtri(torch.stack(drawn, 1).flatten(0, 1).clamp(_LEAST, 1 - _LEAST))


def by_sequences(found: Estimate, rows: Rows) -> Estimate:
    """The estimate with errors by how sequences differ in the remainder: at most those of as many draws.

    Args:
        found: by the rows, with errors as if they were draws.
        rows: whose last ones, after a multiple of ``SEQUENCES``, do not tell of the errors.
    """
    with torch.no_grad():
        scale = torch.where(found.std > 0, found.std, 1)  # in whose unit squares are within range
        outputs, linear = ((part - part.mean(0)) / scale for part in rows[:2])
        size = linear.square().sum(0)
        smooth = torch.where(size > 0, (outputs * linear).sum(0) / torch.where(size > 0, size, 1), 0) * linear
        rest = outputs - smooth
        square = 2 * smooth * rest + rest.square()
        wider = tails(square - square.mean(0)).sqrt()
        std_error, mean_error = scale * wider * _spread(square) / 2, scale * _spread(rest)
        return found._replace(
            std_error=_between(std_error, found.std_error), mean_error=_between(mean_error, found.mean_error)
        )


def _spread(values: Tensor) -> Tensor:
    """The standard error of the mean over all rows, by the means of each sequence."""
    whole = values[: len(values) // SEQUENCES * SEQUENCES]
    return _WIDER * whole.unflatten(0, (-1, SEQUENCES)).mean(0).std(0) / SEQUENCES**0.5


def _between(error: Tensor, of_draws: Tensor) -> Tensor:
    return error.maximum(_BY_CHANCE * of_draws).minimum(of_draws)
