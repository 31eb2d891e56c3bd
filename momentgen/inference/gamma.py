"""The Gamma distribution of a precision: the noise of :class:`momentgen.inference.likelihood.Gaussian` in filters.

Here too is what modules of distributions ask of numbers they are made with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from momentgen.errors import InputError


class Gamma(nn.Module):
    """A Gamma distribution of a precision: density proportional to x^(shape - 1) exp(-rate x).

    Args:
        shape: positive; a number, or a tensor that broadcasts with outputs.
        rate: positive, in units of the variance.

    Raises:
        InputError: if shape or rate is not positive and finite.

    >>> Gamma(6.0, 6.0).mean_inverse
    tensor(1.2000, dtype=torch.float64)
    """

    shape: Tensor
    rate: Tensor

    def __init__(self, shape: float | Tensor, rate: float | Tensor) -> None:
        super().__init__()
        self.register_buffer("shape", positive("Gamma", "shape", shape))
        self.register_buffer("rate", positive("Gamma", "rate", rate))

    @property
    def mean_inverse(self) -> Tensor:
        """E of the variance, 1 / precision.

        Raises:
            InputError: where the shape is at most 1, and the expectation infinite.
        """
        if not bool((self.shape > 1).all()):
            raise InputError(
                "Gamma: the variance of the noise has an expectation for shapes beyond 1 only, got "
                f"{self.shape.min():g}"
            )
        return self.rate / (self.shape - 1)


def positive(where: str, name: str, value: Any) -> Tensor:
    """``value`` as a float64 tensor of its own, all of it positive and finite.

    Raises:
        InputError: otherwise, with ``where`` and the ``name`` of the value.
    """
    found = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    if not found.numel() or not bool(((found > 0) & found.isfinite()).all()):
        raise InputError(f"{where}: expected a positive, finite {name}, got {value!r}")
    return found
