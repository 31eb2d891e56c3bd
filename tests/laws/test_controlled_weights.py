"""The method ``controlled``: weights and noise that all examples have in common, and derivatives of functions."""

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


# Derivatives of functions, against their Jacobians, and what works in place.
def _attended(**settings: Any) -> Callable[[Tensor], Tensor]:
    def attended(x: Tensor) -> Tensor:
        q, k, v = x.view(-1, 2, 3, 4).unbind(2)  # x of 24: two positions, three parts of four channels
        return F.scaled_dot_product_attention(2 * q, k, v, **settings)

    return attended


WEIGHT, KERNEL = torch.linspace(0.5, 2, 6, dtype=torch.float64), torch.linspace(-1, 1, 54, dtype=torch.float64)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: F.softmax(3 * x.view(-1, 4, 6), 1),
    "log softmax": lambda x: torch.log_softmax(3 * x, -1),
    "layer norm": lambda x: F.layer_norm(x.view(-1, 4, 6), (6,), WEIGHT, WEIGHT, 1e-3),
    "layer norm of two dimensions": lambda x: F.layer_norm(x.view(-1, 4, 6), (4, 6)),
    "group norm": lambda x: F.group_norm(x.view(-1, 6, 2, 2), 3, WEIGHT, WEIGHT, 1e-3),
    "max pool": lambda x: F.max_pool2d(x.view(-1, 1, 4, 6), 2),
    "max pool of windows that overlap": lambda x: F.max_pool2d(x.view(-1, 1, 4, 6), (3, 2), (2, 1), 1, (1, 2)),
    "max pool in one dimension": lambda x: F.max_pool1d(x.view(-1, 2, 12), 3, 2),
    "products": lambda x: x.view(-1, 4, 6) @ x.view(-1, 6, 4) * x[:, :16].view(-1, 4, 4),
    "choices": lambda x: torch.where(x > 0.3, x.flip(1), 2 * x).maximum(x.roll(1, 1)).masked_fill(x < -1, 0.5),
    "without a rule": lambda x: F.normalize(x.view(-1, 4, 6), dim=-1).amax(1),
    "attention": _attended(),
    "attention, causal": _attended(is_causal=True, scale=0.7),
    "attention, masked": _attended(attn_mask=torch.tensor([[True, False], [True, True]])),
    "attention, biased": _attended(attn_mask=torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)),
    "attention by certain weights": lambda x: F.scaled_dot_product_attention(WEIGHT.view(1, 1, 6),
        WEIGHT.view(1, 1, 6).expand(len(x), 4, 6) * torch.arange(4.0).double()[:, None], x.view(-1, 4, 6)),
    "convolution of few channels": lambda x: F.conv2d(x.view(-1, 1, 4, 6), KERNEL.view(6, 1, 3, 3), stride=(2, 1),
        padding=1, dilation=(1, 2)),
}  # fmt: skip
#: whose stated error counts that all of 16 rows may miss a kink
KINKED = ("max pool", "max pool of windows that overlap", "max pool in one dimension", "choices", "without a rule")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_little_noise_a_function_is_its_jacobian_and_nothing_is_left_to_draws(name: str) -> None:
    torch.manual_seed(0)
    function, x = FUNCTIONS[name], torch.randn(3, 24, dtype=torch.float64)
    jacobian = torch.stack([torch.func.jacrev(lambda one: function(one[None]).flatten())(one) for one in x])
    expected = jacobian.square().sum(-1).sqrt() * 1e-5
    net = momentgen.convert(Of(lambda x: function(x).flatten(1)[:, :30]), "controlled", max_rows=16)
    found = net(noisy(x, std=1e-5))
    torch.testing.assert_close(found.std, expected[:, :30], rtol=2e-3, atol=1e-12)
    assert (found.std_error <= (1.001 / 16 if name in KINKED else 2e-3) * found.std + 1e-12).all()


@pytest.mark.parametrize("name", ["softmax", "layer norm", "products", "choices", "attention"])
def test_what_rows_say_of_a_derivative_is_differentiated_too(name: str) -> None:
    torch.manual_seed(0)
    net = momentgen.convert(Of(lambda x: FUNCTIONS[name](x).flatten(1)[:, :3]), "controlled", max_rows=16)

    def value(mean: Tensor) -> Tensor:
        found = net(noisy(mean, std=0.2))
        return found.std.sum() + found.mean.sin().sum()

    x = torch.randn(2, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, x, rtol=1e-4, atol=1e-7, fast_mode=True)


