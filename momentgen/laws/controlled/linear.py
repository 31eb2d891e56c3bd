"""A, the linear part of a network, and the rows' regression on it.

A has rows by vector-Jacobian products of the shift, an exact covariance, and A e of each row of noise.  Pairs of rows
are regressed on A e.  One coefficient for all outputs of an example is known well.  The own one of an output replaces
it by as much as they differ by more than chance (the garotte: Breiman 1995).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from momentgen.laws.controlled.network import BESIDE
from momentgen.laws.controlled.state import Source
from momentgen.laws.notes import note
from momentgen.laws.numerics.root import balanced_root, eigh, scale_of, square_root

#: up to so many outputs of an example each has a row of A; of more, the directions in which the first rows lie
OUTPUTS: Final = 64
#: numbers of derivatives up to which A has a row for each of any number of outputs, all of one example
_SMALL: Final = 2**15
#: which are worth their products where the outputs vary in at most so many directions
_DIRECTIONS: Final = 24
#: draws of noise that is not normal, at least, and numbers in all of them and at once
_LEAST, _NUMBERS, _HELD = 2**11, 2**28, 2**24
#: bytes of derivatives by the sources that are computed at once: of small ones calls cost more than arithmetic
_TOGETHER, _TOGETHER_ON_ACCELERATORS = 2**19, 2**26


class Linear:
    """What is linear in the noise.

    Args:
        shift: of the outputs, shape ``(batch, K)``; None where nothing is known.
        sources: of the noise; those whose leaves have no batch in front are left out.
        outputs: of the first rows, shape ``(rows, batch, K)``.
        keeps_graph: whether it will be differentiated.
        every: whether each of many outputs has a row of A too.

    Attributes:
        fresh: how many rows A was made of, and which say nothing of what it leaves out.
        parts: sources, and the rows of A by each, shape ``(batch, r, n)``.
        basis: how the outputs follow from those rows, shape ``(batch, r, K)``; None where each output has a row.
    """

    def __init__(
        self, shift: Tensor | None, sources: list[Source], outputs: Tensor, keeps_graph: bool, every: bool = False
    ) -> None:
        _, batch, count = outputs.shape
        self._like = outputs[0]
        self.fresh = 0
        #: of many outputs: what they are multiplied by, shape ``(batch, r, K)``, and how they follow from the products
        self._directions: Tensor | None = None
        self.basis: Tensor | None = None
        self.parts: list[tuple[Source, Tensor]] = []
        self._of = outputs[:0]
        small = batch == 1 and count * sum(source.leaf.numel() for source in sources) <= _SMALL
        many = count > OUTPUTS and not small and not every
        if shift is not None and shift.requires_grad and count and not (many and _dimension(outputs) > _DIRECTIONS):
            if many:
                self._directions, self.basis = _directions(outputs)
                self.fresh = len(outputs)
            try:
                self._products(shift, sources, keeps_graph)
            except RuntimeError as error:  # a function that has no derivative, and says so when it is asked for one
                note(f"controlled: the network has no linear part, and the rows stand alone: {error}")
        if not self.parts:
            self.fresh, self.basis = 0, None
        self.root = self._root(batch, count, self.parts)

    def _products(self, shift: Tensor, sources: list[Source], keeps_graph: bool) -> None:
        batch, count = shift.shape
        usable = [source for source in sources if source.leaf.shape[:1] == (batch,) or batch == 1]
        directions = torch.eye(count).to(shift)[:, None].expand(-1, batch, -1)
        if self._directions is not None:
            directions = self._directions.movedim(1, 0).to(shift)
        found = _pulled_back(shift, [source.leaf for source in usable], directions, keeps_graph)
        self.parts = [(source, rows) for source, rows in zip(usable, found, strict=True) if rows is not None]

    def law(self, count: int) -> tuple[Tensor, Tensor | None]:
        """The root of what is normal in A e, and up to so many draws of what is not, shape ``(count, batch, K)``."""
        if all(source.normal for source, _ in self.parts):
            return self.root, None
        normal, others = ([part for part in self.parts if part[0].normal is one] for one in (True, False))
        batch, outputs = self._like.shape
        size = max(sum(source.leaf.numel() for source, _ in others), 1)
        step, stop = max(_HELD // size, 1), BESIDE + max(min(count, _NUMBERS // size), _LEAST)
        parts = [range(first, min(first + step, stop)) for first in range(BESIDE, stop, step)]
        return self._root(batch, outputs, normal), torch.cat([self._of_rows(rows, others) for rows in parts])

    def _root(self, batch: int, count: int, parts: list[tuple[Source, Tensor]]) -> Tensor:
        """A root of the exact covariance, shape ``(batch, d, K)``."""
        if not parts:
            return self._like.new_zeros(batch, 1, count)
        scaled = []
        for source, rows in parts:
            if source.factor is not None:
                scaled.append(_by_factor(rows, source.factor))
            else:
                scaled.append(rows * _std_of_examples(source, batch))
        size = scale_of(torch.stack([part.detach().abs().amax(2) for part in scaled]).amax(0))[..., None]
        total = sum(
            _gram(part / size, _correlations(source, batch)) for part, (source, _) in zip(scaled, parts, strict=True)
        )
        assert isinstance(total, Tensor)
        root = _root_of(((total + total.mT) / 2).to(self._like.dtype)) * size.mT.to(self._like.dtype)
        return root if self.basis is None else root @ self.basis

    def of(self, count: int) -> Tensor:
        """A e of the first ``count`` rows, shape ``(count, batch, K)``."""
        if self._of.shape[0] < count:
            self._of = torch.cat([self._of, self._of_rows(range(self._of.shape[0], count), self.parts)])
        return self._of[:count]

    def _of_rows(self, rows: range, parts: list[tuple[Source, Tensor]]) -> Tensor:
        total = self._like.new_zeros(len(rows), *self._like.shape)
        for source, linear in parts:
            drawn = source.draws(rows)
            if isinstance(drawn, Tensor):
                found = drawn.to(linear.dtype).reshape(len(rows), len(linear), -1).movedim(0, 1) @ linear.mT
            elif all(noise.shape == source.leaf.shape[1:] for noise in drawn):
                flat = [noise.reshape(-1).to(linear) for noise in drawn]
                found = (linear @ torch.stack(flat, 1)).mT  # all examples have it in common
            else:
                found = torch.stack(
                    [noise.to(linear).expand(source.leaf.shape).reshape(len(linear), -1) for noise in drawn], 1
                )
                found = found @ linear.mT
            found = found.to(total.dtype)
            total = total + (found if self.basis is None else found @ self.basis).movedim(1, 0)
        return total


def _pulled_back(shift: Tensor, leaves: list[Tensor], directions: Tensor, keeps_graph: bool) -> list[Tensor | None]:
    """Products of directions, shape ``(batch, K)`` each, with the derivatives by each leaf, shape ``(batch, r, n)``."""
    batch, bytes_of_one = len(shift), sum(leaf.nbytes for leaf in leaves)
    most = _TOGETHER if shift.device.type == "cpu" else _TOGETHER_ON_ACCELERATORS

    def grads(given: Tensor, many: bool) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(
            shift, leaves, given, retain_graph=True, create_graph=keeps_graph, allow_unused=True, is_grads_batched=many
        )

    found: list[Sequence[Tensor | None]] = []
    for part in directions.split(max(most // max(bytes_of_one, 1), 1)):
        if len(part) > 1:
            try:
                found.append(grads(part, True))
                continue
            except RuntimeError:  # a derivative that torch cannot run in batches
                pass
        found += [[None if grad is None else grad[None] for grad in grads(one, False)] for one in part]
    rows = ([part for part in parts if part is not None] for parts in zip(*found, strict=True))
    return [torch.cat(known).reshape(len(directions), batch, -1).movedim(0, 1) if known else None for known in rows]


def _root_of(covariance: Tensor) -> Tensor:
    """A root of each matrix: the cheaper Cholesky factor if all are regular and no gradient is needed."""
    if not covariance.requires_grad:
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if not failed.any() and factor.isfinite().all():
            return factor.mT
    return balanced_root(covariance)


def _std_of_examples(source: Source, batch: int) -> Tensor | float:
    """A source's standard deviations, of an example's values in the last dimension of three."""
    var = source.var
    if not isinstance(var, Tensor):
        return var**0.5
    return square_root(var).reshape(batch if var.shape == source.leaf.shape else 1, 1, -1)


def _correlations(source: Source, batch: int) -> Tensor | None:
    """Those of neighbours, as the standard deviations shaped but one shorter; None for independent values."""
    if source.neighbour is None or not source.neighbour.numel():
        return None
    std = _std_of_examples(source, batch)
    assert isinstance(std, Tensor)
    size = std[..., 1:] * std[..., :-1]
    between = source.neighbour.reshape(-1, 1, size.shape[-1])
    return torch.where(size > 0, between / torch.where(size > 0, size, 1), 0)


def _gram(part: Tensor, correlations: Tensor | None) -> Tensor:
    """Covariance of a linear map of standard normal values whose neighbours may be correlated."""
    if correlations is None:
        return part @ part.mT
    cross = (part[..., :-1] * correlations) @ part[..., 1:].mT
    return part @ part.mT + cross + cross.mT


def _by_factor(rows: Tensor, factor: Tensor) -> Tensor:
    """A times the transposed factor of an input's covariance."""
    if factor.dim() == 3 and rows.shape[0] == 1 and factor.shape[0] > 1:  # all examples are one
        count = rows.shape[1]
        found = torch.einsum("dbn,brn->dbr", rows.view(count, factor.shape[0], -1), factor)
        return found.reshape(1, count, -1)
    return rows @ factor.mT


