"""Every op of the library with each of its variants, and inputs for any of them, of one value or of two."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from same_bits import kernel_inputs
from torch import Tensor

import momentgen.generated
from momentgen.compiler.certify import joint_points
from momentgen.runtime import Op

F32 = npt.NDArray[np.float32]
OPS = {name: op for name in momentgen.generated.__all__ if isinstance(op := getattr(momentgen.generated, name), Op)}
CASES = [(name, variant) for name, op in OPS.items() for variant in op.variants]
each_variant = pytest.mark.parametrize(("name", "variant"), CASES, ids=[f"{n}-{v}" for n, v in CASES])


def settings_of(op: Op) -> list[dict[str, float]]:
    """The parameters' defaults, and others that are not at the ends of their ranges."""
    default = {p.name: float(p.default or 0.0) for p in op.parameters}
    return [default, {p.name: p.low + 0.37 * (p.high - p.low) for p in op.parameters}][: 1 + bool(default)]


def moderate(op: Op, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Means of a few standard deviations, and covariances well within their bound."""
    generator = torch.Generator().manual_seed(n)
    mean1, mean2 = 1.5 * torch.randn(2, n, generator=generator, dtype=torch.float64)
    var1, var2 = 0.3 + 2 * torch.rand(2, n, generator=generator, dtype=torch.float64)
    correlation = 1.6 * torch.rand(n, generator=generator, dtype=torch.float64) - 0.8
    five = (mean1, var1, mean2, var2, correlation * (var1 * var2).sqrt())
    return tuple(tensor.to(dtype) for tensor in five[: len(op.input_names)])


def anything(op: Op, n: int, direction: str) -> tuple[F32, ...]:
    """Inputs of a kernel from all of float32, what is no number among them; ``backward`` also takes gradients."""
    if len(op.input_names) == 2:
        return kernel_inputs(n, direction, seed=n)
    points = joint_points.spread(n, n, covariance=len(op.input_names) == 5)
    points = tuple(np.append(array, array[:9]) for array in points)
    for i, array in enumerate(points):
        array[-1 - i] = np.nan
    points[1][-6], points[3][-7], points[1][-8] = -1.0, -1e-30, 0.0
    if direction == "forward":
        return points
    return (*points, *np.random.default_rng(n).standard_normal((2, points[0].size)).astype(np.float32))
