"""``Affine``: a parameter that is its mean plus a linear map of independent standard normal noise.

So correlations of any form run through a network: within a parameter, or between parameters that share noise.  While
the network runs, the noise is what is random; the parameter is computed from it by torch's functions.  The methods
then know which elements of which parameters have noise in common.  ``ap2`` keeps the variances only, as always.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.posterior import Posterior


class Noise(torch.nn.Module):
    """Independent standard normal numbers, which several parameters may have in common.

    Args:
        like: gives dtype and device.
        shape: of the numbers.
    """

    zero: Tensor
    one: Tensor

    def __init__(self, like: Tensor, shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("zero", like.new_zeros(tuple(shape)), persistent=False)
        self.register_buffer("one", like.new_ones(tuple(shape)), persistent=False)

    def draw(self, n: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Draws, shape ``(n, *shape)``, or the shape alone."""
        shape = self.zero.shape if n is None else (n, *self.zero.shape)
        return torch.randn(shape, dtype=self.zero.dtype, device=self.zero.device, generator=generator)


# Maps from noise to a parameter: ``noise``, ``of(noise)`` of ``(..., *noise's shape)``, which may be a law, and the
# *variances* of the elements, ``var()``.


class Each(torch.nn.Module):
    """Noise of the parameter's shape, times a standard deviation of each element."""

    std: Tensor

    def __init__(self, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("std", std)
        self.noise = Noise(std, std.shape)

    def of(self, noise: Any) -> Any:
        return noise * self.std

    def var(self) -> Tensor:
        return self.std.square()


class Blocks(torch.nn.Module):
    """Blocks of elements, each a matrix times noise of its own: correlations within a block, none between blocks.

    Args:
        factors: shape ``(b, p, k)`` for b blocks of p elements, in the parameter's flattened order.
        shape: of the parameter, of b·p elements.
        noise: of shape ``(b, k)``, where parameters have it in common.
    """

    factors: Tensor

    def __init__(self, factors: Tensor, shape: Sequence[int], noise: Noise | None = None) -> None:
        super().__init__()
        self.register_buffer("factors", factors)
        self.shape = tuple(shape)
        self.noise = Noise(factors, (factors.shape[0], factors.shape[2])) if noise is None else noise

    def of(self, noise: Any) -> Any:
        return (self.factors @ noise.unsqueeze(-1)).reshape(*noise.shape[:-2], *self.shape)

    def var(self) -> Tensor:
        return self.factors.square().sum(-1).reshape(self.shape)


class Sides(torch.nn.Module):
    """left (std ∘ noise) rightᵀ: a normal matrix whose covariance has these eigenvectors, as Kronecker factors have.

    Args:
        left: shape ``(r, r)``, r the parameter's first dimension.
        std: standard deviations along the eigenvectors, shape ``(r, c)``.
        right: shape ``(c, c)``, c the number of elements of its other dimensions.
        shape: of the parameter.
    """

    left: Tensor
    std: Tensor
    right: Tensor

    def __init__(self, left: Tensor, std: Tensor, right: Tensor, shape: Sequence[int]) -> None:
        super().__init__()
        for name, value in (("left", left), ("std", std), ("right", right)):
            self.register_buffer(name, value)
        self.noise, self.shape = Noise(std, std.shape), tuple(shape)

    def of(self, noise: Any) -> Any:
        rows = self.left @ (noise * self.std) @ self.right.mT
        return rows.reshape(*noise.shape[:-2], *self.shape)

    def var(self) -> Tensor:
        return (self.left.square() @ self.std.square() @ self.right.square().mT).reshape(self.shape)


class Affine(Posterior):
    """A normal parameter: its mean, and linear maps of noise that add up.

    Args:
        mean: of the parameter, of its shape.
        maps: from noise to the parameter's deviation from its mean.

    Maps are fixed: such a posterior is for predictions, and has no divergence.

    >>> tilted = Affine(torch.zeros(2), [Blocks(torch.tensor([[[1.0], [2.0]]]), (2,))])
    >>> tilted.var, tilted.sample(3).shape
    (tensor([1., 4.]), torch.Size([3, 2]))
    """

    def __init__(self, mean: Tensor, maps: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.mean = torch.nn.Parameter(mean.detach().clone(), requires_grad=False)
        self.maps: Any = torch.nn.ModuleList(maps)

    @property
    def independent(self) -> bool:
        return all(isinstance(one, Each) for one in self.maps)

    def of(self, parameter: torch.nn.Parameter) -> Any:
        raise InputError("Affine.of: expected a family, such as MeanField(); an Affine belongs to its own parameter")

    @property
    def var(self) -> Tensor:
        found: Tensor = sum((one.var() for one in self.maps), torch.zeros_like(self.mean))
        return found

    def log_det(self) -> Tensor:
        raise InputError("Affine: a posterior that others trained is for predictions, and has no divergence here")

    def rsample(self, n: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Draws of this parameter by itself; noise that others share is drawn anew."""
        return self.of_noise(lambda noise: noise.draw(n, generator))

    def of_noise(self, value: Callable[[Noise], Any]) -> Any:
        """The parameter, given what each noise is: a draw, or a law."""
        found = self.mean
        for one in self.maps:
            found = found + one.of(value(one.noise))
        return found
