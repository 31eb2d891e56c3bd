"""The rows of one call by the method ``controlled``: how many run, which outputs are cached, and what they say."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.errors import UnsupportedError
from momentgen.laws.accuracy import Accuracy
from momentgen.laws.controlled.estimate import Estimate, Rows, estimated, with_reach, with_unseen
from momentgen.laws.controlled.facts import Facts
from momentgen.laws.controlled.indexed import each_by_itself
from momentgen.laws.controlled.linear import OUTPUTS, Linear
from momentgen.laws.controlled.network import Network
from momentgen.laws.controlled.noise import Given, InputNoise
from momentgen.laws.controlled.predictive import Made, OfOutput
from momentgen.laws.controlled.runs import BLOCK, Runs, StaleError, reach
from momentgen.laws.controlled.shares import Contributions
from momentgen.laws.controlled.softmax import softmaxed
from momentgen.laws.controlled.surrogates import of_rows, without_groups
from momentgen.laws.nests import flattened
from momentgen.laws.notes import note, note_and_warn
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.one_thread import one_thread

__all__ = ["Answer", "linear_alone"]

#: by the number of rows that there are at least: how many times as many may follow before errors are looked at again
_MORE: Final = ((64, 3), (0, 1))
#: share of the examples whose errors end the rows
_EXAMPLES: Final = 0.9
#: draws of a linear part that is not normal: numbers in all, and draws at least and at most
_DRAWS, _LEAST_DRAWS, _MOST_DRAWS = 2**22, 2**11, 2**16
#: outputs whose standard deviation is below this part of the average do not count in the error that ends the rows
_SMALL: Final = 0.01


class Answer:
    """The rows of one call, and what they say.

    Args:
        network: with its arguments.
        spent: how exact the caller wants it.
        facts: what is known of the network.
    """

    def __init__(self, network: Network, spent: Accuracy, facts: Facts) -> None:
        self._network, self._spent, self._facts = network, spent, facts
        noise = [InputNoise(value, place, spent.seed) for place, value in enumerate(network.inputs)]
        self._runs = Runs(network, facts, noise)
        self._outputs = self._runs.outputs
        self._first = min(BLOCK, spent.max_rows // 2 * 2)
        #: whether errors count events that no row has met: of few values with kinks, where all noise is the inputs'
        self._few = False

    def outputs(self) -> Any:
        """What the network returns, with moments for tensors of floating point."""
        most = self._spent.max_rows // 2 * 2
        runs, state = self._runs, self._runs.state
        runs.first(self._first)
        runs.confirm(self._first)
        linear = self._linear(most)
        runs.shifts.clear()
        self._few = state.kinked and self._facts.narrow and not runs.draws and runs.inputs == len(runs.noise) > 0
        if self._network.kept is not None and (names := self._network.kept.changed()):
            note(
                f"controlled: the network keeps what depends on the draw ({', '.join(sorted(names)[:3])}). Every draw "
                "starts from what was there before the call, and that of the last one stays"
            )
        for name in sorted(state.ended):
            note(f"controlled: the linear part ends at {name}; what follows is in the rows alone")
        if left_out := runs.slopes.common.left_out:
            note(
                f"controlled: the noise of {left_out} weights is in the rows alone; their gradients of "
                "each example are more than may be held"
            )
        paired = self._is_linear(linear)
        for noise in runs.noise:
            noise.paired = paired
        if any(part.fresh for part in linear):
            runs.further(min(BLOCK, most - len(self._outputs)))
        if state.curved and self._facts.most > 1:
            runs.further(min(self._facts.free, most) - len(self._outputs))
        moved = reach(runs) if state.kinked else {}
        while True:
            parts = self._estimates(linear, moved)
            runs.slopes.forget_draws()
            error = self._missed(parts)
            if not error > self._spent.rtol or len(self._outputs) >= most:
                break
            runs.further(min(self._wanted(error), most - len(self._outputs)))
        before = self._network.before
        if before is not None and not self._facts.kept(before.changed()):
            raise StaleError
        self._outputs.say_what_is_not_finite()
        self._say_what_is_missed(parts, error)
        estimates = dict(zip(self._outputs.real(), parts, strict=True))
        estimates |= {place: self._sampled(place) for place in self._outputs.real(beside=True)}
        predictives = {
            place: self._predictive(place, part) for place, part in zip(self._outputs.real(), linear, strict=True)
        }
        found = self._outputs.with_moments(estimates, predictives)
        # what the network draws, as its weights, may be common to all examples
        return each_by_itself(found) if runs.draws else found

    def _predictive(self, place: int, linear: Linear) -> OfOutput:
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
                    self._runs.further(math.ceil(count / BLOCK) * BLOCK)
                    self._runs.slopes.forget_draws()
            return len(self._outputs)

        found = self._outputs.predictive(place, make, further)
        found.contributions = functools.partial(
            Contributions, self._network, self._facts, self._runs.noise, self._outputs, place, linear
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

    def _wanted(self, error: float) -> int:
        """How many more rows the error asked for takes, in blocks; the error of few is no reason for many."""
        have = len(self._outputs)
        more = have * min((error / self._spent.rtol) ** 2 - 1, next(times for least, times in _MORE if have >= least))
        return max(math.ceil(more / BLOCK), 1) * BLOCK

    # --------------------------------------------------------------- answers

    def _linear(self, most: int) -> list[Linear]:
        """A of each output."""
        found = []
        with torch.enable_grad():
            for place in self._outputs.real():
                outputs = self._outputs.of(place)
                shift = self._runs.shifts[place]
                if outputs.shape[-1] > OUTPUTS and most < 2 * BLOCK:
                    shift = None  # no rows are left to tell what A leaves out
                if self._facts.by_example and not self._outputs.batched(place):
                    shift = None  # a number of all examples together, as a loss: the rows know it
                shift = None if shift is None else self._outputs.flat(place, shift)
                found.append(Linear(shift, self._runs.state.sources, outputs, self._runs.state.keeps_graph))
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


def linear_alone(network: Network, facts: Facts) -> Any:
    """``max_rows=0``: what the network returns by its linear part alone, for those who must not sample.

    The network is linearised at the mean of its inputs.  The covariance is A Σ Aᵀ.  The mean is that of ``ap2`` where
    that knows the network's functions, else the plain output.  No error is known, and two calls have the same bits.

    Raises:
        UnsupportedError: for networks that draw, and for outputs that vary and have no derivative.
    """
    name = type(network.where).__name__

    def at_mean(place: int, value: Moments) -> Given:
        return Given(value, place, lambda rows: value.mean.expand(len(rows), *value.mean.shape).clone(), 1)

    noise: list[InputNoise] = list(itertools.starmap(at_mean, enumerate(network.inputs)))
    runs = Runs(network, facts, noise, logits=False)
    outputs, keeps = runs.outputs, runs.state.keeps_graph
    runs.first(1)
    if facts.draws or runs.draws:
        raise UnsupportedError(
            f"{name}: max_rows=0 linearises at the mean of the inputs. This network draws noise of its own, as of "
            'weights or dropout; leave max_rows out, or use method="ap2"'
        )
    leaves: list[Any] = list(outputs.rows[0])
    try:
        means = [leaf.mean if isinstance(leaf, Moments) else leaf for leaf in flattened(network.by("ap2"))[0]]
    except UnsupportedError as error:
        note(f"controlled: the mean is the plain output, for ap2 does not run this network: {error}")
        means = leaves.copy()
    for place in outputs.real():
        leaf, shift = leaves[place], runs.shifts[place]
        if shift is None:
            raise UnsupportedError(
                f"{name}: max_rows=0 needs the derivative of each output, and the one of shape "
                f"{tuple(leaf.shape)} has none; leave max_rows out"
            )
        with torch.enable_grad():
            flat = outputs.flat(place, shift)
            linear = Linear(flat, runs.state.sources, outputs.of(place), keeps, every=True)
        with torch.set_grad_enabled(keeps):
            root = linear.root.to(leaf.dtype)
            var = root.square().sum(-2).reshape(leaf.shape)
            leaves[place] = JointMoments.of(means[place], var, root if outputs.batched(place) else root[0])
    assert outputs.form is not None
    return outputs.form.of(leaves)