def _odd(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Odd halves, shape ``(batch, pairs, K)``, in units of their root mean square, shape ``(batch, 1, K)``."""
    odd = ((outputs[0::2] - outputs[1::2]) / 2).movedim(0, 1)
    unit = scale_of(odd.abs().amax(1, keepdim=True))  # whose square is within range
    size = (odd / unit).square().mean(1, keepdim=True).sqrt() * unit
    size = torch.where((size > 0) & size.isfinite(), size, 1)
    return (odd / size).nan_to_num(0, 0, 0), size


def _dimension(outputs: Tensor) -> float:
    """In how many directions the outputs of an example vary, on average over the batch.

    Of independent pairs the squares of the cosines between odd halves have the inverse of this number as mean.
    """
    with torch.no_grad():
        odd, _ = _odd(outputs)
        gram = odd @ odd.mT
        sizes = gram.diagonal(dim1=-2, dim2=-1).sqrt()
        cosines = gram / (sizes[..., None] * sizes[..., None, :]).clamp_min(torch.finfo(gram.dtype).tiny)
        pairs = gram.shape[-1]
        square = (cosines.square().sum((1, 2)) - (sizes > 0).sum(-1)) / max(pairs * (pairs - 1), 1)
        return float(1 / square.mean().clamp_min(1e-6))


def _directions(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Directions in which an example's outputs vary, and the outputs by their products; shapes ``(batch, pairs, K)``.

    They are orthonormal where each output is measured by its own size: of a projection a small output would otherwise
    have more from the large ones than from itself.
    """
    with torch.no_grad():
        odd, size = _odd(outputs)
        values, vectors = eigh(odd @ odd.mT)
        usable = values > 1e-6 * values[:, -1:]
        weight = torch.where(usable, torch.where(usable, values, 1).rsqrt(), 0)
        basis = (vectors * weight[:, None, :]).mT @ odd
        return basis / size, basis * size


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
    chance = sums.rests(single).sum(0) / size / (sums.pairs - 1).clamp_min(1)
    outputs = exact.shape[-1]
    chance = chance * (max(outputs - 3, 0) / max(outputs - 1, 1)) + rounding.square()  # few have no common mean
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
