"""The sources of randomness of a run of the method ``adjoint``: shifts of means, and signs of probes.

:class:`Sources` is what one run of a network on :class:`~momentgen.laws.adjoint.Adjoint` laws collects.  Each source
shifts the mean of what it enters.  The derivative of the outputs by the shift is its effect.  It also moves the probes
of :mod:`momentgen.laws.probes` by one standard deviation up or down.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from momentgen.laws.numerics.root import square_root

__all__ = ["OF_MANY", "SOURCES", "Sources", "constant", "probes_for", "stopped"]


class Sources:
    """The sources of randomness of one run, in the order in which it meets them.

    Attributes:
        variances: of each source, of the shape of the values that it shifts.
        lengths: how many values each source has.

    Args:
        shifts: a vector for each source; sources beyond the last, or of another length, are not shifted.
        dtype: of the shifts.
        probes: how many each law has.
    """

    def __init__(self, shifts: Sequence[Tensor], dtype: torch.dtype, probes: int) -> None:
        self._shifts, self.dtype, self._probes, self._met = shifts, dtype, probes, 0
        self._level = torch._C._functorch.maybe_current_level()
        self.variances: list[Tensor] = []
        self.lengths: list[int] = []

    def constant(self, value: Tensor) -> Tensor:
        """A constant to derivatives by the shifts, and to no other: gradients of what is found from them stay whole."""
        if self._level is None:
            return value
        return torch._C._functorch._unwrap_for_grad(value, self._level)

    def _next(self, length: int) -> Tensor | None:
        place = len(self.lengths)
        self.lengths.append(length)
        fits = place < len(self._shifts) and len(self._shifts[place]) == length
        return self._shifts[place] if fits else None

    def shifted(self, mean: Tensor, var: Tensor) -> Tensor:
        """``mean`` with the shift of a new source of that *variance*."""
        self.variances.append(self.constant(var))
        shift = self._next(mean.numel())
        return mean if shift is None else mean + shift.view(mean.shape)

    def combined(self, mean: Tensor, factor: Tensor) -> Tensor:
        """``mean`` with the shift of a new source of covariance ``factor.mT @ factor``, the factor of shape (r, n)."""
        self.variances.append(factor.new_ones(len(factor)))
        shift = self._next(len(factor))
        return mean if shift is None else mean + (shift @ factor).view(mean.shape)

    def moved(self, var: Tensor) -> Tensor:
        """Probes of a new source of independent values of that *variance*."""
        return square_root(var) * self._signs(var)

    def moved_together(self, factor: Tensor) -> Tensor:
        """Probes of a new source of covariance ``factor.mT @ factor``, shape ``(probes, n)``."""
        return self._signs(factor[:, 0]) @ factor

    def _signs(self, like: Tensor) -> Tensor:
        """Signs by which the next values move, the same for every example and call, shape ``(probes, *like.shape)``.

        They are columns of a Hadamard matrix in turn, each with a random sign.  So as many neighbouring values as there
        are probes are uncorrelated among the probes.
        """
        start, self._met = self._met, self._met + like.numel()
        drawn = _signs(self._probes, start, like.numel())
        return torch.from_numpy(drawn).to(dtype=like.dtype, device=like.device).view(self._probes, *like.shape)


#: the sources of the run that is under way in this thread and task
SOURCES: ContextVar[Sources] = ContextVar("momentgen_sources")


def constant(value: Tensor) -> Tensor:
    """A constant to derivatives by the shifts of the run that is under way."""
    return SOURCES.get().constant(value)


def stopped(value: Tensor) -> Tensor:
    """A constant to all derivatives but those by the shifts, as ``detach`` makes it for a user's gradients."""
    still = constant(value)
    return still.detach() + (value - still)


# ----------------------------------------------------------------------- signs

#: probes of a network of many inputs: they tell a factor for each layer, without which σ was 5 % short
OF_MANY: Final = 4
#: probes of a network of few inputs, where chance averages out less and rows cost next to nothing; exact up to so many
_OF_FEW: Final = 16
#: inputs up to which there are few
_FEW: Final = 64


def probes_for(inputs: int) -> int:
    """How many probes a network has, of which an example has so many inputs."""
    return _OF_FEW if inputs <= _FEW else OF_MANY


@functools.lru_cache(maxsize=256)
def _signs(probes: int, start: int, count: int) -> Any:
    hadamard = np.array([[1]], dtype=np.int8)
    while len(hadamard) < probes:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    turned = np.random.default_rng(start).integers(0, 2, count, dtype=np.int8) * 2 - 1
    return np.ascontiguousarray(hadamard[:, (start + np.arange(count)) % probes] * turned)
