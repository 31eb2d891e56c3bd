"""The rows of one call by the method ``controlled``: how many run, which outputs are cached, and what they say."""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.accuracy import Accuracy
from momentgen.laws.controlled.estimate import Estimate, Rows, estimated, with_unseen
from momentgen.laws.controlled.facts import Facts, Watch, close, mixed
from momentgen.laws.controlled.linear import OUTPUTS, Linear
from momentgen.laws.controlled.network import Network
from momentgen.laws.controlled.noise import InputNoise, Source
from momentgen.laws.controlled.pull import whole
from momentgen.laws.controlled.rules import rule_of
from momentgen.laws.controlled.shift import Shift
from momentgen.laws.controlled.softmax import Softmax, softmaxed
from momentgen.laws.controlled.stack import UnstackedError, pieces
from momentgen.laws.example_arguments import halves
from momentgen.laws.nests import Nest, flattened, held_by_objects
from momentgen.laws.notes import note
from momentgen.laws.precision import HALVES
from momentgen.laws.weights import each_row
from momentgen.runtime import JointMoments

__all__ = ["Answer", "StaleError", "UnlikeEndsError"]

#: rows of the first block, and of each that follows
BLOCK: Final = 16
#: by the number of rows that there are at least: how many times as many may follow before errors are looked at again
_MORE: Final = ((64, 3), (0, 1))
#: rows whose graphs are kept of functions that no rule averages
_PAIRED: Final = 4
#: rows of which the derivatives of a whole network are averaged
_WHOLE: Final = 4
#: outputs whose standard deviation is below this part of the average do not count in the error that ends the rows
_SMALL: Final = 0.01


class UnlikeEndsError(Exception):
    """Some rows end in a softmax, and others do not, or in one of other classes, as where the largest alone count."""


class StaleError(Exception):
    """Examples or rows interact, or values are read out, which the earlier call that the facts are of did not show."""


