"""Conversion of plain torch networks."""

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.nn import MaxPool2d


class Functional(nn.Module):
    """Functional calls, concatenation, a residual, a functional dropout, a reshape by sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.first(x), 0.1)
        y = F.relu(self.norm(self.second(x)), inplace=True)
        y = y * self.scale + x / 2 - 0.25
        y = F.dropout(y, 0.3, self.training)
        x = torch.cat([F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)], dim=1)
        x = F.adaptive_avg_pool2d(x, (2, 2))
        x = x.view(x.size(0), -1)
        return self.head(torch.sigmoid(x).mul(2).sub(x.shape[1] * 0.01))


def warmed(net: nn.Module, x: Tensor) -> nn.Module:
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


def test_a_subclass_with_another_forward_is_not_taken_for_its_base():
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    plain = nn.Sequential(Scaled(3, 2), nn.ReLU())
    x = torch.randn(2, 3)
    with momentgen.method("ap1"):
        assert torch.equal(momentgen.convert(plain)(x).mean, plain(x))


def test_networks_of_another_graph_in_training_run_in_both_modes():
    plain = Of(lambda net, x: net.fc(x) + x if net.training else net.fc(x), fc=nn.Linear(3, 3)).eval()
    net = momentgen.convert(plain)
    x = torch.randn(2, 3)
    torch.testing.assert_close(net(x).mean, plain(x))
    torch.testing.assert_close(net.train()(x).mean, plain.fc(x) + x)
    assert not plain.training


def test_layers_over_moments_stay_what_they_are():
    pool = MaxPool2d(2)
    assert momentgen.convert(pool, "ap1") is pool
    assert pool.propagation == "ap1"


def test_a_variant_reaches_the_activations_of_a_converted_network() -> None:
    plain = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
    network = momentgen.convert(plain, "ap2")
    x = momentgen.noisy(torch.randn(4, 3), std=0.5)
    before = network(x)
    momentgen.nn.set_variant(network, "identity_delta")
    hidden = momentgen.convert(plain[0], "ap2")(x)
    assert torch.equal(network(x).mean, hidden.mean.clamp_min(0))
    assert torch.equal(network(x).var, torch.where(hidden.mean > 0, hidden.var, 0))
    momentgen.nn.set_variant(network, None)
    assert torch.equal(network(x).var, before.var)
    assert type(plain[1]) is nn.ReLU


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_modules_in_other_precisions_stay_in_theirs_and_moments_of_half_precision_are_float32(dtype):
    torch.manual_seed(0)
    own = momentgen.nn
    layers = (own.Conv2d(1, 2, 3), own.BatchNorm2d(2), own.ReLU(), own.AvgPool2d(2), own.Flatten(), own.Linear(8, 3))
    net = own.set_method(own.Sequential(*layers), "ap2")
    x = torch.randn(2, 1, 6, 6)
    wanted = net.eval()(Moments(x, torch.full_like(x, 0.1)))
    found = net.to(dtype)(Moments(x.to(dtype), torch.full_like(x, 0.1, dtype=dtype)))
    tolerance = 40 * torch.finfo(dtype).eps if dtype is not torch.float64 else 1e-5
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
        torch.testing.assert_close(got.float(), want, rtol=tolerance, atol=tolerance)


def test_names_can_be_imported_from_functional() -> None:
    from momentgen.nn.functional import class_posterior, softmax

    assert class_posterior(torch.zeros(1, 2)).tolist() == [[0.5, 0.5]]
    assert softmax(torch.zeros(1, 2), -1).mean.tolist() == [[0.5, 0.5]]
    with pytest.raises(AttributeError, match="no attribute 'no_such_function'"):
        momentgen.nn.functional.no_such_function  # noqa: B018