@pytest.mark.parametrize("end", [nn.Softmax(-1), nn.LogSoftmax(-1)], ids=["softmax", "log softmax"])
def test_probabilities_of_logits_that_are_not_normal_have_an_error_that_covers_it(end: nn.Module) -> None:
    torch.manual_seed(0)
    # logits that are squares of normal values, far from normal themselves
    net = nn.Sequential(nn.Linear(6, 4), Of(lambda x: 2 * x.square()), end).eval()
    x = torch.randn(12, 6)
    with torch.no_grad():
        drawn = torch.stack([net(x + 0.7 * torch.randn_like(x)) for _ in range(10_000)])
        found = [momentgen.convert(net, "controlled", seed=seed)(noisy(x, std=0.7)) for seed in range(10)]
    std = drawn.std(0)
    large = std > 0.3 * std.mean()
    covered = [((one.std - std).abs() <= 2 * one.std_error)[large].float().mean() for one in found]
    off = [(one.std / std).log()[large].abs().mean() for one in found]
    assert torch.stack(covered).mean() > 0.7
    assert torch.stack(off).mean() < 0.12


@torch.library.custom_op("momentgen_tests::doubled", mutates_args=("x",))
def _doubled(x: Tensor) -> None:
    x.mul_(2)


def _by_data(x: Tensor) -> Tensor:
    x.data = x.data * 2
    return x


def _by_all(x: Tensor) -> Tensor:
    torch._foreach_mul_([x], 2)
    return x


def _by_operator(x: Tensor) -> Tensor:
    _doubled(x)
    return x


def _by_view(view: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        view(x).clamp_(max=0.5)
        return x

    return function


IN_PLACE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "data": (_by_data, lambda x: 2 * x),
    "several tensors": (_by_all, lambda x: 2 * x),
    "an operator": (_by_operator, lambda x: 2 * x),
    "unsqueeze_": (lambda x: x.unsqueeze_(1).exp(), lambda x: x[:, None].exp()),
    "squeeze_": (lambda x: x[:, None].clone().squeeze_(1).exp(), lambda x: x.exp()),
    "t_": (lambda x: x.t_().cumsum(0), lambda x: x.T.cumsum(0)),
    "transpose_": (lambda x: x.view(-1, 2, 2).transpose_(1, 2).flatten(1), lambda x: x.view(-1, 2, 2).mT.flatten(1)),
    "masked_fill_": (lambda x: x.masked_fill_(x > 0.5, 0.5), lambda x: x.clamp(max=0.5)),
    "out=": (lambda x: torch.clamp(x, max=0.5, out=x), lambda x: x.clamp(max=0.5)),
    "out= of several": (lambda x: torch.sort(x, 1, out=(torch.empty(0), torch.empty(0).long()))[0],
        lambda x: x.sort()[0]),
    "a view by T": (_by_view(lambda x: x.T), lambda x: x.clamp(max=0.5)),
    "a view by data": (_by_view(lambda x: x.data), lambda x: x.clamp(max=0.5)),
    "a view by as_strided": (_by_view(lambda x: x.as_strided(x.shape, x.stride())), lambda x: x.clamp(max=0.5)),
    "dropout in evaluation": (_by_view(lambda x: F.dropout(x, 0.5, False)), lambda x: x.clamp(max=0.5)),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_works_in_place_does_so_in_every_draw(name: str) -> None:
    function, expected = IN_PLACE[name]
    off: list[float] = []

    def in_place(x: Tensor) -> Tensor:
        found = function(x.clone())
        with torch._C.DisableTorchFunction():
            off.append(float((found - expected(x)).abs().max()))
        return found

    x = noisy(torch.linspace(-1, 1, 16).view(4, 4), std=0.3)
    with torch.no_grad():
        found = momentgen.convert(Of(in_place).eval(), max_rows=32)(x)
    assert max(off) < 1e-6
    assert (found.std > 0).all()


def test_a_network_that_writes_into_its_input_does_not_write_into_the_means() -> None:
    x = noisy(torch.linspace(-1, 1, 16).view(4, 4), std=0.3)
    given = x.mean.clone()
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten())
    momentgen.convert(net.eval(), max_rows=16)(x)
    momentgen.summary(net, x, samples=2)
    assert torch.equal(x.mean, given)


def test_a_quotient_by_the_number_0_is_that_of_torch() -> None:
    x = noisy(torch.zeros(1, 2), std=1.0)
    found = momentgen.convert(Of(lambda x: (x / 0).sign()), "controlled")(x)
    assert (found.std > 0.9).all()
