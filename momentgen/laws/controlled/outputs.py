"""What a network returned in each row: leaves of its outputs, what each stands for, and moments in their places.

A softmax at the end is applied to the normal law of the logits, or sampled where that is further off.  Normal logits
have what sampling knows least, the tails.  Logits that are linear in the noise are normal.  Others need not be: by how
much the answers of the two ways differ beyond chance is an error of the first.  A log-softmax has no such tails, and is
a function as any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.controlled.estimate import Estimate, Rows, away, estimated, joined, left_out
from momentgen.laws.controlled.expectations import Made
from momentgen.laws.controlled.network import Network
from momentgen.laws.controlled.predictive import OfOutput
from momentgen.laws.controlled.state import OtherFactsError
from momentgen.laws.nests import Nest, held_by_objects
from momentgen.laws.notes import note_and_warn
from momentgen.laws.numerics.quadrature import rotation, standard_points
from momentgen.laws.numerics.root import balanced_root, matrix_root
from momentgen.runtime import JointMoments
from momentgen.runtime.inputs import HALVES

#: quasi-random points of each answer of the jackknife, of which differences alone count
_FEW = 128
#: groups of pairs that the jackknife leaves out, at most
_GROUPS = 16
#: logits that are looked at together
_TOGETHER = 2**20
#: logits of which the linear part explains all but this part of the variance count as normal
_LINEAR = 0.001
#: outputs whose standard deviation is below this part of the average do not tell how far normal logits are off
_SMALL = 0.01


class Softmax(NamedTuple):
    """A softmax that may be the end of a network.

    Attributes:
        out: its result.
        logits: what it is taken of.
        dim: the dimension of the classes.
        again: computes the result once more.
    """

    out: Tensor
    logits: Tensor
    dim: int
    again: Callable[[], Tensor]

    def is_unchanged(self) -> bool:
        """Whether neither the result nor the logits have been written into since."""
        again = self.again()
        return bool(((again == self.out) | (again.isnan() & self.out.isnan())).all())


def softmaxed(logits: Estimate, rows: Rows) -> Estimate:
    """Moments of the softmax of normal logits.

    Args:
        logits: moments, of two classes or more in the last dimension.
        rows: what they were estimated from, for the errors.
    """
    pairs = (len(rows.outputs) - rows.fresh) // 2
    if pairs < 3:
        return estimated(rows_of_softmax(rows))
    classes = logits.mean.shape[-1]
    logits = logits._replace(factor=joined(rows, logits.factor))
    halves = standard_points(classes), standard_points(classes) @ rotation(classes, 0)
    points = torch.cat(halves)
    values = _values(logits.mean, _covariance(logits), points)
    info = torch.finfo(values.dtype)
    # squares of some class's probabilities, or of their errors, may be below the range
    small = values.detach().amax(-1) < (info.tiny / info.eps) ** 0.5
    if values.dtype is torch.float32 and bool(small.any()):
        double = Rows(rows.outputs.double(), rows.linear.double(), rows.root.double(), rows.fresh)
        return softmaxed(Estimate(*map(Tensor.double, logits)), double)
    normal = _with_covariance(values)
    with torch.no_grad():
        few = standard_points(classes, max(_FEW, 4 * classes))
        first, second = (_std_and_mean(part) for part in values.split(len(halves[0]), -1))
        groups = min(pairs, _GROUPS)
        by_law = _left_out(left_out(rows, groups), few)
        # of few points the rare events are too few, which the two halves tell, and what a single point counts for
        errors = [
            _spread(all_but) + away(one, other).square() / 4 + unseen
            for all_but, one, other, unseen in zip(by_law, first, second, _unseen(values, points), strict=True)
        ]
        remainder = _remainder(logits, rows)
        if remainder.mean() < _LINEAR:
            unlike = remainder.square() * normal.var / 4  # as if σ changed by half of what is not normal
            return normal._replace(std_error=(errors[0] + unlike).sqrt(), mean_error=(errors[1] + unlike).sqrt())
    own = rows_of_softmax(rows)
    sampled = estimated(own)
    with torch.no_grad():
        by_draws = left_out(own, groups)
        off, chances = [], []
        for of, all_but in zip((attrgetter("std"), attrgetter("mean")), by_law, strict=True):
            chances.append(_spread(away(all_but, torch.stack(list(map(of, by_draws))))) / sampled.var)
            off.append(away(of(normal), of(sampled)).square() / sampled.var - chances[-1])
        std = sampled.std
        counted = (std > _SMALL * std.nanmean()) & off[0].isfinite() & off[1].isfinite()
        if not counted.any():
            return sampled
        best = errors[0] + _off(off[0], counted) * normal.var
        if (best / sampled.var)[counted].mean() > (sampled.std_error.square() / sampled.var)[counted].mean():
            return sampled
        # What is stated counts that of few outputs the difference is hardly known.
        free = counted.sum() * (1 - 1 / counted.shape[-1])  # an example's probabilities are 1 in all
        std_square, mean_square = (
            error + _off(part + chance[counted].mean() * (2 / free).sqrt(), counted) * normal.var
            for error, part, chance in zip(errors, off, chances, strict=True)
        )
    return normal._replace(std_error=std_square.sqrt(), mean_error=mean_square.sqrt())


def _unseen(values: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Squares of the errors of standard deviation and mean from events that no point meets.

    They are taken to count for as much as the point that is furthest off.  Values that are linear in the points have no
    such error: there a point has the share of the variance that it has of the points' own.
    """
    square = away(values, values.mean(-1, keepdim=True)).square()
    largest, total, count = square.amax(-1), square.sum(-1), len(points)
    share = torch.where(total > 0, largest / torch.where(total > 0, total, 1), 0)
    beyond = (share - float(points.square().amax()) / count).clamp_min(0)
    return beyond.square() / 4 * total / count, largest / count**2


