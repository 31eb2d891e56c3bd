"""Variances: completed where one number stands for all values, and standard deviations by a factor of a covariance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.runtime.inputs import has_elements, least

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["completed", "norms"]


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
