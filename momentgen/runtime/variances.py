"""What moments are made of: completed variances, factors of covariances, and changes of their tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.runtime.inputs import has_elements, least, readable

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["changed_source", "completed", "converted", "indexed", "norms"]

#: a change of a tensor
Change = Callable[[Tensor], Tensor]


def norms(factor: Float[Tensor, "*batch rank values"]) -> Float[Tensor, "*batch values"]:
    """Standard deviations by a factor of the covariance: the norms of its columns, also where squares overflow."""
    if not factor.shape[-2]:
        return factor.new_zeros((*factor.shape[:-2], factor.shape[-1]))
    size = factor.detach().abs().amax(-2)
    size = torch.where((size > 0) & size.isfinite(), size, 1)
    square = (factor / size.unsqueeze(-2)).square().sum(-2)
    certain = square == 0
    return torch.where(certain, 0, torch.where(certain, 1, square).sqrt()) * size


def completed(mean: Any, var: Any) -> Any:
    """The *variance* of every value of a mean, given as a number, tensor or anything else.

    Raises:
        InputError: for a number that the mean's dtype does not hold.
    """
    # Pytrees make moments of anything: only a tensor's variance is completed.
    if isinstance(mean, Tensor) and has_elements(mean):
        if isinstance(var, Tensor):
            if has_elements(var) and not var.dim() and mean.dim():
                var = var.expand(mean.shape)
        elif isinstance(var, int | float):
            dtype = mean.dtype if mean.is_floating_point() else torch.get_default_dtype()
            largest = torch.finfo(dtype).max
            if abs(var) > largest and abs(var) != math.inf:
                raise InputError(f"Moments: expected a variance that {dtype} holds, got one beyond {largest:g}")
            if 0 < abs(var) < least(dtype):
                raise InputError(
                    f"Moments: expected a variance that {dtype} holds, got {var:.3g}, below {least(dtype):.2g}; use "
                    "float64 or larger units"
                )
            var = torch.full((), var, dtype=dtype, device=mean.device).expand(mean.shape)
    return var


def indexed(factor: Tensor, shape: torch.Size, place: Any) -> Tensor:
    """The factor of the covariance of some values, where that of values of this shape is known.

    Args:
        factor: shape ``(batch, r, K)``, or ``(r, K)`` for all values together.
        shape: of the values.
        place: an index of examples, and of their values behind it.

    Raises:
        InputError: for an index that says nothing of the examples.
    """
    first = place[0] if isinstance(place, tuple) and place else place
    if first is None or first is ... or isinstance(first, bool) or (isinstance(first, Tensor) and first.dim() > 1):
        raise InputError(
            f"Moments[{place!r}]: expected an index of examples first, a number, slice, or tensor of one dimension. "
            "Index .mean and .std for others"
        )
    size = factor.shape[-2]
    spread = factor.movedim(-2, 0).reshape(size, *shape)
    chosen = spread[(slice(None), *place) if isinstance(place, tuple) else (slice(None), place)]
    if factor.dim() == 2 or isinstance(first, int):
        return chosen.reshape(size, -1)
    return chosen.reshape(size, chosen.shape[1], -1).movedim(0, 1)


def converted(part: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """``part.to(...)``.

    Raises:
        InputError: for a dtype that does not hold its values.
    """
    made = part.to(*args, **kwargs)
    if readable(part) and bool(((part != 0) & part.isfinite() & ((made == 0) | ~made.isfinite())).any()):
        raise InputError(f"Moments.to: {made.dtype} does not hold all values; use a wider dtype, or larger units")
    return made


def changed_source(value: Any, key: Any, change: Change, make: Callable[[], Any]) -> Any:
    """A source of noise after a change of its tensors: itself where none of them changes, else one for each key."""
    if all(change(part) is part for part in tuple.__iter__(value)):
        return value
    if value.noise is not None:
        raise InputError(
            f"Moments: noise of the distribution {value.noise} stays where it is; call momentgen.noisy with the mean "
            "and the distribution as they are to be"
        )
    made = value.__dict__.setdefault("_changed", {})
    if key not in made:
        made[key] = make()
    return made[key]
