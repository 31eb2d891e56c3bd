"""Functions that users make known: the decorator, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws.small_networks import Of
from torch import Tensor, nn

import momentgen
import momentgen.generated
from momentgen.errors import UnsupportedError
from momentgen.laws import activation


@activation(momentgen.generated.silu)
def own(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@activation(momentgen.generated.leaky_relu, "negative_slope")
def relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """A name that torch has too."""
    return torch.where(x > 0, x, slope * x)


@activation(momentgen.generated.bernoulli_noise)  # draws, and is not compared with its op
def drawn(x: Tensor) -> Tensor:
    return torch.bernoulli(torch.sigmoid(x))


def net_of(function: Callable[[Tensor], Tensor]) -> nn.Module:
    torch.manual_seed(0)
    first, last = nn.Linear(6, 12), nn.Linear(12, 3)
    return nn.Sequential(first, Of(function), last).eval()


def x() -> momentgen.Moments:
    return momentgen.noisy(torch.linspace(-2, 2, 24).view(4, 6), std=0.7)


@pytest.mark.parametrize(
    ("function", "same"),
    [(own, nn.functional.silu), (lambda x: relu(x, 0.2), lambda x: nn.functional.leaky_relu(x, 0.2))],
)
def test_a_function_made_known_has_the_moments_of_its_op(function: Any, same: Any, method: str) -> None:
    found = momentgen.convert(net_of(function), method)(x())
    expected = momentgen.convert(net_of(same), method)(x())
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.std, expected.std, rtol=2e-3, atol=0)


def made(op: Any) -> Callable[[Tensor], Tensor]:
    @activation(op)
    def inner(x: Tensor) -> Tensor:
        raise NotImplementedError

    return inner


def test_functions_that_are_made_in_one_place_have_the_moments_of_their_own_ops() -> None:
    first, second = made(momentgen.generated.silu), made(momentgen.generated.tanh)
    for function, op in ((first, momentgen.generated.silu), (second, momentgen.generated.tanh)):
        found = momentgen.convert(Of(function), "ap2")(x())
        assert torch.equal(found.mean, op(x().mean, x().var).mean)


@activation(momentgen.generated.leaky_relu, "negative_slope")
def steep(x: Tensor, slope: float = 0.3, offset: float = 0.0) -> Tensor:
    return torch.where(x > 0, x, slope * x) + offset


@pytest.mark.parametrize(
    ("call", "slope"), [(steep, 0.3), (lambda x: steep(x, slope=0.4), 0.4), (lambda x: steep(x, 0.5), 0.5)]
)
def test_parameters_are_those_of_the_function_by_place_by_name_and_by_default(
    call: Callable[[Tensor], Tensor], slope: float
) -> None:
    found = momentgen.convert(Of(call), "ap2")(x())
    expected = momentgen.generated.leaky_relu(x().mean, x().var, negative_slope=slope)
    torch.testing.assert_close(found, expected)


def test_an_argument_that_the_op_does_not_know_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"leaky_relu was made known without a parameter for 1\.0"):
        momentgen.convert(Of(lambda x: steep(x, 0.3, 1.0)), "ap2")(x())


def test_a_function_made_known_computes_as_before_on_tensors() -> None:
    value = torch.linspace(-3, 3, 7)
    assert torch.equal(own(value), value * torch.sigmoid(value))
    assert own.__name__ == "own"


def test_a_function_of_a_name_that_torch_has_leaves_torchs_alone() -> None:
    net = momentgen.convert(nn.Sequential(nn.ReLU()), "ap2")
    assert torch.equal(net(x()).mean, momentgen.generated.relu(x().mean, x().var).mean)


def test_the_default_samples_a_function_made_known() -> None:
    net = net_of(own)
    found = momentgen.convert(net)(x())
    draws = momentgen.monte_carlo(net, x(), 20_000).output
    off = (found.std - draws.std).abs() / (found.std_error + 0.01 * draws.std)
    assert off.max() < 4
