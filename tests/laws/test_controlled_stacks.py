"""Rows that go together through one call: the same answer as one by one, and networks for which they may not."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of, TwoHeads, convolutional
from sampling import draws_of
from torch import Tensor, nn

import momentgen
from momentgen import noisy
from momentgen.laws.controlled import facts as facts_module


def _sizes(network: nn.Module, calls: list[int]) -> nn.Module:
    """The network, which writes the number of examples of each call into a list."""

    def counted(net: Any, x: Tensor, *rest: Any) -> Any:
        calls.append(len(x))
        return net.network(x, *rest)

    return Of(counted, network=network)


def _answers(
    network: nn.Module, *args: Any, monkeypatch: pytest.MonkeyPatch, **asked: Any
) -> tuple[Any, Any, list[int]]:
    """The answer, that of rows one by one, and the sizes of the calls of the first once the network is known."""
    calls: list[int] = []
    other = copy.deepcopy(network)
    converted = momentgen.convert(_sizes(network, calls), "controlled", **asked)
    converted(*args)
    calls.clear()
    found = converted(*args)
    with monkeypatch.context() as patch:
        patch.setattr(facts_module, "_ROWS", 1)
        alone = momentgen.convert(_sizes(other, []), "controlled", **asked)(*args)
    return found, alone, calls


def _same(found: Any, alone: Any) -> None:
    assert found.rows == alone.rows
    for name in ("mean", "std", "std_error", "mean_error"):
        torch.testing.assert_close(getattr(found, name), getattr(alone, name), rtol=2e-4, atol=1e-6)


def recurrent(kind: Any, first: bool) -> nn.Module:
    def last(net: Any, x: Tensor) -> Tensor:
        return net.out(net.kind(x)[0][:, -1] if first else net.kind(x.transpose(0, 1))[0][-1])

    return Of(last, kind=kind(3, 6, 2, batch_first=first), out=nn.Linear(6, 2))


def perceptron(*ends: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.SiLU(), nn.Linear(20, 4), *ends)


TOGETHER: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (perceptron, (6, 6)),
    "softmax": (lambda: perceptron(nn.Softmax(-1)), (6, 6)),
    "convolutional": (convolutional, (6, 1, 8, 8)),
    "attention": (TwoHeads, (6, 5, 16)),
    "lstm": (lambda: recurrent(nn.LSTM, True), (5, 4, 3)),
    "gru, time in front": (lambda: recurrent(nn.GRU, False), (5, 4, 3)),
    "one example": (perceptron, (1, 6)),
    "a number each": (lambda: Of(lambda x: (x.sin() * x).sum(-1)), (6, 5)),
    "writes": (lambda: Of(lambda x: F.relu_(torch.zeros_like(x).add_(x.tanh()) - 0.1)), (6, 5)),
    "many outputs": (lambda: nn.Sequential(nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 80)), (4, 8)),
}


@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "gradients"])
def test_rows_together_have_the_answer_of_rows_one_by_one(
    name: str, gradients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = TOGETHER[name]
    x = noisy(torch.randn(shape), std=0.3)
    with torch.set_grad_enabled(gradients):
        found, alone, calls = _answers(make().eval(), x, monkeypatch=monkeypatch, max_rows=40, rtol=1e-3)
    # one between two rows, 15, the last one, one or two for derivatives; with gradients one for parameters
    assert 15 * shape[0] in calls[:3], calls
    far = 64 if name == "writes" else 0  # where no row has moved an output, larger noise is tried, in stacks of 16
    assert len(calls) < (11 if far else 9), calls
    assert sum(calls) <= (44 + far) * shape[0], calls
    _same(found, alone)


def test_gradients_of_rows_together_are_those_of_rows_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x = noisy(torch.randn(6, 5, 16), std=0.3)
    grads = []
    for network in [TwoHeads().eval()] * 2:
        network.zero_grad()
        momentgen.convert(network, "controlled")(x).std.sum().backward()
        grads.append([part.grad.clone() for part in network.parameters()])
        monkeypatch.setattr(facts_module, "_ROWS", 1)
        facts_module._FACTS.clear()
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def _stateful(net: Any, x: Tensor) -> Tensor:
    """Hands its last values on to the next call."""
    out = x.tanh() if net.last is None or net.last.shape != x.shape else x.tanh() + 0.1 * net.last
    net.last = x.detach()
    return out


def _averages(net: Any, x: Tensor) -> Tensor:
    """Keeps a running mean in a buffer."""
    net.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
    return x.exp()


def _rare(x: Tensor, reads: bool = False) -> Tensor:
    """Another function of all examples where any value is large, which hardly any draw is."""
    large = x.abs().max() > 3.5
    if reads:
        return x * 3 if bool(large) else x.sin()
    return torch.where(large, x * 3, x.sin())


APART: dict[str, Callable[[], nn.Module]] = {
    "counts examples": lambda: Of(lambda x: x.tanh() * len(x)),
    "counts many examples": lambda: Of(lambda x: x.tanh() if len(x) < 20 else x.sin()),
    "of a fixed size": lambda: Of(lambda x: x.view(6, 2, 2).exp().flatten(1)),
    "a table of examples": lambda: Of(lambda x: x.tanh() + torch.arange(6.0)[:, None]),
    "decides for all": lambda: Of(lambda x: _rare(x, True)),
    "decides for all, unread": lambda: Of(_rare),
    "state": lambda: Of(_stateful, last=None),
    "a running mean": lambda: Of(_averages, mean=nn.Buffer(torch.zeros(4))),
    "draws": lambda: Of(lambda x: x.tanh() + 0.3 * torch.randn_like(x)),
    "draws for all": lambda: Of(lambda x: x.tanh() + 0.3 * torch.randn(4)),
    "dropout": lambda: nn.Dropout(0.3).train(),
    "statistics of the batch": lambda: nn.BatchNorm1d(4).train(),
    "scripted": lambda: Of(torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))),
    "one graph": lambda: Of(lambda x: torch.zeros_like(x).index_add(0, torch.tensor([1, 2, 0, 3, 4, 5]), x.tanh())),
    "order of the batch": lambda: Of(lambda x: x.cumsum(0).tanh()),
}


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("rows", [16, 32])
def test_networks_that_know_of_their_batch_run_row_by_row(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = APART[name](), noisy(torch.randn(6, 4), std=0.3)
    with torch.no_grad():
        found, _, calls = _answers(network, x, monkeypatch=monkeypatch, max_rows=rows, rtol=1e-3)
    assert set(calls) == {6}
    assert len(calls) >= rows == found.rows


def test_a_decision_that_is_rare_has_the_moments_of_its_draws() -> None:
    network, x = Of(_rare), noisy(torch.zeros(2, 2), std=1.6)
    drawn = draws_of(network, x, 20_000)
    with torch.no_grad():
        found = momentgen.convert(network, "controlled", rtol=1e-3, max_rows=1024)(x)
    assert ((found.std - drawn.std(0)).abs() < 3 * found.std_error + 0.03).all()


def test_a_network_that_begins_to_draw_runs_row_by_row() -> None:
    def switched(net: Any, x: Tensor) -> Tensor:
        return x.tanh() if not net.level else x.tanh() + net.level * torch.randn_like(x)

    x, calls = noisy(torch.zeros(6, 4), std=0.01), []
    network = Of(switched, level=0.0)
    converted = momentgen.convert(_sizes(network, calls), "controlled", max_rows=64)
    with torch.no_grad():
        converted(x)
        converted.network.level = 0.5
        calls.clear()
        found = converted(x)
    assert set(calls[-found.rows :]) == {6}
    assert (found.std / 0.5).log().abs().max() < 0.1


def test_certain_inputs_with_the_batch_in_front_go_with_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Of(lambda x, scale, shift: x.tanh() * scale + shift)
    x, scale = noisy(torch.randn(6, 5), std=0.3), torch.rand(6, 1) + 0.5
    with torch.no_grad():
        found, alone, calls = _answers(
            network, x, scale, torch.randn(5), monkeypatch=monkeypatch, max_rows=32, rtol=1e-3
        )
        assert max(calls) == 6 * 16
        _same(found, alone)
        # one that only has as many entries as there are examples
        square = noisy(torch.randn(5, 5), std=0.3)
        found, alone, calls = _answers(
            network, square, torch.rand(5), torch.randn(5), monkeypatch=monkeypatch, max_rows=32, rtol=1e-3
        )
    assert set(calls) == {5}
    _same(found, alone)


@dataclasses.dataclass
class Both:
    value: Tensor
    extra: dict[str, Any]


def test_nested_outputs_come_apart_and_what_is_no_tensor_is_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Of(lambda x: Both(x.tanh(), {"largest": x.argmax(1), "count": len(x), "pair": (x.exp(), None)}))
    x = noisy(torch.randn(6, 5), std=0.3)
    with torch.no_grad():
        found, alone, calls = _answers(network, x, monkeypatch=monkeypatch, max_rows=32, rtol=1e-3)
    assert max(calls) == 6 * 16
    _same(found.value, alone.value)
    _same(found.extra["pair"][0], alone.extra["pair"][0])
    assert found.extra["count"] == 6
    assert torch.equal(found.extra["largest"], alone.extra["largest"])


def test_rows_of_large_networks_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x = noisy(torch.randn(64, 6), std=0.3)
    network = nn.Sequential(nn.Linear(6, 20_000), nn.ReLU(), nn.Linear(20_000, 2))
    with torch.no_grad():
        _, _, calls = _answers(network, x, monkeypatch=monkeypatch, max_rows=16)
    assert set(calls) == {64}


def test_hooks_see_single_rows() -> None:
    seen: list[int] = []
    network = perceptron()
    network[1].register_forward_hook(lambda part, given, out: seen.append(len(out)))
    with torch.no_grad():
        momentgen.convert(network, "controlled")(noisy(torch.randn(6, 6), std=0.3))
    assert set(seen) == {6}


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_products_of_a_recurrent_network_go_together(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function has no rule of its own: the derivatives of the rows' graphs are asked for in batches."""
    refused: list[str] = []
    plain = torch.autograd.grad

    def grad(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        except RuntimeError as error:
            refused.append(str(error))
            raise

    monkeypatch.setattr(torch.autograd, "grad", grad)
    torch.manual_seed(0)

    network = Of(lambda net, x: net.layer(x)[0][:, -1], layer=layer(2, 5, batch_first=True)).eval()
    found = momentgen.convert(network, max_rows=16)(momentgen.noisy(torch.randn(4, 6, 2), std=0.1))
    assert found.std.shape == (4, 5)
    assert not refused


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("name", ["buffer", "weight", "attribute", "count", "setting", "argument"])
def test_examples_that_begin_to_interact_are_found_by_the_next_call(name: str, draws: bool) -> None:
    def mixed(net: Any, x: Tensor, argument: Tensor) -> Tensor:
        x = F.dropout(x, 0.1) if draws else x
        share = net.buffer + net.weight + net.attribute + net.count + net.settings["share"]
        return x + (share + argument) * x.mean(0)

    own = {"attribute": torch.zeros(()), "count": 0, "settings": {"share": 0.0}, "buffer": nn.Buffer(torch.zeros(()))}
    network: Any = momentgen.convert(Of(mixed, weight=nn.Parameter(torch.zeros(())), **own).eval(), max_rows=1024)
    x, number = noisy(torch.zeros(8, 3), std=1.0), torch.zeros(())
    with torch.no_grad():
        assert network(x, number).covariance.shape == (8, 3, 3)
        if name == "setting":
            network.settings["share"] = 2.0
        elif name == "argument":
            number = number + 2
        elif name == "weight":
            network.weight.fill_(2.0)
        else:
            setattr(network, name, 2 if name == "count" else torch.tensor(2.0))
        found = network(x, number)
    assert found.covariance.shape == (24, 24)
    expected = (1 + 4 / 8 + 4 / 8) ** 0.5 * ((1 / 0.9) ** 0.5 if draws else 1)  # x + 2 mean, of independent x
    assert ((found.std - expected).abs() < 5 * found.std_error + 1e-4).all()


@pytest.mark.parametrize("seed", [4, 16, 19, 23])
def test_a_decision_by_all_examples_that_begins_later_is_that_of_a_network_that_had_it_before(seed: int) -> None:
    def doubled(net: Any, x: Tensor) -> Tensor:
        y = net.layer(x)
        return y * 2 if net.on and y.mean() > 0 else y

    torch.manual_seed(seed)
    plain, mean = Of(doubled, layer=nn.Linear(6, 6), on=0).eval(), torch.randn(4, 6)
    with torch.no_grad():
        plain.layer.bias -= plain.layer(mean).mean()  # draws fall on either side
        before = Of(doubled, layer=nn.Linear(6, 6), on=1).eval()
        before.load_state_dict(plain.state_dict())
        network: Any = momentgen.convert(plain)
        network(noisy(mean, std=0.3))
        network.on = 1
        expected = momentgen.convert(before)(noisy(mean, std=0.3))
        found = network(noisy(mean, std=0.3))
    torch.testing.assert_close(found.std, expected.std, rtol=0, atol=0)
    assert found.covariance.shape == (24, 24)


@pytest.mark.parametrize("groups", [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0], [0, 1, 2, 2], [0, 1, 2, 0]])
def test_two_examples_that_interact_are_found_whichever_they_are(groups: list[int]) -> None:
    group = torch.tensor(groups)
    network = Of(lambda x: torch.zeros(4, 3).index_add(0, group, x)[group]).eval()
    with torch.no_grad():
        found = momentgen.convert(network, max_rows=1024)(noisy(torch.zeros(4, 3), std=1.0))
    assert found.covariance.shape == (12, 12)
    expected = torch.bincount(group)[group].sqrt()[:, None].expand(4, 3)
    torch.testing.assert_close(found.std, expected, rtol=1e-4, atol=0)


def test_lazy_and_inference_parameters_have_no_versions() -> None:
    x = noisy(torch.zeros(4, 2), std=1.0)
    with torch.inference_mode():
        inner = nn.Linear(3, 2)
    network = nn.Sequential(nn.LazyLinear(3), inner).eval()
    with torch.no_grad():
        assert momentgen.convert(network, max_rows=16)(x).std.shape == (4, 2)
