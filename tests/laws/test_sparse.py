"""Sparse matrices in networks: every method against the dense matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws.small_networks import Of

import momentgen
from momentgen import Moments


def given() -> Moments:
    draw = torch.Generator().manual_seed(3)
    mean = torch.randn(3, 8, dtype=torch.float64, generator=draw)
    return Moments(mean, torch.rand(mean.shape, dtype=torch.float64, generator=draw) + 0.1)


_SPARSE = torch.diag(torch.arange(1.0, 8.0, dtype=torch.float64), 1)[:7].to_sparse()

#: name -> (a product with the matrix, the tolerance of its precision)
PRODUCTS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "mm": (lambda x: torch.sparse.mm(_SPARSE, x.t()).t(), 1e-9),
    "addmm": (lambda x: torch.sparse.addmm(torch.zeros(7, len(x), dtype=torch.float64), _SPARSE, x.t()).t(), 1e-9),
    "single precision": (lambda x: (_SPARSE.float() @ x.float().t()).t().double(), 1e-5),
}


@pytest.mark.parametrize("method", ["ap1", "ap2"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_sparse_matrices_have_the_moments_of_dense_ones(name: str, method: Any) -> None:
    (function, near), x, dense = PRODUCTS[name], given(), _SPARSE.to_dense()
    out = momentgen.convert(Of(function).eval(), method)(x)
    torch.testing.assert_close(out.mean, x.mean @ dense.mT, rtol=near, atol=near)
    torch.testing.assert_close(out.var, x.var @ dense.square().mT * (method != "ap1"), rtol=near, atol=near)
