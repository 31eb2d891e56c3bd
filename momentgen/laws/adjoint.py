"""``Adjoint``: a ``Diagonal`` that keeps its outputs' derivatives apart by where the randomness came from.

Means are propagated as by AP2.  Sources of randomness are the input, the network's own noise and, on request, the
remainder of a nonlinear function beyond its linear part.  Each gets a shift of its mean.  The derivative of an output
by that shift, with all variances held fixed, is the effect of the source on the output.  For a pointwise function f
the linear part of f(X) is E f' (X - E X).  The remainder's variance, Var f(X) - (E f')² v, is never negative.

The covariance of outputs k and l is Σ_i a_ki R_i a_li over all sources, with a the derivatives and R the sources'
variances.  It has the correlations that a diagonal propagation loses, to first order in each layer.  Derivatives and
remainders are taken at the variances of hidden layers.  Probes (:mod:`momentgen.laws.probes`) correct their size.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from momentgen.errors import UnsupportedError
from momentgen.laws.diagonal import Diagonal
from momentgen.laws.expressions import settle
from momentgen.laws.law import Law, MomentsOf, new_law
from momentgen.laws.numerics.bounds import at_least
from momentgen.laws.numerics.forward import forward_derivative
from momentgen.laws.probes import Probes, probes_along, probes_of
from momentgen.laws.pytrees import register_pytree
from momentgen.laws.sources import SOURCES, constant, stopped
from momentgen.laws.table import Entry
from momentgen.laws.unsupported import unsupported
from momentgen.runtime import JointMoments, Moments

__all__ = ["Adjoint", "adjoint", "along", "foreign", "shifted_law", "with_own"]


@register_pytree
class Adjoint(Diagonal):
    """Mean and variance of each value; the variance is a constant to every derivative."""

    __slots__ = ()
    RANK = 3
    DIFFERENTIATED = True

    def _integrated(self, moments: MomentsOf) -> tuple[Tensor, Tensor]:
        mean, var, self._joint = _through(cast(Diagonal, self._of), moments)
        return mean, var

    def by_moments(self, function: MomentsOf) -> Adjoint:
        """A function of one value at a time, given by its mean and variance from those of the value."""
        mean, var, probes = _through(self, function)
        law = shifted_law(mean, var)
        law._joint = probes
        return law

    def _met(
        self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], mean: Tensor, var: Tensor, explained: Any
    ) -> Diagonal:
        sources = SOURCES.get()
        left = at_least(var - explained(constant), 0)
        law = shifted_law(sources.shifted(mean, left), var)
        random = list({id(law): law for law in args}.values())
        law._joint = with_own(probes_along(entry, args, kwargs, random), left)
        return law

    def _stop_gradients(self) -> None:
        if self._mean is None and cast(Any, self._history).later is settle:
            self._parts()
        if self._view is None and self._mean is not None:  # a view is taken anew; what is put off has no user's tensors
            self._mean, self._var = stopped(self._mean), self._var.detach()


def adjoint(x: Moments) -> Adjoint:
    """A random input of that mean and *variance*, and covariance if it has one; a batch of one."""
    sources = SOURCES.get()
    if isinstance(x, JointMoments):
        law = shifted_law(sources.combined(x.mean, x.factor[0]), x.var)
        law._joint = Probes(sources.moved_together(sources.constant(x.factor[0])).view(-1, *x.mean.shape))
        return law
    return shifted_law(sources.shifted(*x), x.var)


def shifted_law(mean: Tensor, var: Tensor) -> Adjoint:
    """A law of a mean that sources have shifted; its *variance* is a constant to every derivative."""
    law: Adjoint = new_law(Adjoint, mean, constant(var))
    law._noise = Adjoint
    return law


def _through(x: Diagonal, moments: MomentsOf) -> tuple[Tensor, Tensor, Probes]:
    """A function of ``x``: linear in it, along the function's expected slope, and the remainder."""
    with torch.enable_grad():
        given, spread = x._parts()
        given = constant(given)
        gain = forward_derivative(lambda at: moments(at, spread)[0], [given], [torch.ones_like(given)])
        mean, var = moments(given, spread)
        # a tangent without dimensions comes back in float64 where a Python number is in the way
        return along(x, mean, constant(var), gain.to(mean.dtype))


def along(x: Diagonal, mean: Tensor, var: Tensor, gain: Tensor) -> tuple[Tensor, Tensor, Probes]:
    """Mean, *variance* and probes of a function of ``x``, written as linear in it plus the remainder, a new source.

    So a derivative is one product for each output.
    """
    sources, (given, spread) = SOURCES.get(), x._parts()
    mean = constant(mean) + gain * (given - constant(given))
    left = at_least(var - gain.square() * spread, 0)
    known, mean = probes_of(x), sources.shifted(mean, left)
    return mean, var, Probes(gain * known.rows + sources.moved(constant(left)), known.independent)


def foreign(entry: Entry | None, law: Law) -> UnsupportedError:
    """The error for a value that is random but none of the run's sources, such as a random weight."""
    why = "its noise is not among the sources that adjoint knows, as that of a random weight is not"
    if entry is None:
        return UnsupportedError(f"an output is random, {type(law).__name__} of shape {tuple(law.shape)}: {why}")
    return unsupported(entry, law, why)


def with_own(rows: Any, left: Tensor) -> Probes | None:
    """Probes of a result, with what a new source of that *variance* adds; None where there are none."""
    rows = rows[0] if isinstance(rows, tuple) else rows
    return None if rows is None else Probes(rows + SOURCES.get().moved(constant(left)))
