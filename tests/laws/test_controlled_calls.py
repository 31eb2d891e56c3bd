"""The method ``controlled`` calls a network many times: each time as if it were the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws.small_networks import Of
from sampling import assert_within, draws_of
from torch import Tensor, nn

import momentgen
from momentgen import noisy
from momentgen.errors import InputError

#: where a network keeps a state from call to call -> how it goes on with it
KEEPS = {
    "attribute": "net.state = net.cell(x, net.state); now = net.state",
    "attribute in place": "now = net.state.copy_(net.cell(x, net.state))",
    "list": "net.states.append(net.cell(x, net.states[-1])); now = net.states[-1]",
    "dictionary": "net.by_name['state'] = net.cell(x, net.by_name['state']); now = net.by_name['state']",
    "buffer": "now = net.buffer.copy_(net.cell(x, net.buffer))",
}


def recurrent(keep: str) -> Any:
    """A network with a state, which it returns too where it is a buffer."""
    begun = torch.full((2, 3), 0.5)

    def forward(net: Any, x: Tensor) -> Any:
        known = {"net": net, "x": x}
        exec(KEEPS[keep], known)
        out = net.last(known["now"])
        return (out, net.buffer) if keep == "buffer" else out

    torch.manual_seed(1)
    parts = {"cell": nn.GRUCell(4, 3), "last": nn.Linear(3, 2), "buffer": nn.Buffer(begun.clone())}
    states = {"state": begun.clone(), "states": [begun.clone()], "by_name": {"state": begun.clone()}}
    return Of(forward, **parts, **states).eval()


@pytest.mark.parametrize("batched", [True, False], ids=["", "one example"])
@pytest.mark.parametrize("keep", KEEPS)
def test_every_draw_starts_from_the_state_before_the_call(keep: str, batched: bool) -> None:
    network, x = recurrent(keep), noisy(torch.linspace(-1, 1, 8).view(2, 4), std=0.5)
    given = x if batched else momentgen.Moments(x.mean.reshape(-1), x.var.reshape(-1))
    drawn = draws_of(lambda x: network.last(network.cell(x, torch.full((2, 3), 0.5))), x)  # what a first call returns
    with torch.no_grad(), momentgen.laws.listening() as notes:
        alone = Of(lambda net, x: net.network(x.view(2, 4)), network=network)
        found = momentgen.convert(network if batched else alone.eval())(given)
    assert any("keeps what depends on the draw" in text for text in notes)
    found, state = found if keep == "buffer" else (found, None)
    assert_within(found, drawn)
    assert state is None or (state.std > 0.01).all()
    assert len(network.states) <= 2
    kept = network.state, network.buffer, *network.states, *network.by_name.values()
    assert not any(value.requires_grad for value in kept)


def test_a_batch_norm_in_training_sees_one_batch_by_one_call() -> None:
    plain = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh()).train()
    with torch.no_grad():
        momentgen.convert(plain, "controlled", max_rows=32)(noisy(torch.randn(8, 4), std=0.1))
    assert plain[1].num_batches_tracked == 1


def test_a_cache_that_the_first_call_fills_stays() -> None:
    def placed(net: Any, x: Tensor) -> Tensor:
        if net.cache is None:
            net.cache, net.made = torch.arange(4.0), net.made + 1
        found: Tensor = net.linear(x + net.cache).tanh()
        return found

    network = momentgen.convert(Of(placed, linear=nn.Linear(4, 3), cache=None, made=0).eval())
    with torch.no_grad(), momentgen.laws.listening() as notes:
        for _ in range(2):
            network(noisy(torch.randn(2, 4), std=0.1))
    assert network.made == 1
    assert not any("keeps" in text for text in notes)


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference mode"])
@pytest.mark.parametrize(
    "written",
    [
        "found = state.mul_(0.5).add_(y)",
        "state *= 1.3; found = state * y",
        "state[:, 0] += 1; found = state + y * state[:, :1]",
    ],
)
def test_a_certain_argument_that_is_written_to_is_the_same_for_every_draw(written: str, inference: bool) -> None:
    def writes(net: Any, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        known = {"y": torch.tanh(net.first(x)), "state": state}
        exec(written, known)
        return net.last(known["found"]), known["found"]

    torch.manual_seed(1)
    network = Of(writes, first=nn.Linear(4, 3), last=nn.Linear(3, 2)).eval()
    x = noisy(torch.linspace(-1, 1, 8).view(2, 4), std=0.5)
    with torch.inference_mode(inference), torch.no_grad():
        state = torch.linspace(0, 2, 6).view(2, 3)
        drawn = [network(x.mean + x.std * torch.randn(2, 4), state.clone()) for _ in range(2048)]
        found = momentgen.convert(network)(x, state)
        assert torch.equal(state, torch.linspace(0, 2, 6).view(2, 3))
    for one, rows in zip(found, map(torch.stack, zip(*drawn, strict=True)), strict=True):
        assert_within(one, rows)


def test_what_is_known_of_a_network_is_known_of_its_settings() -> None:
    def mixed(net: Any, x: Tensor, mixes: bool = False) -> Tensor:
        found: Tensor = net.linear(x)
        return found + 3 * found.mean(0) if mixes or net.mixes else found

    torch.manual_seed(1)
    network = momentgen.convert(Of(mixed, linear=nn.Linear(4, 3), mixes=False).eval())
    x = noisy(torch.randn(4, 4), std=0.3)
    with torch.no_grad():
        alone = network(x).var
        together = network(x, mixes=True).var
        network.mixes = True
        assert torch.equal(together, network(x).var)
    torch.testing.assert_close(together, alone * ((1 + 3 / 4) ** 2 + 3 * (3 / 4) ** 2), rtol=1e-3, atol=0)


def test_all_draws_go_one_way_through_torchs_encoder() -> None:
    """A mean over all places, padded ones too, which torch computes only where it may be asked for a gradient."""
    torch.manual_seed(1)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    network = Of(
        lambda net, x, padded: net.last(net.encoder(x, src_key_padding_mask=padded).mean(1)),
        encoder=encoder,
        last=nn.Linear(8, 2),
    ).eval()
    x = noisy(torch.randn(2, 5, 8), std=0.2)
    padded = torch.tensor([[False] * 5, [False] * 2 + [True] * 3])
    torch.backends.mha.set_fastpath_enabled(True)
    with torch.enable_grad():
        drawn = torch.stack([network(x.mean + x.std * torch.randn(2, 5, 8), padded).detach() for _ in range(600)])
    with torch.no_grad():
        found = momentgen.convert(network, rtol=1e-3, max_rows=64)(x, padded)
    assert_within(found, drawn)


def _limited(x: Tensor) -> Tensor:
    """At most two examples go each way."""
    way, out = x[:, :2].argmax(-1), torch.zeros_like(x)
    for number in range(2):
        chosen = (way == number).nonzero()[:2, 0]
        out = out.index_copy(0, chosen, (number + 1) * x[chosen])
    return out


def _largest(x: Tensor) -> Tensor:
    """The five largest values of all examples."""
    return torch.where(x >= x.flatten().topk(5).values[-1], x, 0)


@pytest.mark.parametrize("function", [_limited, _largest])
def test_examples_that_interact_in_some_draws_do_not_share_their_noise(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(1)
    network = Of(lambda net, x: function(net.linear(x)), linear=nn.Linear(6, 3)).eval()
    torch.manual_seed(2)
    x = noisy(torch.randn(6, 6), std=0.5)
    with torch.no_grad():
        drawn = torch.stack([network(x.mean + x.std * torch.randn(6, 6)) for _ in range(4000)])
        found = momentgen.convert(network)(x)
    assert found.covariance.shape == (18, 18)
    off = (found.mean - drawn.mean(0)).abs() / (found.mean_error + drawn.std(0) / 63 + 1e-3)
    assert (off < 3).double().mean() > 0.9


def test_neighbours_that_one_draw_in_twenty_joins_count_as_joined() -> None:
    """Points .9 apart on a line, with an edge where two are nearer than .5; rows together would have other edges."""

    def graph(x: Tensor) -> Tensor:
        return ((x[..., None, :] - x[..., None, :, :]).abs().sum(-1) < 0.5).to(x) @ x

    x = noisy(0.9 * torch.arange(6.0)[:, None].repeat(1, 2), std=0.3)
    drawn = graph(x.mean + x.std * torch.randn(40_000, 6, 2, generator=torch.Generator().manual_seed(0))).std(0)
    found = [momentgen.convert(Of(graph).eval(), seed=seed)(x) for seed in range(6)]
    assert all(one.rows == 256 and one.covariance.shape == (12, 12) for one in found)
    z = torch.stack([(one.std - drawn) / one.std_error for one in found])
    assert z.square().mean().sqrt() < 1.3


@pytest.mark.parametrize("keep", ["attribute", "list", "dictionary"])
def test_what_ap2_has_left_in_a_network_is_refused(keep: str) -> None:
    plain = recurrent(keep)
    plain.cell = Of(lambda net, x, h: torch.tanh(net.of_x(x) + net.of_h(h)), of_x=nn.Linear(4, 3), of_h=nn.Linear(3, 3))
    network, x = momentgen.convert(plain.eval()), noisy(torch.randn(2, 4), std=0.3)
    with torch.no_grad():
        with momentgen.method("ap2"):
            network(x)
        with pytest.raises(InputError, match="is a random value, as a call by ap2 may leave one"):
            network(x)


def _looked_up(x: Tensor) -> Tensor:
    return torch.arange(100.0)[(10 * x + 50).long()]


def _within_bounds(x: Tensor) -> Tensor:
    if x.abs().max() > 50:
        raise ValueError("out of bounds")
    return x.tanh()


@pytest.mark.parametrize("function", [_looked_up, _within_bounds])
def test_a_network_that_refuses_what_no_draw_is_runs(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    network, x = Of(function).eval(), noisy(torch.randn(3, 5), std=0.3)
    with torch.no_grad():
        drawn = torch.stack([network(x.mean + x.std * torch.randn(3, 5)) for _ in range(4000)])
        found = momentgen.convert(network)(x)
    assert ((found.std - drawn.std(0)).abs() < 4 * found.std_error + 0.05 * drawn.std(0)).all()


def test_a_network_that_begins_to_keep_a_state_starts_every_draw_from_the_same() -> None:
    def begins(net: Any, x: Tensor) -> Tensor:
        out = torch.tanh(net.map(x) + net.state)
        net.state = net.share * out
        return out

    torch.manual_seed(0)
    own = {"map": nn.Linear(6, 3), "state": torch.zeros(4, 3), "share": torch.tensor(0.0)}
    network: Any = momentgen.convert(Of(begins, **own).eval())
    x = noisy(torch.randn(4, 6), std=0.5)
    with torch.no_grad():
        expected = network(x)
        network.share = torch.tensor(1.0)
        found = network(x)
    torch.testing.assert_close(found.std, expected.std, rtol=0.2, atol=0)  # draws differ, and 16 of them do
    torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=0.02)
