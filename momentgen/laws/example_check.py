"""Whether a network computes each example of a batch by itself: plain forward passes on the batch and on each alone.

:mod:`momentgen.laws.examples` asks before it runs a network example by example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from momentgen.errors import InputError
from momentgen.laws.border import entered, method
from momentgen.laws.draws import Draws
from momentgen.laws.example_arguments import Examples, halves, is_real
from momentgen.laws.law import Law
from momentgen.laws.nests import leaves_of, mapped
from momentgen.laws.point import point
from momentgen.laws.precision import HALVES
from momentgen.runtime import Moments
from momentgen.runtime.inputs import autocast_in_force

__all__ = ["Seen", "check_alone", "check_norms", "fails_alone"]


def check_norms(where: object) -> None:
    """Refuse a batch norm whose statistics need the whole batch.

    Raises:
        InputError: if the network has one.
    """
    for name, module in where.named_modules() if isinstance(where, torch.nn.Module) else ():
        if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            continue
        if module.training or module.running_mean is None:
            cause = "in training" if module.training else "without running statistics"
            raise InputError(
                f"{type(where).__name__}: {name or 'it'} is a batch norm {cause}, whose statistics need the whole "
                "batch; call eval() on one that has running statistics, or use ap2"
            )


def fails_alone(where: object, forward: Callable[..., Any], examples: Examples) -> bool:
    """Whether the plain network, in its own precision, cannot run on the first example alone."""
    parameters = where.parameters() if isinstance(where, torch.nn.Module) else ()
    half = next((value.dtype for value in parameters if value.dtype in HALVES), None)

    def plain(value: Any) -> Any:
        value = value.mean if isinstance(value, Moments) else value
        return value.to(half) if half is not None and is_real(value) else value

    args, kwargs = mapped(plain, examples.first(1).arguments())
    try:
        with torch.no_grad(), torch.random.fork_rng(), entered(), method("sample"):
            forward(*args, **kwargs)
    except Exception:
        return True
    return False


#: this share of the examples or more must differ, so that a step function's rounding is no difference
_DIFFERING = 0.25


class Seen(NamedTuple):
    """What is seen of a network on a batch.

    Attributes:
        widest: how many bytes an example has in the widest layer.
        outputs: how many values it has in the outputs.
        unbatched: the shape, for a batch of one, of an output that has no batch in front; None if all have one.
        squeezed: whether they have it but of a batch of one.
    """

    widest: int
    outputs: int
    unbatched: torch.Size | None
    squeezed: bool


def check_alone(
    where: object,
    forward: Callable[..., Any],
    examples: Examples,
    chunk_size: int | None = None,
    everyone: Examples | None = None,
) -> Seen | None:
    """Compare the plain network at a draw, on a batch and on each of its examples alone: two plain forward passes.

    Args:
        where: the network, for errors.
        forward: what runs on laws.
        examples: of the batch, at a draw.
        chunk_size: how many examples are computed alone at once; None for all.
        everyone: all examples, of which up to four more passes tell whether they depend on each other; None for these.

    Returns:
        What is seen of the network; None if the network could not be run.

    Raises:
        InputError: if the results differ by more than rounding.
    """
    lacking: set[int] = set()
    parameters = where.parameters() if isinstance(where, torch.nn.Module) else ()
    coarsest = max((_eps(value.dtype) for value in parameters if value.dtype in HALVES), default=0.0)

    def plain(own_args: tuple[Any, ...], own_kwargs: dict[str, Any], is_alone: bool = True) -> list[Tensor]:
        own_args, own_kwargs = mapped(_certain, (own_args, own_kwargs))
        with entered(Draws(None)):
            found = forward(*own_args, **own_kwargs)
        values = [leaf._form() if isinstance(leaf, Law) else leaf for leaf in leaves_of(found)]
        real = [value for value in values if is_real(value)]
        if not is_alone:
            return real
        lacking.update(place for place, value in enumerate(real) if not value.dim() or len(value) != 1)
        return [value if place in lacking else value[0] for place, value in enumerate(real)]

    with torch.no_grad():
        try:
            with _Widest(examples.batch) as widest:
                together = plain(*examples.arguments(), is_alone=False)
            apart: list[Tensor] = examples.alone(plain, chunk_size)
        except Exception:
            return None  # the run to come fails in its own words, or the network was written for a batch of one
    unbatched: torch.Size | None = None
    for place, (whole, single) in enumerate(zip(together, apart, strict=True)):
        if place in lacking and whole.shape != single.shape:
            unbatched = single.shape[1:]
            continue
        if whole.shape[:1] == (1,):  # the same for all examples
            whole = whole.expand(len(single), *whole.shape[1:])
        differing = 1.0
        if whole.shape == single.shape:
            rounding = max(_rounding(whole), _rounding(single), coarsest**0.5)
            whole, single = (value.to(torch.promote_types(whole.dtype, single.dtype)) for value in (whole, single))
            tolerance = rounding * whole.abs().nan_to_num(0, 0, 0).amax().item() if whole.numel() else 0.0
            away = ~torch.isclose(whole, single, rtol=0, atol=tolerance, equal_nan=True)
            differing = away.reshape(len(away), -1).any(1).double().mean().item() if away.numel() else 0.0
        if differing >= _DIFFERING:
            raise _interacting(where, f"{differing:.0%} of them have", whole)
    with torch.no_grad():
        for out in _depending(lambda args, kwargs: plain(args, kwargs, False), everyone or examples):
            raise _interacting(where, "some of them, as those beside them change, have", out)
    outputs = sum(whole.numel() // examples.batch for whole in together)
    return Seen(widest.size, outputs, unbatched, unbatched is None and bool(lacking))


def _interacting(where: object, how_many: str, out: Tensor) -> InputError:
    return InputError(
        f"{type(where).__name__}: examples of a batch are computed alone, but {how_many} another result within the "
        f"batch, an output of shape {tuple(out.shape)}; either examples interact, or dimension 0 is not the batch in "
        "every argument (pass batch_first=True), or the network draws numbers outside of torch"
    )


#: sides of random halves that are looked at, at most
_SIDES = 4


def _depending(plain: Callable[..., list[Tensor]], examples: Examples) -> list[Tensor]:
    """The outputs in which examples of a random half become NaN as those of the other do, which no ReLU hides.

    Args:
        plain: the plain network of arguments.
        examples: at a draw.
    """
    sides = [side for half in halves(examples.batch) for side in (half, ~half)]
    for kept in sides[:_SIDES]:
        try:
            values = plain(*examples.beside_nan(kept))
        except Exception:  # the network's own objection to NaN
            continue
        # An output that is the same for all examples depends on none.
        stay = {
            place: kept if len(out) == examples.batch else slice(None)
            for place, out in enumerate(values)
            if out.dim() and len(out) in (1, examples.batch)
        }
        if any(values[place][flags].isnan().any() for place, flags in stay.items()):
            own = plain(*examples.arguments())
            found = [own[at] for at, flags in stay.items() if (values[at].isnan() & ~own[at].isnan())[flags].any()]
            if found:
                return found
    return []


class _Widest(TorchDispatchMode):
    """Within it the bytes that an example has in the widest tensor with the batch in front are found."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch, self.size = batch, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for part in found if isinstance(found, tuple | list) else (found,):
            if isinstance(part, Tensor) and part.dim() and part.shape[0] == self.batch:
                self.size = max(self.size, part.numel() // self.batch * part.element_size())
        return found


def _certain(value: Any) -> Any:
    if isinstance(value, Moments):
        return point(value.mean)
    return point(value) if is_real(value) else value


def _rounding(value: Tensor) -> float:
    """How far rounding may carry two results apart, relative to the largest number."""
    kind = value.device.type
    dtypes = [value.dtype, torch.get_autocast_dtype(kind)] if autocast_in_force(kind) else [value.dtype]
    return max(map(_eps, dtypes)) ** 0.5


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps
