"""The rows of one call by the method ``controlled``: how many run, which outputs are cached, and what they say."""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.laws.accuracy import Accuracy
from momentgen.laws.controlled.each_example import each_by_itself
from momentgen.laws.controlled.estimate import Estimate, Rows, estimated, with_reach, with_unseen
from momentgen.laws.controlled.facts import Facts, Watch, close, mixed
from momentgen.laws.controlled.linear import OUTPUTS, Linear
from momentgen.laws.controlled.network import Network
from momentgen.laws.controlled.noise import PAIRED_ROWS, InputNoise, Source
from momentgen.laws.controlled.outputs import Outputs, UnlikeEndsError
from momentgen.laws.controlled.predictive import Made, OfOutput
from momentgen.laws.controlled.pull import whole
from momentgen.laws.controlled.reach import reach
from momentgen.laws.controlled.rules import rule_of
from momentgen.laws.controlled.shares import Contributions
from momentgen.laws.controlled.shift import Shift
from momentgen.laws.controlled.softmax import Softmax, softmaxed
from momentgen.laws.controlled.stack import UnstackedError, pieces
from momentgen.laws.controlled.surrogates import of_rows, without_groups
from momentgen.laws.example_arguments import halves
from momentgen.laws.nests import Nest, flattened
from momentgen.laws.notes import note, note_and_warn
from momentgen.laws.weights import each_row
from momentgen.runtime import JointMoments
from momentgen.runtime.one_thread import one_thread

__all__ = ["Answer", "StaleError"]

