"""Random parameters in propagations that know what values have in common: which uses share one noise.

A weight may be used once in a run, on one vector as input.  Then its noise is noise of the outputs.  It is
independent, except for neighbours in flattened order that belong to two outputs.  Such noise is added to the outputs,
as one source of as many values.  Everywhere else (convolutions, rows of a sequence, tied weights,
recurrence) one noise meets many values, and the weight itself is a source.

A law :class:`Lifted` stands for the parameter, knows how often it is used, and lets its keeper do the one or the other.
The keepers are in :mod:`~momentgen.laws.parameters_adjoint` and :mod:`~momentgen.laws.parameters_covariance`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws import affine
from momentgen.laws.arguments import all_replaced
from momentgen.laws.coefficients import is_linear_map
from momentgen.laws.diagonal import Diagonal
from momentgen.laws.dispatch import dispatch
from momentgen.laws.law import Law, laws_in, new_law, rule
from momentgen.laws.numerics.bounds import at_least
from momentgen.laws.numerics.root import square_root
from momentgen.laws.table import Entry, names
from momentgen.laws.unsupported import unsupported

__all__ = [
    "LIFT",
    "LOST",
    "ONE_BY_ONE",
    "Keeper",
    "Lift",
    "Lifted",
    "Pairs",
    "Plan",
    "is_one_row",
    "lifted",
    "shared_by_neighbours",
    "spread",
]


#: what a propagation makes of a random parameter: mean, *variance*, and covariances of neighbours, of the parameter's
#: shape, or None
Lift = Callable[[Tensor, Tensor, Tensor | None], Any]

#: of the propagation that is under way in this thread and task; it outranks the method's name
LIFT: ContextVar[Lift | None] = ContextVar("momentgen_lift", default=None)


#: why a function of a parameter with covariances of neighbours has no rule
LOST = (
    "the covariance of its neighbouring elements would be lost; linear maps and convolutions have rules for it, for "
    "other uses give this parameter a mean-field posterior, or use the method sample or local"
)

#: functions that read one row or one value of a parameter at a time
ONE_BY_ONE = names("embedding batch_norm layer_norm rms_norm group_norm instance_norm add sub rsub mul div rdiv neg")


class Pairs:
    """A normal vector with covariances between neighbours, as independent noise: each value's own, and each pair's.

    Attributes:
        own: *variance* of each value's own noise, shape ``(K,)``.
        first: what a pair's noise, of variance 1, adds to the first of the two; shape ``(K - 1,)``.
        second: likewise, to the second.
    """

    def __init__(self, own: Tensor, first: Tensor, second: Tensor) -> None:
        self.own, self.first, self.second = own, first, second


def shared_by_neighbours(var: Tensor, neighbour: Tensor) -> Pairs:
    """Independent noise of which a vector with that *variance* and covariances of neighbours is made.

    With correlations r_k the pair's noise has coefficients √|r_k| σ_k and ±√|r_k| σ_{k+1}.  Each value's own variance
    is σ_k² (1 - |r_k| - |r_{k-1}|).  Unlike a Cholesky factor, this needs no recursion.

    Args:
        var: any shape, K values.
        neighbour: covariance of each with the next, of that shape; the last one is not looked at.

    Raises:
        InputError: if the correlations of one value with its two neighbours add up to more than 1.
    """
    var, covariance = var.reshape(-1), neighbour.reshape(-1)[:-1]
    std = square_root(var)
    before, after = std[:-1], std[1:]
    usable = (before > 0) & (after > 0)
    ratio = torch.where(usable, before, 1) / torch.where(usable, after, 1)
    size = torch.where(usable, covariance.abs(), 0)
    first, second = square_root(size * ratio), torch.sign(covariance) * square_root(size / ratio)
    own = var - F.pad(first.square(), (0, 1)) - F.pad(second.square(), (1, 0))
    if bool((own < -1e-5 * var).any()) or bool((torch.where(usable, 0, covariance) != 0).any()):
        raise InputError(
            "a random parameter: the correlations of an element with its two neighbours must not add up to more than 1"
        )
    return Pairs(at_least(own, 0), first, second)


def spread(pairs: Pairs, noise: Tensor) -> Tensor:
    """What the noise of pairs, shape ``(..., K - 1)``, adds to the K values."""
    return F.pad(pairs.first * noise, (0, 1)) + F.pad(pairs.second * noise, (1, 0))


class Plan:
    """How often each parameter is used in a run, of which a first run tells later ones.

    Attributes:
        uses: number of a parameter in the order in which they are met -> how often it is used.
    """

    def __init__(self) -> None:
        self.uses: dict[int, int] = {}
        self._run: object = None
        self._met = 0

    def next(self, run: object) -> int:
        """The number of the next parameter in this run."""
        if run is not self._run:
            self._run, self._met = run, 0
        self._met += 1
        return self._met - 1


class Keeper(Protocol):
    """Computes with random parameters in one run.

    Attributes:
        keeps_pairs: whether every function of a materialised parameter knows the covariances of neighbours.
    """

    keeps_pairs: bool

    def materialised(self, parameter: Lifted) -> Law:
        """The parameter as a law of the propagation, one source."""

    def linear_map(self, entry: Entry, x: Any, weight: Lifted, options: dict[str, Any]) -> Any:
        """A linear map or convolution without bias.

        Args:
            entry: of the function.
            x: a law of the propagation, or certain.
            weight: of the map.
            options: of the convolution.
        """

    def plus(self, y: Any, bias: Lifted, shape: list[int]) -> Any:
        """The sum with a bias viewed as that shape."""


class _State:
    """What a :class:`Lifted` law knows besides mean and variance."""

    def __init__(self, neighbour: Tensor | None, keeper: Keeper, plan: Plan, number: int) -> None:
        self.neighbour, self.keeper, self.plan, self.number = neighbour, keeper, plan, number
        self.uses = 0
        self.law: Law | None = None
        #: whether its noise has been taken as that of outputs, of none else
        self.is_outputs = False

    def used(self) -> None:
        self.uses += 1
        self.plan.uses[self.number] = max(self.uses, self.plan.uses.get(self.number, 0))

    @property
    def reused(self) -> bool:
        """Whether what the parameter meets may depend on it."""
        return self.plan.uses.get(self.number, 0) > 1

    @property
    def alone(self) -> bool:
        """Whether this is the only use in the run."""
        return self.uses == 1 and not self.reused


class Lifted(Law):
    """A random parameter while a propagation that knows what values have in common is under way."""

    __slots__ = ()
    RANK = 9
    BY_PARTS = False

    _joint: _State

    @property
    def neighbour(self) -> Tensor | None:
        """Covariance of each element with the next one in flattened order, of the law's shape."""
        return self._joint.neighbour

    def law(self) -> Law:
        """The parameter as one source, the same at every use."""
        state = self._joint
        if state.law is None:
            state.law = state.keeper.materialised(self)
        if state.law._version:  # by a view of it
            self._assign(state.law)
        return state.law

    def _assign(self, new: Any) -> None:
        raise unsupported(Tensor.copy_, self, "a random parameter cannot be written to while the network runs")

    def _written_into(self, target: Law) -> None:
        target._assign(self.law())


