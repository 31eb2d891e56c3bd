"""What groups of noisy values contribute to the variance of an output: by the linear part, and by draws of the rest.

With independent inputs the linear part's shares are exact.  What it leaves is estimated by pick and freeze (Saltelli
et al. 2010): pairs of rows that have a group's noise in common, or all but it.  Dependent inputs have the shares of the
covariance decomposition, A (A Σ)ᵀ, of the linear part alone.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor

from momentgen.laws.controlled.estimate import Rows, fitted
from momentgen.laws.controlled.facts import close
from momentgen.laws.controlled.linear import Linear
from momentgen.laws.controlled.network import BESIDE, Given, InputNoise
from momentgen.laws.controlled.outputs import mean_jacobian, rows_of_softmax
from momentgen.laws.controlled.runs import Runs
from momentgen.laws.convert import Function
from momentgen.laws.nests import flattened
from momentgen.runtime import JointMoments
from momentgen.runtime.one_thread import one_thread

#: whether few noisy values are drawn too, whose linear part is then known
BY_DRAWS: Final[ContextVar[bool]] = ContextVar("momentgen_by_draws", default=False)
#: rows whose outputs are held together
_TOGETHER: Final = 64


#: a mean over draws, and its standard error
Known = tuple[Tensor, Tensor]


class Shares(NamedTuple):
    """*Variances* that groups of noisy values contribute, shape ``(G, *shape)``.

    Attributes:
        linear: by the linear part; exact, except where draws mend it.
        first: of the output's mean given the group's values; None where draws do not tell.
        total: what remains when all other values are known; None likewise.
        var: of the output, by the same draws; None likewise.
        own: by the linear part, of noise that the network draws itself, shape ``(*shape)``.
        slope: of a group of one value the derivative of the output, NaN for others, shape ``(G, *shape)``.
    """

    linear: Tensor
    first: Known | None
    total: Known | None
    var: Known | None
    own: Tensor
    slope: Tensor


class Contributions:
    """The noise of one call, and the linear part of one of its outputs.

    Args:
        runs: the rows.
        place: of the output.
        linear: its linear part.
    """

    def __init__(self, runs: Runs, place: int, linear: Linear) -> None:
        self._network, self._facts, self._noise, outputs = runs.network, runs.facts, runs.noise, runs.outputs
        self._outputs, self._place, self._linear = outputs, place, linear
        known = (outputs.of(place), linear.of(len(outputs)), linear.root)
        values, moved, root = (part.detach().double() for part in known)
        rows = Rows(values, moved, root, linear.fresh)
        self._jacobian: Tensor | None = None
        if outputs.ends[place] is not None:
            self._jacobian = mean_jacobian(rows.outputs)
            rows = rows_of_softmax(rows)
        found = fitted(rows)
        self._gamma, self._mean = found.gamma, found.mean

    @property
    def inputs(self) -> list[torch.Size]:
        """The shape of each noisy input."""
        return [noise.value.mean.shape for noise in self._noise]

    @property
    def batched(self) -> bool:
        """Whether the first dimension of inputs counts independent examples."""
        return self._outputs.batched(self._place)

    @property
    def correlated(self) -> bool:
        """Whether values of an input are dependent."""
        return any(isinstance(noise.value, JointMoments) for noise in self._noise)

    def shares(self, labels: list[Tensor], count: int, rows: int) -> Shares:
        """Contributions of groups.

        Args:
            labels: of each input, the group of each of its values, flattened, or of an example's values.
            count: how many groups.
            rows: draws of pick and freeze for each group; 0 for the linear part alone.
        """
        with torch.no_grad(), one_thread(), self._network.own_draws():
            linear, own, slope = self._of_linear(labels, count)
            if not rows or self.correlated or self._facts.draws:
                return Shares(linear, None, None, None, own, slope)
            linear, (first, total, var) = self._by_draws(labels, count, rows, linear)
        return Shares(linear, first, total, var, own, slope)

    # ---------------------------------------------------------------- linear

    def _of_linear(self, labels: list[Tensor], count: int) -> tuple[Tensor, Tensor, Tensor]:
        total = self._mean.new_zeros(count, *self._mean.shape)
        own, slope = torch.zeros_like(self._mean), torch.full_like(total, torch.nan)
        sizes = sum(torch.bincount(label, minlength=count) for label in labels)
        for source, slopes in self._linear.parts:
            rows = self._rows(slopes)
            var = source.var if isinstance(source.var, Tensor) else torch.tensor(source.var)
            if source.factor is not None:
                factor = source.factor.double()
                part = rows * ((rows @ factor.mT) @ factor)
            else:
                part = rows.square() * var.double().expand(source.leaf.shape).reshape(len(rows), 1, -1)
            if source.place is None:
                own += part.sum(-1)
                continue
            label = labels[source.place]
            total.index_add_(0, label, part.movedim(-1, 0))
            single = torch.as_tensor(sizes)[label] == 1
            slope[label[single]] = rows.movedim(-1, 0)[single]
        return total, own, slope

    def _rows(self, rows: Tensor) -> Tensor:
        """A of the output itself, with γ, shape ``(B, K, n)``."""
        rows = rows.double() if self._linear.basis is None else self._linear.basis.double().mT @ rows.double()
        rows = rows if self._jacobian is None else self._jacobian @ rows
        return rows * self._gamma[..., None]

    # ----------------------------------------------------------------- draws

    def _by_draws(self, labels: list[Tensor], count: int, rows: int, linear: Tensor) -> tuple[Tensor, list[Known]]:
        """The linear part's contributions; first-order and total ones, and the *variance*."""
        one, other = (
            [part.rows(range(first, first + rows)) for part in self._noise] for first in (BESIDE, BESIDE + rows)
        )
        left_linear, right_linear = (self._parts(given, labels, count) for given in (one, other))
        left, right = (self._rest(given, own.sum(0)) for given, own in ((one, left_linear), (other, right_linear)))
        # A is of fewer draws than these: what it misses of a group's linear part is added
        met = (left_linear * left).sum(1) + (right_linear * right).sum(1)
        size = left_linear.square().sum(1) + right_linear.square().sum(1)
        missed = torch.where(size > 0, met / size, 0.0)[:, None]
        left, right = left - (missed * left_linear).sum(0), right - (missed * right_linear).sum(0)
        left_linear, right_linear = ((1 + missed) * own for own in (left_linear, right_linear))
        linear = (1 + missed[:, 0]).square() * linear
        pairs = ((left, left_linear.sum(0)), (right, right_linear.sum(0)))
        var = torch.cat([linear.sum(0) + 2 * moved * rest + rest.square() for rest, moved in pairs])
        firsts, totals = list[Tensor](), list[Tensor]()
        for group in range(count):
            mixed = [
                torch.where((label == group).view((1, *a.shape[2:]) if self.batched else a.shape[1:]), a, b)
                for label, a, b in zip(labels, one, other, strict=True)
            ]
            # has the group of ``one``, and all else of ``other``
            both = self._rest(mixed, right_linear.sum(0) - right_linear[group] + left_linear[group])
            own = left_linear[group] * left + right_linear[group] * right
            firsts.append(linear[group] + own + left * both)
            # all else in common, the group differs
            totals.append(linear[group] + own + (right - both).square() / 2)
        return linear, [
            (every.mean(0), every.std(0) / len(every) ** 0.5)
            for every in (torch.stack(firsts, 1), torch.stack(totals, 1), var)
        ]

    def _mapped(self, given: list[Tensor]) -> Tensor:
        """The output at values of the inputs, with rows in front; shape ``(rows, B, K)``, float64."""
        size = min(self._facts.most, _TOGETHER)
        size = size if size < 2 or self._facts.stacks(self._network, self._noise, size) else 1
        if size == 1 and isinstance(self._network.where, Function) and not len(self._network.where.parts):
            together = self._together(given)
            if together is not None:
                return together
        found = []
        for some in zip(*(values.split(_TOGETHER) for values in given), strict=True):
            noise: list[InputNoise] = [
                Given(one.value, one.place, partial(_of_those, values))
                for one, values in zip(self._noise, some, strict=True)
            ]
            runs = Runs(self._network, self._facts, noise, logits=False, records=False)
            found.append(runs.all(len(some[0]), size).of(self._place).double())
        return torch.cat(found)

    def _rest(self, noise: list[Tensor], linear: Tensor) -> Tensor:
        """What the mean and the linear part leave of rows, shape ``(rows, B, K)``."""
        outputs = self._mapped([one.value.mean + part for one, part in zip(self._noise, noise, strict=True)])
        return outputs - linear - self._mean

    def _together(self, given: list[Tensor]) -> Tensor | None:
        """The same by ``torch.vmap``, of a formula that has no batch; None where it branches on values."""

        def called(*values: Tensor) -> Tensor:
            leaf: Tensor = flattened(self._network.call(list(values)))[0][self._place]
            return leaf

        try:
            found = torch.vmap(called)(*given)
            first = torch.stack([called(*(part[row] for part in given)) for row in (0, -1)])
        except RuntimeError:  # whatever vmap cannot run, a single call can, or says what is wrong
            return None
        return self._outputs.flat(self._place, found, len(found)).double() if close(found[[0, -1]], first) else None

    def _parts(self, noise: list[Tensor], labels: list[Tensor], count: int) -> Tensor:
        """What each group does to the linear part, shape ``(G, rows, B, K)``."""
        rows = len(noise[0])
        parts = self._mean.new_zeros(count, rows, *self._mean.shape)
        for source, slopes in self._linear.parts:
            if source.place is None:
                continue
            flat, own = noise[source.place].double().reshape(rows, len(slopes), -1), self._rows(slopes)
            for group in range(count):
                chosen = labels[source.place] == group
                parts[group] += torch.einsum("rbn,bkn->rbk", flat[..., chosen], own[..., chosen])
        return parts


def _of_those(values: Tensor, rows: Tensor) -> Tensor:
    """Values of rows; any beyond repeat the last."""
    return values[rows.clamp_max(len(values) - 1)]
