"""What an index leaves of an output's predictive distribution, and answers of examples that share noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch
import torch.distributions as td
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.nests import leaves_of
from momentgen.runtime import JointMoments
from momentgen.runtime.predicted import Estimated, Interval

__all__ = ["Distribution", "Indexed", "each_by_itself", "of_each", "shares_noise"]

#: draws that tell whether an event is of one example
_DRAWS: Final = 64
#: draws of a moment that torch asks for
_OF_MOMENTS: Final = 2**12

Event = Callable[[Tensor], Tensor]


def of_each(event: Event, values: Tensor) -> Tensor:
    """Whether an event happens in each draw.

    Raises:
        InputError: for an event that returns no booleans.
    """
    try:
        found = torch.vmap(event)(values)
    except RuntimeError:  # it branches on values, or is wrong, which a single draw says better
        found = torch.stack([event(value) for value in values])
    if not isinstance(found, Tensor) or found.dtype is not torch.bool:
        got = found.dtype if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"probability: expected an event that returns booleans, as lambda y: y > 3, got {got}")
    return found


class Indexed:
    """The predictive distribution of what an index leaves of an output.

    Args:
        of: that of the output.
        place: the index.
    """

    def __init__(self, of: Any, place: Any = ...) -> None:
        self._of, self._place = of, place
        self.shape: torch.Size = torch.empty(of.shape, device="meta")[place].shape

    def quantile(self, probability: float, rtol: float | None) -> Estimated:
        """See :class:`~momentgen.runtime.predicted.Predictive`, here and below."""
        return Estimated(*(part[self._place] for part in self._of.quantile(probability, rtol)))

    def interval(self, level: float, shortest: bool, rtol: float | None) -> Interval:
        return Interval(*(part[self._place] for part in self._of.interval(level, shortest, rtol)))

    def probability(self, event: Event, rtol: float | None) -> Estimated:
        return self._of.probability(lambda y: event(y[self._place]), rtol)

    def skewness(self) -> Estimated:
        return Estimated(*(part[self._place] for part in self._of.skewness()))

    def sample(self, count: int, seed: int) -> Tensor:
        found = self._of.sample(count, seed)
        return found[(slice(None), *self._place)] if isinstance(self._place, tuple) else found[:, self._place]

    def torch_distribution(self) -> td.Distribution:
        return Distribution(self, self.shape, False)

    def at(self, place: Any) -> Indexed:
        return Indexed(self, place)


class _EachExample(Indexed):
    """The same of examples that share noise, each by itself: nothing is known of how draws of several go together."""

    def __init__(self, of: Any) -> None:
        super().__init__(of)
        #: what inputs contribute to the variance of each example, as the distribution itself knows it
        self.contributions = getattr(of, "contributions", None)

    def probability(self, event: Event, rtol: float | None) -> Estimated:
        """Of an event of each example.

        Raises:
            InputError: for one that depends on several.
        """
        draws = self._of.sample(_DRAWS, 0)
        happens = of_each(event, draws)
        for first in (0, 1):
            moved = draws.clone()
            moved[:, first::2] = draws.roll(1, 0)[:, first::2]
            kept = slice(1 - first, None, 2)
            if happens.shape[1:2] != draws.shape[1:2] or not torch.equal(
                of_each(event, moved)[:, kept], happens[:, kept]
            ):
                raise _refusal("probability", "out[0].probability(event)")
        return self._of.probability(event, rtol)

    def sample(self, count: int, seed: int) -> NoReturn:
        raise _refusal("sample", "out[0].sample(count)")

    def torch_distribution(self) -> NoReturn:
        raise _refusal("distribution", "out[0].distribution()")

    def at(self, place: Any) -> Any:
        """The same of some examples; of one that of the network."""
        first = place[0] if isinstance(place, tuple) else place
        return self._of.at(place) if isinstance(first, int) else _EachExample(self._of.at(place))


def _refusal(name: str, instead: str) -> InputError:
    return InputError(
        f"{name}: expected examples that are independent, got some that share noise. Ask one example, {instead}, or "
        "compute what joins them in the function, momentgen.propagate(lambda x: f(x).mean(0), x)"
    )


def each_by_itself(found: Any) -> Any:
    """Results of several examples that share noise; what joins their draws is refused."""
    for leaf in leaves_of(found):
        several = isinstance(leaf, JointMoments) and leaf.factor.dim() == 3 and len(leaf.mean) > 1
        if several and leaf._predictive is not None:
            leaf._predictive = _EachExample(leaf._predictive)
    return found


def shares_noise(value: JointMoments) -> bool:
    """Whether it is a result of several examples that share noise."""
    return isinstance(value._predictive, _EachExample)


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
