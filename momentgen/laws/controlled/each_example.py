"""Answers of examples that share noise, each by itself: nothing is known of how draws of several go together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.controlled.predictive import of_each
from momentgen.laws.nests import leaves_of
from momentgen.runtime import JointMoments
from momentgen.runtime.predicted import Estimated, Interval, Predictive

__all__ = ["each_by_itself"]

#: draws that tell whether an event is of one example
_DRAWS = 64


class _EachExample:
    """The predictive distribution of examples that share noise, of which each has its own; see :class:`Predictive`."""

    def __init__(self, of: Predictive) -> None:
        self._of = of
        #: what inputs contribute to the variance of each example, as the distribution itself knows it
        self.contributions = getattr(of, "contributions", None)

    def quantile(self, probability: float, rtol: float | None) -> Estimated:
        return self._of.quantile(probability, rtol)

    def interval(self, level: float, shortest: bool, rtol: float | None) -> Interval:
        return self._of.interval(level, shortest, rtol)

    def skewness(self) -> Estimated:
        return self._of.skewness()

    def probability(self, event: Callable[[Tensor], Tensor], rtol: float | None) -> Estimated:
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

    def torch_distribution(self) -> torch.distributions.Distribution:
        raise _refusal("distribution", "out[0].distribution()")

    def at(self, place: Any) -> Predictive:
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
        if (
            isinstance(leaf, JointMoments)
            and leaf._predictive is not None
            and leaf.factor.dim() == 3
            and len(leaf.mean) > 1
        ):
            leaf._predictive = _EachExample(leaf._predictive)
    return found
