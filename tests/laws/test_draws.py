"""Draws that meet no law: in the moments, or refused; never 0 in silence.  Truth is the plain network, drawn."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import momentgen
from momentgen import Moments, noisy
from momentgen.errors import UnsupportedError
from momentgen.laws import draws
from momentgen.laws.law import Law
from momentgen.laws.table import TABLE

_W = torch.tensor([1.0, -2.0, 0.5])
_KEYS = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.2, -1.0]])


def net(line: Callable[[Any, Any], Any]) -> Any:
    """A network of one line, with parameters."""
    parts = {"weight": nn.Parameter(_W.clone()), "keys": nn.Parameter(_KEYS.clone()), "drop": nn.Dropout(0.4)}
    embedding = nn.Embedding.from_pretrained(torch.arange(15.0).reshape(5, 3) / 5 - 1, freeze=False)
    unit = momentgen.nn.InjectedNoise(0.5, distribution="logistic")
    return Of(line, **parts, embedding=embedding, unit=unit).eval()


def given() -> Moments:
    return noisy(torch.tensor([[0.3, -0.4, 1.0], [1.0, 2.0, 3.0]]), std=0.3)


def drawn(network: nn.Module, x: Any, at_once: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of the plain network's output, over draws that torch makes, all at once or not."""

    def one(place: torch.Tensor | None = None) -> Any:
        value = x.mean + x.var.sqrt() * torch.randn_like(x.mean) if isinstance(x, Moments) else x
        return network(value)

    with torch.no_grad():
        if at_once:
            found = torch.vmap(one, randomness="different")(torch.arange(20_000)).double()
        else:
            found = torch.stack([one() for _ in range(8_000)]).double()
    return found.mean(0), found.std(0)


def assert_as_drawn(network: nn.Module, x: Any, method: Any, at_once: bool = True) -> None:
    mean, std = drawn(network, x, at_once)
    found = momentgen.convert(network, method)(x)
    torch.testing.assert_close(found.var.double().sqrt(), std, rtol=0.03, atol=0)
    assert ((found.mean.double() - mean).abs() < 0.03 * std).all()


_KNOWN: dict[str, Callable[[Any, Any], Any]] = {
    "dropout": lambda net, x: x + F.dropout(net.weight, 0.4, True),
    "dropout of channels": lambda net, x: x + F.dropout1d(net.weight[None, :, None], 0.3, True)[0, :, 0],
    "alpha dropout": lambda net, x: x + F.alpha_dropout(net.weight, 0.3, True),
    "rrelu": lambda net, x: x + F.rrelu(net.weight, 0.1, 0.9, True),
    "randn_like": lambda net, x: x + 0.5 * torch.randn_like(net.weight),
    "rand_like": lambda net, x: x * torch.rand_like(net.weight),
    "randn": lambda net, x: x + 0.5 * torch.randn(x.shape),
    "rand": lambda net, x: x + torch.rand(3),
    "normal of tensors": lambda net, x: x * torch.normal(net.weight, 0.3),
    "normal of a size": lambda net, x: x + torch.normal(1.0, 0.3, (3,)),
    "bernoulli": lambda net, x: x * torch.bernoulli(torch.sigmoid(net.weight)),
    "poisson": lambda net, x: x + torch.poisson(net.weight.abs()),
    "attention": lambda net, x: (
        x + F.scaled_dot_product_attention(net.keys[None], net.keys[None], net.keys[None], dropout_p=0.3)[0, 0]
    ),
    "attention of a random query": lambda net, x: F.scaled_dot_product_attention(
        x[:, None], net.keys[None], net.keys[None], dropout_p=0.3
    )[:, 0],
    "attention in two products": lambda net, x: (
        F.dropout(torch.softmax(x[:, None] @ net.keys.mT / 3**0.5, -1), 0.3, True) @ net.keys
    )[:, 0],
    "a distribution": lambda net, x: x + torch.distributions.Bernoulli(torch.sigmoid(net.weight)).sample(),
}


#: what torch.vmap cannot draw
_ONE_BY_ONE = ("rrelu", "attention", "attention of a random query")


