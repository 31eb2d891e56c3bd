"""Rows at the points of a scrambled Sobol sequence, in place of draws, where rules of few noisy values do not agree.

The points are more accurate than as many draws, and stretches of the sequence tell their error.
"""

from __future__ import annotations

import functools
import math
from typing import Final

import torch
from torch import Tensor

from momentgen.laws.controlled.cubature import moved_by
from momentgen.laws.controlled.estimate import Estimate, Rows, tails
from momentgen.laws.controlled.network import BESIDE, InputNoise, Network
from momentgen.laws.numerics.quadrature import rotation, sobol
from momentgen.runtime import Moments

#: stretches of the sequence, one after another, that are compared
STRETCHES: Final = 4
#: so many errors by as many stretches hold 95 %: half of Student's t
_WIDER: Final = 1.6
#: part of the error of as many draws that the one by few stretches is at least, as they may agree by chance
_STRETCHES_AGREE: Final = 0.25
#: logarithm of the points that are made together, at least
_AT_ONCE: Final = 8


def at_points(network: Network, roots: list[Tensor], seed: int) -> list[InputNoise] | None:
    """Noise at quasi-random points, for rows where rules do not agree; None where no value is noisy.

    The roots are turned otherwise for each example, so that examples err otherwise.
    """
    if not roots[0].shape[1]:
        return None
    turn = rotation(roots[0].shape[1], seed, max(map(len, roots)))
    values = zip(network.inputs, roots, strict=True)
    return [PointNoise(value, place, seed, turn.to(root) @ root) for place, (value, root) in enumerate(values)]


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
        #: noise of all points, by how many there are, and by whether it has derivatives
        self._made = dict[tuple[int, bool], Tensor]()

    def rows(self, rows: range) -> Tensor:
        if rows.start >= BESIDE:  # draws that are independent of all rows
            return super().rows(rows)
        many = 2 ** max(math.ceil(math.log2(rows.stop)), _AT_ONCE)
        if (kind := (many, torch.is_grad_enabled())) not in self._made:
            self._made[kind] = moved_by(self.value, self._root, _points(self._root.shape[1], self._seed, many))
        return self._made[kind][rows.start : rows.stop]


@functools.lru_cache(maxsize=8)
def _points(count: int, seed: int, many: int) -> Tensor:
    """Standard normal points, shape ``(many, count)``; the first are the same, however many there are."""
    with torch.inference_mode(False):  # a later call may need its derivatives
        return torch.special.ndtri(sobol(count, many, seed))


def by_stretches(found: Estimate, rows: Rows) -> Estimate:
    """The estimate with errors by how stretches differ in the remainder: at most those of as many draws.

    As stretches complete each other, the error of all is about half of what they tell.

    Args:
        found: by the rows, with errors as if they were draws.
        rows: whose last ones, after a multiple of ``STRETCHES``, do not tell of the errors.
    """
    with torch.no_grad():
        scale = torch.where(found.std > 0, found.std, 1)  # in whose unit squares are within range
        outputs, linear = ((part - part.mean(0)) / scale for part in rows[:2])
        size = linear.square().sum(0)
        smooth = torch.where(size > 0, (outputs * linear).sum(0) / torch.where(size > 0, size, 1), 0) * linear
        rest = outputs - smooth
        square = 2 * smooth * rest + rest.square()
        wider = tails(square - square.mean(0)).sqrt()
        errors = (scale * wider * _spread(square) / 2, found.std_error), (scale * _spread(rest), found.mean_error)
        std_error, mean_error = (one.maximum(_STRETCHES_AGREE * draws).minimum(draws) for one, draws in errors)
        return found._replace(std_error=std_error, mean_error=mean_error)


def _spread(values: Tensor) -> Tensor:
    """The standard error of the mean over all rows, by the means of each stretch, as if these were independent."""
    whole = values[: len(values) // STRETCHES * STRETCHES]
    return _WIDER * whole.unflatten(0, (STRETCHES, -1)).mean(1).std(0) / STRETCHES**0.5
