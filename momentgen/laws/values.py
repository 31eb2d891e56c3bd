"""Values at the border: moments that are made of tensors, drawn from, checked, and handed back for laws.

The border (:mod:`momentgen.laws.border`) lifts them to laws.  Code here does not depend on the method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.law import Law
from momentgen.laws.nests import mapped
from momentgen.laws.numerics.root import square_root
from momentgen.laws.point import Point
from momentgen.laws.sources import drawn
from momentgen.runtime import JointMoments, Moments, terms_of
from momentgen.runtime.inputs import DTYPES, HALVES, alike, autocast_in_force, has_elements, kind, readable

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["as_moments", "certain", "check", "described", "draw", "lower", "readable"]


def certain(value: Float[Tensor, "*shape"]) -> Moments:
    """A value without uncertainty: its variance is one zero, expanded."""
    return Moments(value, torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape))


def draw(x: Moments) -> Tensor:
    """One sample of ``x``, normal or of its noise's distribution, reparameterised: differentiable in what it is of."""
    if terms_of(x)[0] is not None:
        return drawn(x, draw)
    if x.noise is not None:
        return cast(Tensor, x.mean + x.noise.draw())
    if isinstance(x, JointMoments):
        numbers = torch.randn(x.factor.shape[:-1], dtype=x.mean.dtype, device=x.mean.device)
        return x.mean + (numbers.unsqueeze(-2) @ x.factor).reshape(x.mean.shape)
    return x.mean + square_root(x.var) * torch.randn_like(x.mean)


def check(where: object, value: Moments) -> Moments:
    """``value``, its mean and variance of one shape and dtype, the variance not negative.

    Raises:
        InputError: otherwise.  Negative numbers are looked for in eager mode only: compiled code and ``torch.func``
            transforms have no values to look at.
    """
    if not alike(value):
        _check_pair(where, value)
    var = value.var
    if var.numel() and readable(var):
        # Numbers that an expanded tensor repeats are looked at once.
        once = var.detach() if var.requires_grad else var
        if 0 in var.stride():
            once = once[tuple(slice(0, 1) if step == 0 else slice(None) for step in var.stride())]
        least = once.min().item()
        if least < 0:
            raise InputError(
                f"{described(where)}: a variance must not be negative, got {least:g} as the least of shape "
                f"{tuple(var.shape)}"
            )
    return value


def _check_pair(where: object, value: Moments) -> None:
    """Raise for what :func:`check` says but the numbers; mean and variance of several dtypes pass under autocast."""
    mean, var = value
    if not isinstance(mean, Tensor) or not isinstance(var, Tensor):
        raise InputError(
            f"{described(where)}: expected Moments of two tensors, got {type(mean).__name__} and {type(var).__name__}"
        )
    for tensor in value:
        if not has_elements(tensor) or tensor.layout is not torch.strided:
            raise InputError(f"{described(where)}: expected strided tensors for mean and variance, got {kind(tensor)}")
    if mean.shape != var.shape or mean.device != var.device:
        raise InputError(
            f"{described(where)}: expected mean and variance of one shape and device, got {tuple(mean.shape)} on "
            f"{mean.device} and {tuple(var.shape)} on {var.device}"
        )
    mixed = mean.dtype != var.dtype and not autocast_in_force(mean.device.type)
    if mixed or mean.dtype not in DTYPES or var.dtype not in DTYPES:
        raise InputError(
            f"{described(where)}: expected mean and variance of one floating-point dtype, got {mean.dtype} and "
            f"{var.dtype}"
        )


def as_moments(where: object, value: object) -> Moments:
    """``value`` as moments, checked: a tensor (variance 0), moments or a law.

    Args:
        where: what asks, for the error's text.
        value: a tensor, :class:`~momentgen.Moments` or a law.

    Raises:
        InputError: for another type, and as :func:`check`.
    """
    if isinstance(value, Moments):
        return check(where, value)
    if isinstance(value, Law):
        return cast(Moments, lower(value))
    if isinstance(value, Tensor):
        return certain(value)
    length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    raise InputError(f"{described(where)}: expected a tensor or Moments, got {type(value).__name__}{length}")


def described(where: object) -> str:
    """A network or function, as errors call it."""
    if isinstance(where, torch.nn.Module):
        return f"{type(where).__name__}({where.extra_repr()})"
    return str(where)


def lower(nest: Any, wide: bool = False) -> Any:
    """What a network returned, with :class:`~momentgen.Moments` for laws and for tensors of floating point.

    Args:
        nest: what it returned.
        wide: whether tensors of half precision become float32.
    """
    return mapped(lambda value: _lowered(value.float() if wide and _is_half(value) else value), nest)


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in HALVES


def _lowered(value: Any) -> Any:
    if not isinstance(value, Law):
        return certain(value) if isinstance(value, Tensor) and value.is_floating_point() else value
    form = value._form()  # of a view of what has been written to, which may now be another law
    if not isinstance(value, Point):
        return Moments(*value._parts())
    return certain(form) if form.is_floating_point() else form
