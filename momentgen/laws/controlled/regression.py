"""The regression of pairs of rows on the linear part: sums over pairs, coefficients, and what they leave.

One coefficient for all outputs of an example is known well.  The own one of an output replaces it by as much as they
differ by more than chance (the garotte: Breiman 1995).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Halves", "Products", "coefficients", "freedom", "over", "remainder"]


class Halves(NamedTuple):
    """Odd and even halves of pairs of rows, of the outputs and of the linear part, shape ``(2, pairs, batch, K)``."""

    outputs: Tensor
    linear: Tensor

    def at(self, pairs: Tensor | slice) -> Halves:
        """These pairs."""
        return Halves(self.outputs[:, pairs], self.linear[:, pairs])


class Sums(NamedTuple):
    """Sums over pairs, of residuals about a coefficient near the right one, so that nothing cancels.

    Sums have shape ``(2, batch, K)``, of odd halves and of even ones about their means, or ``(2, groups, batch, K)``
    where a group of pairs is left out.

    Attributes:
        base: the coefficient.
        rest: of squares of the residuals; ``cross`` of their products with the linear part, ``linear`` of its squares.
        pairs: how many there are.
    """

    base: Tensor
    rest: Tensor
    cross: Tensor
    linear: Tensor
    pairs: Tensor

    def rests(self, gamma: Tensor) -> Tensor:
        """Of squares of what a coefficient leaves."""
        change = gamma - self.base
        return (self.rest - 2 * change * self.cross + change.square() * self.linear).clamp_min(0)


class Products:
    """Products of each pair's halves, summed over all pairs or over groups of them.

    Args:
        pairs: the halves.
    """

    def __init__(self, pairs: Halves) -> None:
        self.count = pairs.outputs.shape[1]
        outputs, linear = (torch.stack([part[0], part[1] - part[1].mean(0)]) for part in pairs)
        self._base = over((outputs * linear).sum((0, 1)), linear.square().sum((0, 1))).detach()
        rest = outputs - self._base * linear
        self._parts = [rest.square(), rest * linear, linear.square()]
        self._means, self._sums = (rest[1:], linear[1:]), [part.sum(1) for part in self._parts]

    def total(self) -> Sums:
        """Sums over all pairs."""
        rest, cross, linear = self._sums
        return Sums(self._base, rest, cross, linear, self._base.new_full((), self.count))

    def left_out(self, groups: int) -> Sums:
        """Sums over all pairs but each of so many groups."""
        place = torch.arange(self.count, device=self._base.device) % groups

        def grouped(part: Tensor) -> Tensor:
            empty = part.new_zeros(len(part), groups, *part.shape[2:])
            return part if groups == self.count else empty.index_add(1, place, part)

        left = self._base.new_full((), self.count) - torch.bincount(place, minlength=groups)[:, None, None]
        mean, linear = map(grouped, self._means)  # of the group: those of all are 0
        moved = (torch.cat([one * 0, one / left]) for one in (mean.square(), mean * linear, linear.square()))
        sums = (total[:, None] - grouped(part) for total, part in zip(self._sums, self._parts, strict=True))
        rest, cross, square = (one - other for one, other in zip(sums, moved, strict=True))
        return Sums(self._base, rest, cross, square, left)


def over(top: Tensor, bottom: Tensor) -> Tensor:
    """The quotient; 0 where the denominator is 0 or not finite."""
    usable = (bottom > 0) & bottom.isfinite() & top.isfinite()
    return torch.where(usable, top / torch.where(usable, bottom, 1), 0)


class Coefficients(NamedTuple):
    """γ, of the shape of the sums, and by how much each is the output's own, from 0 to 1."""

    gamma: Tensor
    own: Tensor


def coefficients(sums: Sums, exact: Tensor) -> Coefficients:
    """The outputs' regression on the linear part."""
    base, rest, cross, square = sums.base, *(part.sum(0) for part in sums[1:4])
    total = rest + 2 * base * cross + base.square() * square
    together = _together(exact + total / sums.pairs, base * square + cross, square)
    usable = (square > 0) & square.isfinite() & cross.isfinite()
    size = torch.where(usable, square, 1)
    single = torch.where(usable, base + cross / size, together)
    rounding = torch.finfo(exact.dtype).eps * (1 + single.abs() + together.abs())  # they are about 1
    chance = sums.rests(single).sum(0) / size / (sums.pairs - 1).clamp_min(1) + rounding.square()
    apart = (single - together).square()
    beyond = usable & (apart > chance)
    own = torch.where(beyond, 1 - chance / torch.where(beyond, apart, 1), 0)
    return Coefficients(together + own * (single - together), own)


def remainder(sums: Sums, gamma: Tensor, own: Tensor | float) -> Tensor:
    """*Variances* of what a coefficient leaves, which is the output's own by ``own``, from 0 to 1."""
    odd, even = sums.rests(gamma)
    return odd / freedom(sums, own) + even / (sums.pairs - 1).clamp_min(1)


def freedom(sums: Sums, own: Tensor | float) -> Tensor:
    """Degrees of freedom of the odd halves: a coefficient takes one, which all outputs share unless it is their own."""
    fitted = own + (1 - own) / max(sums.base.shape[-1], 1)
    return (sums.pairs - torch.where(sums.linear[0] > 0, fitted, 0)).clamp_min(0.5)


def _together(size: Tensor, cross: Tensor, square: Tensor) -> Tensor:
    """One coefficient for each example, shape ``(batch, 1)``, to which each output counts in its own scale.

    Args:
        size: squares of the scales.
        cross: sums of products of the outputs and the linear part, of the same shape.
        square: sums of squares of the linear part.
    """
    usable = size.isfinite() & (size > 0)
    weight = torch.where(usable, 1 / torch.where(usable, size, 1), 0)
    top = torch.where(usable, cross * weight, 0).sum(-1, keepdim=True)
    return over(top, torch.where(usable, square * weight, 0).sum(-1, keepdim=True))