@pytest.mark.parametrize("name", _KNOWN)
def test_a_draw_of_a_certain_tensor_counts(name: str, method: str) -> None:
    assert_as_drawn(net(_KNOWN[name]), given(), method, name not in _ONE_BY_ONE)


def test_reparameterised_normal_distributions_count(method: Any) -> None:
    def line(net: Any, x: Any) -> Any:
        apart = torch.distributions.Normal(net.weight, 0.3).rsample()
        joint = torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3) / 2).rsample()
        return x + apart + joint

    found = momentgen.convert(net(line), method)(given())
    torch.testing.assert_close(found, Moments(given().mean + _W, given().var + 0.09 + 0.5))


def test_a_unit_of_ones_own_counts(method: Any) -> None:
    found = momentgen.convert(net(lambda net, x: x + net.unit(net.weight)), method)(given())
    torch.testing.assert_close(found, Moments(given().mean + _W, given().var + 0.5))


def test_a_draw_counts_where_gradients_are_disabled(method: str) -> None:
    def line(net: Any, x: Any) -> Any:
        with torch.no_grad():
            noise = F.dropout(net.weight, 0.4, True)
        return x + noise

    network = net(line)
    assert_as_drawn(network, given(), method)
    with torch.no_grad():
        assert_as_drawn(network, given(), method)


@pytest.mark.parametrize("method", ["ap2", None])
def test_one_dropout_in_training_mode_makes_an_embedding_of_tokens_random(method: Any) -> None:
    network = net(lambda net, x: net.drop(net.embedding(x)).sum(1))
    network.drop.train()
    assert_as_drawn(network, torch.tensor([[0, 1, 2], [2, 3, 4]]), method)


