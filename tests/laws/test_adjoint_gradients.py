"""Gradients of what ``adjoint`` finds, and derivatives by which it finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws.small_networks import Of, differentiable
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.inference import MeanField, randomise
from momentgen.nn import functional

DIFFERENTIABLE = [
    *("perceptron", "norm", "softmax", "pool", "residual", "gated"),
    pytest.param("attention", marks=pytest.mark.slow),
]


def of_weight_and_input(converted: nn.Module, x: Moments) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """A scalar of the outputs' mean, variance and covariance as a function of a weight and the input's moments."""
    name, weight = next((name, part) for name, part in converted.named_parameters())
    shares = torch.rand(2, 2, dtype=torch.float64)

    def value(weight: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        out = torch.func.functional_call(converted, {name: weight}, (Moments(mean, var),))
        return (out.mean * shares[0] + out.var * shares[1]).sum() + out.covariance[:, 0, 1].sum()

    return value, tuple(part.detach().clone().requires_grad_() for part in (weight, *x))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_of_adjoint_are_those_of_finite_differences(name: str) -> None:
    """By weights, means and variances; slopes and the variances of inner sources depend on them."""
    net, x = differentiable(name)
    value, given = of_weight_and_input(momentgen.convert(net, method="adjoint"), x)
    assert torch.autograd.gradcheck(value, given, eps=1e-6, atol=1e-5, rtol=1e-4)


def test_gradients_of_the_adjoint_covariance_are_finite_where_outputs_are_alike() -> None:
    """Eigenvectors of a covariance with equal eigenvalues have no derivative; its root has."""
    net = nn.Linear(2, 2, bias=False)
    nn.init.eye_(net.weight)
    found = momentgen.output_covariance(net, Moments(torch.zeros(1, 2), 1.0))
    found.covariance.sum().backward()
    torch.testing.assert_close(net.weight.grad, torch.full((2, 2), 2.0))


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"padding": 1}, {"padding": (2, 0)}, {"padding": (1,)}, {"padding": "same"}, {"padding": 3}),
        *({"stride": 2}, {"stride": (1, 2)}, {"dilation": (1, 2)}, {"bias": False}, {"channels": 2}),
    ],
)
def test_the_covariance_of_a_convolution_is_exact_whatever_its_options(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    channels = options.get("channels", 1)
    own = {name: value for name, value in options.items() if name != "channels"}
    net = nn.Sequential(nn.Conv2d(channels, 1, 3, **own), nn.Flatten()).double().eval()
    x = Moments(torch.randn(1, channels, 5, 5).double(), torch.rand(1, channels, 5, 5).double())
    jacobian = torch.func.jacrev(net)(x.mean).flatten(2)[0]
    with torch.no_grad():
        found = momentgen.output_covariance(net, x)
    torch.testing.assert_close(found.mean, net(x.mean))
    torch.testing.assert_close(found.covariance[0], (jacobian * x.var.flatten()) @ jacobian.mT)


def _beside(net: nn.Module, x: Tensor) -> Tensor:
    """An arc tangent, and a multiple of it beside it."""
    y = torch.atan(x)
    return torch.cat([y, net.inner(y)], dim=1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("little", [False, True])
def test_gradients_of_a_pool_over_points_are_finite_at_tiny_variances(seed: int, little: bool) -> None:
    """Derivatives by what directions leave unexplained of 1e-38 are beyond float32, those by its root are not."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(1, 1, 3, padding=1, bias=False) for _ in range(2)]
    if little:  # is left to the directions
        layers = [Of(_beside, inner=nn.Conv2d(1, 1, 1)), nn.Conv2d(2, 1, 3, padding=1, bias=False), nn.BatchNorm2d(1)]
        torch.nn.init.constant_(layers[-1].running_var, 0.0)
    net = momentgen.convert(nn.Sequential(*layers, nn.LPPool2d(1, 2), nn.Flatten(), nn.Linear(16, 3)).eval())
    var = (1e-38 * (torch.ones(3, 1, 8, 8) if little else torch.rand(3, 1, 8, 8))).requires_grad_()
    with momentgen.method("adjoint"):
        out = net(Moments(torch.zeros(3, 1, 8, 8), var))
    (functional.nll_loss(out, torch.tensor([0, 1, 2])) if little else out.mean.sum() + out.var.sum()).backward()
    assert all(torch.isfinite(part.grad).all() for part in (var, *net.parameters()) if part.grad is not None)


def test_gradients_of_random_weights_pass_through_the_noise_of_layers_behind() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    bayes = randomise(net, MeanField(std=0.2)).set_method("adjoint")
    value, given = of_weight_and_input(bayes, Moments(torch.randn(2, 3).double(), torch.rand(2, 3).double()))
    assert torch.autograd.gradcheck(value, given, eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)
