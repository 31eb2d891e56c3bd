"""Conversion of plain torch networks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from plain_networks import Functional
from torch import Tensor

import momentgen
from momentgen import Moments
from momentgen.errors import UnsupportedError
from momentgen.nn import MaxPool2d


def warmed(net: torch.nn.Module, x: Tensor) -> torch.nn.Module:
    """With batch norm statistics that are not the initial ones."""
    with torch.no_grad():
        net.train()(x)
    return net.eval()


def noisy(x: Tensor, var: float = 0.01) -> Moments:
    return Moments(x, torch.full_like(x, var))


def test_functional_code_is_converted_over_the_same_parameters():
    torch.manual_seed(0)
    x = torch.randn(4, 1, 8, 8)
    plain = warmed(Functional(), x)
    net = momentgen.convert(plain)
    with momentgen.method("ap1"):
        assert torch.equal(net(x).mean, plain(x))
    found = net(noisy(x))
    assert (found.var > 0).all()
    assert list(net.state_dict()) == list(plain.state_dict())
    assert {id(p) for p in net.parameters()} == {id(p) for p in plain.parameters()}
    found.var.sum().backward()
    assert all(p.grad is not None for p in plain.parameters() if p is not plain.head.bias)
    truth = momentgen.monte_carlo(net, noisy(x), 4000, seed=0).output
    assert ((found.mean - truth.mean).abs() / truth.var.sqrt()).max() < 0.5
    with torch.no_grad():
        plain.head.weight.mul_(2)
    with momentgen.method("ap1"):
        assert torch.equal(net(x).mean, plain(x))


def test_functional_dropout_follows_the_networks_mode():
    torch.manual_seed(0)
    x = torch.randn(2, 1, 8, 8)
    net = momentgen.convert(warmed(Functional(), x))
    assert net(x).var.count_nonzero() == 0
    net.train()
    assert (net(x).var > 0).all()


class Strange(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.inv(self.fc(x))


def test_a_function_without_a_rule_is_named_with_its_place():
    net = momentgen.convert(torch.nn.Sequential(torch.nn.Linear(3, 3), Strange()))
    with pytest.raises(UnsupportedError, match=r"inv.* of a random value, Diagonal .*, in 1 \(Strange\), at .*:\d+"):
        net(noisy(torch.randn(2, 3)))


def test_bags_and_power_averages_are_converted_as_modules_and_functions():
    class Bag(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = torch.nn.EmbeddingBag(5, 8)

        def forward(self, indices: Tensor) -> Tensor:
            both = self.bag(indices) + torch.nn.functional.embedding_bag(indices, self.bag.weight, mode="sum")
            return torch.nn.functional.lp_pool1d(both[:, None], 2, 2)

    plain = Bag()
    indices = torch.tensor([[0, 1], [4, 2]])
    with momentgen.method("ap1"):
        assert torch.equal(momentgen.convert(plain)(indices).mean, plain(indices))
    x = Moments(torch.randn(1, 1, 4), torch.rand(1, 1, 4))
    net = momentgen.convert(torch.nn.Sequential(torch.nn.LPPool1d(2, 2)))
    torch.testing.assert_close(net(x), momentgen.nn.LPPool1d(2, 2)(x))
    with pytest.raises(momentgen.errors.InputError, match=r"lp_pool1d: a rule for the norms 1 and 2 only"):
        momentgen.convert(torch.nn.Sequential(torch.nn.LPPool1d(3, 2)))(x)
    momentgen.convert(torch.nn.Sequential(torch.nn.LPPool1d(3, 2)), method="sample")(x)


def test_control_flow_on_values_is_refused_with_its_line():
    class Branching(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                return x
            return -x

    net, x = momentgen.convert(Branching()), noisy(torch.ones(3))
    with pytest.raises(UnsupportedError, match=r"gt of a random value.*test_convert.py:\d+: the result depends"):
        net(x)
    for name in ("ap1", "sample"):  # values are certain there
        with momentgen.method(name):
            assert net(x).mean.shape == (3,)


def test_a_subclass_with_another_forward_is_not_taken_for_its_base():
    class Scaled(torch.nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    plain = torch.nn.Sequential(Scaled(3, 2), torch.nn.ReLU())
    x = torch.randn(2, 3)
    with momentgen.method("ap1"):
        assert torch.equal(momentgen.convert(plain)(x).mean, plain(x))


def test_what_is_overwritten_in_place_is_read_as_overwritten():
    class InPlace(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 1.0
            z = F.relu(y, inplace=True)
            y += 1
            return y + z

    plain, x = InPlace(), torch.randn(5)
    with momentgen.method("ap1"):
        assert torch.equal(momentgen.convert(plain)(x).mean, plain(x.clone()))


def test_networks_of_another_graph_in_training_run_in_both_modes():
    class Auxiliary(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) + x if self.training else self.fc(x)

    plain = Auxiliary().eval()
    net = momentgen.convert(plain)
    x = torch.randn(2, 3)
    torch.testing.assert_close(net(x).mean, plain(x))
    torch.testing.assert_close(net.train()(x).mean, plain.fc(x) + x)
    assert not plain.training


def test_layers_over_moments_stay_what_they_are():
    pool = MaxPool2d(2)
    assert momentgen.convert(pool, "ap1") is pool
    assert pool.propagation == "ap1"


def test_parameters_of_activations_are_converted_as_modules_and_as_functions():
    torch.manual_seed(0)

    class Functions(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.threshold(F.hardtanh(F.elu(x, 0.5), -0.25, 2.0), 0.125, -1.0)

    modules = [
        torch.nn.ELU(0.5),
        torch.nn.CELU(0.75),
        torch.nn.SELU(),
        torch.nn.Hardtanh(-2, 3),
        torch.nn.Softplus(beta=2),
        torch.nn.Softshrink(0.25),
        torch.nn.Hardshrink(0.25),
        torch.nn.Threshold(0, -1),
        Functions(),
    ]
    plain = torch.nn.Sequential(*(part for module in modules for part in (torch.nn.Linear(6, 6), module)))
    net, x = momentgen.convert(plain), torch.randn(5, 6)
    with momentgen.method("ap1"):
        assert torch.equal(net(x).mean, plain(x))
    # One activation at a time: between two the moments are matched by a normal distribution.
    draw = torch.randn(200_000, 6)
    for module in modules[:-1]:
        mean, var = torch.linspace(-1, 1, 6), torch.linspace(0.05, 2, 6)
        found = momentgen.convert(torch.nn.Sequential(module))(Moments(mean[None], var[None]))
        samples = module(mean + var.sqrt() * draw)
        error = samples.std(0) / 200_000**0.5
        assert ((found.mean[0] - samples.mean(0)).abs() < 5 * error + 1e-6).all(), module
        spread = ((samples - samples.mean(0)) ** 2).std(0) / 200_000**0.5
        assert ((found.var[0] - samples.var(0)).abs() < 5 * spread + 1e-6).all(), module


def test_a_variant_reaches_the_activations_of_a_converted_network() -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU())
    network = momentgen.convert(plain, "ap2")
    x = momentgen.noisy(torch.randn(4, 3), std=0.5)
    before = network(x)
    momentgen.nn.set_variant(network, "identity_delta")
    hidden = momentgen.convert(plain[0], "ap2")(x)
    assert torch.equal(network(x).mean, hidden.mean.clamp_min(0))
    assert torch.equal(network(x).var, torch.where(hidden.mean > 0, hidden.var, 0))
    momentgen.nn.set_variant(network, None)
    assert torch.equal(network(x).var, before.var)
    assert type(plain[1]) is torch.nn.ReLU
