"""The predictive distribution of an output: quantiles, probabilities and draws by a surrogate, checked by the rows.

Numbers are expectations over draws of the surrogate.  Their standard error has four parts: a jackknife over groups of
rows, the error of the draws themselves, unseen events, and misfit.  To find misfit, each row is compared
with the surrogate of its own linear part.  A difference beyond chance corrects the number.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
import torch.distributions as td
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.controlled.questions import TOLD, Distribution, Event, of_each, refusal, refuse_what_joins
from momentgen.laws.controlled.surrogates import Surrogate, at, below, lower_tail
from momentgen.laws.notes import note_and_warn
from momentgen.laws.numerics.quadrature import rotation, sobol
from momentgen.runtime.predicted import Estimated, Interval

__all__ = ["Made", "OfOutput"]

#: values that are held at once, and how many draws an output has at least and at most
_HELD, _LEAST, _MOST = 2**24, 1024, 2**15
#: sets of quasi-random draws, whose difference is the draws' own error
_SETS: Final = 8
#: error of the draws that is small, as a part of the number
_ENOUGH: Final = 0.02
#: parts of further draws, at most
_PARTS: Final = 32
#: remainders that a row is compared with
_BESIDE: Final = 32
#: steps to the quantile that the rows agree with, at most, and the part of its error at which they end
_STEPS, _NEAR_ENOUGH = 10, 0.1
#: part of a tail that is looked at for the error of its quantile, at least
_TAIL: Final = 0.25
#: part of chance that counts as an error where rows and surrogate agree
_AGREE: Final = 0.5
#: rows that an accuracy asked for may take
_ROWS: Final = 2**15

Function = Callable[[Tensor], Tensor]


class Made(NamedTuple):
    """A surrogate of some examples, others that are as likely, and by how much their spread is multiplied."""

    main: Surrogate
    others: list[Surrogate]
    factor: float


class _Draws(NamedTuple):
    """Draws of the main surrogate and of the others, and whether examples have draws in an order of their own."""

    main: Tensor
    others: list[Tensor]
    apart: bool


class OfOutput:
    """The predictive distribution of one output, or of what indices leave of it.

    Args:
        shape: of the output, with examples in front where these are ``independent``.
        dtype: of what is returned.
        make: the surrogate of some examples, and others beside it.
        end: what is applied to the surrogate's values, as a softmax; None for nothing.
        further: runs so many more rows, after which ``make`` knows them; None where no more can be had.

    Attributes:
        shape: of what is asked.
        contributions: what inputs contribute to the variance; None where no linear part is known.
        joined: whether examples share noise: nothing is known of how draws of several go together.
    """

    def __init__(
        self,
        shape: torch.Size,
        dtype: torch.dtype,
        independent: bool,
        make: Callable[[slice], Made],
        end: Function | None = None,
        further: Callable[[int], int] | None = None,
    ) -> None:
        self.shape, self._size, self._dtype, self._independent = shape, shape, dtype, independent
        self._make, self._end, self._further = make, end or (lambda values: values), further
        self.contributions: Callable[[], Any] | None = None
        self.joined = False
        #: the indices of what is asked, one after another
        self._places: tuple[Any, ...] = ()
        self._batch = shape[0] if independent else 1
        self._values = math.prod(shape) // max(self._batch, 1)

    # ------------------------------------------------------------- questions

    def quantile(self, probability: float, rtol: float | None) -> Estimated:
        """See :meth:`momentgen.JointMoments.quantile`."""

        def question(made: Made) -> tuple[Tensor, ...]:
            drawn = self._draws(made)
            _refuse_beyond(drawn.main, probability, f"quantile({probability:g})")
            return self._quantile(made, probability, drawn, drawn.main.sort(0).values)

        return self._until(rtol, lambda: Estimated(*self._each(question)), self._std)

    def interval(self, level: float, shortest: bool, rtol: float | None) -> Interval:
        """See :meth:`momentgen.JointMoments.interval`."""

        def ends(made: Made) -> tuple[Tensor, ...]:
            lower: Tensor | float = (1 - level) / 2
            drawn, off = self._draws(made), torch.zeros(())
            _refuse_beyond(drawn.main, (1 - level) / 2, f"interval({level:g})")
            if shortest:
                lower, off = lower_tail(drawn.main.chunk(_SETS), drawn.main, drawn.others, level, made.factor)
            ordered = drawn.main.sort(0).values
            found = [self._quantile(made, tail, drawn, ordered, off) for tail in (lower, lower + level)]
            return found[0][0], found[1][0], found[0][1], found[1][1]

        return self._until(rtol, lambda: Interval(*self._each(ends)), self._std)

    def probability(self, event: Event, rtol: float | None) -> Estimated:
        """See :meth:`momentgen.JointMoments.probability`.

        Raises:
            InputError: for an event that depends on several examples, which share noise.
        """
        if self.joined:
            refuse_what_joins(event, self._sampled(TOLD, 0))

        def happens(values: Tensor) -> Tensor:
            outputs = values.reshape(len(values), *self._size).to(self._dtype)
            happened = of_each(lambda y: event(self._asked(y)), outputs).double()
            return _where_known(happened, values.isnan().any(-1), self._independent)

        def found() -> Estimated:
            made = self._make(slice(0, self._batch))
            return Estimated(*self._expectation(made, happens, self._draws(made, self._independent)))

        return self._until(rtol, found, None)

    def skewness(self) -> Estimated:
        """See :meth:`momentgen.JointMoments.skewness`."""

        def third(made: Made) -> tuple[Tensor, ...]:
            drawn = self._draws(made)
            mean, std = drawn.main.mean(0), drawn.main.std(0)
            return self._expectation(made, lambda y: ((y - mean) / std).pow(3), drawn)

        return Estimated(*self._each(third))

    def sample(self, count: int, seed: int) -> Tensor:
        """See :meth:`momentgen.JointMoments.sample`."""
        if self.joined:
            raise refusal("sample", "out[0].sample(count)")
        return self._sampled(count, seed)

    def _sampled(self, count: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        most, found = max(_HELD // max(self._batch * self._values, 1), _LEAST), []
        main = self._make(slice(0, self._batch)).main
        for first in range(0, count, most):
            drawn = max(min(count - first, most), _LEAST)  # so many that examples have draws of their own
            points = torch.randn(drawn, main.dimensions, generator=generator, dtype=torch.float64)
            values = main.draws(points, torch.rand(drawn, 2, generator=generator, dtype=torch.float64))
            found.append(self._apart(self._end(values), generator)[: count - first])
        return self._asked(torch.cat(found).reshape(count, *self._size), 1).to(self._dtype)

    def torch_distribution(self) -> td.Distribution:
        """See :meth:`momentgen.JointMoments.distribution`."""
        if self.joined:
            raise refusal("distribution", "out[0].distribution()")
        return Distribution(self, self.shape, self._independent and not self._places)

    def at(self, place: Any) -> OfOutput:
        """The same of some examples, or of some of their values."""
        made, first = copy.copy(self), place[0] if isinstance(place, tuple) else place
        made.shape, made._places = torch.empty(self.shape, device="meta")[place].shape, (*self._places, place)
        made.contributions, made.joined = None, self.joined and not isinstance(first, int)
        return made

    def _asked(self, value: Tensor, front: int = 0) -> Tensor:
        """What the indices leave of outputs, with so many dimensions in front."""
        for place in self._places:
            value = value[(*[slice(None)] * front, *(place if isinstance(place, tuple) else (place,)))]
        return value

    # --------------------------------------------------------------- answers

    def _until(self, rtol: float | None, run: Callable[[], Any], scale: Callable[[], Tensor] | None) -> Any:
        """The answer, by as many rows as its errors ask for, which are its second half."""
        while True:
            found = run()
            if rtol is None:
                return found
            error = torch.stack(found[len(found) // 2 :]).amax(0)
            size = found[0] if scale is None else scale()
            share = (error / size.clamp_min(1e-300))[size > 0]
            off = float(share.max()) if share.numel() else 0.0
            if off <= rtol:
                return found
            have = 0 if self._further is None else self._further(0)
            more = min(int(have * min((off / rtol) ** 2 - 1, 3)) + 1, _ROWS - have)
            if self._further is None or more <= 0:
                note_and_warn(
                    "rtol of an answer",
                    f"the error is {off:.1%}, and rtol={rtol:g} was asked for; {have or 'these'} draws tell no more",
                )
                return found
            self._further(more)

    def _std(self) -> Tensor:
        return self._each(lambda made: (self._drawn(made.main, self._count(made.main)).std(0),))

    def _each(self, question: Callable[[Made], tuple[Tensor, ...]]) -> Any:
        """Answers of some examples at a time, together; of the shape of the output."""
        size = max(_HELD // max(_LEAST * self._values, 1), 1)
        with torch.no_grad():
            parts = [
                question(self._make(slice(first, min(first + size, self._batch))))
                for first in range(0, self._batch, size)
            ]
        found = [self._asked(torch.cat(part).reshape(self._size)).to(self._dtype) for part in zip(*parts, strict=True)]
        return found[0] if len(found) == 1 else found

    def _count(self, surrogate: Surrogate) -> int:
        """How many draws; a power of 2."""
        most = _HELD // 4 // max(surrogate.rest[0].numel(), 1)
        return int(2 ** math.floor(math.log2(min(max(most, _LEAST), _MOST))))

    def _drawn(self, surrogate: Surrogate, count: int, apart: bool = False, part: int = 0) -> Tensor:
        """Draws of the surrogate at fixed points, shape ``(count, b, K)``: ``_SETS`` of quasi-random ones in turn."""
        values = self._end(surrogate.draws(*_points(surrogate.dimensions, count, part)))
        return self._apart(values, torch.Generator().manual_seed(count + part)) if apart else values

    def _apart(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Draws in another order for each example, so that examples are independent."""
        if not self._independent or values.shape[1] < 2:
            return values
        order = torch.rand(values.shape[:2], generator=generator).argsort(0)
        return values.gather(0, order[:, :, None].expand_as(values))

    def _quantile(
        self, made: Made, probability: float | Tensor, drawn: _Draws, ordered: Tensor, off: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Quantiles, shape ``(b, K)``, and their errors; ``off`` is that of the probability."""
        asked = torch.as_tensor(probability, dtype=torch.float64).expand(ordered.shape[1:])
        least = _TAIL * asked.minimum(1 - asked)  # an error of a tail's own size has no end
        place = self._place(made.main, ordered, asked)
        less = functools.partial(below, place)
        found, error = self._expectation(made, less, drawn)
        own = less(ordered).mean(0)
        apart = own + self._correction(made.main, less)[0] - found  # by further draws, which ``ordered`` lacks
        asked = (asked + apart).clamp(least, 1 - least)
        if bool((apart.abs() > _NEAR_ENOUGH * error).any()):
            place = self._place(made.main, ordered, asked)
        error = error if off is None else error.hypot(off)
        # the correction jumps at each row, where both ends may fall: the draws' own are further apart then
        spreads = []
        for centre, end in ((asked, functools.partial(self._place, made.main)), (own, at)):
            low, high = (end(ordered, (centre + sign * error).clamp(least, 1 - least)) for sign in (-1, 1))
            spreads.append((high - low).abs() / 2)
        return place, spreads[0].maximum(spreads[1])

    def _place(self, main: Surrogate, ordered: Tensor, asked: Tensor) -> Tensor:
        """Where the probability of less, as the rows correct it, is the one asked for.

        Of ``ordered`` draws it is known.  Only the correction is computed at each step, which takes few values.
        """
        p, low, high = asked, torch.zeros_like(asked), torch.ones_like(asked)
        for _ in range(_STEPS):
            correction, square = self._correction(main, functools.partial(below, at(ordered, p)))
            off = p + correction - asked
            near = off.abs() <= _NEAR_ENOUGH * square.sqrt()
            if bool(near.all()):
                break
            low, high = torch.where(off < 0, p, low), torch.where(off < 0, high, p)
            moved = torch.where((low < p - off) & (p - off < high), p - off, (low + high) / 2)
            p = torch.where(near, p, moved)
        return at(ordered, p)

    def _draws(self, made: Made, apart: bool = False) -> _Draws:
        """Draws of the surrogates; ``apart`` where a function takes values of several examples."""
        with torch.no_grad():
            count = self._count(made.main)
            others = [self._drawn(one, count // 2, apart) for one in made.others]
            return _Draws(self._drawn(made.main, count, apart), others, apart)

    def _expectation(self, made: Made, function: Function, drawn: _Draws) -> tuple[Tensor, Tensor]:
        """The mean of a function of the outputs, which has draws in front, and its error."""
        main, values, count = made.main, drawn.main, len(drawn.main)
        with torch.no_grad():
            every = function(values).double()
            value = every.mean(0)
            sets = [_by_sets(every)]
            share = main.share if value.shape == main.share.shape else main.share.max()
            jackknife = _least_variance(every, values, share) / len(main.rows)
            if drawn.others:
                beside = torch.stack([function(one).double().mean(0) for one in drawn.others])
                jackknife = jackknife.maximum(made.factor * (beside - beside.mean(0)).square().mean(0))
            correction, square = self._correction(main, function)
            value = value + correction
            reach = (every.amax(0) - every.amin(0)).clamp_min(1)  # an event that no draw meets may happen
            square = square + jackknife.maximum((share * reach / len(main.rows)).square())
            # more draws where their own error would count, as that of rare events does: of each number by itself
            drawn_mean, drawn_square = torch.zeros_like(value), torch.zeros_like(value)
            done = torch.zeros_like(value, dtype=torch.bool)
            while True:
                means, n = torch.cat(sets), _SETS * len(sets)
                own = means.var(0) * (n - 1) / (n - 3) / n + (reach / count / len(sets)).square()
                enough = (square / 4).maximum((_ENOUGH * means.mean(0)).square() + (reach / count).square())
                # draws of noise that is not normal are fixed: further sets take the same ones again
                same = torch.stack(sets).mean(0).var(0) * (_SETS - 1) / (_SETS - 3) / _SETS
                drawn_mean = torch.where(done, drawn_mean, means.mean(0))
                drawn_square = torch.where(done, drawn_square, own.maximum(same))
                done = done | (own <= enough)
                if len(sets) >= _PARTS or bool(done.all()):
                    break
                for _ in range(len(sets)):
                    more = self._drawn(main, count, drawn.apart, len(sets))
                    sets.append(_by_sets(function(more)))
            return value + drawn_mean - sets[0].mean(0), (square + drawn_square).sqrt()

    def _correction(self, main: Surrogate, function: Function) -> tuple[Tensor, Tensor]:
        """What the rows add to the surrogate's mean of a function, and the *variance* of that."""
        apart_by, chance = self._against(main, function)
        weight = torch.where(apart_by.square() > chance, 1 - chance / apart_by.square().clamp_min(1e-300), 0)
        return weight * apart_by, weight * chance + (1 - weight) * _AGREE * torch.minimum(chance, apart_by.square())

    def _against(self, main: Surrogate, function: Function) -> tuple[Tensor, Tensor]:
        """By how much the rows differ from the surrogate of their own smooth part, and chance as a *variance*."""
        seen = function(self._end(main.rows)).double()
        if main.at_rows is None:
            return torch.zeros_like(seen[0]), torch.zeros_like(seen[0])
        count = len(main.rest)  # every remainder is beside as many rows, so that they cancel where all rows are alike
        number = min(count, _BESIDE)
        shifts = [(one * count) // number for one in range(number)]
        expected = sum(function(self._end(main.at_rows + main.rest.roll(one, 0))).double() for one in shifts)
        difference = seen - expected / len(shifts)
        return difference.mean(0), difference.var(0) / count


def _least_variance(every: Tensor, values: Tensor, share: Tensor) -> Tensor:
    """The *variance* that a remainder gives to a function of the outputs, by its share of theirs.

    Of normal parts it is a series in the share, with the square of the function's slope as its first coefficient.  Few
    rows in a tail say less of it than that.
    """
    var = every.var(0)
    if every.shape != values.shape:
        return share.square() * var
    apart = values - values.mean(0)
    slope = (every * apart).mean(0).square() / apart.square().mean(0).clamp_min(1e-300)
    return share * slope + share.square() * (var - slope).clamp_min(0)


@functools.lru_cache(maxsize=32)
def _points(dimensions: int, count: int, part: int = 0) -> tuple[Tensor, Tensor]:
    """Sets of quasi-random points one after another: normal ones, each set turned otherwise, and two uniform numbers.

    Unturned Sobol points know sums of two values no better than random ones do.
    """
    normal, uniform = list[Tensor](), list[Tensor]()
    for one in range(_SETS):
        seed = part * _SETS + one
        drawn = sobol(dimensions + 2, count // _SETS, seed)
        normal.append(torch.special.ndtri(drawn[:, 2:]) @ rotation(dimensions, seed))
        # draws of what is not normal differ from set to set, so that sets tell the error of these too
        uniform.append(torch.stack([drawn[:, 0], (drawn[:, 1] + one) / _SETS], 1))
    return torch.cat(normal), torch.cat(uniform)


def _where_known(happened: Tensor, lost: Tensor, independent: bool) -> Tensor:
    """What happens in each draw; NaN where the network is NaN in it, ``lost``, shape ``(draws, b)``."""
    if not lost.any():
        return happened
    lost = lost if independent and happened.shape[:2] == lost.shape else lost.any(1)
    return torch.where(lost.reshape(*lost.shape, *(1,) * (happened.dim() - lost.dim())), torch.nan, happened)


def _by_sets(values: Tensor) -> Tensor:
    """Means over each set of draws."""
    return values.double().unflatten(0, (_SETS, -1)).mean(1)


def _refuse_beyond(drawn: Tensor, tail: float, asked: str) -> None:
    """Raise where hardly a draw is beyond a quantile."""
    least = 1 / len(drawn)
    if min(tail, 1 - tail) < least:
        raise InputError(
            f"{asked}: expected quantiles between {least:.2g} and {1 - least:.6g}, the range of {len(drawn)} draws. "
            "For rarer ones ask for the probability of an event, out.probability(lambda y: y > limit)"
        )
