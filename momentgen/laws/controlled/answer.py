"""The rows of one call by the method ``controlled``: how many run, which outputs are cached, and what they say."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.errors import UnsupportedError
from momentgen.laws.controlled.estimate import (
    Estimate,
    Rows,
    apart_from_others,
    estimated,
    joined,
    relative_error,
    with_reach,
    with_unseen,
)
from momentgen.laws.controlled.expectations import Made
from momentgen.laws.controlled.facts import Facts
from momentgen.laws.controlled.linear import OUTPUTS, Linear
from momentgen.laws.controlled.network import BESIDE, Given, InputNoise, Network
from momentgen.laws.controlled.outputs import softmaxed
from momentgen.laws.controlled.points import by_stretches
from momentgen.laws.controlled.predictive import OfOutput, each_by_itself
from momentgen.laws.controlled.runs import BLOCK, Runs, reach
from momentgen.laws.controlled.shares import Contributions
from momentgen.laws.controlled.state import OtherFactsError
from momentgen.laws.controlled.surrogates import of_rows, without_groups
from momentgen.laws.methods import Accuracy
from momentgen.laws.nests import flattened, leaves_of
from momentgen.laws.notes import note, note_and_warn
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.one_thread import one_thread

#: by the number of rows that there are at least: how many times as many may follow before errors are looked at again
_MORE: Final = ((64, 3), (0, 1))
#: with fewer outputs in all, one block of rows may tell next to nothing by chance, as when all draws are small
_ALONE: Final = 4
#: rows at quasi-random points that an answer has at least
_FEW: Final = 64
#: draws of a linear part that is not normal: numbers in all, and draws at least and at most
_DRAWS, _LEAST_DRAWS, _MOST_DRAWS = 2**22, 2**11, 2**16


class Answer:
    """The rows of one call, and what they say.

    Args:
        network: with its arguments.
        spent: how exact the caller wants it.
        facts: what is known of the network.
        points: its inputs at quasi-random points; None for draws.
    """

    def __init__(self, network: Network, spent: Accuracy, facts: Facts, points: list[InputNoise] | None = None) -> None:
        self._network, self._spent, self._facts, self._points = network, spent, facts, points is not None
        noise = points or [InputNoise(value, place, spent.seed) for place, value in enumerate(network.inputs)]
        self._runs = Runs(network, facts, noise)
        self._outputs = self._runs.outputs
        #: A of each output, by place
        self._linear: dict[int, Linear] = {}

    def outputs(self) -> Any:
        """What the network returns, with moments for tensors of floating point."""
        most = self._spent.max_rows // 2 * 2
        runs, state = self._runs, self._runs.state
        runs.first(min(BLOCK, most))
        runs.confirm(min(BLOCK, most))
        self._linearise(most)
        runs.shifts.clear()
        # errors count events that no row has met: of few values with kinks, where all noise is the inputs'
        few = state.kinked and self._facts.narrow and not runs.draws and runs.inputs == len(runs.noise) > 0
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
        paired = self._is_linear()
        for noise in runs.noise:
            noise.paired = paired
        if any(part.fresh for part in self._linear.values()):
            runs.further(min(BLOCK, most - len(self._outputs)))
        if state.curved:
            least = self._facts.free if self._facts.most > 1 else 0
            if sum(map(self._apart, self._linear)) < _ALONE:
                least = max(least, _FEW if self._points else 2 * BLOCK)
            runs.further(min(least, most) - len(self._outputs))
        alone = not self._linear and self._outputs.decide()  # no error says when to stop
        if alone or self._facts.seldom:  # few rows may miss where examples meet
            runs.further(most - len(self._outputs))
        moved = reach(runs) if state.kinked else {}
        while True:
            estimates = {place: self._estimate(place, few, moved) for place in self._linear}
            runs.slopes.forget_draws()
            still = sum(int(((part.std == 0) & (part.std_error != 0)).sum()) for part in estimates.values())
            error = math.inf if still else relative_error(list(estimates.values()))
            unmoved = self._facts.narrow and runs.unmoved()
            if not (error > self._spent.rtol or unmoved) or len(self._outputs) >= most:
                break
            runs.further(min(self._wanted(math.inf if unmoved else error), most - len(self._outputs)))
        before = self._network.before
        if before is not None and not self._facts.kept(before.changed()):
            raise OtherFactsError
        self._outputs.say_what_is_not_finite()
        self._say_what_is_missed(still, error)
        if unmoved:
            have = len(self._outputs)
            note(f"controlled: a count among the inputs is the same in all {have} rows, so that its part is missed")
        for place, found in estimates.items():
            if self._outputs.ends[place] is None:
                estimates[place] = found._replace(factor=joined(self._rows(place), found.factor))
        for place in self._outputs.real(beside=True):  # by the rows alone
            rows = self._outputs.of(place)
            estimates[place] = estimated(Rows(rows, torch.zeros_like(rows), torch.zeros_like(rows[:1]).movedim(0, 1)))
        found = self._outputs.with_moments(estimates, {place: self._predictive(place, few) for place in self._linear})
        if not runs.draws:
            return found
        for leaf in leaves_of(found):
            if isinstance(leaf, JointMoments):
                leaf._drawn = True
        return each_by_itself(found)  # what the network draws, as its weights, may be common to all examples

    def _rows(self, place: int, part: slice = slice(None)) -> Rows:
        """What is known of an output's examples."""
        outputs, linear = self._outputs.of(place), self._linear[place]
        return Rows(outputs[:, part], linear.of(len(outputs))[:, part], linear.root[part], linear.fresh)

    def _apart(self, place: int) -> float:
        """How many numbers of an output err by themselves, in all examples."""
        rows = self._rows(place)
        with torch.no_grad():
            rest = rows.outputs - rows.linear
            return float(apart_from_others(rest - rest.mean(0)).sum())

    def _predictive(self, place: int, few: bool) -> OfOutput:
        """The distribution of an output, by the rows so far and those that are asked for later; ``few`` has kinks."""
        linear = self._linear[place]
        size = self._outputs.flat(place, self._outputs.rows[0][place]).numel()

        @functools.cache
        def law() -> tuple[Tensor, Tensor | None]:
            with self._network.own_draws():
                self._network.seed(self._spent.seed + BESIDE)
                return linear.law(min(max(_DRAWS // max(size, 1), _LEAST_DRAWS), _MOST_DRAWS))

        def make(part: slice) -> Made:
            root, drawn = law()
            rows = self._rows(place, part)._replace(root=root[part])
            drawn = None if drawn is None else drawn[:, part]
            others = without_groups(rows, drawn)
            groups = len(others)  # a jackknife, widened to Student's t
            return Made(of_rows(rows, drawn), others, (groups - 1) ** 2 / max(groups - 3, 1), few)

        def further(count: int) -> int:
            if count:
                with one_thread(), self._network.own_draws():
                    self._network.seed(self._spent.seed + len(self._outputs))
                    self._runs.further(math.ceil(count / BLOCK) * BLOCK)
                    self._runs.slopes.forget_draws()
            return len(self._outputs)

        found = self._outputs.predictive(place, make, further)
        found.contributions = functools.partial(Contributions, self._runs, place, linear)
        return found

    def _is_linear(self) -> bool:
        """Whether the linear part is a third of the variance or more, by most outputs of most examples."""
        for rows in map(self._rows, self._linear):  # with its graph: A e is cached
            with torch.no_grad():
                total, left = (part.var(0, unbiased=False) for part in (rows.outputs, rows.outputs - rows.linear))
                if float((left > 2 / 3 * total).float().mean()) > 0.5:
                    return False
        return True

    def _say_what_is_missed(self, still: int, error: float) -> None:
        """A note where ``max_rows`` ended the rows."""
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

    def _linearise(self, most: int) -> None:
        """Find A of each output."""
        runs = self._runs
        with torch.enable_grad():
            for place in self._outputs.real():
                outputs, shift = self._outputs.of(place), runs.shifts[place]
                # where no rows are left to tell what A leaves out, the rows stand alone
                alone = outputs.shape[-1] > OUTPUTS and most < 2 * BLOCK
                # so they do for a number of all examples together, as a loss
                alone = alone or (bool(self._facts.by_example) and not self._outputs.batched(place))
                shift = None if shift is None or alone else self._outputs.flat(place, shift)
                self._linear[place] = Linear(shift, runs.state.sources, outputs, runs.state.keeps_graph)

    def _estimate(self, place: int, few: bool, moved: dict[int, Tensor]) -> Estimate:
        """Moments of an output; ``few`` and ``moved`` tell what no row has met."""
        rows, end = self._rows(place), self._outputs.ends[place]
        found = estimated(rows)
        if end is not None:
            found = softmaxed(found, rows)
        elif self._points and not self._runs.draws and not rows.fresh:
            found = by_stretches(found, rows)
        found = with_unseen(found, len(rows.outputs)) if few else found
        return with_reach(found, moved[place], len(rows.outputs)) if place in moved else found


def linear_alone(network: Network, facts: Facts) -> Any:
    """``max_rows=0``: what the network returns by its linear part alone, for those who must not sample.

    The network is linearised at the mean of its inputs.  The covariance is A Σ Aᵀ.  The mean is that of ``ap2`` where
    that knows the network's functions, else the plain output.  No error is known, and two calls have the same bits.

    Raises:
        UnsupportedError: for networks that draw, and for outputs that vary and have no derivative.
    """
    name = type(network.where).__name__

    def at_mean(place: int, value: Moments) -> Given:
        return Given(value, place, lambda rows: value.mean.expand(len(rows), *value.mean.shape).clone())

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
