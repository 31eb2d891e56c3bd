"""Probes: what the values of an ``Adjoint`` run have in common, as far as the sizes of its variances need it.

A diagonal propagation takes the inputs of a linear map for independent.  In a trained network they are not.  Variances
come out far too small, which moves the points at which slopes and remainders are taken.  So laws carry a few probes.  A
probe is a deviation of the values, to first order, with every source moved by one standard deviation up or down.  Their
mean square estimates a value's variance, and their mean product two values' covariance.  One value's estimate is rough.
Over the units of a layer, or of a channel, it shows by which factor the variances of independent values are off.

Source: Hutchinson 1990, A stochastic estimator of the trace of the influence matrix.

Functions of one value and maxima give their results probes in :mod:`momentgen.laws.adjoint`, all others here; how
sources move is in :mod:`momentgen.laws.sources`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from momentgen.laws import affine
from momentgen.laws.arguments import all_replaced, tensors_of
from momentgen.laws.diagonal import Diagonal
from momentgen.laws.law import Law, laws_in
from momentgen.laws.movement import ONCE
from momentgen.laws.notes import note
from momentgen.laws.numerics.forward import forward_derivative
from momentgen.laws.numerics.shrinkage import shrunk
from momentgen.laws.slopes import slope_of
from momentgen.laws.sources import SOURCES, constant
from momentgen.laws.table import Entry

__all__ = ["Probes", "factor_of", "give_probes", "probes_along", "probes_of", "pushed"]


class Probes(NamedTuple):
    """Of one law.

    Attributes:
        rows: deviations of the values, shape ``(probes, *shape)``.
        independent: whether the values are independent, so that a linear map's variance is exact.
    """

    rows: Tensor
    independent: bool = False


def probes_of(law: Law) -> Probes:
    """Of a law of the run that is under way; those of independent values, if it has none yet."""
    var = law._parts()[1]  # which may give it some
    if law._joint is None:
        law._joint = Probes(SOURCES.get().moved(constant(var)), independent=True)
    return cast(Probes, law._joint)


def factor_of(entry: Entry, var: Tensor, rows: Tensor) -> Tensor:
    """By what to multiply the *variances* of independent values, by their probes: one number for a layer or channel.

    A channel of an image has many values to tell its own by.  The factor is 1 where probes are beyond range.
    """
    channel = _channel_of(entry, var)
    factor = shrunk(var, rows, None if channel < 0 else channel)
    return torch.where(factor.isfinite(), factor, 1)


def give_probes(found: Any, entry: Entry, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Let what a function returned have probes, and variances of the size that these tell.

    Args:
        found: laws that have none yet, or other results.
        entry: of the function.
        kind: likewise.
        args: of the call.
        kwargs: of the call.
    """
    results = found if isinstance(found, tuple | list) else [found]
    if all(not isinstance(law, Diagonal) or law._joint is not None or law._mean is None for law in results):
        return  # what is put off has its own
    random = list({id(law): law for law in laws_in((*args, *kwargs.values())) if isinstance(law, Diagonal)}.values())
    if not random:
        return  # noise of the network's own: independent values
    known = probes_of(random[0])
    once = len(random) == 1 and sum(value is random[0] for value in (*args, *kwargs.values())) == 1
    rows = _mapped(found, entry, kind, args, kwargs) if once and args[0] is random[0] else None
    if rows is None:
        rows = probes_along(entry, args, kwargs, random)
    if rows is None:
        return
    each = entry.name == "batch_norm" or (kind == "arithmetic" and once) or (kind == "movement" and entry.name in ONCE)
    for law, own in zip(results, [rows] if results[0] is found else rows, strict=True):
        if isinstance(law, Diagonal) and law._joint is None:
            law._joint = Probes(own, each and known.independent)
    exact = each or (once and known.independent)
    if not exact and isinstance(found, Diagonal) and _is_sum(found, entry, kind, once):
        found._var = found._var * factor_of(entry, found._var, rows)


