"""The methods: for each, how inputs and random parameters enter a network, and what its result says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.diagonal import Diagonal, diagonal
from momentgen.laws.draws import Draws
from momentgen.laws.law import Law
from momentgen.laws.local import local
from momentgen.laws.notes import note
from momentgen.laws.point import point
from momentgen.laws.values import draw
from momentgen.laws.weights import checked, drawn_weight, independent_weight
from momentgen.runtime import JointMoments, Moments

__all__ = ["ALL", "Propagation"]

#: what stands for a random parameter: of its mean, and functions for *variance*, covariances of neighbours, one draw
WeightOf = Callable[[Tensor, Callable[[], Tensor], Callable[[], Tensor | None], Callable[[], Tensor]], Any]


@dataclass(frozen=True)
class Propagation:
    """One method.

    Args:
        name: what users call it.
        lift: what stands for a random input while the network runs.
        certain: what stands for a certain one; None if it stays the tensor that it is.
        weight: what stands for a random parameter.
        draws: what becomes of draws of the network that meet no law; None to leave them as they are.
        is_distribution: whether an output is a distribution, and not one draw or a mean.
        states_error: whether it has standard errors, and takes ``rtol`` and its like.
        compiles: whether ``torch.compile(fullgraph=True)`` and ``torch.export`` take it.
    """

    name: str
    lift: Callable[[Moments], Any]
    certain: Callable[[Tensor], Any] | None
    weight: WeightOf
    draws: Draws | None = None
    is_distribution: bool = False
    states_error: bool = False
    compiles: bool = True

    @property
    def noise(self) -> type[Law] | None:
        """What noise of the network's own makes of certain values; None for its mean."""
        return Diagonal if self.is_distribution else None

    @property
    def of_mean(self) -> bool:
        """Whether random values are taken at their means."""
        return not (self.is_drawn or self.is_distribution)

    @property
    def is_drawn(self) -> bool:
        """Whether the network runs on tensors."""
        return self.certain is None


def _independent(value: Moments) -> Law:
    noise = value.noise
    if noise is not None and not (noise.is_normal and noise.is_known):
        alone = "" if noise.is_known else ", its values for independent"
        note(f"ap2: noise of the distribution {noise} is taken for normal{alone}; controlled and sample draw from it")
    if isinstance(value, JointMoments):
        note("ap2: the values of an input are correlated, and taken as independent; controlled knows better")
    return diagonal(value.mean, value.var)


def _local(
    mean: Tensor, var: Callable[[], Tensor], neighbour: Callable[[], Tensor | None], sample: Callable[[], Tensor]
) -> Law:
    own = var()
    return local(mean, own, checked(mean, own, neighbour()), sample)


def _elsewhere(*_: Any) -> Any:
    raise InputError(
        "random_weight: no network propagates by 'controlled' here; call the network itself, with moments or tensors"
    )


#: each method by its name
ALL: Final[dict[str, Propagation]] = {
    one.name: one
    for one in (
        Propagation("ap1", lambda value: point(value.mean), point, lambda mean, *_: mean, Draws(None)),
        Propagation(
            "ap2",
            _independent,
            lambda value: point(value, Diagonal),
            lambda mean, var, neighbour, _: independent_weight(mean, var(), neighbour()),
            Draws(Diagonal),
            is_distribution=True,
        ),
        Propagation(
            "sample", draw, None, lambda mean, var, neighbour, sample: drawn_weight(mean, sample, var, neighbour)
        ),
        Propagation("local", draw, None, _local),
        Propagation("controlled", draw, None, _elsewhere, is_distribution=True, states_error=True, compiles=False),
    )
}
