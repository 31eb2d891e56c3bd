"""``max_rows=0``: the linear answer, exact for linear networks, and A Σ Aᵀ with the mean of ap2 for others."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import jacrev

import momentgen
from momentgen import noisy
from momentgen.errors import InputError, UnsupportedError

torch.manual_seed(0)
NETWORKS = {
    "linear": nn.Linear(6, 3),
    "tanh": nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
    "softmax": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(-1)),
    "many outputs": nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 100)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("correlated", [False, True])
def test_the_covariance_is_that_of_the_jacobian_at_the_mean(name: str, correlated: bool) -> None:
    net = NETWORKS[name].double().eval()
    torch.manual_seed(1)
    mean = torch.randn(4, 6, dtype=torch.float64)
    root = torch.randn(6, 6, dtype=torch.float64) / 3
    covariance = root.T @ root if correlated else torch.full((6,), 0.04, dtype=torch.float64).diag()
    x = noisy(mean, cov=covariance) if correlated else noisy(mean, std=0.2)
    out = momentgen.convert(net, max_rows=0)(x)
    jacobian = torch.stack([jacrev(net)(example[None])[0, :, 0] for example in mean])
    torch.testing.assert_close(out.covariance.detach(), (jacobian @ covariance @ jacobian.mT).detach())
    with momentgen.method("ap2"):
        expected = momentgen.convert(net)(x).mean
    torch.testing.assert_close(out.mean, expected)
    assert out.std_error is None
    assert out.mean_error is None


def test_two_calls_and_two_seeds_have_the_same_bits() -> None:
    x = noisy(torch.ones(2, 6, dtype=torch.float64), std=0.3)
    found = [momentgen.convert(NETWORKS["tanh"].double().eval(), max_rows=0, seed=seed)(x) for seed in (0, 0, 5)]
    for other in found[1:]:
        assert torch.equal(found[0].mean, other.mean)
        assert torch.equal(found[0].var, other.var)


class Spline(nn.Module):
    """A function that ap2 does not know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x, dim=-1).abs().sum(-1)


def test_the_mean_is_the_plain_output_where_ap2_knows_no_rule() -> None:
    x = torch.linspace(1, 3, 8, dtype=torch.float64).reshape(2, 4)
    out = momentgen.convert(Spline().eval(), max_rows=0)(noisy(x, std=0.01))
    torch.testing.assert_close(out.mean, Spline()(x))
    jacobian = jacrev(Spline())(x).diagonal(dim1=0, dim2=1).T
    torch.testing.assert_close(out.var, 1e-4 * jacobian.square().sum(-1))


def test_networks_that_draw_are_refused_with_what_to_use() -> None:
    net = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).double()
    net[1].train()
    network = momentgen.convert(net, max_rows=0)
    with momentgen.method("controlled"), pytest.raises(UnsupportedError, match="leave max_rows out"):
        network(noisy(torch.ones(2, 6, dtype=torch.float64), std=0.3))
    with pytest.raises(InputError, match="or 0 for the linear answer"):
        momentgen.convert(net, max_rows=3)


def test_gradients_of_the_linear_answer_are_those_of_its_formula() -> None:
    net = NETWORKS["tanh"].double().eval()
    mean = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    out = momentgen.convert(net, max_rows=0)(noisy(mean, std=0.2))
    (found,) = torch.autograd.grad(out.var.sum(), mean)
    jacobian = torch.stack([jacrev(net)(example[None])[0, :, 0] for example in mean])
    (expected,) = torch.autograd.grad(0.04 * jacobian.square().sum(), mean)
    torch.testing.assert_close(found, expected)
