"""Units that a ReLU has switched off leave no numbers below the normal range, which processors are slow with."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.laws.numerics.dust import without_dust

_TINY = torch.finfo(torch.float32).tiny


def below_normal(values: Tensor) -> int:
    """How many values are below the normal range, 0 left out."""
    return int(((values != 0) & (values.abs() < _TINY)).sum())


def test_only_what_is_nothing_beside_the_largest_of_float32_is_taken_as_zero() -> None:
    values = torch.tensor([[3.0, -1e-25, 1e-30, -1e-31, 1e-40], [-1e-38, 1e-38, 1e-44, 0.0, 1e-40]])
    expected = torch.tensor([[3.0, -1e-25, 0.0, 0.0, 0.0], [-1e-38, 1e-38, 1e-44, 0.0, 1e-40]])
    assert torch.equal(torch.vmap(without_dust)(values), expected)
    double = values.double()
    assert without_dust(double) is double
    assert without_dust(values[:, :0]).shape == (2, 0)


class Units(nn.Module):
    """ReLUs of one value, each some standard deviations off, then a sum; keeps the law of the ReLUs."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 400), nn.Linear(400, 3)
        nn.init.ones_(self.first.weight)
        with torch.no_grad():
            self.first.bias.copy_(-noise * torch.linspace(0, 16, 400))

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = torch.relu(self.first(x))
        return self.last(self.hidden)


@pytest.mark.parametrize("method", ["adjoint", "correlated"])
def test_relus_that_are_off_leave_no_numbers_below_the_normal_range(method: str) -> None:
    torch.manual_seed(0)
    net = Units(0.01).eval()
    x = Moments(torch.zeros(1, 1), torch.full((1, 1), 1e-4))
    with torch.no_grad():
        converted = momentgen.convert(net, method=method)
        found = converted(x)
        law = converted.hidden
        assert isinstance(law._var, Tensor)
        assert below_normal(law._var) == 0
        if method == "correlated":
            assert below_normal(law._joint.tangents) == 0
        else:
            assert below_normal(law._probes.rows) == 0
        exact = momentgen.convert(net.double(), method=method)(Moments(x.mean.double(), x.var.double()))
    assert below_normal(exact.var.float()) == 0
    torch.testing.assert_close(found.mean.double(), exact.mean, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.covariance.double(), exact.covariance, rtol=1e-4, atol=0)


def test_a_small_value_of_a_sigmoid_keeps_its_mean() -> None:
    """A probability of 1e-35 beside one of a half is an answer."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Sigmoid())
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(2))
    x = Moments(torch.tensor([[0.0, -80.0]]), torch.full((1, 2), 1e-4))
    for method in ("adjoint", "correlated"):
        found = momentgen.convert(net, method=method)(x).mean[0, 1].item()
        assert found == pytest.approx(math.exp(-80 + 5e-5), rel=1e-4)
