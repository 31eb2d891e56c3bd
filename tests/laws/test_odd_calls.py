"""Calls that are seldom made: of numbers, of vectors without a batch, of flags of autograd, of complex halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import momentgen
from momentgen import Moments, noisy

ANALYTIC: tuple[Any, ...] = ("ap2", "adjoint", "covariance")


class Of(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def _found(function: Callable[[Any], Any], x: Any, method: Any) -> Moments:
    found = momentgen.convert(Of(function).eval(), method)(x)
    assert isinstance(found, Moments)
    return found


@pytest.mark.filterwarnings("ignore:Tensor.T is deprecated")
@pytest.mark.parametrize("method", [*ANALYTIC, "ap1", None])
@pytest.mark.parametrize(
    ("function", "var"),
    [(lambda x: x.mean(-1, keepdim=True), 0.09), (lambda x: x - x.mean(-1), 0.0), (lambda x: x.T, 0.09)],
)
def test_a_number_is_averaged_and_transposed_as_torch_does(
    function: Callable[[Any], Any], var: float, method: Any
) -> None:
    found = _found(function, noisy(torch.tensor(0.3), std=0.3), method)
    assert found.mean.shape == ()
    torch.testing.assert_close(found.var, torch.tensor(0.0 if method == "ap1" else var))


def test_the_outer_product_of_a_vector_with_itself_has_the_moments_of_squares_on_the_diagonal() -> None:
    mean, var = torch.tensor([0.3, -0.2]), 0.09
    found = _found(lambda x: torch.outer(x, x), Moments(mean, torch.full((2,), var)), "ap2")
    expected = mean.outer(mean) + var * torch.eye(2)
    torch.testing.assert_close(found.mean, expected)
    square = mean.square()
    apart = var * (square[:, None] + square) + var**2
    same = 2 * var**2 + 4 * square * var
    torch.testing.assert_close(found.var, torch.where(torch.eye(2) > 0, same.diag(), apart))


@pytest.mark.parametrize("method", ANALYTIC)
def test_a_network_may_ask_its_value_for_a_gradient(method: Any) -> None:
    found = _found(lambda x: x.clone().requires_grad_().tanh(), noisy(torch.zeros(2, 3), std=0.3), method)
    torch.testing.assert_close(found.var, _found(torch.tanh, noisy(torch.zeros(2, 3), std=0.3), method).var)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("method", ANALYTIC)
@pytest.mark.parametrize("certain", [False, True])
def test_the_parts_of_a_complex_value_of_half_precision_are_of_half_precision(method: Any, certain: bool) -> None:
    def parts(x: Any) -> Any:
        return torch.complex(x, 2 * x).conj().imag

    mean = torch.tensor([[0.5], [-0.25]], dtype=torch.float16)
    x: Tensor | Moments = mean if certain else noisy(mean, std=0.25)
    found = _found(parts, x, method)
    assert found.mean.dtype is found.var.dtype is torch.float16
    torch.testing.assert_close(found.mean, -2 * mean)
    torch.testing.assert_close(found.var, torch.full_like(mean, 0.0 if certain else 0.25))


@pytest.mark.parametrize("method", ANALYTIC)
@pytest.mark.parametrize(
    ("function", "power"),
    [
        (lambda x: x.square().exp().reciprocal(), 1.0),
        (lambda x: (x**2).exp().rsqrt(), 0.5),
        (lambda x: (-x * x).exp().sqrt(), 0.5),
        (lambda x: torch.exp(x * x) ** -1, 1.0),
    ],
)
def test_roots_and_reciprocals_of_an_exponential_are_functions_of_its_argument(
    function: Callable[[Any], Any], power: float, method: Any
) -> None:
    """Each is exp(-c x²), of which the mean of x of variance 1 is (1 + 2 c)^-½; exp(x²) itself has no mean."""
    found = _found(function, noisy(torch.zeros(1, 2), std=1.0), method)
    first, second = (1 + 2 * power) ** -0.5, (1 + 4 * power) ** -0.5
    torch.testing.assert_close(found.mean, torch.full((1, 2), first), rtol=1e-3, atol=0)
    torch.testing.assert_close(found.var, torch.full((1, 2), second - first**2), rtol=5e-3, atol=0)