@pytest.mark.parametrize("method", ["ap1", "ap2"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_dropout_between_recurrent_layers_of_tokens_is_refused(kind: Any, method: Any) -> None:
    network = net(lambda net, x: net.recurrent(net.embedding(x))[0][:, -1])
    network.recurrent = kind(3, 2, 2, dropout=0.4, batch_first=True)
    with pytest.raises(UnsupportedError, match=r"(lstm|gru) of a random value"):
        momentgen.convert(network, method)(torch.tensor([[0], [3]]))
    network.recurrent.eval()
    assert not momentgen.convert(network, method)(torch.tensor([[0], [3]])).var.any()


def test_gradients_pass_through_draws() -> None:
    network = net(lambda net, x: x + F.dropout(net.weight, 0.4, True))
    momentgen.convert(network, "ap2")(given()).var.sum().backward()
    # Var = w² p / (1 − p) for each of two examples
    torch.testing.assert_close(network.weight.grad, 2 * 2 * _W * 0.4 / 0.6)


@pytest.mark.parametrize("name", _KNOWN)
def test_ap1_takes_draws_at_their_mean(name: str) -> None:
    network = net(_KNOWN[name])
    found = momentgen.convert(network, "ap1")(given())
    assert not found.var.any()
    mean, std = drawn(network, Moments(given().mean, torch.zeros(2, 3)), name not in _ONE_BY_ONE)
    assert ((found.mean - mean).abs() <= 0.03 * std + 1e-5).all()


@pytest.mark.parametrize("name", ["normal_", "uniform_", "bernoulli_"])
def test_ap1_writes_the_mean_of_a_draw_into_a_tensor(name: str) -> None:
    network = net(lambda net, x: x + getattr(torch.ones(3), name)())
    mean = {"normal_": 0.0, "uniform_": 0.5, "bernoulli_": 0.5}[name]
    assert torch.equal(momentgen.convert(network, "ap1")(given()).mean, given().mean + mean)


_REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "normal_": lambda net, x: x + torch.empty(3).normal_(),
    "uniform_": lambda net, x: x + torch.empty(3).uniform_(),
    "dropout": lambda net, x: x + F.dropout(net.weight * 1, 0.4, True, inplace=True),
    "exponential_": lambda net, x: x + torch.empty(3).exponential_(),
    "multinomial": lambda net, x: x + torch.multinomial(net.weight.abs(), 3),
    "randint": lambda net, x: x + torch.randint(0, 3, (3,)),
    "randperm": lambda net, x: x[:, torch.randperm(3)],
    "gumbel_softmax": lambda net, x: x + F.gumbel_softmax(net.weight),
    "fractional_max_pool2d": lambda net, x: x.sum() + F.fractional_max_pool2d(torch.ones(1, 4, 4), 2, 2),
    "randn": lambda net, x: x + torch.randn(3, generator=torch.Generator()),
    "rand": lambda net, x: x + torch.rand(3, out=torch.empty(3)),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_a_draw_without_a_rule_is_refused_with_what_to_do(name: str, method: Any) -> None:
    sentence = rf"{name} draws numbers that no law meets, in the network \(MomentsOf\), at .*test_draws.py:\d+: .*"
    with pytest.raises(UnsupportedError, match=sentence + re.escape('use method="sample"')):
        momentgen.convert(net(_REFUSED[name]), method)(given())
    with momentgen.method("sample"):
        momentgen.convert(net(_REFUSED[name]))(given())


def _seeded(function: Callable[[Any, Any], Any], seed: int) -> Callable[[Any, Any], Any]:
    def seeded(net: Any, x: Any) -> Any:
        torch.manual_seed(seed)
        return function(net, x)

    return seeded


@pytest.mark.parametrize("method", ["ap2", "ap1"])
@pytest.mark.parametrize("seed", [0, 7], ids=["the seed from outside", "another seed"])
@pytest.mark.parametrize(
    "function",
    [
        lambda net, x: x * torch.randn(3),
        lambda net, x: x + torch.rand_like(net.weight[0]),
        lambda net, x: F.dropout(x, 0.4, True),
        lambda net, x: x + F.dropout(net.weight[0], 0.4, True),
    ],
    ids=["randn", "rand_like", "dropout", "dropout of a parameter"],
)
def test_what_is_drawn_after_a_seed_is_no_noise(function: Callable[[Any, Any], Any], seed: int, method: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = momentgen.convert(net(_seeded(function, seed)), method)
        torch.randn(1)
        with pytest.raises(UnsupportedError, match=r"the network seeds torch's generator.*; draw once"):
            network(given())


def test_draws_of_fake_tensors_have_moments() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        found = momentgen.convert(net(lambda net, x: F.dropout(x, 0.4, True) + torch.randn(3)), "ap2")(given())
    assert found.var.shape == (2, 3)


def test_noise_after_a_seed_that_is_taken_back_is_noise(method: Any) -> None:
    def function(net: Any, x: Any) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            torch.ones(3).multinomial(2) if isinstance(x, torch.Tensor) else None
        return x + torch.randn(3)

    found = momentgen.convert(net(function), method)(given())
    torch.testing.assert_close(found.var, given().var + 1)


def test_no_function_of_torch_draws_unseen() -> None:
    """Every operator that torch marks as random has a rule, is refused, or is none that a network calls."""
    seen = {getattr(func, "__name__", "") for func in draws._RULES}
    seen |= {TABLE[func].name for func in draws._RULES if func in TABLE}
    inner = {"miopen_rnn", "normal_functional", "_lstm_mps"}  # called by functions that are seen
    missing = []
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, base, None) if name.startswith("aten::") else None
        operator = getattr(packet, overload or "default", None)
        if operator is None or torch.Tag.nondeterministic_seeded not in operator.tags:
            continue
        public = [space for space in (torch, F, torch.Tensor) if callable(getattr(space, base, None))]
        if public and base not in seen and base not in inner and "scaled_dot_product" not in base:
            missing.append(base)
    assert set(missing) <= _BACKENDS


#: operators of one backend each, without a public function of torch that is documented
_BACKENDS = {
    "_cudnn_init_dropout_state", "_cudnn_rnn", "_efficient_attention_forward", "_fill_mem_eff_dropout_mask_",
    "_flash_attention_forward", "_flash_attention_forward_no_dropout_inplace", "_fused_sdp_choice",
    "_nested_tensor_softmax_with_shape", "_triton_scaled_dot_attention",
}  # fmt: skip


@pytest.mark.parametrize("method", ["ap2", "ap1"])
def test_what_initialises_parameters_at_the_first_call_is_no_noise(method: Any) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)).eval()
    network = momentgen.convert(plain, method)
    first = network(given())
    assert plain[0].weight.std() > 0.1
    torch.testing.assert_close(network(given()), first)
    if method == "ap2":
        torch.testing.assert_close(momentgen.convert(copy.deepcopy(plain), method)(given()), first)


