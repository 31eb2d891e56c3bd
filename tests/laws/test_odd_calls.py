"""Calls that are seldom made: of numbers, of vectors without a batch, of flags of autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import momentgen
from momentgen import Moments, noisy
from momentgen.errors import UnsupportedError
from momentgen.laws import listening

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
    [(lambda x: x.mean(-1, keepdim=True), 0.09), (lambda x: x.T, 0.09)],
)
def test_a_number_is_averaged_and_transposed_as_torch_does(
    function: Callable[[Any], Any], var: float, method: Any
) -> None:
    found = _found(function, noisy(torch.tensor(0.3), std=0.3), method)
    assert found.mean.shape == ()
    torch.testing.assert_close(found.var, torch.tensor(0.0 if method == "ap1" else var))


def test_the_outer_product_of_a_vector_with_itself_is_refused_and_right_by_default() -> None:
    mean, var = torch.tensor([0.3, -0.2]), 0.09
    x = Moments(mean, torch.full((2,), var))
    with pytest.raises(UnsupportedError, match=r"outer of a random value.*a value meets itself.*controlled"):
        _found(lambda x: torch.outer(x, x), x, "ap2")
    found = _found(lambda x: torch.outer(x, x), x, None)
    square = mean.square()
    apart, same = var * (square[:, None] + square) + var**2, 2 * var**2 + 4 * square * var
    expected = torch.where(torch.eye(2) > 0, same.diag(), apart).sqrt()
    assert ((found.std - expected).abs() < 4 * found.std_error + 0.02 * expected).all()


@pytest.mark.parametrize("method", ANALYTIC)
def test_a_network_may_ask_its_value_for_a_gradient(method: Any) -> None:
    found = _found(lambda x: x.clone().requires_grad_().tanh(), noisy(torch.zeros(2, 3), std=0.3), method)
    torch.testing.assert_close(found.var, _found(torch.tanh, noisy(torch.zeros(2, 3), std=0.3), method).var)


@pytest.mark.parametrize("method", ["ap2", "adjoint"])
@pytest.mark.parametrize("function", [lambda x: x.exp().reciprocal(), lambda x: (-x * x).exp().sqrt()])
def test_roots_and_reciprocals_of_an_exponential_are_noted(function: Callable[[Any], Any], method: Any) -> None:
    with listening() as notes:
        _found(function, noisy(torch.zeros(1, 2), std=0.3), method)
    assert notes
