"""ReLU and leaky ReLU as x times a step at the mean (``identity_delta``): the closed form itself, bit for bit."""

from __future__ import annotations

import pytest
import torch

from momentgen.generated import leaky_relu, relu
from momentgen.native.c_compiler import find_compiler

_LARGEST = {torch.float32: torch.finfo(torch.float32).max, torch.float64: torch.finfo(torch.float64).max}
_LEAST = {torch.float32: 2.0**-149, torch.float64: 5e-324}
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")


def points(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Means on either side of the step and on it, by variances; both zeros, and the ends of the dtype."""
    sizes = [_LEAST[dtype], 1e-30, 0.7, 3.0, 1e20, _LARGEST[dtype]]
    means = torch.tensor([0.0, -0.0, *sizes, *(-s for s in sizes)], dtype=dtype)
    variances = torch.tensor([0.0, *sizes], dtype=dtype)
    mean, var = torch.meshgrid(means, variances, indexing="ij")
    return mean.flatten(), var.flatten()


def closed_form(mean: torch.Tensor, var: torch.Tensor) -> list[torch.Tensor]:
    """mean, var, d(mean + 2 var)/dmu and /dvar."""
    on = mean > 0
    zero = torch.zeros_like(mean)
    return [torch.where(on, mean, zero), torch.where(on, var, zero), on.to(mean.dtype), 2 * on.to(mean.dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", [pytest.param("c", marks=needs_compiler), "torch"])
def test_every_backend_gives_the_closed_form_exactly_at_the_step_and_on_both_sides(
    dtype: torch.dtype, backend: str
) -> None:
    mean, var = points(dtype)
    one = torch.ones_like(mean)
    found = [
        *relu.kernel("forward", variant="identity_delta", backend=backend)(mean, var),
        *relu.kernel("backward", variant="identity_delta", backend=backend)(mean, var, one, 2 * one),
    ]
    for got, want in zip(found, closed_form(mean, var), strict=True):
        assert torch.equal(got, want)


def test_the_certificate_has_no_error_and_says_what_it_is_of() -> None:
    certificate = relu.certificate("identity_delta")
    assert all(bound["ulp of the terms"] == 0 for bound in certificate.bounds.values())
    assert "the variant's published formula, not the moments that it approximates" in " ".join(certificate.words)
    assert "the mean falls short by at most sigma/sqrt(2 pi), at mu = 0" in certificate.method["how"]


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.3, 1.0])
def test_leaky_relu_s_is_that_of_both_lines_within_4_ulp(slope: float) -> None:
    mean, var = points(torch.float32)
    keep = var < 1e30
    mean, var = mean[keep], var[keep]
    out = leaky_relu(mean, var, variant="identity_delta", negative_slope=slope)
    factor = torch.where(mean > 0, 1.0, slope).double()
    for got, want in ((out.mean, factor * mean), (out.var, factor**2 * var)):
        torch.testing.assert_close(got.double(), want, rtol=4 * 2.0**-24, atol=2.0**-126)
