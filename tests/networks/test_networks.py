"""Networks as other people write them run on moments without a change."""

import copy
import functools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import momentgen
from momentgen import Moments
from networks.zoo import NETWORKS, Network

#: the mean and the standard deviation that are left of an input without noise, after a network, over its spread
NO_NOISE = 1e-3


@pytest.fixture(params=NETWORKS, ids=lambda one: one.name)
def network(request: pytest.FixtureRequest) -> Network:
    found: Network = request.param
    return found


@functools.cache
def _built(network: str) -> nn.Module:
    return next(each for each in NETWORKS if each.name == network).build()


@pytest.fixture
def plain(network: Network) -> nn.Module:
    """A network of the test's own: some keep what they computed."""
    return copy.deepcopy(_built(network.name))


class NoiseAtItsMean(TorchFunctionMode):
    """What a network draws from a standard normal distribution is 0."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return (torch.zeros_like if func is torch.randn_like else func)(*args, **(kwargs or {}))


def _expected(network: Network, plain: nn.Module) -> Tensor:
    """The plain network's output, all noise at its mean."""
    with torch.no_grad(), NoiseAtItsMean():
        out = network.call(plain, network.mean())
    assert isinstance(out, Tensor)
    return out


def _noisy(network: Network) -> Moments:
    mean = network.mean()
    return Moments(mean, torch.full_like(mean, network.variance))


def _moments(network: Network, plain: nn.Module, x: Moments) -> Moments:
    out = network.call(momentgen.convert(plain, "ap2"), x)
    assert isinstance(out, Moments)
    return out


def test_ap1_is_the_plain_output(network: Network, plain: nn.Module) -> None:
    expected = _expected(network, plain)
    with torch.no_grad(), momentgen.method("ap1"):
        out = _moments(network, plain, _noisy(network))
    assert not out.var.any()
    assert torch.equal(out.mean.view(torch.int32), expected.view(torch.int32))


def test_ap2_gives_finite_means_and_variances_that_are_not_all_zero(network: Network, plain: nn.Module) -> None:
    with torch.no_grad():
        out = _moments(network, plain, _noisy(network))
    assert out.mean.shape == out.var.shape == _expected(network, plain).shape
    assert out.mean.isfinite().all()
    assert out.var.isfinite().all()
    assert (out.var >= 0).all()
    assert (out.var > 0).any()


def test_without_noise_ap2_has_the_plain_mean_and_no_variance(network: Network, plain: nn.Module) -> None:
    if network.noise:
        pytest.skip("the network adds noise of its own")
    expected, mean = _expected(network, plain), network.mean()
    with torch.no_grad():
        out = _moments(network, plain, Moments(mean, torch.zeros_like(mean)))
    torch.testing.assert_close(out.mean, expected, rtol=0, atol=NO_NOISE * float(expected.std()))
    assert out.std.max() <= NO_NOISE * expected.std()


def test_gradients_reach_the_input_and_all_parameters_that_the_plain_network_trains(
    network: Network, plain: nn.Module
) -> None:
    twin, mean = copy.deepcopy(plain), network.mean().requires_grad_()
    expected = network.call(twin, mean)
    expected.square().sum().backward()
    assert expected.std() > 0  # else the network says nothing
    assert mean.grad is not None
    assert mean.grad.any()
    trained = {name for name, parameter in twin.named_parameters() if parameter.grad is not None}

    x = Moments(*[part.requires_grad_() for part in _noisy(network)])
    out = _moments(network, plain, x)
    (out.mean.square().sum() + out.var.sum()).backward()
    for part in x:
        assert part.grad is not None
        assert part.grad.isfinite().all()
    found = {name: parameter.grad for name, parameter in plain.named_parameters() if parameter.grad is not None}
    assert trained <= found.keys()
    assert [name for name, grad in found.items() if not grad.isfinite().all()] == []
