"""Polynomials by cell in PyTorch: a table for each element is the same as one for all, under transforms, too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from momentgen.runtime.surfaces import Surface, surface, surface_slopes

#: three cells, of which two have the same polynomial
OF: Surface = (
    (1, 0, 1),
    ((0.5, 2.0, -1.0, 0.5, 0.25), (1e-3, 1.0, 0.0, -1.0, 2.0)),
    (((3.0, -2.0, 5.0), (1.0,), (4.0, 7.0)), ((1000.0, 2000.0),)),
)


def expected(cell: int, y: Tensor, z: Tensor) -> Tensor:
    """By NumPy."""
    unit, y_scale, y_shift, z_scale, z_shift = OF[1][OF[0][cell]]
    rows = OF[2][OF[0][cell]]
    table = np.zeros((len(rows), max(map(len, rows))))
    for j, row in enumerate(rows):
        table[j, : len(row)] = row
    at_z, at_y = (z * z_scale + z_shift).numpy(), (y * y_scale + y_shift).numpy()
    return torch.from_numpy(unit * np.polynomial.polynomial.polyval2d(at_z, at_y, table))


def points() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    y, z = (torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    return torch.arange(20.0, dtype=torch.float64).reshape(4, 5) % 3, y, z


def test_each_element_has_the_polynomial_of_its_cell() -> None:
    cell, y, z = points()
    found = surface(OF, cell, y, z)
    for number in range(3):
        here = cell == number
        torch.testing.assert_close(found[here], expected(number, y[here], z[here]), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(surface(OF, number, y, z), expected(number, y, z), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("of_all", [True, False])
def test_slopes_are_the_derivatives(of_all: bool) -> None:
    cell, y, z = points()
    place: Tensor | int = 1 if of_all else cell
    leaves = [y.clone().requires_grad_(), z.clone().requires_grad_()]
    value = surface(OF, place, *leaves)
    slopes = torch.autograd.grad(value.sum(), leaves)
    for got, want in zip(surface_slopes(OF, place, y, z), (value.detach(), *slopes), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_transforms_see_an_element_at_a_time() -> None:
    cell, y, z = (tensor.flatten() for tensor in points())
    slopes = vmap(grad(lambda y, c, z: surface(OF, c, y, z)))(y, cell, z)
    torch.testing.assert_close(slopes, surface_slopes(OF, cell, y, z)[1], rtol=1e-12, atol=1e-12)
