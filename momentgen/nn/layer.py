"""What all layers share: the three methods, the checks of their input, certain values.

A layer is its torch.nn twin with another ``forward``: parameters, buffers,
arguments and state dicts are torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.nn.method import STATISTICS, current_method
from momentgen.runtime import Moments

__all__ = [
    "Layer",
    "Module",
    "as_moments",
    "certain",
    "draw",
    "is_certain",
    "known",
    "once_a_batch",
    "square_root",
    "transforming",
]

#: whether a torch.func transform is active; private in torch, and without it the general path is taken.
transforming: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)

# Marks on a variance of our own making, in eager mode: checked once is enough, and a zero need not be multiplied.
_NOT_NEGATIVE, _ZERO = 1, 2


def known(mean: Tensor, var: Tensor) -> Moments:
    """Moments whose variance is not negative by construction, so that no later layer needs to look."""
    if not torch.compiler.is_compiling():
        var._momentgen = _NOT_NEGATIVE  # type: ignore[attr-defined]
    return Moments(mean, var)


def certain(value: Tensor) -> Moments:
    """A value without uncertainty: its variance is one zero, expanded."""
    var = torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape)
    if not torch.compiler.is_compiling() and var.numel() != 1:  # a single element could be written to
        var._momentgen = _ZERO  # type: ignore[attr-defined]
    return Moments(value, var)


def is_certain(x: Moments) -> bool:
    """Whether the variance is known to be zero; False says nothing."""
    return not torch.compiler.is_compiling() and getattr(x.var, "_momentgen", 0) == _ZERO


def as_moments(where: object, value: object) -> Moments:
    """``value`` as moments, checked.

    Args:
        where: what asks, for the error's text.
        value: a tensor (variance 0) or :class:`~momentgen.Moments`.

    Raises:
        InputError: for another type, for mean and variance that do not match, or a negative variance (which is looked
            for in eager mode only: compiled code and ``torch.func`` transforms have no values to look at).
    """
    if isinstance(value, Tensor):
        return certain(value)
    if not isinstance(value, Moments):
        length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        raise InputError(f"{_name(where)}: expected a tensor or Moments, got {type(value).__name__}{length}")
    mean, var = value
    if getattr(var, "_momentgen", 0) and mean.shape == var.shape:
        return value
    if mean.shape != var.shape or mean.device != var.device:
        raise InputError(
            f"{_name(where)}: expected mean and variance of one shape and device, got {tuple(mean.shape)} on "
            f"{mean.device} and {tuple(var.shape)} on {var.device}"
        )
    if not mean.is_floating_point() or (mean.dtype != var.dtype and not torch.is_autocast_enabled(mean.device.type)):
        raise InputError(
            f"{_name(where)}: expected mean and variance of one floating-point dtype, got {mean.dtype} and {var.dtype}"
        )
    if not torch.compiler.is_compiling() and not transforming() and var.numel() and not var.is_meta:
        # Numbers that an expanded tensor repeats are looked at once.
        once = var.detach()[tuple(slice(0, 1) if step == 0 else slice(None) for step in var.stride())]
        least = once.amin().item()
        if least < 0:
            raise InputError(
                f"{_name(where)}: a variance must not be negative, got {least:g} as the least of shape "
                f"{tuple(var.shape)}"
            )
    return value


def once_a_batch(run: Callable[[Tensor], Tensor], var: Tensor, mean: Tensor) -> Tensor:
    """``run(var)``, shaped as ``mean``, computed once where the whole batch has one variance, expanded."""
    if var.dim() == mean.dim() > 1 and var.stride(0) == 0 and var.shape[0] > 1:
        var = var[:1]
    return run(var).expand(mean.shape)


def square_root(var: Tensor) -> Tensor:
    """Standard deviations, with derivative 0 (and not infinity) at a variance of 0."""
    positive = var > 0
    return torch.where(positive, torch.where(positive, var, 1).sqrt(), var)


def draw(x: Moments) -> Tensor:
    """One normal sample of ``x``, reparameterised: differentiable in mean and variance."""
    if is_certain(x):
        return x.mean
    return x.mean + square_root(x.var) * torch.randn_like(x.mean)


class Module(torch.nn.Module):
    """Base of networks written by hand: what ``torch.nn.Module`` is, but consistent under ``sample``.

    Under ``momentgen.method("sample")`` a random input is drawn once, here, and not by each layer that takes it: the
    two branches of a residual block then see the same draw.
    """

    propagation: str | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``forward``; under ``sample``, with random inputs drawn."""
        if current_method(self.propagation) == "sample":
            args = tuple(_drawn(self, arg) for arg in args)
            kwargs = {name: _drawn(self, arg) for name, arg in kwargs.items()}
        return super().__call__(*args, **kwargs)


def _drawn(where: object, value: Any) -> Any:
    return certain(draw(as_moments(where, value))) if isinstance(value, Moments) else value


class Layer(torch.nn.Module):
    """Mixed in before the torch.nn class that it gives moments to.

    Attributes:
        propagation: method of this layer where no context sets one; see :func:`momentgen.nn.set_method`.
        arity: how many random inputs come first.
        elementwise: whether each output depends on one input alone, at the same place.
    """

    propagation: str | None = None
    arity: int = 1
    elementwise: bool = False

    def plain(self, *args: Any, **kwargs: Any) -> Tensor:
        """The torch.nn twin's forward."""
        return cast(Tensor, super().forward(*args, **kwargs))

    def mean_only(self, *args: Any, **kwargs: Any) -> Tensor:
        """AP1; a stochastic layer takes its mean here."""
        return self.plain(*args, **kwargs)

    def drawn(self, *args: Any, **kwargs: Any) -> Tensor:
        """The forward pass with the layer's own noise drawn."""
        return self.plain(*args, **kwargs)

    def moments(self, *args: Any, **kwargs: Any) -> Moments:
        """AP2, for random inputs."""
        raise InputError(f"{_name(self)}: no rule for moments")

    def check_rule(self) -> None:
        """Raise a :class:`~momentgen.errors.MomentgenError` if the layer, with its arguments, has no rule for moments.

        For conversion, which names the layer's place; the layer itself says so when it meets moments.
        """

    def statistics(self, x: Moments) -> Moments:
        """A data set's statistics, one mean and variance a channel, shape ``(C,)``."""
        if self.elementwise:
            return self.moments(x)
        raise InputError(f"{_name(self)}: no rule for statistics of channels")

    @property
    def noisy(self) -> bool:
        """Whether the layer is random by itself."""
        return False

    def propagate(self, *args: Any, **kwargs: Any) -> Moments:
        """Moments of the output, by the method in force."""
        method = current_method(self.propagation)
        inputs = [as_moments(self, value) for value in args[: self.arity]]
        rest = args[self.arity :]
        if method == STATISTICS:
            return self.statistics(*inputs)
        if method == "ap1":
            return certain(self.mean_only(*[x.mean for x in inputs], *rest, **kwargs))
        if method == "sample":
            return certain(self.drawn(*[draw(x) for x in inputs], *rest, **kwargs))
        if not self.noisy and all(map(is_certain, inputs)):
            return certain(self.plain(*[x.mean for x in inputs], *rest, **kwargs))
        return known(*self.moments(*inputs, *rest, **kwargs))

    forward: Any = propagate


def _name(where: object) -> str:
    if isinstance(where, torch.nn.Module):
        return f"{type(where).__name__}({where.extra_repr()})"
    return str(where)
