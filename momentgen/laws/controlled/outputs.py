"""What a network returned in each row: leaves of its outputs, what each stands for, and moments in their places."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.controlled.estimate import Estimate
from momentgen.laws.controlled.network import Network
from momentgen.laws.controlled.predictive import Made, OfOutput
from momentgen.laws.controlled.softmax import Softmax
from momentgen.laws.controlled.state import OtherFactsError
from momentgen.laws.nests import Nest, held_by_objects
from momentgen.laws.notes import note_and_warn
from momentgen.runtime import JointMoments
from momentgen.runtime.inputs import HALVES

__all__ = ["Outputs"]


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
        leaf, end = self.rows[0][place], self.ends[place]
        softmax = None if end is None else (torch.log_softmax if end.logarithm else torch.softmax)
        return OfOutput(
            leaf.shape,
            self._dtype(place),
            self.batched(place),
            make,
            None if softmax is None else functools.partial(softmax, dim=-1),
            further,
        )

    def with_moments(
        self, estimates: dict[int, Estimate], predictives: dict[int, OfOutput], weight: Tensor | None = None
    ) -> Any:
        """The nest that the network returns, with moments in it.

        Args:
            estimates: of each output of floating point.
            predictives: of those that have one.
            weight: of each row, shape ``(rows,)``; None for rows that count alike.
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
                leaves.append(_most_frequent(torch.stack([row[place] for row in self.rows]), weight))
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


def _most_frequent(values: Tensor, weight: Tensor | None) -> Tensor:
    """The value that most rows have, by their weights."""
    if weight is None:
        return values.mode(0).values
    same = (values[:, None] == values[None]).to(weight.dtype)  # of any two rows
    return values.gather(0, torch.einsum("ij...,j->i...", same, weight).argmax(0, keepdim=True))[0]
