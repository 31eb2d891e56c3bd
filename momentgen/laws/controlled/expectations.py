"""Expectations and quantiles over draws of surrogates, checked by the rows.

Their standard error has four parts: a jackknife over groups of rows, the error of the draws themselves, unseen events,
and misfit.  To find misfit, each row is compared with the surrogate of its own linear part.  A difference beyond chance
corrects the number.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from momentgen.laws.controlled.surrogates import Surrogate
from momentgen.laws.numerics.quadrature import rotation, sobol

#: values that are held at once, and how many draws an output has at least and at most
HELD, LEAST, _MOST = 2**24, 1024, 2**15
#: sets of quasi-random draws, whose difference is the draws' own error
SETS: Final = 8
#: error of the draws that is small, as a part of the number
_ENOUGH: Final = 0.02
#: rows beyond a quantile that tell where it is
_OUT: Final = 3
#: parts of further draws, at most
_PARTS: Final = 32
#: remainders that a row is compared with
_BESIDE: Final = 32
#: steps to the quantile that the rows agree with, at most, and the part of its error at which they end
_STEPS, _NEAR_ENOUGH = 10, 0.1
#: part of a tail that is looked at for the error of its quantile, at least
_TAIL: Final = 0.25
#: of an event that no row has met, half its highest probability at a confidence of 95 %, times the rows
_UNMET: Final = 1.5
#: decades by which draws are made wider, the part of σ by which rows are moved, and how far an event's step moves
_WIDE, _BIT, _STEP = 3, 1e-6, 0.25
#: part of chance that counts as an error where rows and surrogate agree
_AGREE: Final = 0.5
#: lower tails that are tried for the shortest interval, and those on each side that tell where it is
_TAILS, _NEAR = 35, 4

Function = Callable[[Tensor], Tensor]


class Made(NamedTuple):
    """A surrogate of some examples, others as likely, by how much their spread is multiplied, and whether of kinks."""

    main: Surrogate
    others: list[Surrogate]
    factor: float
    kinked: bool = False


class Draws(NamedTuple):
    """Draws of the main surrogate and of the others, and whether examples have draws in an order of their own."""

    main: Tensor
    others: list[Tensor]
    apart: bool


class Expectations:
    """Expectations over draws of the surrogates of an output.

    Args:
        end: what is applied to the surrogates' values, as a softmax.
        independent: whether examples are.
    """

    def __init__(self, end: Function, independent: bool) -> None:
        self._end, self._independent = end, independent

    def count(self, surrogate: Surrogate) -> int:
        """How many draws; a power of 2."""
        most = HELD // 4 // max(surrogate.rest[0].numel(), 1)
        return int(2 ** math.floor(math.log2(min(max(most, LEAST), _MOST))))

    def drawn(self, surrogate: Surrogate, count: int, apart: bool = False, part: int = 0) -> Tensor:
        """Draws of the surrogate at fixed points, shape ``(count, b, K)``: ``SETS`` of quasi-random ones in turn."""
        values = self._end(surrogate.draws(*_points(surrogate.dimensions, count, part)))
        return self.apart(values, torch.Generator().manual_seed(count + part)) if apart else values

    def apart(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Draws in another order for each example, so that examples are independent."""
        if not self._independent or values.shape[1] < 2:
            return values
        order = torch.rand(values.shape[:2], generator=generator).argsort(0)
        return values.gather(0, order[:, :, None].expand_as(values))

    def quantile(
        self, made: Made, probability: float | Tensor, drawn: Draws, ordered: Tensor, off: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Quantiles, shape ``(b, K)``, and their errors; ``off`` is that of the probability."""
        asked = wanted = torch.as_tensor(probability, dtype=torch.float64).expand(ordered.shape[1:])
        least = _TAIL * asked.minimum(1 - asked)  # an error of a tail's own size has no end
        place = self._place(made.main, ordered, asked)
        less = functools.partial(below, place)
        found, error = self.expectation(made, less, drawn)
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
        # hardly a row is further out than these levels: what the remainder does there is not known
        level = _OUT / len(made.main.rest)
        within = wanted.clamp(level, max(1 - level, level))
        beyond = made.main.share * (place - at(ordered, within)).abs()
        return place, spreads[0].maximum(spreads[1]).hypot(beyond)

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

    def draws(self, made: Made, apart: bool = False) -> Draws:
        """Draws of the surrogates; ``apart`` where a function takes values of several examples."""
        with torch.no_grad():
            count = self.count(made.main)
            others = [self.drawn(one, count // 2, apart) for one in made.others]
            return Draws(self.drawn(made.main, count, apart), others, apart)

    def expectation(self, made: Made, function: Function, drawn: Draws) -> tuple[Tensor, Tensor]:
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
            share = share.maximum(_UNMET * self._unmet(made, function, values))
            square = square + jackknife.maximum((share * reach / len(main.rows)).square())
            # more draws where their own error would count, as that of rare events does: of each number by itself
            drawn_mean, drawn_square = torch.zeros_like(value), torch.zeros_like(value)
            done = torch.zeros_like(value, dtype=torch.bool)
            while True:
                means, n = torch.cat(sets), SETS * len(sets)
                own = means.var(0) * (n - 1) / (n - 3) / n + (reach / count / len(sets)).square()
                enough = (square / 4).maximum((_ENOUGH * means.mean(0)).square() + (reach / count).square())
                # draws of noise that is not normal are fixed: further sets take the same ones again
                same = torch.stack(sets).mean(0).var(0) * (SETS - 1) / (SETS - 3) / SETS
                drawn_mean = torch.where(done, drawn_mean, means.mean(0))
                drawn_square = torch.where(done, drawn_square, own.maximum(same))
                done = done | (own <= enough)
                if len(sets) >= _PARTS or bool(done.all()):
                    break
                for _ in range(len(sets)):
                    more = self.drawn(main, count, drawn.apart, len(sets))
                    sets.append(_by_sets(function(more)))
            return value + drawn_mean - sets[0].mean(0), (square + drawn_square).sqrt()

    def _unmet(self, made: Made, function: Function, values: Tensor) -> Tensor:
        """1 for events of exact values, which draws miss however wide, or rows moved a bit; for unmet ones at kinks."""
        main = made.main
        if main.at_rows is None:
            return torch.zeros(())
        some, rows = values[:: len(values) // LEAST], self._end(main.rows)
        times = torch.logspace(0, _WIDE, len(some), dtype=values.dtype)[:, None, None]
        wide, seen = function(values.mean(0) + (some - values.mean(0)) * times), function(rows).double()
        moved = [function(rows + bit).double() - seen for bit in (-_BIT * rows.std(0), _BIT * rows.std(0))]
        exact = (wide == wide[:1]).all(0) | (torch.cat(moved).abs() > _STEP).any(0)
        return (exact | ((seen == seen[:1]).all(0) & made.kinked)).double()

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
        beside = (main.formed(main.at_rows + main.rest.roll(one, 0)) for one in shifts)
        expected = sum(function(self._end(values)).double() for values in beside)
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
    for one in range(SETS):
        seed = part * SETS + one
        drawn = sobol(dimensions + 2, count // SETS, seed)
        normal.append(torch.special.ndtri(drawn[:, 2:]) @ rotation(dimensions, seed))
        # draws of what is not normal differ from set to set, so that sets tell the error of these too
        uniform.append(torch.stack([drawn[:, 0], (drawn[:, 1] + one) / SETS], 1))
    return torch.cat(normal), torch.cat(uniform)


def _by_sets(values: Tensor) -> Tensor:
    """Means over each set of draws."""
    return values.double().unflatten(0, (SETS, -1)).mean(1)


def below(place: Tensor, values: Tensor) -> Tensor:
    """1 for each value below a place, 0 above, half at it: where draws agree, what lies on either side counts."""
    return ((values < place).double() + (values <= place)) / 2


def at(ordered: Tensor, probability: Tensor) -> Tensor:
    """Quantiles of ordered draws, between which they are interpolated."""
    place = (probability.expand(ordered.shape[1:]) * len(ordered) - 0.5).nan_to_num().clamp(0, len(ordered) - 1)
    first = place.long()
    lower = ordered.gather(0, first[None])[0]
    upper = ordered.gather(0, (first + 1).clamp_max(len(ordered) - 1)[None])[0]
    return lower + (place - first) * (upper - lower)


def lower_tail(
    sets: Sequence[Tensor], drawn: Tensor, others: list[Tensor], level: float, factor: float
) -> tuple[Tensor, Tensor]:
    """The probability below the shortest interval of each output, and its error; widths are a parabola nearby."""
    near = torch.arange(-_NEAR, _NEAR + 1, dtype=torch.float64)[:, None, None]
    square = near.square() - near.square().mean()

    def smooth(part: Tensor) -> Tensor:  # tails are denser near the ends, where widths are steep
        return (1 - level) * part.square() * (3 - 2 * part)

    def found(values: Tensor) -> Tensor:
        ordered, tails = values.sort(0).values, smooth(torch.linspace(0, 1, _TAILS, dtype=torch.float64))
        every = torch.stack([at(ordered, tail + level) - at(ordered, tail) for tail in tails])
        middle = every.argmin(0).clamp(_NEAR, _TAILS - 1 - _NEAR)
        some = every.gather(0, middle + near.long())
        bend, slope = (some * square).sum(0) / square.square().sum(), (some * near).sum(0) / near.square().sum()
        lowest = torch.where(bend > 0, -slope / (2 * bend), 0).clamp(-_NEAR, _NEAR)
        return smooth((middle + lowest) / (_TAILS - 1))

    own = torch.stack([found(part) for part in sets]).var(0) / len(sets)
    apart = torch.stack([found(one) for one in others]).var(0, correction=0) if others else own
    return found(drawn), (own + factor * apart).sqrt()
