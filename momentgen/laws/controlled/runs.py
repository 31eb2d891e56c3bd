"""The rows of one call as they run, and the linearised network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.laws.controlled.estimate import away
from momentgen.laws.controlled.facts import Facts, Watch, close, halves, mixed
from momentgen.laws.controlled.linear import OUTPUTS
from momentgen.laws.controlled.network import PAIRED_ROWS, Given, InputNoise, Network, jumps
from momentgen.laws.controlled.outputs import Outputs, Softmax
from momentgen.laws.controlled.slopes import Slopes
from momentgen.laws.controlled.state import OtherFactsError, Phase, Source
from momentgen.laws.nests import Kept, Nest, flattened
from momentgen.runtime import JointMoments

#: rows of the first block, and of each that follows
BLOCK: Final = PAIRED_ROWS
#: how much larger the noise is that tells how far outputs go which no row has moved
_FAR: Final = 3.0
#: rows of it of networks of few values, which may have one rare event and no other
_TRIED: Final = 64
#: rows whose derivatives are averaged where rows cannot record all slopes: an antithetic pair
_DERIVATIVES: Final = 2


class Runs:
    """The rows of one call.

    Args:
        network: with its arguments.
        facts: what is known of the network.
        noise: of its inputs.
        logits: whether a softmax at the end is left out, and applied to the law of its logits.
        records: whether the rows tell a linear part.

    Attributes:
        outputs: of the rows so far.
        shifts: for each leaf of the outputs, a tensor with the derivatives of the linearised network; None without.
        inputs: how many sources are noise of the inputs.
    """

    def __init__(
        self, network: Network, facts: Facts, noise: list[InputNoise], logits: bool = True, records: bool = True
    ) -> None:
        self.network, self.facts, self.noise, self.logits = network, facts, noise, logits
        self.outputs = Outputs(network, facts.by_example)
        self.shifts: list[Tensor | None] = []
        self.inputs = 0
        batch = network.batch if facts.by_example else 1
        self.slopes = Slopes(network.differentiable, batch, network.certain_inputs())
        self.state = self.slopes.state
        self.state.fix(network.certain_tensors())
        if facts.differentiates or jumps(network.inputs):
            self.state.curved = self.state.kinked = True
        if facts.differentiates or not records:
            self.state.phase = Phase.DRAWS
        #: whether rows are watched: for slopes, for what the network draws, and for a softmax at its end
        self._watched = records or logits

    @property
    def draws(self) -> bool:
        """Whether the network draws noise of its own that is in A."""
        return len(self.state.sources) > self.inputs

    # ------------------------------------------------------------------ rows

    def first(self, count: int) -> None:
        """Run the first rows, and linearise the network."""
        self.further(count - 1)
        self.next(1)  # it gives the form of the outputs
        self._linearise(count)
        self.state.release()
        self.state.phase = Phase.DRAWS
        self._watched = self.draws or any(end is not None for end in self.outputs.ends)

    def further(self, count: int) -> None:
        """Run more rows."""
        for first in range(0, count, self.facts.most):
            self.next(min(self.facts.most, count - first))

    def all(self, count: int, size: int) -> Outputs:
        """The outputs of so many rows, by stacks of one size."""
        while len(self.outputs) < count:
            self.next(size)
        del self.outputs.rows[count:]
        return self.outputs

    def next(self, rows: int) -> None:
        """Run the next rows together and keep their outputs."""
        slopes, outputs = self.slopes, self.outputs
        if rows > 1 and self.facts.together(self.network, self.noise, rows) < rows:
            raise OtherFactsError(most=1)
        slopes.begin(rows)
        self.state.fix(leaf for leaf in self.network.repeated(rows) if isinstance(leaf, Tensor))
        done = len(outputs)
        values = self._values(range(done, done + rows))
        for value, noise in zip(values, self.noise, strict=True):
            if noise.is_known:
                self.state.follow(value)
        watched = slopes if self._watched else nullcontext()
        with torch.set_grad_enabled(self.state.keeps_graph and torch.is_grad_enabled()), watched:
            found = self.network.call(values, rows, slopes.common.weight)
        leaves, ends, form = self._leaves(slopes, found)
        if outputs.rows and self.facts.ends_alike and list(map(bool, ends)) != list(map(bool, outputs.ends)):
            raise OtherFactsError(ends_alike=False)
        if outputs.form is None or rows == 1:  # what is no tensor may count examples
            outputs.shaped(found, form, ends)
        if not outputs.rows:
            examples = self.network.batch if self.facts.by_example else 1
            slopes.common.products = max((min(leaf.numel() // examples, OUTPUTS) for leaf in leaves), default=1)
        outputs.add(leaves, rows)

    def _values(self, rows: range) -> list[Tensor]:
        """The inputs of rows, one after another."""
        return [noise.values(rows).flatten(0, 1) if len(rows) > 1 else noise.values(rows)[0] for noise in self.noise]

    # ------------------------------------------------------------ linearising

    def _linearise(self, count: int) -> None:
        """Derivatives by the slopes that rows have recorded, else by those of some rows of the network as it is."""
        self.shifts = [None] * len(self.outputs.rows[0])
        after = _as_it_is(self.network.where) if self.network.kept is not None or self.facts.writes else nullcontext()
        by_rows = range(min(count, _DERIVATIVES))
        with after:
            if self.state.phase is Phase.DRAWS:
                if self._all_known():
                    self._derive(Phase.DRAWS, by_rows)
                return
            seen = self.state.ruled and not self.network.has(torch.jit.ScriptModule)  # its functions are not seen
            if seen:
                self._derive(Phase.AVERAGES, range(count - 1, count))
            if not seen or (self._all_known() and self._unseen()):
                self._derive(Phase.DERIVATIVES, by_rows)

    def _all_known(self) -> bool:
        """Whether the derivatives by the inputs are all that is random."""
        return len(self.noise) > 0 and all(noise.is_known for noise in self.noise)

    def _derive(self, phase: Phase, rows: range) -> None:
        """Call the network under autograd, for the mean of the derivatives in these rows."""
        state, self.inputs = self.state, 0
        state.linearise(phase)
        leaves = [self._leaf(noise) for noise in self.noise]
        size = self.facts.together(self.network, self.noise, len(rows))
        try:
            found = [self._derived(rows[first : first + size], leaves) for first in range(0, len(rows), size)]
        except OtherFactsError:
            raise
        except Exception:  # whatever the network raises of values with derivatives
            return
        with torch.enable_grad():
            for place, parts in enumerate(zip(*found, strict=True)):
                known = [part for part in parts if part is not None]
                self.shifts[place] = sum(known[1:], known[0]) / len(rows) if len(known) == len(parts) else None

    def _leaf(self, noise: InputNoise) -> Tensor | None:
        """Where the derivative by an input begins; None for noise that is in the rows alone."""
        if not noise.is_known:
            return None
        given, self.inputs = noise.value, self.inputs + 1
        factor = given.factor if isinstance(given, JointMoments) else None
        normal = given.noise is None or given.noise.is_normal
        return self.state.leaf(
            id(noise),
            lambda: torch.zeros_like(given.mean),
            lambda leaf: Source(leaf, noise.rows, given.var, factor, normal=normal, place=noise.place),
        )

    def _derived(self, rows: range, leaves: list[Tensor | None]) -> list[Tensor | None]:
        """Leaves of the outputs with their derivatives, summed over the rows."""
        slopes, state, count = self.slopes, self.state, len(rows)
        row, state.row = state.row, rows[-1]
        slopes.begin(count)
        values = self._values(rows)
        with torch.enable_grad():
            for place, leaf in enumerate(leaves):
                if leaf is not None:
                    repeated = leaf.repeat(count, *[1] * (leaf.dim() - 1)) if count > 1 else leaf
                    values[place] = values[place] + repeated
                    state.follow(values[place])
            try:
                with slopes, self.network.own_draws():
                    found = self.network.call(values, count, slopes.common.weight)
            finally:
                state.row = row
            parts, ends, _ = self._leaves(slopes, found)
            made: list[Tensor | None] = []
            for place, (leaf, known) in enumerate(zip(parts, self.outputs.rows[0], strict=True)):
                fits = bool(ends[place]) == bool(self.outputs.ends[place]) and leaf.is_floating_point()
                seen = state.phase is not Phase.AVERAGES or state.knows(leaf)
                one = leaf.unflatten(0, (count, -1)).sum(0) if count > 1 else leaf
                made.append(one if fits and seen and one.requires_grad and one.shape == known.shape else None)
        return made

    def _unseen(self) -> bool:
        """Whether an output varies that no function the mode saw has computed."""
        first, second = self.outputs.rows[0], self.outputs.rows[-1]
        return any(
            shift is None and one.is_floating_point() and (one is other or not torch.equal(one, other))
            for shift, one, other in zip(self.shifts, first, second, strict=True)
        )

    # ------------------------------------------------------------------ checks

    def confirm(self, count: int) -> None:
        """Raise where the first rows, so many, do not bear out what an earlier call told."""
        facts = self.facts
        known = facts.fresh or facts.draws or not facts.by_example or self.network.batch * facts.most < 2
        if not known and self.repeats(count - 1) is None:
            raise OtherFactsError

    def repeats(self, last: int) -> Watch | None:
        """What becomes of examples of the first row beside those of another; None where outputs are others then.

        Examples have the outputs of their rows, whatever is beside them and goes through the network with them.
        """
        one, other = ([noise.values(range(row, row + 1))[0] for noise in self.noise] for row in (0, last))
        rows, watched = self.outputs.rows, Slopes(False)  # sees a softmax at the end and nothing else
        watched.state.phase = Phase.DRAWS
        expected = dict(enumerate(rows[0]))
        if self.facts.by_example:
            chosen, places = halves(self.network.batch)[0], list(filter(self.outputs.batched, expected))
            one = mixed(chosen, other, one)
            ends = ([rows[row][place] for place in places] for row in (last, 0))
            expected = dict(zip(places, mixed(chosen, *ends), strict=True))
        with torch.no_grad(), watched if any(self.outputs.ends) else nullcontext():
            with Watch(one) as watch:
                found = self.network.call(one)
            leaves = self._leaves(watched, found)[0]
        same = all(close(leaves[place], leaf) for place, leaf in expected.items()) and (
            self.facts.reads or not watch.reads
        )
        return watch if same else None

    # ----------------------------------------------------------------- outputs

    def _leaves(self, mode: Slopes, found: Any) -> tuple[list[Tensor], list[Softmax | None], Nest]:
        """The leaves of what the network returned, with the logits of a softmax at its end; and the form."""
        leaves, form = flattened(found)
        ends: list[Softmax | None] = [None] * len(leaves)
        for place, leaf in enumerate(leaves):
            end = mode.softmaxes.get(id(leaf))
            if end is not None and end.out is leaf and self._at_the_end(place, end):
                leaves[place], ends[place] = end.logits, end
        return leaves, ends, form

    def _at_the_end(self, place: int, end: Softmax) -> bool:
        """Whether the softmax of an output is applied to the law of its logits."""
        if not (self.logits and self.facts.ends_alike and self.outputs.batched(place)):
            return False
        if end.out.dim() != 2 or end.dim not in (1, -1):
            return False
        return 1 < end.out.shape[1] <= OUTPUTS and end.is_unchanged()

    def unmoved(self) -> bool:
        """Whether a count that is an input is the same in all rows, so that they do not tell what it does."""
        for noise in self.noise:
            if jumps([noise.value]):
                drawn = noise.rows(range(len(self.outputs)))
                if bool(((drawn == drawn[0]).all(0) & (noise.value.var != 0)).any()):
                    return True
        return False


def reach(runs: Runs) -> dict[int, Tensor]:
    """How far outputs that no row has moved go under three times the noise, by place, shape ``(batch, K)``.

    An output that stays even then is certain, 0.  Where noise cannot be made larger it is not known, NaN.
    """
    every = {place: runs.outputs.of(place) for place in runs.outputs.real()}
    still = {place: (rows == rows[0]).all(0) & rows[0].isfinite() for place, rows in every.items()}
    still = {place: one for place, one in still.items() if bool(one.any())}
    unknown = {place: torch.where(one, torch.nan, torch.zeros_like(every[place][0])) for place, one in still.items()}
    if not still or not runs.noise or runs.draws:
        return unknown

    def far(noise: InputNoise) -> Given:
        def at(rows: Tensor) -> Tensor:
            return torch.cat([noise.farther(range(row, row + 1), _FAR) for row in rows.tolist()])

        return Given(noise.value, noise.place, at)

    larger = Runs(runs.network, runs.facts, list(map(far, runs.noise)), runs.logits, records=False)
    size = runs.facts.together(runs.network, runs.noise, BLOCK)
    count = _TRIED if runs.facts.narrow else min(BLOCK, len(runs.outputs))
    try:
        with torch.no_grad():
            outputs = larger.all(count, size)
    except Exception:  # a network may refuse what is far off
        return unknown
    if list(map(bool, outputs.ends)) != list(map(bool, runs.outputs.ends)):
        return unknown
    moved = {place: away(outputs.of(place), every[place][0]).abs().amax(0) for place in still}
    moved = {place: torch.where(one.isfinite(), one, torch.nan) for place, one in moved.items()}
    return {place: torch.where(still[place], one, 0) for place, one in moved.items()}


@contextmanager
def _as_it_is(where: Any) -> Iterator[None]:
    """Within the context a module may keep what it computes; after it, it is as before."""
    kept, parts = Kept(where), where.modules() if isinstance(where, torch.nn.Module) else ()
    values = (value for part in parts for value in (*vars(part).values(), *part._buffers.values()))
    plain = [value for value in values if isinstance(value, Tensor) and not value.requires_grad]
    try:
        yield
    finally:
        kept.restore()
        for value in plain:
            if value.requires_grad:  # what was written into it had a derivative
                value.detach_()
