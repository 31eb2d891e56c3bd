"""Weights and noise that all examples have in common, by the method ``controlled``, against draws of the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of, convolutional
from torch import Tensor, nn

import momentgen
from momentgen import Moments, noisy
from momentgen.inference import MeanField, Tridiagonal, randomise
from momentgen.inference.bayesian_network import BayesianNetwork
from momentgen.inference.posterior import Posterior
from momentgen.laws import listening
from momentgen.laws.controlled import common
from momentgen.runtime import JointMoments

DRAWS = 2_000
FAMILIES: dict[str, Callable[[], Posterior]] = {
    "mean field": lambda: MeanField(std=0.03),
    "tridiagonal": lambda: Tridiagonal(tau=0.15, rho=-0.45),
}


def _recurrent(net: Any, x: Tensor) -> Tensor:
    """Uses its weight three times."""
    for _ in range(3):
        x = net.step(x).tanh()
    found: Tensor = net.out(x)
    return found


def recurrent() -> nn.Module:
    return Of(_recurrent, step=nn.Linear(8, 8), out=nn.Linear(8, 2))


def _tied(net: Any, x: Tensor) -> Tensor:
    """Uses its weight turned and scaled besides."""
    hidden = F.linear(x, 2 * net.weight).sigmoid()
    return torch.cat([hidden @ net.weight, x * net.weight.exp().sum()], 1)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 16), nn.SiLU(), nn.Linear(16, 3))


#: name -> network, and the shape of its input
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (perceptron, (16, 8)),
    "convolutional": (convolutional, (16, 1, 8, 8)),
    "sequence": (lambda: nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.LayerNorm(12), nn.Linear(12, 6), nn.Flatten(),
        nn.Linear(30, 3)), (16, 5, 8)),
    "recurrent": (recurrent, (16, 8)),
    "tied": (lambda: Of(_tied, weight=nn.Parameter(torch.randn(6, 5) / 2)), (16, 5)),
}  # fmt: skip


def _drawn(network: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad(), momentgen.method("sample"):
        found = [network(x) for _ in range(DRAWS)]
    values: list[Tensor] = [value.mean if isinstance(value, Moments) else value for value in found]
    return torch.stack(values).double()


def _is_covered(found: Moments, drawn: Tensor, closeness: float) -> None:
    """σ is as close as said, within its stated error and that of the draws."""
    std = drawn.std(0)
    assert found.std_error is not None
    error = (found.std_error.square() + std.square() / (2 * len(drawn))).sqrt()
    # one draw of the weights serves all examples, whose errors are alike
    assert ((found.std - std).abs() < 2 * error).double().mean() > 0.75
    assert (found.std.double() / std).log().square().mean().sqrt() < closeness
    assert ((found.mean - drawn.mean(0)) / std).square().mean().sqrt() < 0.2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NETWORKS)
def test_sixteen_rows_of_random_weights_know_sigma_as_hundreds_of_draws_do(name: str, family: str) -> None:
    make, shape = NETWORKS[name]
    network, x = randomise(make().eval(), FAMILIES[family]()), torch.randn(shape)
    drawn = _drawn(network, x)
    with torch.no_grad(), listening() as notes, momentgen.method("controlled", max_rows=16):
        found = network(x)
    assert found.rows == 16
    _is_covered(found, drawn, 0.06)  # 16 draws of weights are off by 0.18
    assert not any("ends" in note or "alone" in note for note in notes), notes


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("gradients", [True, False], ids=["", "no gradients"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_linear_map_with_random_weights_is_exact(outputs: int, gradients: bool, family: str, batch: int) -> None:
    plain = nn.Linear(5, outputs).double()
    network, x = randomise(plain, FAMILIES[family]()), torch.randn(batch, 5, dtype=torch.float64)
    weight, bias = (network.posteriors[name].sample(200_000) for name in ("weight", "bias"))
    drawn = torch.einsum("noi,bi->nbo", weight, x) + bias[:, None]
    with torch.set_grad_enabled(gradients), momentgen.method("controlled"):
        found = network(x)
    expected = torch.stack([example.T.cov().view(outputs, outputs) for example in drawn.unbind(1)])
    size = expected.diagonal(dim1=1, dim2=2).sqrt()
    torch.testing.assert_close(
        found.covariance / (size[:, None] * size[:, :, None]),
        expected / (size[:, None] * size[:, :, None]),
        rtol=0.0,
        atol=0.012,
    )
    assert found.std_error is not None
    assert found.std_error.max() < 1e-9
    torch.testing.assert_close(found.mean, plain(x))


def test_random_weights_and_a_noisy_input_add_up() -> None:
    network, x = randomise(perceptron().eval(), MeanField(std=0.02)), torch.randn(16, 8)
    with torch.no_grad(), momentgen.method("sample"):
        drawn = torch.stack([network(noisy(x, std=0.1)).mean for _ in range(DRAWS)]).double()
    with torch.no_grad(), momentgen.method("controlled", max_rows=16):
        _is_covered(network(noisy(x, std=0.1)), drawn, 0.06)


def _loss(network: BayesianNetwork, x: Tensor) -> Tensor:
    with momentgen.method("controlled", max_rows=16):
        found: Moments = network(x)
    assert isinstance(found, JointMoments)
    total: Tensor = found.mean.sin().sum() + found.var.sum() + found.covariance.cos().sum()
    return total


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_the_parameters_of_the_posteriors(family: str) -> None:
    plain = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 2))
    network, x = randomise(plain.double().eval(), FAMILIES[family]()), torch.randn(3, 2, 5, dtype=torch.float64)
    leaves = tuple(network.posteriors.parameters())
    assert torch.autograd.gradcheck(lambda *_: _loss(network, x), leaves, rtol=1e-4, atol=1e-7, fast_mode=True)


def test_without_gradients_nothing_is_recorded() -> None:
    network = randomise(perceptron().eval(), MeanField(std=0.02))
    with torch.no_grad(), momentgen.method("controlled", max_rows=16):
        found = network(torch.randn(4, 8))
    assert not found.mean.requires_grad
    assert not found.var.requires_grad


def bayesian_linear(inputs: int, outputs: int, noise: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """As people write them by hand."""
    own = {"mean": torch.randn(outputs, inputs) / inputs**0.5, "rho": torch.full((outputs, inputs), -3.0)}
    return Of(
        lambda net, x: F.linear(x, noise(net.mean, F.softplus(net.rho))),
        **{name: nn.Parameter(value) for name, value in own.items()},
    )


@pytest.mark.parametrize(
    "noise",
    [
        lambda mean, std: mean + std * torch.randn_like(std),
        lambda mean, std: torch.addcmul(mean, std, torch.randn(mean.shape)),
        lambda mean, std: torch.distributions.Normal(mean, std).rsample(),
        lambda mean, std: F.dropout(mean, 0.05, True),
    ],
    ids=["randn_like", "randn", "distribution", "DropConnect"],
)
def test_bayesian_layers_by_hand_are_as_cheap(noise: Callable[[Tensor, Tensor], Tensor]) -> None:
    network = nn.Sequential(bayesian_linear(8, 24, noise), nn.Tanh(), bayesian_linear(24, 3, noise)).eval()
    x = torch.randn(16, 8)
    drawn = _drawn(network, x)
    with torch.no_grad():
        found = momentgen.convert(network, "controlled", max_rows=16)(x)
    _is_covered(found, drawn, 0.09)


def test_weights_beyond_what_may_be_held_stay_in_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "LARGEST", 100)
    network, x = randomise(recurrent().eval(), MeanField(std=0.03)), torch.randn(16, 8)
    drawn = _drawn(network, x)
    with torch.no_grad(), listening() as notes, momentgen.method("controlled", max_rows=64):
        found = network(x)
    _is_covered(found, drawn, 0.2)
    assert any("in the rows alone" in note for note in notes)


def test_a_note_says_so_where_random_weights_leave_a_value_as_it_is() -> None:
    network = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU())
    nn.init.constant_(network[0].weight, -9.0)
    with listening() as notes:
        randomise(network, MeanField(std=1.0)).eval()(torch.ones(3, 1))
    assert any("6 value(s) are the same in all 256 rows" in note for note in notes)