def test_a_network_in_evaluation_without_draws_is_certain() -> None:
    network = net(lambda net, x: F.dropout(net.weight, 0.4, False) * F.rrelu(net.weight) + net.embedding(x))
    assert not momentgen.convert(network, "ap2")(torch.tensor([0, 1])).var.any()


@pytest.mark.parametrize("method", ["ap2", "ap1", "sample"])
def test_torch_hands_a_random_value_back_that_it_is_asked_to_make_a_tensor_of(method: Any) -> None:
    def line(net: Any, x: Any) -> Any:
        y = torch.as_tensor(torch.asarray(x) + torch.as_tensor(x), dtype=torch.float64, device="cpu")
        assert y.dtype is torch.float64
        return y

    torch.manual_seed(0)
    found = momentgen.convert(net(line), method)(given())
    assert found.mean.dtype is torch.float64
    if method != "sample":
        torch.testing.assert_close(found.mean, 2 * given().mean.double())
        expected = torch.zeros(2, 3) if method == "ap1" else 4 * given().var
        torch.testing.assert_close(found.var, expected.double())


@pytest.mark.filterwarnings("ignore:To copy construct")
def test_a_tensor_made_of_a_random_value_is_a_copy_without_gradients() -> None:
    def line(net: Any, x: Any) -> Any:
        y = torch.tensor(x * net.weight)
        y += 1
        return y

    found = momentgen.convert(net(line), "ap2")(given())
    assert not found.mean.requires_grad
    torch.testing.assert_close(found.mean, given().mean * _W + 1)


def test_other_modes_of_functions_are_still_asked() -> None:
    with torch.device("meta"):
        found = momentgen.convert(net(lambda net, x: x + torch.zeros(3, device="cpu") + torch.randn(3, device="cpu")))
    assert found is not None
    network = momentgen.convert(net(lambda net, x: x + torch.randn(3)), "ap2")
    with torch.device("cpu"):
        torch.testing.assert_close(network(given()).var, given().var + 1)
    assert torch.overrides._len_torch_function_stack() == 0


def test_an_error_leaves_no_mode_behind() -> None:
    network = momentgen.convert(net(lambda net, x: x.relu().median()), "ap2")
    with pytest.raises(UnsupportedError):
        network(given())
    assert torch.overrides._len_torch_function_stack() == 0
    assert not isinstance(F.dropout(torch.ones(3), 0.5, True), Law)


# ------------------------------------------------------------------- torch.compile


@pytest.mark.parametrize("method", ["ap1", "ap2"])
@pytest.mark.parametrize("name", ["dropout", "randn", "normal of tensors", "attention", "a distribution"])
def test_compiled_code_has_the_moments_of_eager_code(name: str, method: Any) -> None:
    torch._dynamo.reset()
    network = momentgen.convert(net(_KNOWN[name]), method)
    fast = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(fast(given()), network(given()))


@pytest.mark.parametrize("name", ["normal_", "multinomial"])
def test_compiled_code_refuses_what_eager_code_refuses(name: str) -> None:
    torch._dynamo.reset()
    network = momentgen.convert(net(_REFUSED[name]), "ap2")
    with pytest.raises(Exception, match=f"{name} draws numbers that no law meets"):
        torch.compile(network, backend="eager", fullgraph=True)(given())


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "@": lambda net, x: x @ net.square,
    "reversed @": lambda net, x: net.square @ x.mT,
    "-": lambda net, x: x - net.weight,
    "/": lambda net, x: x / net.weight,
    "-=": lambda net, x: x.clone().sub_(net.weight) - net.weight,
}


@pytest.mark.parametrize("name", _OPERATORS)
def test_compiled_operators_on_a_random_value_and_a_tensor_keep_their_order(name: str) -> None:
    torch._dynamo.reset()
    plain = net(_OPERATORS[name])
    plain.square = nn.Parameter(torch.arange(9.0).reshape(3, 3))
    network = momentgen.convert(plain, "ap2")
    fast = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(fast(given()), network(given()))
    torch.testing.assert_close(network(given()).mean, plain(given().mean))