def lifted(mean: Tensor, var: Tensor, neighbour: Tensor | None, keeper: Keeper, plan: Plan, number: int) -> Lifted:
    """A random parameter of a run; see :class:`Lifted`."""
    law: Lifted = new_law(Lifted, mean, var)
    law._joint = _State(neighbour, keeper, plan, number)
    return law


def is_one_row(entry: Entry, x: Any) -> bool:
    """Whether a linear map is applied to one vector, so that every weight meets one value."""
    return entry.name == "linear" and x.shape.numel() == x.shape[-1]


@rule(Lifted, "*")
def _rule(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if is_linear_map(entry.name) and not isinstance(args[0], Lifted):
        bound = affine.bind(entry.name, args[1:], kwargs)
        weight, bias = bound.pop("weight"), bound.pop("bias", None)
        if isinstance(weight, Lifted | Tensor) and (bias is None or isinstance(bias, Lifted | Tensor)):
            return _linear_map(entry, args[0], weight, bias, bound)
    if entry.kind == "query":
        return entry.call(*[value._mean if isinstance(value, Lifted) else value for value in args], **kwargs)
    if entry.kind == "composite":  # written over other functions: each is met by itself
        return Diagonal.RULES[entry.name](entry, args, kwargs)
    if entry.name not in ONE_BY_ONE:
        for law in laws_in((*args, *kwargs.values())):
            if isinstance(law, Lifted) and law.neighbour is not None and not law._joint.keeper.keeps_pairs:
                raise unsupported(entry, law, LOST)
    return dispatch(entry, entry.call, *all_replaced(args, kwargs, _used))


def _used(law: Law) -> Law:
    if not isinstance(law, Lifted):
        return law
    law._joint.used()
    return law.law()


def _linear_map(entry: Entry, x: Any, weight: Any, bias: Any, options: dict[str, Any]) -> Any:
    shape = [-1] if entry.name == "linear" else [-1] + [1] * int(entry.name[-2])
    if isinstance(weight, Lifted):
        weight._joint.used()
        affine.check(entry.name, x, {"weight": weight, **options})
        out = weight._joint.keeper.linear_map(entry, x, weight, options)
    else:
        out = entry.call(x, weight, None, **options)
    if isinstance(bias, Lifted):
        bias._joint.used()
        return bias._joint.keeper.plus(out, bias, shape)
    return out if bias is None else out + bias.view(shape)
