"""Code that stops gradients says nothing of uncertainty: no_grad, inference_mode and detach leave σ as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws.small_networks import Of
from torch import nn

import momentgen
from momentgen import Moments


def no_grad(x: Any, function: Callable[[Any], Any]) -> Any:
    with torch.no_grad():
        return function(x)


def no_grad_in_place(x: Any, function: Callable[[Any], Any]) -> Any:
    with torch.no_grad():
        y = torch.zeros_like(x) + x
        y.view(-1).mul_(1)
        return function(y)


def inference_mode(x: Any, function: Callable[[Any], Any]) -> Any:
    with torch.inference_mode():
        return function(x)


def through_a_detached_view(x: Any, function: Callable[[Any], Any]) -> Any:
    y = function(x)
    y.detach().mul_(2)
    return y / 2


#: ways to run a function
STOPPED: list[Callable[[Any, Callable[[Any], Any]], Any]] = [
    no_grad,
    no_grad_in_place,
    lambda x, function: function(x).detach(),
    lambda x, function: function(x).data,
    lambda x, function: function(x).detach_(),
]
X = Moments(torch.linspace(-1, 1, 15).view(5, 3), torch.full((5, 3), 0.1))


def _made(frozen: Callable[..., Any]) -> nn.Module:
    """Two layers, of which the first may be run in a way that stops gradients."""
    torch.manual_seed(0)
    layers = {"first": nn.Linear(3, 4), "last": nn.Linear(4, 2)}
    return Of(lambda net, x: net.last(frozen(x, lambda x: torch.tanh(net.first(x)))), **layers).eval()


@pytest.mark.parametrize("frozen", [*STOPPED, inference_mode, through_a_detached_view])
def test_adjoint_has_the_moments_of_the_network_without_the_stop(frozen):
    with momentgen.method("adjoint"):
        found = momentgen.convert(_made(frozen))(X)
        expected = momentgen.convert(_made(lambda x, function: function(x)))(X)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance, expected.covariance)


@pytest.mark.parametrize(("frozen", "part"), [*((frozen, "mean") for frozen in STOPPED), (no_grad, "var")])
def test_gradients_stop_where_the_network_stops_them(frozen, part):
    net = _made(frozen)
    with momentgen.method("adjoint"):
        getattr(momentgen.convert(net)(X), part).sum().backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in net.first.parameters())
    assert net.last.weight.grad.any()
    assert part == "var" or net.last.bias.grad.any()


@pytest.mark.parametrize("method", [None, "adjoint", "covariance", "ap2"])
def test_inference_mode_around_a_call_changes_nothing(method: Any) -> None:
    torch.manual_seed(0)
    network = momentgen.convert(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).eval(), method)
    x = torch.randn(2, 4)
    with torch.no_grad():
        expected = network(momentgen.noisy(x, std=0.3))
    with torch.inference_mode():
        found = network(momentgen.noisy(x.clone(), std=0.3))
    torch.testing.assert_close((found.mean, found.var), (expected.mean, expected.var))
    assert method is not None or found.rows == expected.rows
