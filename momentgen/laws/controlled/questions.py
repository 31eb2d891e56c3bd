"""Questions about an output's distribution: events, examples that share noise, and what torch takes for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributions as td
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.nests import leaves_of
from momentgen.runtime import JointMoments

__all__ = ["TOLD", "Distribution", "Event", "each_by_itself", "of_each", "refusal", "refuse_what_joins", "shares_noise"]

#: draws that tell whether an event is of one example
TOLD: Final = 64
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


def refuse_what_joins(event: Event, draws: Tensor) -> None:
    """Raise for an event that depends on several examples, which share noise."""
    happens = of_each(event, draws)
    for first in (0, 1):
        moved = draws.clone()
        moved[:, first::2] = draws.roll(1, 0)[:, first::2]
        kept = slice(1 - first, None, 2)
        if happens.shape[1:2] != draws.shape[1:2] or not torch.equal(of_each(event, moved)[:, kept], happens[:, kept]):
            raise refusal("probability", "out[0].probability(event)")


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


def refusal(name: str, instead: str) -> InputError:
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