def _remainder(logits: Estimate, rows: Rows) -> Tensor:
    """The part of the logits' variance that the linear part does not explain, of each example, shape ``(batch, 1)``."""
    linear = logits.factor[:, : rows.root.shape[-2]].square().sum(-2).sum(-1, keepdim=True)
    total = logits.var.sum(-1, keepdim=True)
    usable = (total > 0) & total.isfinite()
    return torch.where(usable, 1 - linear / torch.where(usable, total, 1), 0)


def _off(square: Tensor, counted: Tensor) -> Tensor:
    """By how much normal logits are off, as a part of the variance: of an example, and no less than of all."""
    count = counted.sum(-1, keepdim=True).clamp_min(1)
    own = torch.where(counted, square, 0).sum(-1, keepdim=True) / count
    return own.maximum(square[counted].mean()).clamp_min(0)


def _spread(left_out: Tensor) -> Tensor:
    """The jackknife's *variance*."""
    return (len(left_out) - 1) * away(left_out, left_out.mean(0)).square().mean(0)


def rows_of_softmax(rows: Rows) -> Rows:
    """The rows of the probabilities, with the linear part by the rows' mean Jacobian."""
    jacobian = mean_jacobian(rows.outputs)
    linear = (rows.linear.movedim(0, 1) @ jacobian.mT).movedim(1, 0)
    return Rows(rows.outputs.softmax(-1), linear, rows.root @ jacobian.mT, rows.fresh)


def mean_jacobian(logits: Tensor) -> Tensor:
    """Derivatives of the probabilities on average over rows of logits, shape ``(batch, K, K)``."""
    probabilities = logits.softmax(-1)
    products = torch.einsum("rbk,rbl->bkl", probabilities, probabilities) / len(probabilities)
    return probabilities.mean(0).diag_embed() - products


def _covariance(given: Estimate) -> Tensor:
    covariance = given.factor.mT @ given.factor
    return (covariance + covariance.mT) / 2


def _values(mean: Tensor, covariance: Tensor, points: Tensor) -> Tensor:
    """The softmax of normal logits at standard normal points, shape ``(..., K, points)``."""
    # Along a last dimension of few classes torch's softmax takes sixteen times as long.
    logits = mean[..., None] + matrix_root(covariance).mT @ points.to(mean.device, mean.dtype).T
    return logits.softmax(-2)


def _with_covariance(values: Tensor) -> Estimate:
    """Moments over points, without errors."""
    centre = values.mean(-1)
    apart = away(values, centre[..., None])
    found = apart @ apart.mT / values.shape[-1]
    nothing = torch.zeros_like(centre)
    return Estimate(centre, balanced_root((found + found.mT) / 2), nothing, nothing)


