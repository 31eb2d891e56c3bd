"""Quadrature of one normal value against closed forms and mpmath's adaptive integrals."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from momentgen.laws.numerics.quadrature import quadrature


def expected(function: Callable[[mpmath.mpf], mpmath.mpf], mean: float, var: float) -> tuple[float, float]:
    sd = math.sqrt(var)
    places = [-12, -6, -3, -1, 0, 1, 3, 6, 12]
    first = mpmath.quad(lambda z: mpmath.npdf(z) * function(mean + sd * z), places)
    second = mpmath.quad(lambda z: mpmath.npdf(z) * (function(mean + sd * z) - first) ** 2, places)
    return float(first), float(second)


def agrees(function: Any, exact: Any, mean: float, var: float, tolerance: float, *how: Any, **more: Any) -> None:
    got = quadrature(function, torch.tensor(mean).double(), torch.tensor(var).double(), *how, **more)
    e, v = expected(exact, mean, var)
    assert got[0].item() == pytest.approx(e, abs=tolerance * math.sqrt(v))
    assert math.sqrt(got[1].item() / v) == pytest.approx(1, abs=tolerance)


@pytest.mark.parametrize(
    ("function", "exact", "mean", "std", "tolerance"),
    [
        (lambda x: x * torch.exp(x), lambda x: x * mpmath.exp(x), 0.3, 3.0, 1e-5),
        (lambda x: 1 / (1 + x * x), lambda x: 1 / (1 + x * x), 0.3, 3.0, 1e-3),
        (lambda x: torch.sin(3 * x), lambda x: mpmath.sin(3 * x), 0.3, 3.0, 1e-3),
        (lambda x: torch.sigmoid(x) * torch.sigmoid(-x), lambda x: mpmath.sech(x / 2) ** 2 / 4, -1.0, 5.0, 1e-3),
    ],
)
def test_graded_nodes_serve_inputs_wider_than_a_bend_and_exponentials(
    function: Any, exact: Any, mean: float, std: float, tolerance: float
) -> None:
    agrees(function, exact, mean, std**2, tolerance, 56, ())


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (lambda x: 1 / (x.abs() + 0.5), lambda x: 1 / (abs(x) + 0.5)),
        (lambda x: x.relu() * x.sigmoid(), lambda x: max(x, 0) / (1 + mpmath.exp(-x))),
        (lambda x: (x > 0).double(), lambda x: mpmath.mpf(x > 0)),
    ],
    ids=["a pointed one", "one with a kink", "a jump"],
)  # fmt: skip
def test_a_cut_keeps_full_accuracy_and_derivatives_at_a_kink(function: Any, exact: Any) -> None:
    for m in (-0.7, 0.0, 0.4):
        mean = torch.tensor(m, dtype=torch.float64, requires_grad=True)
        var = torch.tensor(0.49, dtype=torch.float64)
        found = quadrature(function, mean, var, 56, (torch.zeros(()),))
        places = sorted((-12.0, -m / 0.7, 12.0))
        moment, slope, square = (
            float(
                mpmath.quad(
                    lambda z, k=k, m=m: mpmath.npdf(z) * z ** (k % 2) * exact(m + 0.7 * z) ** (1 + k // 2), places
                )
            )
            for k in (0, 1, 2)
        )
        assert found[0].item() == pytest.approx(moment, abs=1e-7)
        assert found[1].item() == pytest.approx(square - moment**2, abs=1e-7)
        (gradient,) = torch.autograd.grad(found[0], mean)
        assert gradient.item() == pytest.approx(slope / 0.7, abs=1e-5)


@pytest.mark.parametrize("function", [torch.relu, torch.exp, torch.tanh, torch.sqrt, torch.log, torch.abs])
def test_a_certain_value_is_the_functions_own_and_its_gradients_are_finite(
    function: Callable[[Tensor], Tensor],
) -> None:
    m = torch.tensor([0.5, 1.0, 30.0], requires_grad=True)
    v = torch.zeros(3, requires_grad=True)
    mean, var = quadrature(function, m, v)
    assert torch.equal(mean, function(m))
    assert (var == 0).all()
    gradient, slope = torch.autograd.grad(mean.sum() + var.sum(), (m, v))
    torch.testing.assert_close(gradient, torch.autograd.grad(function(m).sum(), m)[0])
    assert slope.isfinite().all()


def test_an_infinite_value_of_a_certain_input_stays_infinite_and_certain() -> None:
    mean, var = quadrature(torch.log, torch.zeros(1), torch.zeros(1))
    assert mean.item() == -math.inf
    assert var.item() == 0


def test_a_function_that_is_infinite_at_the_mean_alone_is_integrated() -> None:
    mean, var = quadrature(lambda x: torch.log(x * x), torch.zeros(1), torch.ones(1))
    assert mean.isfinite().all()
    assert (var > 0).all()


def test_variances_are_never_negative_whatever_the_size_of_the_values() -> None:
    m = torch.full((1000,), 1e4)
    v = torch.logspace(-12, 0, 1000)
    assert (quadrature(lambda x: x + 1e6, m, v)[1] >= 0).all()


def test_gradients_follow_parameters_of_the_function() -> None:
    slope = torch.tensor(1.3, requires_grad=True)
    mean, _ = quadrature(lambda x: slope * x, torch.full((3,), 2.0), torch.ones(3))
    torch.testing.assert_close(torch.autograd.grad(mean.sum(), slope)[0], torch.tensor(6.0))
