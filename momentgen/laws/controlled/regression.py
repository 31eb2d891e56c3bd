"""The regression of pairs of rows on the linear part: sums over pairs, coefficients, and what they leave.

One coefficient for all outputs of an example is known well.  The own one of an output replaces it by as much as they
differ by more than chance (the garotte: Breiman 1995).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Halves", "Products", "Sums", "coefficients", "freedom", "over", "remainder"]


class Halves(NamedTuple):
    """Pairs of rows: odd and even halves of the outputs and of the linear part, shape ``(pairs, batch, K)``."""

    odd: Tensor
    even: Tensor
    odd_linear: Tensor
    even_linear: Tensor

    def at(self, pairs: Tensor | slice) -> Halves:
        """These pairs."""
        return Halves(*(part[pairs] for part in self))


class Sums(NamedTuple):
    """Sums over pairs, of residuals about a coefficient near the right one, so that nothing cancels.

    Each has shape ``(batch, K)``, or ``(groups, batch, K)`` where a group of pairs is left out.

    Attributes:
        base: the coefficient.
        odd: of squares of the odd halves' residuals; with their products with the linear part, and squares of that.
        even: the same of the even halves, about their means.
        pairs: how many there are.
    """

    base: Tensor
    odd: tuple[Tensor, Tensor, Tensor]
    even: tuple[Tensor, Tensor, Tensor]
    pairs: Tensor

    @property
    def cross(self) -> Tensor:
        """Of products of residuals and linear part."""
        return self.odd[1] + self.even[1]

    @property
    def square(self) -> Tensor:
        """Of squares of the linear part."""
        return self.odd[2] + self.even[2]

    def rests(self, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """Of squares of what a coefficient leaves of the odd and of the even halves."""
        change = gamma - self.base
        odd, even = ((a - 2 * change * b + change.square() * c).clamp_min(0) for a, b, c in (self.odd, self.even))
        return odd, even


class Products:
    """Products of each pair's halves, summed over all pairs or over groups of them.

    Args:
        pairs: the halves.
    """

    def __init__(self, pairs: Halves) -> None:
        self.count = len(pairs.odd)
        even, even_linear = pairs.even - pairs.even.mean(0), pairs.even_linear - pairs.even_linear.mean(0)
        squares = pairs.odd_linear.square(), even_linear.square()
        cross = (pairs.odd * pairs.odd_linear + even * even_linear).sum(0)
        self._base = over(cross, (squares[0] + squares[1]).sum(0)).detach()
        odd, even = pairs.odd - self._base * pairs.odd_linear, even - self._base * even_linear
        self._parts = [odd.square(), odd * pairs.odd_linear, squares[0], even.square(), even * even_linear, squares[1]]
        self._means, self._sums = (even, even_linear), [part.sum(0) for part in self._parts]

    def total(self) -> Sums:
        """Sums over all pairs."""
        number = self._base.new_full((), self.count)
        return self._of(self._sums, number)

    def left_out(self, groups: int) -> Sums:
        """Sums over all pairs but each of so many groups."""
        place = torch.arange(self.count, device=self._base.device) % groups

        def grouped(part: Tensor) -> Tensor:
            return part if groups == self.count else part.new_zeros(groups, *part.shape[1:]).index_add(0, place, part)

        left = self._base.new_full((), self.count) - torch.bincount(place, minlength=groups)[:, None, None]
        sums = [total - grouped(part) for total, part in zip(self._sums, self._parts, strict=True)]
        mean, linear = map(grouped, self._means)  # of the group: those of all are 0
        moved = mean.square(), mean * linear, linear.square()
        return self._of([*sums[:3], *(one - other / left for one, other in zip(sums[3:], moved, strict=True))], left)

    def _of(self, sums: list[Tensor], pairs: Tensor) -> Sums:
        return Sums(self._base, (sums[0], sums[1], sums[2]), (sums[3], sums[4], sums[5]), pairs)


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
    square, base = sums.square, sums.base
    total = sum((a + 2 * base * b + base.square() * c for a, b, c in (sums.odd, sums.even)), torch.zeros_like(base))
    together = _together(exact + total / sums.pairs, base * square + sums.cross, square)
    usable = (square > 0) & square.isfinite() & sums.cross.isfinite()
    size = torch.where(usable, square, 1)
    single = torch.where(usable, base + sums.cross / size, together)
    rest_odd, rest_even = sums.rests(single)
    rounding = torch.finfo(exact.dtype).eps * (1 + single.abs() + together.abs())  # they are about 1
    chance = (rest_odd + rest_even) / size / (sums.pairs - 1).clamp_min(1) + rounding.square()
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
    return (sums.pairs - torch.where(sums.odd[2] > 0, fitted, 0)).clamp_min(0.5)


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