def _std_and_mean(values: Tensor) -> tuple[Tensor, Tensor]:
    centre = values.mean(-1)
    return away(values, centre[..., None]).square().mean(-1).sqrt(), centre


def _left_out(logits: list[Estimate], points: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviations and means of the softmax with each group left out, shape ``(groups, batch, K)``.

    Roots of many small matrices cost a GPU as much as one, and so do a CPU's calls.
    """
    mean, covariance = torch.stack([one.mean for one in logits]), torch.stack(list(map(_covariance, logits)))
    together = max(1, _TOGETHER // (len(points) * mean[0].numel()))
    pairs = zip(mean.split(together), covariance.split(together), strict=True)
    stds, means = zip(*(_std_and_mean(_values(*pair, points)) for pair in pairs), strict=True)
    return torch.cat(stds), torch.cat(means)


#: roundings of an example's largest value by which rows of a stack may differ
_ROUNDINGS: Final = 32


class Outputs:
    """The outputs of the rows of one call.

    Args:
        network: with its arguments.
        by_example: of each leaf, whether its examples are independent; nothing where all examples are one.

    Attributes:
        rows: leaves of the outputs of each row; of a softmax at the end the logits.
        ends: of each leaf, the softmax at its end where what is stored are its logits.
        form: of the nest that the network returns.
    """

    def __init__(self, network: Network, by_example: list[bool]) -> None:
        self._network, self.by_example = network, by_example
        self.rows: list[list[Tensor]] = []
        self.ends: list[Softmax | None] = []
        self.form: Nest | None = None
        #: of each leaf, whether an object holds it, as a cache of keys and values: it comes beside what is asked for
        self._beside: list[bool] = []

    def __len__(self) -> int:
        return len(self.rows)

    def shaped(self, found: Any, form: Nest, ends: list[Softmax | None]) -> None:
        """Take the form of what a row returned."""
        held = held_by_objects(found)
        self.form, self.ends = form, ends
        self._beside = [False] * len(held) if all(held) else held

    def add(self, leaves: list[Tensor], rows: int) -> None:
        """The leaves of rows that went through the network together.

        Raises:
            InputError: for leaves of other shapes than in the rows before.
            OtherFactsError: where other logits are masked, as where the largest alone count.
        """
        parts = [leaf.unflatten(0, (rows, -1)).unbind() if rows > 1 else (leaf,) for leaf in leaves]
        for row in zip(*parts, strict=True) if leaves else [()]:
            shapes = [tuple(leaf.shape) for leaf in row]
            before = [tuple(leaf.shape) for leaf in self.rows[0]] if self.rows else shapes
            if shapes != before:
                raise InputError(
                    f"{type(self._network.where).__name__}: expected outputs of the same shapes for every draw of the "
                    f"noise, got {before} and {shapes}; return what does not depend on the draw"
                )
            for place, end in enumerate(self.ends if self.rows else []):
                if end is not None and not torch.equal(row[place].isinf(), self.rows[0][place].isinf()):
                    raise OtherFactsError(ends_alike=False)
            # what the module keeps is written over, and may be an output
            self.rows.append(list(row) if self._network.kept is None else [leaf.clone() for leaf in row])

    def batched(self, place: int) -> bool:
        """Whether the examples of an output are independent."""
        return bool(self.by_example) and self.by_example[place]

    def real(self, beside: bool = False) -> list[int]:
        """The outputs of floating point that are asked for, or those that come beside them."""
        leaves = enumerate(self.rows[0])
        return [place for place, leaf in leaves if leaf.is_floating_point() and self._beside[place] == beside]

    def flat(self, place: int, leaf: Tensor, *rows: int) -> Tensor:
        """An output, or rows of it, with the values of an example in the last dimension, in float32 at least."""
        batch = self._network.batch if self.batched(place) else 1
        flat = leaf.reshape(*rows, batch, -1)
        return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()

    def of(self, place: int) -> Tensor:
        """An output in all rows so far, shape ``(rows, batch, K)``."""
        rows = torch.stack([row[place] for row in self.rows])
        found, certain = self.flat(place, rows, len(rows)), self._certain
        if not self.batched(place):
            certain = None if certain is None or not certain.all() else certain[:1]
        if certain is None or not found.numel():
            return found
        # rows of a stack may differ by rounding, which is no noise
        first = found[:1].detach()
        off = (found.detach() - first).abs().amax(0)
        alike = off <= _ROUNDINGS * torch.finfo(rows.dtype).eps * first[0].abs().amax(-1, keepdim=True)
        return torch.where(alike & certain.to(found.device), found[:1], found)

    @functools.cached_property
    def _certain(self) -> Tensor | None:
        """Whether all inputs of each example are without noise, shape ``(batch, 1)``; None where no example is so."""
        batch = max(self._network.batch, 1)
        found = torch.full((batch, 1), bool(self._network.inputs))
        for value in self._network.inputs:
            mean, var = tuple.__iter__(value)
            still = (var.detach() == 0).expand(mean.shape).cpu()
            found &= still.reshape(batch, -1).all(1, keepdim=True) if still.shape[:1] == (batch,) else still.all()
        return found if found.any() else None

    def say_what_is_not_finite(self) -> None:
        """A note on values that some draws make NaN or infinite, whose moments are NaN."""
        wrong = int((~self.finite()).sum())
        if wrong:
            note_and_warn(
                "not finite",
                f"controlled: in {wrong} of {len(self.rows)} draws of the noise the network returns values that are "
                "not finite, whose moments are NaN. Keep the noise within the domain of its functions",
            )

    def finite(self) -> Tensor:
        """Whether each row is finite wherever not all rows agree, shape ``(rows,)``."""
        found = torch.ones(len(self.rows), dtype=torch.bool)
        for place in (*self.real(), *self.real(beside=True)):
            values = torch.stack([row[place] for row in self.rows])
            sound = values.isfinite() | (values == values[0]).all(0)
            found &= sound.reshape(len(values), -1).all(1).cpu()
        return found

    def predictive(
        self, place: int, make: Callable[[slice], Made], further: Callable[[int], int] | None = None
    ) -> OfOutput:
        """The distribution of an output; see :class:`OfOutput`."""
        end = None if self.ends[place] is None else functools.partial(torch.softmax, dim=-1)
        shape, dtype = self.rows[0][place].shape, self._dtype(place)
        return OfOutput(shape, dtype, self.batched(place), make, end, further)

    def decide(self) -> bool:
        """Whether an output that is not a real number is another in some rows."""
        others = set(range(len(self.rows[0]))).difference(self.real(), self.real(beside=True))
        return any(not torch.equal(row[place], self.rows[0][place]) for row in self.rows for place in others)

    def with_moments(self, estimates: dict[int, Estimate], predictives: dict[int, OfOutput]) -> Any:
        """The nest that the network returns, with moments in it.

        Args:
            estimates: of each output of floating point.
            predictives: of those that have one.
        """
        assert self.form is not None
        leaves: list[Any] = []
        for place, leaf in enumerate(self.rows[0]):
            if place in estimates:
                found = self._moments(place, leaf, estimates[place])
                found._predictive = predictives.get(place)
                leaves.append(found)
            elif leaf.is_complex() and any(not torch.equal(leaf, row[place]) for row in self.rows):
                raise InputError(
                    f"{type(self._network.where).__name__}: a random output of shape {tuple(leaf.shape)} is complex, "
                    "and moments are of real values; return torch.view_as_real of it, shape (..., 2)"
                )
            elif leaf.is_complex() or not leaf.numel():
                leaves.append(leaf)
            else:  # a decision: what most draws have
                leaves.append(torch.stack([row[place] for row in self.rows]).mode(0).values)
        return self.form.of(leaves)

    def _dtype(self, place: int) -> torch.dtype:
        """That of an output's moments."""
        end = self.ends[place]
        dtype = self.rows[0][place].dtype if end is None else end.out.dtype
        return torch.float32 if dtype in HALVES else dtype  # a rounded mean is further off than its stated error

    def _moments(self, place: int, leaf: Tensor, estimate: Estimate) -> JointMoments:
        dtype = self._dtype(place)

        def shaped(value: Tensor) -> Tensor:
            return value.reshape(leaf.shape).to(dtype)

        factor = estimate.factor if self.batched(place) else estimate.factor[0]
        made = JointMoments.of(shaped(estimate.mean), shaped(estimate.var), factor.to(dtype))
        return made.with_errors(shaped(estimate.std_error), shaped(estimate.mean_error), len(self.rows))
