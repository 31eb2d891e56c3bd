"""``monte_carlo`` of networks that know of their batch: one draw at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws.small_networks import Of, trained
from torch import Tensor, nn

import momentgen
from momentgen import Moments, noisy
from momentgen.inference import MeanField, randomise, sampled_outputs
from momentgen.nn.monte_carlo import MonteCarlo

#: how many rows each call had; not of the module, where it would be a state
CALLS: list[int] = []


def counted(function: Callable[[Tensor], Tensor]) -> nn.Module:
    """A function of a linear layer's values."""

    def run(net: Any, x: Tensor) -> Tensor:
        CALLS.append(len(x))
        return function(net.linear(x))

    torch.manual_seed(1)
    return Of(run, linear=nn.Linear(3, 2)).eval()


def _decided(x: Tensor) -> Tensor:
    return 2 * x if float(x.mean()) > 0 else x


INTERACT: dict[str, Callable[[Tensor], Tensor]] = {
    "statistics of the batch": lambda x: (x - x.mean(0)) / x.std(0),
    "a sum over earlier examples": lambda x: x.cumsum(0),
    "a sum over later examples": lambda x: x.flip(0).cumsum(0),
    "one value of all": lambda x: x.mean(0, keepdim=True),
    "the last place of a sequence": lambda x: x.cumsum(0)[-1],
    "a decision for all": _decided,
    "a size of its own": lambda x: x.view(4, 2).T @ torch.ones(4, 4),
}


@pytest.mark.parametrize("name", INTERACT)
def test_draws_of_examples_that_interact_are_those_of_single_calls(name: str) -> None:
    network, x = counted(INTERACT[name]), noisy(torch.linspace(-1, 1, 12).view(4, 3), std=0.3)
    with torch.no_grad():
        drawn = torch.stack([network(x.mean + x.std * torch.randn(4, 3)) for _ in range(2000)]).double()
    CALLS.clear()
    found = momentgen.monte_carlo(network, x, 2000, seed=0)
    assert CALLS.count(4) >= 2000
    std = drawn.std(0)
    assert ((found.output.mean - drawn.mean(0)).abs() < 5 * std / 31 + 1e-6).all()
    assert ((found.output.var.sqrt() - std).abs() < 0.12 * std + 1e-6).all()


@pytest.mark.parametrize(
    ("function", "most"), [(torch.tanh, 20), (lambda x: nn.functional.dropout(x, 0.4) + torch.randn_like(x), 2020)]
)
def test_draws_go_together_where_examples_are_independent_and_draw_no_noise(
    function: Callable[[Tensor], Tensor], most: int
) -> None:
    network = counted(function)
    CALLS.clear()
    momentgen.monte_carlo(network, noisy(torch.zeros(4, 3), std=0.3), 2000, seed=0)
    assert len(CALLS) < most


def test_noise_that_examples_share_is_drawn_for_each_draw() -> None:
    bayes = randomise(nn.Linear(3, 2), MeanField(std=0.3)).eval()
    x = torch.ones(4, 3)
    found = momentgen.monte_carlo(bayes, x, 400, seed=0).output
    torch.testing.assert_close(found.var.sqrt(), torch.full((4, 2), 0.6).double(), rtol=0.15, atol=0.0)
    for seeded in (lambda y: y + torch.randn(2), lambda y: y + torch.dropout(torch.ones(2), 0.5, True)):
        found = momentgen.monte_carlo(counted(seeded), x, 400, seed=0).output
        torch.testing.assert_close(found.var.sqrt(), torch.ones(4, 2).double(), rtol=0.15, atol=0.0)


def recurs() -> Any:
    """Adds to what the call before has left."""

    def run(net: Any, x: Tensor) -> Any:
        net.state = net.state + net.linear(x)
        return net.state

    linear = nn.Linear(3, 3, bias=False)
    nn.init.eye_(linear.weight)
    return Of(run, linear=linear, state=nn.Buffer(torch.ones(2, 3))).eval()


def test_every_draw_starts_from_what_was_kept_before_the_call() -> None:
    network, x = recurs(), noisy(torch.ones(2, 3), std=0.5)
    found = momentgen.monte_carlo(network, x, 200, seed=0).output
    torch.testing.assert_close(found.var.sqrt(), torch.full((2, 3), 0.5).double(), rtol=0.2, atol=0.0)
    assert (network.state - 2).abs().max() < 3  # that of the last draw
    before = network.state.clone()
    momentgen.summary(network, x, samples=16)
    assert torch.equal(network.state, before)


