"""The predictive distribution of an output: quantiles, probabilities and draws by a surrogate, with their errors."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributions as td
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.controlled.expectations import HELD, LEAST, SETS, Expectations, Function, Made, lower_tail
from momentgen.laws.controlled.surrogates import Surrogate
from momentgen.laws.nests import leaves_of
from momentgen.laws.notes import note_and_warn
from momentgen.runtime import JointMoments
from momentgen.runtime.predicted import Estimated, Interval

#: rows that an accuracy asked for may take
_ROWS: Final = 2**15
#: draws that tell whether an event is of one example
_TOLD: Final = 64
#: how far beyond the rows, as a part of one, a quantile may be
_FAR: Final = 0.1
#: draws of a moment that torch asks for
_OF_MOMENTS: Final = 2**12

Event = Callable[[Tensor], Tensor]


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

    @functools.cached_property
    def _by(self) -> Expectations:
        return Expectations(self._end, self._independent)

    # ------------------------------------------------------------- questions

    def quantile(self, probability: float, rtol: float | None) -> Estimated:
        """See :meth:`momentgen.JointMoments.quantile`."""

        def question(made: Made) -> tuple[Tensor, ...]:
            drawn = self._by.draws(made)
            _refuse_beyond(drawn.main, probability, f"quantile({probability:g})", made.main if rtol is None else None)
            return self._by.quantile(made, probability, drawn, drawn.main.sort(0).values)

        return self._until(rtol, lambda: Estimated(*self._each(question)), self._std)

    def interval(self, level: float, shortest: bool, rtol: float | None) -> Interval:
        """See :meth:`momentgen.JointMoments.interval`."""

        def ends(made: Made) -> tuple[Tensor, ...]:
            lower: Tensor | float = (1 - level) / 2
            drawn, off = self._by.draws(made), torch.zeros(())
            _refuse_beyond(drawn.main, (1 - level) / 2, f"interval({level:g})", made.main if rtol is None else None)
            if shortest:
                lower, off = lower_tail(drawn.main.chunk(SETS), drawn.main, drawn.others, level, made.factor)
            ordered = drawn.main.sort(0).values
            found = [self._by.quantile(made, tail, drawn, ordered, off) for tail in (lower, lower + level)]
            return found[0][0], found[1][0], found[0][1], found[1][1]

        return self._until(rtol, lambda: Interval(*self._each(ends)), self._std)

    def probability(self, event: Event, rtol: float | None) -> Estimated:
        """See :meth:`momentgen.JointMoments.probability`.

        Raises:
            InputError: for an event that depends on several examples, which share noise.
        """
        if self.joined:
            _refuse_what_joins(event, self._sampled(_TOLD, 0))

        def happens(values: Tensor) -> Tensor:
            outputs = values.reshape(len(values), *self._size).to(self._dtype)
            happened = _of_each(lambda y: event(self._asked(y)), outputs).double()
            asked, found = self._asked(outputs[0]).shape, happened.shape[1:]
            whole = self._independent and asked[:1] == (self._batch,) and self._batch > 1
            if whole and found[:1] not in ((), (self._batch,)):
                raise InputError(
                    f"probability: expected an event of each of {self._batch} examples, or one of all, got shape "
                    f"{tuple(found)}. An output of an example is y[..., 1], where y[1] is the second example"
                )
            return _where_known(happened, values.isnan().any(-1), self._independent)

        def found() -> Estimated:
            made = self._make(slice(0, self._batch))
            return Estimated(*self._by.expectation(made, happens, self._by.draws(made, self._independent)))

        return self._until(rtol, found, None)

    def skewness(self) -> Estimated:
        """See :meth:`momentgen.JointMoments.skewness`."""

        def third(made: Made) -> tuple[Tensor, ...]:
            drawn = self._by.draws(made)
            mean, std = drawn.main.mean(0), drawn.main.std(0)
            return self._by.expectation(made, lambda y: ((y - mean) / std).pow(3), drawn)

        return Estimated(*self._each(third))

    def sample(self, count: int, seed: int) -> Tensor:
        """See :meth:`momentgen.JointMoments.sample`."""
        if self.joined:
            raise _refusal("sample", "out[0].sample(count)")
        return self._sampled(count, seed)

    def _sampled(self, count: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        most, found = max(HELD // max(self._batch * self._values, 1), LEAST), []
        main = self._make(slice(0, self._batch)).main
        for first in range(0, count, most):
            drawn = max(min(count - first, most), LEAST)  # so many that examples have draws of their own
            points = torch.randn(drawn, main.dimensions, generator=generator, dtype=torch.float64)
            values = main.draws(points, torch.rand(drawn, 2, generator=generator, dtype=torch.float64))
            found.append(self._by.apart(self._end(values), generator)[: count - first])
        return self._asked(torch.cat(found).reshape(count, *self._size), 1).to(self._dtype)

    def torch_distribution(self) -> td.Distribution:
        """See :meth:`momentgen.JointMoments.distribution`."""
        if self.joined:
            raise _refusal("distribution", "out[0].distribution()")
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
        return self._each(lambda made: (self._by.drawn(made.main, self._by.count(made.main)).std(0),))

    def _each(self, question: Callable[[Made], tuple[Tensor, ...]]) -> Any:
        """Answers of some examples at a time, together; of the shape of the output."""
        size = max(HELD // max(LEAST * self._values, 1), 1)
        with torch.no_grad():
            parts = [
                question(self._make(slice(first, min(first + size, self._batch))))
                for first in range(0, self._batch, size)
            ]
        found = [self._asked(torch.cat(part).reshape(self._size)).to(self._dtype) for part in zip(*parts, strict=True)]
        return found[0] if len(found) == 1 else found


def _where_known(happened: Tensor, lost: Tensor, independent: bool) -> Tensor:
    """What happens in each draw; NaN where the network is NaN in it, ``lost``, shape ``(draws, b)``."""
    if not lost.any():
        return happened
    lost = lost if independent and happened.shape[:2] == lost.shape else lost.any(1)
    return torch.where(lost.reshape(*lost.shape, *(1,) * (happened.dim() - lost.dim())), torch.nan, happened)


def _refuse_beyond(drawn: Tensor, tail: float, asked: str, main: Surrogate | None) -> None:
    """Raise where hardly a draw is beyond a quantile, or hardly a row of a ``main`` that is mostly remainders."""
    least = 1 / len(drawn)
    if main is not None and float((main.share > 0.5).double().mean()) > 0.5 and main.at_rows is not None:
        least = _FAR / len(main.rest)
        if min(tail, 1 - tail) < least:
            raise InputError(
                f"{asked}: expected quantiles between {least:.2g} and {1 - least:.6g}, for {len(main.rest)} rows of a "
                "function that is mostly not linear. With rtol=0.05 the network runs until they tell this one, too"
            )
    if min(tail, 1 - tail) < least:
        raise InputError(
            f"{asked}: expected quantiles between {least:.2g} and {1 - least:.6g}, the range of {len(drawn)} draws. "
            "Draws tell no rarer ones. Where the output may be taken for normal, torch.distributions.Normal(out.mean, "
            "out.std).icdf has them"
        )


def _of_each(event: Event, values: Tensor) -> Tensor:
    """Whether an event happens in each draw.

    Raises:
        InputError: for an event that returns no booleans.
    """
    try:
        found = torch.vmap(event)(values)
    except RuntimeError:  # it branches on values, or is wrong, which a single draw says better
        each = [event(value) for value in values]
        found = torch.stack(each) if all(isinstance(one, Tensor) for one in each) else each[0]
    if not isinstance(found, Tensor) or found.dtype is not torch.bool:
        got = found.dtype if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"probability: expected an event that returns booleans of torch, as lambda y: y > 3, got {got}"
        )
    return found


def _refuse_what_joins(event: Event, draws: Tensor) -> None:
    """Raise for an event that depends on several examples, which share noise."""
    happens = _of_each(event, draws)
    for first in (0, 1):
        moved = draws.clone()
        moved[:, first::2] = draws.roll(1, 0)[:, first::2]
        kept = slice(1 - first, None, 2)
        if happens.shape[1:2] != draws.shape[1:2] or not torch.equal(_of_each(event, moved)[:, kept], happens[:, kept]):
            raise _refusal("probability", "out[0].probability(event)")


def each_by_itself(found: Any) -> Any:
    """Results of several examples that share noise; what joins their draws is refused."""
    for leaf in leaves_of(found):
        several = isinstance(leaf, JointMoments) and leaf.factor.dim() == 3 and len(leaf.mean) > 1
        if several and leaf._predictive is not None:
            leaf._predictive.joined = True
    return found


def shares_noise(value: JointMoments) -> bool:
    """Whether it is a result of several examples that share noise."""
    return bool(getattr(value._predictive, "joined", False))


def _refusal(name: str, instead: str) -> InputError:
    """The error of a question that joins examples which share noise."""
    return InputError(
        f"{name}: expected examples that are independent, got some that share noise. Ask one example, {instead}, or "
        "compute what joins them in the function, momentgen.propagate(lambda x: f(x).mean(0), x)"
    )


class Distribution(td.Distribution):
    """An output's predictive distribution for torch.

    Args:
        of: the predictive distribution.
        shape: of the output.
        independent: whether dimension 0 counts independent examples.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 - torch's own name

    def __init__(self, of: Any, shape: torch.Size, independent: bool) -> None:
        self._of = of
        batch, event = (shape[:1], shape[1:]) if independent else (torch.Size(), shape)
        super().__init__(batch, event, validate_args=False)
        self._seed = 0

    @property
    def mean(self) -> Tensor:
        return self._of.sample(_OF_MOMENTS, 0).mean(0)

    @property
    def variance(self) -> Tensor:
        return self._of.sample(_OF_MOMENTS, 0).var(0)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = torch.Size(sample_shape)
        self._seed += 1  # further calls have further draws
        found = self._of.sample(max(shape.numel(), 1), self._seed)
        return found.reshape(*shape, *self._batch_shape, *self._event_shape)

    def cdf(self, value: Tensor) -> Tensor:
        return self._of.probability(lambda y: y <= value, None).value.to(value.dtype)

    def icdf(self, value: Tensor) -> Tensor:
        if value.numel() != 1:
            raise InputError(f"icdf: expected one probability, got {value.numel()}")
        return self._of.quantile(float(value), None).value

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(
            "the predictive distribution has draws and no density; use torch.distributions.LowRankMultivariateNormal "
            "or MultivariateNormal(out.mean, out.covariance) for a normal one"
        )