#: rows of the first block, and of each that follows
BLOCK: Final = PAIRED_ROWS
#: by the number of rows that there are at least: how many times as many may follow before errors are looked at again
_MORE: Final = ((64, 3), (0, 1))
#: rows whose graphs are kept of functions that no rule averages
_PAIRED: Final = 4
#: rows of which the derivatives of a whole network are averaged
_WHOLE: Final = 4
#: share of the examples whose errors end the rows
_EXAMPLES: Final = 0.9
#: draws of a linear part that is not normal: numbers in all, and draws at least and at most
_DRAWS, _LEAST_DRAWS, _MOST_DRAWS = 2**22, 2**11, 2**16
#: outputs whose standard deviation is below this part of the average do not count in the error that ends the rows
_SMALL: Final = 0.01


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
        self._noise = [InputNoise(value, place, spent.seed) for place, value in enumerate(network.inputs)]
        self._outputs = Outputs(network, facts.by_example)
        self._watched = True
        #: how many sources are noise of the inputs
        self._inputs = 0
        #: whether errors count events that no row has met: of few values with kinks, where all noise is the inputs'
        self._few = False

    def outputs(self) -> Any:
        """What the network returns, with moments for tensors of floating point."""
        most = self._spent.max_rows // 2 * 2
        between = self._between()
        mode, shifts = self._first_rows(self._first())
        self._confirm(between)
        linear = self._linear(mode, shifts, most)
        shifts.clear()
        mode.release()
        of_inputs = len(mode.sources) == self._inputs == len(self._noise) > 0
        self._few = mode.kinked and self._facts.narrow and of_inputs
        mode.draws_only = True
        #: whether further rows are watched: for what the network draws, and for a softmax at its end
        self._watched = len(mode.sources) > self._inputs or any(end is not None for end in self._outputs.ends)
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
        paired = self._is_linear(linear)
        for noise in self._noise:
            noise.paired = paired
        if any(part.fresh for part in linear):
            self._further(mode, min(BLOCK, most - len(self._outputs)))
        if mode.curved and self._facts.most > 1:
            self._further(mode, min(self._facts.free, most) - len(self._outputs))
        moved = self._reach(len(mode.sources) > self._inputs) if mode.kinked else {}
        while True:
            parts = self._estimates(linear, moved)
            mode.forget_draws()
            error = self._missed(parts)
            if not error > self._spent.rtol or len(self._outputs) >= most:
                break
            self._further(mode, min(self._wanted(error), most - len(self._outputs)))
        before = self._network.before
        if before is not None and not self._facts.kept(before.changed()):
            raise StaleError
        self._outputs.say_what_is_not_finite()
        self._say_what_is_missed(parts, error)
        estimates = dict(zip(self._outputs.real(), parts, strict=True))
        estimates |= {place: self._sampled(place) for place in self._outputs.real(beside=True)}
        predictives = {
            place: self._predictive(mode, place, part) for place, part in zip(self._outputs.real(), linear, strict=True)
        }
        found = self._outputs.with_moments(estimates, predictives)
        # what the network draws, as its weights, may be common to all examples
        return each_by_itself(found) if len(mode.sources) > self._inputs else found

    def _predictive(self, mode: Shift, place: int, linear: Linear) -> OfOutput:
        """The distribution of an output, by the rows so far and those that are asked for later."""
        size = self._outputs.flat(place, self._outputs.rows[0][place]).numel()
        law = functools.cache(lambda: linear.law(min(max(_DRAWS // max(size, 1), _LEAST_DRAWS), _MOST_DRAWS)))

        def make(part: slice) -> Made:
            outputs = self._outputs.of(place)
            root, drawn = law()
            rows = Rows(outputs[:, part], linear.of(len(outputs))[:, part], root[part], linear.fresh)
            drawn = None if drawn is None else drawn[:, part]
            others = without_groups(rows, drawn)
            groups = len(others)  # a jackknife, widened to Student's t
            return Made(of_rows(rows, drawn), others, (groups - 1) ** 2 / max(groups - 3, 1))

        def further(count: int) -> int:
            if count:
                with one_thread(), self._network.own_draws():
                    self._network.seed(self._spent.seed + len(self._outputs))
                    self._further(mode, math.ceil(count / BLOCK) * BLOCK)
                    mode.forget_draws()
            return len(self._outputs)

        found = self._outputs.predictive(place, make, further)
        found.contributions = functools.partial(
            Contributions, self._network, self._facts, self._noise, self._outputs, place, linear
        )
        return found

    def _is_linear(self, linear: list[Linear]) -> bool:
        """Whether the linear part is a third of the variance or more, by most outputs of most examples."""
        for place, part in zip(self._outputs.real(), linear, strict=True):
            outputs = self._outputs.of(place)
            rest = outputs - part.of(len(outputs))
            with torch.no_grad():
                total, left = (rows.var(0, unbiased=False) for rows in (outputs, rest))
                if float((left > 2 / 3 * total).float().mean()) > 0.5:
                    return False
        return True

    def _missed(self, parts: list[Estimate]) -> float:
        """The error that further rows are to lessen; infinite where an output may move and no row has met it."""
        if any(bool(((part.std == 0) & (part.std_error != 0)).any()) for part in parts):
            return math.inf
        return _relative_error(parts)

    def _say_what_is_missed(self, parts: list[Estimate], error: float) -> None:
        """A note where ``max_rows`` ended the rows."""
        still = sum(int(((part.std == 0) & (part.std_error != 0)).sum()) for part in parts)
        rows = len(self._outputs)
        if still:
            note(
                f"controlled: {still} value(s) are the same in all {rows} rows, and larger noise may move them. Their "
                f"σ is 0, and its error what {rows} rows bound, NaN where the noise is not the inputs'. A larger "
                "max_rows narrows it"
            )
        elif error > self._spent.rtol:
            note_and_warn(
                "max_rows",
                f"controlled: after {rows} rows the standard deviation is known to {error:.1%}; "
                f"rtol={self._spent.rtol:g} was asked for, and max_rows={self._spent.max_rows}",
            )

    def _reach(self, draws: bool) -> dict[int, Tensor]:
        """How far outputs that no row has moved go; of a network that ``draws`` it is not known."""
        together = min(BLOCK, self._facts.most)
        if together > 1 and not self._facts.stacks(self._network, self._noise, together):
            together = 1
        run = functools.partial(self._once, self._watching())
        return reach(self._outputs, None if draws else self._noise, together, run)

    def _watching(self) -> Shift:
        """A mode that sees a softmax at the end and nothing else."""
        watched = Shift(rule_of, 0, 0, False)
        watched.draws_only = True
        return watched

    # ------------------------------------------------------------------ rows

    def _values(self, count: int) -> list[Tensor]:
        """The inputs of the next rows, one after another."""
        rows = range(len(self._outputs), len(self._outputs) + count)
        return [noise.values(rows).flatten(0, 1) if count > 1 else noise.values(rows)[0] for noise in self._noise]

    def _first_rows(self, count: int) -> tuple[Shift, list[Tensor | None]]:
        """Run the first rows; the mode that watched them, and the shift of each leaf of the outputs."""
        network = self._network
        batch = network.batch if self._facts.by_example else 1
        mode = Shift(rule_of, count, _PAIRED, network.differentiable, batch, network.certain_inputs())
        mode.fix(network.certain_tensors())
        mode.draws_only = mode.curved = mode.kinked = self._facts.differentiates
        shifts: list[Tensor | None] = []
        entered: list[Tensor] = []
        for rows in self._together(count):
            mode.begin(rows)
            mode.fix(leaf for leaf in network.repeated(rows) if isinstance(leaf, Tensor))
            values = self._values(rows)
            for place, (value, noise) in enumerate(zip(values, self._noise, strict=True)):
                shift = None
                if noise.value.noise is not None and not noise.value.noise.is_known:
                    continue  # without its covariance it is in the rows alone
                if mode.last:
                    leaf = torch.zeros_like(value, requires_grad=True)
                    given = noise.value
                    factor = given.factor if isinstance(given, JointMoments) else None
                    normal = given.noise is None or given.noise.is_normal
                    mode.sources.append(Source(leaf, noise.rows, given.var, factor, normal=normal, place=place))
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
        if self._facts.fresh or self._facts.draws or not self._facts.by_example or self._network.batch * self._most < 2:
            return None
        ends = [[noise.values(range(row, row + 1))[0] for noise in self._noise] for row in (self._first() - 1, 0)]
        chosen = halves(self._network.batch)[0]
        watched = self._watching()
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
            if self._outputs.batched(place) and not close(
                found, *mixed(chosen, [self._outputs.rows[-1][place]], [self._outputs.rows[0][place]])
            ):
                raise StaleError

    def _once(self, watched: Shift, values: list[Tensor], rows: int = 1) -> list[Any]:
        """Leaves of what the network returns for these values, as it runs in its rows."""
        watched.begin(rows)
        with watched:
            return self._leaves(watched, self._network.call(values, rows))[0]

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
        outputs = [torch.stack(rows) for rows in zip(*self._outputs.rows, strict=True)]
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
        first, second = self._outputs.rows[:2]
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
        have = len(self._outputs)
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
        outputs = self._outputs
        if outputs.rows and self._facts.ends_alike and list(map(bool, ends)) != list(map(bool, outputs.ends)):
            raise UnlikeEndsError
        if outputs.form is None or (mode.last and self._most > 1):  # what is no tensor may count examples
            outputs.shaped(found, form, ends)
        for row in map(list, zip(*map(mode.stack.parts, leaves), strict=True)) if leaves else [[]]:
            outputs.add(row)
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
        return min(leaf.numel() // (self._network.batch if self._facts.by_example else 1), OUTPUTS)

    def _at_the_end(self, place: int, end: Softmax) -> bool:
        """Whether the softmax of an output is applied to the law of its logits."""
        if not (self._facts.ends_alike and self._outputs.batched(place) and end.out.dim() == 2 and end.dim in (1, -1)):
            return False
        return 1 < end.out.shape[1] <= OUTPUTS and end.is_unchanged()

    # --------------------------------------------------------------- answers

    def _linear(self, mode: Shift, shifts: list[Tensor | None], most: int) -> list[Linear]:
        """A of each output."""
        found = []
        with torch.enable_grad():
            for place in self._outputs.real():
                outputs = self._outputs.of(place)
                shift = shifts[place]
                if outputs.shape[-1] > OUTPUTS and most < 2 * BLOCK:
                    shift = None  # no rows are left to tell what A leaves out
                if self._facts.by_example and not self._outputs.batched(place):
                    shift = None  # a number of all examples together, as a loss: the rows know it
                shift = None if shift is None else self._outputs.flat(place, shift)
                found.append(Linear(shift, mode.sources, outputs, mode.keeps_graph))
        return found

    def _sampled(self, place: int) -> Estimate:
        """Moments of an output by the rows alone."""
        outputs = self._outputs.of(place)
        return estimated(Rows(outputs, torch.zeros_like(outputs), torch.zeros_like(outputs[:1]).movedim(0, 1)))

    def _estimates(self, linear: list[Linear], moved: dict[int, Tensor]) -> list[Estimate]:
        found = []
        for place, part in zip(self._outputs.real(), linear, strict=True):
            outputs = self._outputs.of(place)
            rows = Rows(outputs, part.of(len(outputs)), part.root, part.fresh)
            estimate = estimated(rows)
            end = self._outputs.ends[place]
            estimate = estimate if end is None else softmaxed(estimate, rows, end.logarithm)
            estimate = with_unseen(estimate, len(outputs)) if self._few else estimate
            found.append(with_reach(estimate, moved[place], len(outputs)) if place in moved else estimate)
        return found


def _relative_error(parts: list[Estimate]) -> float:
    """The error of the standard deviations, as a part of these: of all but the worst tenth of the examples.

    Of an example it is the root mean square over the outputs of one kind of result.
    """
    found = 0.0
    with torch.no_grad():
        for part in parts:
            std = part.std
            counted = (std > _SMALL * std.nanmean()) & part.std_error.isfinite()
            count = counted.sum(-1)
            share = torch.where(counted, part.std_error / torch.where(counted, std, 1), 0).square().sum(-1)
            errors = (share[count > 0] / count[count > 0]).sqrt()
            if len(errors):
                found = max(found, float(errors.double().quantile(_EXAMPLES)))
    return found