def _is_sum(found: Diagonal, entry: Entry, kind: str, once: bool) -> bool:
    """Whether a function adds values up, nearly: what these have in common then changes the size of its variances."""
    if kind == "arithmetic":
        return entry.name in ("add", "sub", "rsub") and found._source is None
    return kind in ("affine", "product", "normalise") and once and entry.name != "pad"


def _channel_of(entry: Entry, mean: Tensor) -> int:
    """The dimension along which units are alike: channels of a convolution, features of all else."""
    of_space = entry.name.startswith(("conv", "avg_pool", "max_pool", "adaptive")) or mean.dim() == 4
    return 1 if of_space and mean.dim() > 2 else -1


#: affine functions whose first dimension is the batch
_BATCHED = frozenset(
    ["linear", "batch_norm"]
    + [f"{name}{d}d" for name in ("conv", "conv_transpose", "avg_pool", "adaptive_avg_pool") for d in (1, 2, 3)]
)


def _linear_part(
    entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], mean: Tensor
) -> Callable[[Tensor], Tensor]:
    """An affine function without its constant, of rows of values; ``mean`` is that of the first argument."""
    own, named = tensors_of(args[1:], kwargs)
    shape = mean.shape
    if entry.name == "linear" or entry.name.startswith("conv"):
        bound = {**affine.bind(entry.name, own, named), "bias": None}

        def linear(x: Tensor) -> Tensor:
            return cast(Tensor, entry.call(x, **bound))

    else:
        zero = entry.call(torch.zeros_like(mean), *own, **named)

        def linear(x: Tensor) -> Tensor:
            return cast(Tensor, entry.call(x, *own, **named) - zero)

    if entry.name in _BATCHED and len(shape) > 1 and shape[0] == 1:
        # An example is a batch of one, and rows may take the batch's place.
        return lambda rows: linear(rows.squeeze(1)).unsqueeze(1)
    return torch.vmap(linear)


def _mapped(found: Any, entry: Entry, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function of one law makes of its probes, where there is a shorter way than forward differentiation."""
    x, rows = args[0], probes_of(args[0]).rows
    at = constant(x._parts()[0])
    if entry.name == "batch_norm" or (kind == "affine" and entry.name != "diff"):
        return _linear_part(entry, args, kwargs, at)(rows)
    if kind == "movement" and entry.name in ONCE:
        rest, named = tensors_of(args[1:], kwargs)
        return torch.vmap(lambda row: entry.call(row, *rest, **named))(rows)
    if isinstance(found, Diagonal) and kind in ("normalise", "softmax"):
        mean, var = found._parts()
        slope = slope_of(entry, args, kwargs, constant(x._parts()[1]), constant(mean), var)
        return None if slope is None else pushed(slope, [at], [rows], entry.name)
    return None


def probes_along(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], random: list[Any]) -> Any:
    """What a function makes of the probes of its random arguments: directional derivatives at the means.

    Args:
        entry: of the function.
        args: of the call.
        kwargs: of the call.
        random: the laws among the arguments that have probes.

    Returns:
        Probes of the result, or of each of several; None if torch does not differentiate the function forwards.
    """

    def call(*means: Tensor) -> Any:
        place = {id(law): mean for law, mean in zip(random, means, strict=True)}
        own, named = all_replaced(args, kwargs, lambda law: place[id(law)] if id(law) in place else law._form())
        if entry.name != "scaled_dot_product_attention":
            return entry.call(*own, **named)
        with sdpa_kernel(SDPBackend.MATH):  # the fast ones have no derivative forwards
            return entry.call(*own, **named)

    at = [constant(law._parts()[0]) for law in random]
    return pushed(call, at, [probes_of(law).rows for law in random], entry.name)


def pushed(function: Callable[..., Any], at: list[Tensor], rows: list[Tensor], name: str) -> Any:
    """Directional derivatives of a function of tensors, for each row; None if torch has none forwards.

    Args:
        function: of tensors.
        at: where.
        rows: directions of each tensor, first dimension alike.
        name: of the function, for the note.
    """
    try:
        return torch.vmap(lambda *row: forward_derivative(function, at, row), randomness="different")(*rows)
    except NotImplementedError:
        note(f"{name}: torch cannot differentiate it forwards, so that its results count as independent values")
        return None
