"""Fourier transforms, sparse matrices and what else is linear, in networks: every method against closed forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.errors import UnsupportedError
from momentgen.laws import diagonal


class Network(nn.Module):
    """A function as a network."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def given() -> Moments:
    draw = torch.Generator().manual_seed(3)
    mean = torch.randn(3, 8, dtype=torch.float64, generator=draw)
    return Moments(mean, torch.rand(mean.shape, dtype=torch.float64, generator=draw) + 0.1)


def jacobian(function: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """Of a linear function of one example, shape ``(outputs, count)``."""
    unit = torch.eye(count, dtype=torch.float64)
    return torch.stack([function(row[None])[0].flatten() for row in unit], 1)


_FILTER = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
_SPARSE = torch.diag(torch.arange(1.0, 8.0, dtype=torch.float64), 1)[:7].to_sparse()

#: name -> (a linear function, whether ap2 has its variances exactly)
LINEAR: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "spectrum": (lambda x: torch.view_as_real(torch.fft.rfft(x)).flatten(1), True),
    "a filter": (
        lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(_FILTER), n=8),
        False,
    ),
    "two dimensions": (lambda x: torch.fft.fft2(x.view(-1, 2, 4)).real.flatten(1), True),
    "a sparse matrix": (lambda x: torch.sparse.mm(_SPARSE, x.t()).t(), True),
    "a sparse matrix, and a sum": (
        lambda x: torch.sparse.addmm(torch.zeros(7, len(x), dtype=torch.float64), _SPARSE, x.t()).t(),
        True,
    ),
    "a gradient": (lambda x: torch.gradient(x, dim=1)[0], True),
    "an integral": (lambda x: torch.cumulative_trapezoid(x, dim=1), True),
}


@pytest.mark.parametrize("method", ["ap1", "ap2", "adjoint", "covariance", "sample"])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_functions_have_the_moments_of_their_jacobian(name: str, method: Any) -> None:
    function, by_ap2 = LINEAR[name]
    x = given()
    out = momentgen.convert(Network(function).eval(), method=method)(x)
    linear = jacobian(function, 8)
    if method == "sample":
        drawn = torch.linalg.pinv(linear) @ out.mean.flatten(1).mT  # it is the function of some input
        torch.testing.assert_close(linear @ drawn, out.mean.flatten(1).mT)
        return
    torch.testing.assert_close(out.mean.flatten(1), x.mean @ linear.mT)
    exact = x.var @ linear.square().mT
    if method == "ap1":
        assert bool((out.var == 0).all())
    elif method == "ap2" and not by_ap2:
        # of values taken as independent: right on average
        assert 0.8 < float(out.var.sum() / exact.sum()) < 1.25
    else:
        torch.testing.assert_close(out.var.flatten(1), exact)
    if method == "covariance":
        torch.testing.assert_close(out.covariance, linear @ torch.diag_embed(x.var) @ linear.mT)


@pytest.mark.parametrize("method", ["ap2", "adjoint", "covariance"])
def test_sparse_matrices_of_single_precision_serve_too(method: Any) -> None:
    x, sparse = Moments(*(part.float() for part in given())), _SPARSE.float()
    out = momentgen.convert(Network(lambda x: (sparse @ x.t()).t()).eval(), method=method)(x)
    torch.testing.assert_close(out.mean, x.mean @ sparse.to_dense().mT)
    torch.testing.assert_close(out.var, x.var @ sparse.to_dense().square().mT)


@pytest.mark.parametrize("method", ["ap2", "adjoint", "covariance"])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (torch.fft.rfft, "go on with its .real and .imag"),
        (lambda x: torch.fft.rfft(x).abs(), "go on with its .real and .imag"),
        (lambda x: torch.fft.rfft(x).angle(), "/support/"),
    ],
)
def test_complex_results_are_refused_and_told_what_to_do(function: Any, message: str, method: Any) -> None:
    with pytest.raises(UnsupportedError, match=message):
        momentgen.convert(Network(function).eval(), method=method)(given())


def test_a_real_value_times_a_complex_number_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"torch.complex\(x, torch.zeros_like\(x\)\)"):
        _ = diagonal(*given()) * torch.tensor(1j, dtype=torch.complex128)


def test_a_layout_that_transforms_cannot_read_is_refused() -> None:
    """torch 2.14 can read it, earlier ones cannot."""
    rows = _SPARSE.to_sparse_csr()

    def moments_with(matrix: Tensor) -> momentgen.Moments:
        return momentgen.convert(Network(lambda x: (matrix @ x.t()).t()).eval(), method="adjoint")(given())

    if torch.__version__ < "2.14":
        with pytest.raises(UnsupportedError, match="to_sparse_coo"):
            moments_with(rows)
        return
    found, want = moments_with(rows), moments_with(rows.to_dense())
    torch.testing.assert_close((found.mean, found.var), (want.mean, want.var))


def test_a_function_without_a_rule_is_named_and_says_what_to_do() -> None:
    with pytest.raises(UnsupportedError, match=r"cumprod of a random value.*/support/.*'sample'"):
        torch.cumprod(diagonal(*given()), 0)