def test_draws_of_parameters_start_from_what_was_kept_before_the_call() -> None:
    torch.manual_seed(0)
    bayes = randomise(recurs(), MeanField(std=0.5))
    drawn = sampled_outputs(bayes, torch.ones(2, 3), 400)
    torch.testing.assert_close(drawn.std(0), torch.full((2, 3), 0.75**0.5), rtol=0.15, atol=0.0)


@pytest.mark.parametrize("rows", [4, 4096])
def test_layers_that_see_an_example_in_parts_have_its_values_apart(rows: int) -> None:
    parts = Of(lambda net, x: net.each(x.reshape(-1, 1)).view(x.shape), each=nn.Identity())
    x = noisy(10 * torch.arange(8.0).expand(4, 8), std=0.1)
    each = momentgen.monte_carlo(parts, x, 200, rows=rows, seed=0).layers["each"]
    torch.testing.assert_close(each.mean.float(), x.mean.reshape(-1, 1), rtol=0.0, atol=0.1)
    torch.testing.assert_close(each.var.sqrt(), torch.full((32, 1), 0.1).double(), rtol=0.3, atol=0.0)


def test_layers_of_an_encoder_with_padded_tokens_are_left_out() -> None:
    def padded(net: Any, x: Tensor) -> Tensor:
        return net.head(net.encoder(x, src_key_padding_mask=(torch.arange(5) > 2).expand(len(x), 5))[:, 0])

    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    network, x = Of(padded, encoder=encoder, head=nn.Linear(8, 2)).eval(), noisy(torch.randn(2, 5, 8), std=0.1)
    with torch.no_grad():
        found = momentgen.monte_carlo(network, x, 400, seed=0)
        expected = momentgen.convert(network)(x)
    assert list(found.layers) == ["head"]
    torch.testing.assert_close(found.output.std.float(), expected.std, rtol=0.2, atol=0)
    assert "head" in str(momentgen.summary(network, x, samples=16))


# ``summary``: layers from draws, how far ``ap2`` is off, and networks that ``ap2`` cannot run.
SAMPLES = 4000


@pytest.mark.parametrize("outputs", [1, 10])
def test_summary_has_the_layers_of_draws_and_shows_where_ap2_is_off(outputs: int) -> None:
    net, images = trained(outputs)
    network, x = momentgen.convert(net), Moments(images, 0.01)
    found = momentgen.summary(network, x, SAMPLES, seed=0, progress=False)
    by_default = network(x).std.mean().item()
    assert found.rows[-1].std[1] == pytest.approx(by_default, rel=0.05)
    assert found.rows[0].ratio == pytest.approx(1.0, abs=0.05)
    assert found.rows[-1].ratio < 0.5  # type: ignore[operator]
    assert any("since it takes units as independent" in note for note in found.notes)
    assert f"of {SAMPLES} draws" in str(found)
    by_ap2 = momentgen.summary(momentgen.convert(net, "ap2"), x)
    assert by_ap2.draws == 0
    assert by_ap2.rows[-1].std[1] < 0.5 * by_default


def test_summary_of_a_network_that_ap2_cannot_run_says_why() -> None:
    picks = Of(lambda x: x * (x.argmax(1, keepdim=True) + 1))
    found = momentgen.summary(
        momentgen.convert(nn.Sequential(nn.Linear(4, 4), picks, nn.ReLU()).eval()), noisy(torch.randn(3, 4), std=0.3)
    )
    assert [row.name for row in found.rows] == ["0", "1", "2"]
    assert all(row.ratio is None for row in found.rows)
    assert any("ap2 does not run" in note and "argmax" in note for note in found.notes)


# What results print as.
def found() -> MonteCarlo:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    functions = {"posterior[x]": lambda out: out.softmax(-1)}
    return momentgen.monte_carlo(network, momentgen.noisy(torch.zeros(2, 4), std=0.5), 200, seed=0, functions=functions)


def test_monte_carlo_is_one_short_line_where_it_is_part_of_something_else() -> None:
    result = found()
    assert repr([result]) == "[MonteCarlo(n=200, output of shape (2, 3), 3 layers, expected=['posterior[x]'])]"