class Answer:
    """The rows of one call, and what they say.

    Args:
        network: with its arguments.
        spent: how exact the caller wants it.
        facts: what is known of the network.
        most: of the rows that are watched, how many may go together.
    """

    def __init__(self, network: Network, spent: Accuracy, facts: Facts, most: int) -> None:
        self._network, self._spent, self._facts, self._most = network, spent, facts, most
        #: of each leaf of the outputs, whether its examples are independent; nothing where all examples are one
        self._by_example = facts.by_example
        shared = bool(self._by_example) and all(self._by_example)
        self._noise = [InputNoise(value, place, spent.seed, shared) for place, value in enumerate(network.inputs)]
        #: of each leaf, whether an object holds it, as a cache of keys and values: it comes beside what is asked for
        self._beside: list[bool] = []
        #: leaves of the outputs of each row; of a softmax at the end the logits
        self._rows: list[list[Tensor]] = []
        #: of each leaf, the softmax at its end where what is kept are its logits
        self._ends: list[Softmax | None] = []
        self._form: Nest | None = None
        self._watched = True
        #: how many sources are noise of the inputs
        self._inputs = 0
        #: whether all rows may be on one side of a kink: the network has some, and few values
        self._kinked = False
        #: whether the errors count that: of noise of the inputs alone
        self._few = False

    def outputs(self) -> Any:
        """What the network returns, with moments for tensors of floating point."""
        most = self._spent.max_rows // 2 * 2
        between = self._between()
        mode, shifts = self._first_rows(self._first())
        self._confirm(between)
        linear = self._linear(mode, shifts, most)
        of_inputs = len(mode.sources) == self._inputs == len(self._noise) > 0
        self._kinked = mode.kinked and self._facts.narrow
        self._few = self._kinked and of_inputs
        mode.draws_only = True
        #: whether further rows are watched: for what the network draws, and for a softmax at its end
        self._watched = len(mode.sources) > self._inputs or any(end is not None for end in self._ends)
        if self._network.kept is not None and (names := self._network.kept.changed()):
            note(
                f"controlled: the network keeps what depends on the draw ({', '.join(sorted(names)[:3])}). Every draw "
                "starts from what was there before the call, and that of the last one stays"
            )
        for name in sorted(mode.ended):
            note(f"controlled: the linear part ends at {name}; what follows is in the rows alone")
        if mode.common.left_out:
            note(
                f"controlled: the noise of {mode.common.left_out} weights is in the rows alone; their gradients of "
                "each example are more than may be held"
            )
        if any(part.fresh for part in linear):
            self._further(mode, min(BLOCK, most - len(self._rows)))
        if mode.curved and self._facts.most > 1:
            self._further(mode, min(self._facts.free, most) - len(self._rows))
        while True:
            parts = self._estimates(linear)
            mode.forget_draws()
            error = _relative_error(parts)
            if not error > self._spent.rtol or len(self._rows) >= most:
                break
            self._further(mode, min(self._wanted(error), most - len(self._rows)))
        if error > self._spent.rtol:
            note(
                f"controlled: after {len(self._rows)} rows the standard deviation is known to {error:.1%}; "
                f"rtol={self._spent.rtol:g} was asked for, and max_rows={self._spent.max_rows}"
            )
        before = self._network.before
        if before is not None and not self._facts.kept(before.changed()):
            raise StaleError
        self._say_what_is_not_finite()
        self._say_what_stays(parts)
        return self._returned(parts)

    def _say_what_is_not_finite(self) -> None:
        """A note on values that some draws make NaN or infinite, whose moments are NaN."""
        places = (*self._real(), *self._real(beside=True))
        rows = [torch.stack([row[place] for row in self._rows]) for place in places]
        sound = [values.isfinite() | (values == values[0]).all(0) for values in rows]
        finite = [part.reshape(len(part), -1).all(1).cpu() for part in sound]
        wrong = int((~torch.stack(finite)).any(0).sum()) if finite else 0
        if wrong:
            note(
                f"controlled: in {wrong} of {len(self._rows)} draws of the noise the network returns values that are "
                "not finite, whose moments are NaN. Keep the noise within the domain of its functions"
            )

    def _say_what_stays(self, parts: list[Estimate]) -> None:
        """A note on values that all rows have in common in a network with kinks: σ 0 may be a rare event's."""
        still = sum(int((part.std == 0).sum()) for part in parts) if self._kinked else 0
        if still:
            note(
                f"controlled: {still} value(s) are the same in all {len(self._rows)} rows, so that their σ and its "
                "error are 0. Where a kink keeps them, as a ReLU that is seldom on, ask for more rows by rtol and "
                "max_rows, or sample"
            )

    # ------------------------------------------------------------------ rows

    def _values(self, count: int) -> list[Tensor]:
        """The inputs of the next rows, one after another."""
        rows = range(len(self._rows), len(self._rows) + count)
        return [noise.values(rows).flatten(0, 1) if count > 1 else noise.values(rows)[0] for noise in self._noise]

    def _first_rows(self, count: int) -> tuple[Shift, list[Tensor | None]]:
        """Run the first rows; the mode that watched them, and the shift of each leaf of the outputs."""
        network = self._network
        batch = network.batch if self._by_example else 1
        mode = Shift(rule_of, count, _PAIRED, network.differentiable, batch, network.certain_inputs())
        mode.fix(network.certain_tensors())
        mode.draws_only = mode.curved = mode.kinked = self._facts.differentiates
        shifts: list[Tensor | None] = []
        entered: list[Tensor] = []
        for rows in self._together(count):
            mode.begin(rows)
            mode.fix(leaf for leaf in network.repeated(rows) if isinstance(leaf, Tensor))
            values = self._values(rows)
            for value, noise in zip(values, self._noise, strict=True):
                shift = None
                if noise.value.noise is not None and not noise.value.noise.is_known:
                    continue  # without its covariance it is in the rows alone
                if mode.last:
                    leaf = torch.zeros_like(value, requires_grad=True)
                    given = noise.value
                    factor = given.factor if isinstance(given, JointMoments) else None
                    mode.sources.append(Source(leaf, noise.rows, given.var, factor))
                    with torch.enable_grad():
                        shift = leaf.view_as(leaf)
                    entered.append(shift)
                    self._inputs += 1
                mode.follow(value, shift)
            shifts = self._run(mode, values)
        if len(entered) == len(self._noise) > 0 and (network.has_scripts or self._unseen(shifts)):
            found = self._whole(mode, entered) or shifts
            shifts = [old if new is None else new for old, new in zip(shifts, found, strict=True)]
        return mode, shifts

    def _between(self) -> list[Tensor] | None:
        """Outputs of examples of the first row beside examples of the last; None where these tell nothing new."""
        if self._facts.fresh or self._facts.draws or not self._by_example or self._network.batch * self._most < 2:
            return None
        ends = [[noise.values(range(row, row + 1))[0] for noise in self._noise] for row in (self._first() - 1, 0)]
        chosen = halves(self._network.batch)[0]
        watched = Shift(rule_of, 0, 0, False)
        watched.draws_only = True
        watched.begin()
        with torch.no_grad(), watched:
            with Watch(values := mixed(chosen, *ends)) as watch:
                found = self._network.call(values)
            if watch.reads and not self._facts.reads:
                raise StaleError
            return self._leaves(watched, found)[0]

    def _confirm(self, between: list[Tensor] | None) -> None:
        """Examples have the outputs of their rows, whatever is beside them and goes through the network with them."""
        chosen = halves(self._network.batch)[0]
        for place, found in enumerate(between or ()):
            if self._batched(place) and not close(
                found, *mixed(chosen, [self._rows[-1][place]], [self._rows[0][place]])
            ):
                raise StaleError

    def _once(self, watched: Shift, values: list[Tensor]) -> list[Any]:
        """Leaves of what the network returns for these values of one row, as it runs in its rows."""
        watched.begin()
        with watched:
            return self._leaves(watched, self._network.call(values))[0]

    def _together(self, count: int) -> list[int]:
        """How many of the first rows go together: first those whose graphs are kept, and by itself the last one."""
        if self._most == 1 or count < 3:
            return [1] * count
        paired = min(_PAIRED, count - 1)
        return [*pieces(paired, self._most), *pieces(count - 1 - paired, self._most), 1]

    def may_be_stacked(self) -> bool:
        """Whether the first rows have the same outputs together."""
        sizes = set(self._together(self._first())) - {1}
        return all(self._facts.stacks(self._network, self._noise, rows) for rows in sizes)

    def _first(self) -> int:
        return min(BLOCK, self._spent.max_rows // 2 * 2)

    def tried(self) -> list[Tensor]:
        """Outputs of the first rows, and derivatives of a random combination of the shifts."""
        mode, shifts = self._first_rows(self._first())
        outputs = [torch.stack(rows) for rows in zip(*self._rows, strict=True)]
        generator = torch.Generator().manual_seed(self._spent.seed)
        known = [shift for shift in shifts if shift is not None and shift.requires_grad]
        directions = [torch.randn(shift.shape, generator=generator).to(shift) for shift in known]
        if not known:
            return outputs
        leaves = [source.leaf for source in mode.sources]
        found = torch.autograd.grad(known, leaves, directions, allow_unused=True)
        grads = [torch.zeros(()) if grad is None else grad.detach() for grad in found]
        return [*outputs, torch.tensor([shift is not None for shift in shifts]), *grads]

    def _unseen(self, shifts: list[Tensor | None]) -> bool:
        """Whether an output varies that no function the mode saw has computed."""
        first, second = self._rows[:2]
        return any(
            shift is None and one.is_floating_point() and not torch.equal(one, other)
            for shift, one, other in zip(shifts, first, second, strict=True)
        )

    def _whole(self, mode: Shift, shifts: list[Tensor]) -> list[Tensor | None] | None:
        """Shifts of the outputs by the derivatives of the whole network; None where it has none."""
        watched = Shift(rule_of, 0, 0, mode.keeps_graph)
        watched.draws_only = True

        values = [noise.values(range(_WHOLE)) for noise in self._noise]
        rows = [[value[row] for value in values] for row in range(_WHOLE)]
        return whole(functools.partial(self._once, watched), rows, shifts, mode.keeps_graph)

    def _wanted(self, error: float) -> int:
        """How many more rows the error asked for takes, in blocks; the error of few is no reason for many."""
        have = len(self._rows)
        more = have * min((error / self._spent.rtol) ** 2 - 1, next(times for least, times in _MORE if have >= least))
        return max(math.ceil(more / BLOCK), 1) * BLOCK

    def _further(self, mode: Shift, count: int) -> None:
        """Run more rows."""
        single = self._watched and self._most == 1
        while count > 0:
            rows = 1 if single else min(count, self._facts.most)
            if rows > 1 and not self._facts.stacks(self._network, self._noise, rows):
                raise UnstackedError
            mode.begin(rows)
            self._run(mode, self._values(rows))
            count -= rows

    def _run(self, mode: Shift, values: list[Tensor]) -> list[Tensor | None]:
        """Run the rows that have begun and keep their outputs; returns the shifts, in the last that is watched."""
        watched = mode if self._watched else nullcontext()
        with torch.set_grad_enabled(mode.keeps_graph), watched, each_row(mode.common.weight):
            found = self._network.call(values, mode.stack.rows)
        leaves, ends, form = self._leaves(mode, found)
        if self._rows and self._facts.ends_alike and list(map(bool, ends)) != list(map(bool, self._ends)):
            raise UnlikeEndsError
        if self._form is None or (mode.last and self._most > 1):  # what is no tensor may count examples
            self._form, self._ends, held = form, ends, held_by_objects(found)
            self._beside = [False] * len(held) if all(held) else held
        for row in map(list, zip(*map(mode.stack.parts, leaves), strict=True)) if leaves else [[]]:
            self._check(row)
            # what the module keeps is written over, and may be an output
            self._rows.append(row if self._network.kept is None else [leaf.clone() for leaf in row])
        if mode.row == 0:
            mode.common.products = max((self._products(leaf) for leaf in leaves), default=1)
        return [mode.of(leaf) if mode.last and mode.knows(leaf) else None for leaf in leaves]

    def _leaves(self, mode: Shift, found: Any) -> tuple[list[Tensor], list[Softmax | None], Nest]:
        """The leaves of what the network returned, with the logits of a softmax at its end; and the form."""
        leaves, form = flattened(found)
        ends: list[Softmax | None] = [None] * len(leaves)
        for place, leaf in enumerate(leaves):
            end = mode.softmaxes.get(id(leaf))
            if end is not None and end.out is leaf and self._at_the_end(place, end):
                leaves[place], ends[place] = end.logits, end
        return leaves, ends, form

    def _products(self, leaf: Tensor) -> int:
        """How many rows A will have for an example of an output, at most."""
        return min(leaf.numel() // (self._network.batch if self._by_example else 1), OUTPUTS)

    def _batched(self, place: int) -> bool:
        """Whether the examples of an output are independent."""
        return bool(self._by_example) and self._by_example[place]

    def _at_the_end(self, place: int, end: Softmax) -> bool:
        """Whether the softmax of an output is applied to the law of its logits."""
        if not (self._facts.ends_alike and self._batched(place) and end.out.dim() == 2 and end.dim in (1, -1)):
            return False
        return 1 < end.out.shape[1] <= OUTPUTS and end.is_unchanged()

    def _check(self, leaves: list[Tensor]) -> None:
        shapes = [tuple(leaf.shape) for leaf in leaves]
        before = [tuple(leaf.shape) for leaf in self._rows[0]] if self._rows else shapes
        if shapes != before:
            raise InputError(
                f"{type(self._network.where).__name__}: expected outputs of the same shapes for every draw of the "
                f"noise, got {before} and {shapes}; return what does not depend on the draw"
            )
        for place, end in enumerate(self._ends if self._rows else []):
            if end is not None and not torch.equal(leaves[place].isinf(), self._rows[0][place].isinf()):
                raise UnlikeEndsError

    # --------------------------------------------------------------- answers

    def _real(self, beside: bool = False) -> list[int]:
        """The outputs of floating point that are asked for, or those that come beside them."""
        leaves = enumerate(self._rows[0])
        return [place for place, leaf in leaves if leaf.is_floating_point() and self._beside[place] == beside]

    def _flat(self, place: int, leaf: Tensor, *rows: int) -> Tensor:
        """An output, or rows of it, with the values of an example in the last dimension, in float32 at least."""
        batch = self._network.batch if self._batched(place) else 1
        flat = leaf.reshape(*rows, batch, -1)
        return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()

    def _linear(self, mode: Shift, shifts: list[Tensor | None], most: int) -> list[Linear]:
        """A of each output."""
        found = []
        with torch.enable_grad():
            for place in self._real():
                outputs = self._outputs(place)
                shift = shifts[place]
                if outputs.shape[-1] > OUTPUTS and most < 2 * BLOCK:
                    shift = None  # no rows are left to tell what A leaves out
                if self._by_example and not self._batched(place):
                    shift = None  # a number of all examples together, as a loss: the rows know it
                shift = None if shift is None else self._flat(place, shift)
                found.append(Linear(shift, mode.sources, outputs, mode.keeps_graph))
        return found

    def _outputs(self, place: int) -> Tensor:
        """An output in all rows so far, shape ``(rows, batch, K)``."""
        rows = torch.stack([row[place] for row in self._rows])
        return self._flat(place, rows, len(rows))

    def _sampled(self, place: int) -> Estimate:
        """Moments of an output by the rows alone."""
        outputs = self._outputs(place)
        return estimated(Rows(outputs, torch.zeros_like(outputs), torch.zeros_like(outputs[:1]).movedim(0, 1)))

    def _estimates(self, linear: list[Linear]) -> list[Estimate]:
        found = []
        for place, part in zip(self._real(), linear, strict=True):
            outputs = self._outputs(place)
            rows = Rows(outputs, part.of(len(outputs)), part.root, part.fresh)
            estimate = estimated(rows)
            end = self._ends[place]
            estimate = estimate if end is None else softmaxed(estimate, rows, end.logarithm)
            found.append(with_unseen(estimate, len(outputs)) if self._few else estimate)
        return found

    def _returned(self, parts: list[Estimate]) -> Any:
        """The nest that the network returns, with moments in it."""
        assert self._form is not None
        leaves: list[Any] = []
        estimates = dict(zip(self._real(), parts, strict=True))
        estimates |= {place: self._sampled(place) for place in self._real(beside=True)}
        for place, leaf in enumerate(self._rows[0]):
            if place in estimates:
                leaves.append(self._moments(place, leaf, estimates[place]))
            elif leaf.is_complex() and any(not torch.equal(leaf, row[place]) for row in self._rows):
                raise InputError(
                    f"{type(self._network.where).__name__}: a random output of shape {tuple(leaf.shape)} is complex, "
                    "and moments are of real values; return torch.view_as_real of it, shape (..., 2)"
                )
            elif leaf.is_complex() or not leaf.numel():
                leaves.append(leaf)
            else:  # a decision: what most draws have
                leaves.append(torch.stack([row[place] for row in self._rows]).mode(0).values)
        return self._form.of(leaves)

    def _moments(self, place: int, leaf: Tensor, estimate: Estimate) -> JointMoments:
        end = self._ends[place]
        dtype = leaf.dtype if end is None else end.out.dtype
        dtype = torch.float32 if dtype in HALVES else dtype  # a rounded mean is further off than its stated error

        def shaped(value: Tensor) -> Tensor:
            return value.reshape(leaf.shape).to(dtype)

        factor = estimate.factor if self._batched(place) else estimate.factor[0]
        made = JointMoments.of(shaped(estimate.mean), shaped(estimate.var), factor.to(dtype))
        return made.with_errors(shaped(estimate.std_error), shaped(estimate.mean_error), len(self._rows))


def _relative_error(parts: list[Estimate]) -> float:
    """The root mean square of the errors of the standard deviations, as parts of these."""
    square, count = 0.0, 0
    with torch.no_grad():
        for part in parts:
            std = part.std
            counted = (std > _SMALL * std.double().nanmean()) & part.std_error.isfinite()
            square += float((part.std_error[counted] / std[counted]).square().sum())
            count += int(counted.sum())
    return math.sqrt(square / count) if count else 0.0
