"""Laws next to the rest of torch: checkpoints, autocast, hooks, scripts, einops, saving and copying."""

import asyncio
import copy
import io
import pickle
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint
from torch_networks import NETWORKS, ResidualCNN, ViT, close, gradients, mlp, moments

import momentgen
from momentgen import Moments
from momentgen.errors import InputError, UnsupportedError
from momentgen.inference import MeanField, randomise
from momentgen.laws import Diagonal, Law, diagonal

# ------------------------------------------------------------------ checkpoints


def checkpointed(inner: nn.Module, reentrant: bool = False) -> nn.Module:
    return Of(lambda net, x: checkpoint(net.inner, x, use_reentrant=reentrant), inner=inner)


@pytest.mark.parametrize("method", ["ap1", "ap2", "sample"])
@pytest.mark.parametrize("make", [mlp, lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Dropout(0.5))])
def test_a_checkpoint_has_the_same_gradients_also_outside_of_the_context(
    make: Callable[[], nn.Module], method: Any
) -> None:
    plain, x = make(), moments(5, 4)
    found = []
    for network in (momentgen.convert(plain), momentgen.convert(checkpointed(plain))):

        def run(x: Moments, network: nn.Module = network) -> Any:
            torch.manual_seed(3)
            with momentgen.method(method):
                return network(x)

        found.append(gradients(run, x, plain.parameters()))
    close(*found)


def test_a_checkpoint_around_a_converted_network_has_the_same_gradients() -> None:
    plain, x = mlp(), moments(5, 4)
    network = momentgen.convert(plain)
    around: Any = lambda x: checkpoint(network, x, use_reentrant=False)  # noqa: E731
    close(gradients(around, x, plain.parameters()), gradients(network, x, plain.parameters()))


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_a_reentrant_checkpoint_is_refused_where_it_would_lose_gradients() -> None:
    plain, x = mlp(), moments(5, 4)
    network = momentgen.convert(checkpointed(plain, reentrant=True))
    for method in ("ap1", "ap2"):
        with momentgen.method(method), pytest.raises(UnsupportedError, match="use_reentrant=False"):  # type: ignore[arg-type]
            network(x)
    with torch.no_grad():  # there is nothing to lose
        close(network(x), momentgen.convert(plain)(x))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        return 7 * grad


class DoubledInTwoParts(Doubled):
    @staticmethod
    def forward(x: Any) -> Any:  # type: ignore[override]
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # type: ignore[override]
        pass


class DoubledInAnyPrecision(Doubled):
    forward = staticmethod(torch.amp.custom_fwd(Doubled.forward, device_type="cpu"))  # type: ignore[assignment]


@pytest.mark.parametrize("function", [Doubled, DoubledInTwoParts, DoubledInAnyPrecision])
def test_a_function_with_a_backward_of_its_own_is_refused_where_it_would_not_be_called(function: Any) -> None:
    network, x = momentgen.convert(Of(lambda x: function.apply(x))), moments(3)
    with pytest.raises(UnsupportedError, match=r"Doubled\w*\.apply"):
        network(x)
    with torch.no_grad():
        close(network(x), (2 * x.mean, 4 * x.var))


def test_parts_of_a_network_may_run_without_gradients() -> None:
    def frozen(net: Any, x: Any) -> Any:
        with torch.no_grad():
            x = net.inner(x)
        return net.head(x)

    plain = Of(frozen, inner=mlp(), head=nn.Linear(3, 1))
    out = momentgen.convert(plain)(moments(2, 4))
    out.var.sum().backward()
    assert plain.head.weight.grad is not None
    assert plain.inner[0].weight.grad is None


# --------------------------------------------------------------------- autocast


def first(value: Any) -> Any:
    while not isinstance(value, Tensor | Moments):
        value = value[0]
    return value


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_standard_deviations_and_returns_float32(name: str, dtype: torch.dtype) -> None:
    make, shape = NETWORKS[name]
    plain = make()
    network, x = momentgen.convert(plain, "ap2"), moments(*shape)
    expected = network(x)
    with torch.autocast("cpu", dtype):
        out = network(x)
    assert out.mean.dtype is out.var.dtype is torch.float32
    assert (out.std - expected.std).norm() < 0.01 * expected.std.norm()
    assert (out.mean - expected.mean).norm() < 0.02 * expected.mean.norm()


def test_squares_of_small_weights_do_not_vanish_in_float16() -> None:
    plain = nn.Sequential(nn.Linear(256, 64, bias=False), nn.Linear(64, 8, bias=False))
    for layer in plain:
        layer.weight.data *= 1e-2  # squares are far below the least float16
    network, x = momentgen.convert(plain), moments(2, 256, noise=1e6)
    expected = network(x)
    with torch.autocast("cpu", torch.float16):
        out = network(x)
    assert out.var.dtype is torch.float32
    torch.testing.assert_close(out.std, expected.std, rtol=0.01, atol=0)


@pytest.mark.parametrize("layer", [nn.Linear(3, 2), nn.Conv1d(1, 2, 3)], ids=["linear", "conv1d"])
def test_a_write_that_torch_does_not_count_changes_the_next_answer(layer: nn.Module) -> None:
    network, x = momentgen.convert(layer.eval(), "ap2"), moments(4, 1, 3)
    with torch.no_grad():
        before = network(x)
        layer.weight.data.mul_(10)  # as averages of weights and clipping do; no version changes
        torch.testing.assert_close(network(x).std, 10 * before.std)


# ------------------------------------------------------------------------ hooks


def test_hooks_of_inner_modules_run_on_laws_and_replace_outputs() -> None:
    plain, seen = mlp(), []
    plain[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    plain[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    plain[1].register_forward_hook(lambda module, inputs, output: seen.append(output))
    x = moments(5, 4)
    out = momentgen.convert(plain)(x)
    assert len(seen) == 1
    assert isinstance(seen[0], Law)
    hidden = momentgen.convert(nn.Sequential(plain[2]))
    inner = momentgen.convert(nn.GELU())(
        Moments(2 * F.linear(x.mean + 1, plain[0].weight, plain[0].bias), 4 * F.linear(x.var, plain[0].weight.square()))
    )
    close(out, hidden(inner))


def test_hooks_of_the_network_itself_see_moments() -> None:
    plain, seen = mlp(), []
    plain.register_forward_pre_hook(lambda module, inputs: seen.append(type(inputs[0])))
    plain.register_forward_hook(lambda module, inputs, output: seen.append(type(output)))
    momentgen.convert(plain)(moments(5, 4))
    assert seen == [Moments, Moments]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "reparametrise",
    [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal, weight_norm,
     spectral_norm],
)  # fmt: skip
@pytest.mark.parametrize("inner", [False, True])
def test_reparametrised_weights_are_those_of_the_plain_network(reparametrise: Any, inner: bool) -> None:
    layer = reparametrise(nn.Linear(4, 4))
    plain, x = (nn.Sequential(layer) if inner else layer).eval(), moments(5, 4)
    out = momentgen.convert(plain)(x)
    close([out.mean], [plain(x.mean)])
    close([out.var], [F.linear(x.var, layer.weight.square())])
    out.var.sum().backward()
    assert any(part.grad is not None and part.grad.any() for part in plain.parameters())


def test_a_forward_that_was_replaced_on_the_instance_runs() -> None:
    plain, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), moments(2, 4)
    plain[1].forward = lambda x: torch.tanh(x)  # type: ignore[method-assign]
    expected = momentgen.convert(nn.Sequential(plain[0], nn.Tanh()))(x)
    close(momentgen.convert(plain)(x), expected)
    outer = nn.ReLU()
    outer.forward = types.MethodType(lambda self, x: 5 * x, outer)  # type: ignore[method-assign]
    network = momentgen.convert(outer)
    for each in (network, copy.deepcopy(network)):
        close(each(x), (5 * x.mean, 25 * x.var))
    close(outer(x.mean), 5 * x.mean)


# ---------------------------------------------------------------------- scripts


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_scripted_parts_say_that_they_take_tensors_only() -> None:
    """By methods that run on laws; the default runs them."""
    scripted = torch.jit.script(nn.Linear(4, 4))
    with pytest.raises((InputError, UnsupportedError), match="the module that was scripted"):
        momentgen.convert(scripted, "ap2")(moments(2, 4))
    with pytest.raises(UnsupportedError, match=r"in 1 \(RecursiveScriptModule\).*the module that was scripted"):
        momentgen.convert(nn.Sequential(nn.Linear(4, 4), scripted))(moments(2, 4))

    scripted_function = torch.jit.script(_double)

    with pytest.raises(UnsupportedError, match="needs the Python function"):
        momentgen.convert(Of(lambda x: scripted_function(x)))(moments(2, 4))
    of_weights = Of(lambda net, x: x @ scripted_function(net.weight).t(), weight=nn.Parameter(torch.ones(3, 4)))
    of_parameters = randomise(of_weights, MeanField())
    with pytest.raises(UnsupportedError, match="Local, needs the Python function"):
        momentgen.convert(of_parameters, "local")(torch.ones(2, 4))


def _double(x: Tensor) -> Tensor:
    return 2 * x


def test_einops_rearrange_laws() -> None:
    einops = pytest.importorskip("einops")
    from einops.layers.torch import Rearrange

    def arranged(net: Any, x: Any) -> Any:
        return einops.reduce(einops.rearrange(net.split(x), "b h w -> b w h"), "b w h -> b w", "mean")

    network, x = momentgen.convert(Of(arranged, split=Rearrange("b (h w) -> b h w", h=2))), moments(3, 4)
    expected = (x.mean.view(3, 2, 2).mean(1), x.var.view(3, 2, 2).mean(1) / 2)
    close(network(x), expected)
    torch._dynamo.reset()
    close(torch.compile(network, backend="eager", fullgraph=True)(x), expected)


# ----------------------------------------------- what convert makes, and leaves


def test_the_plain_module_stays_what_it_is() -> None:
    plain = ResidualCNN().train()
    plain.note = "mine"  # type: ignore[assignment]
    plain.first.register_forward_hook(lambda *_: None)
    kept = copy.deepcopy(plain)

    def state(module: nn.Module) -> list[Any]:
        return [
            (type(part), part.training, sorted(part.__dict__), len(part._forward_hooks), list(part._modules))
            for part in module.modules()
        ]

    parts = list(plain.modules())
    network = momentgen.convert(plain)
    network.eval()
    network.note = "other"  # type: ignore[assignment]
    network.first.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]
    network.extra = nn.Linear(1, 1)
    network(moments(2, 3, 6, 6))
    assert state(plain) == state(kept)
    close(plain.state_dict().values(), kept.state_dict().values())
    assert [a is b for a, b in zip(parts, plain.modules(), strict=True)] == [True] * len(parts)
    assert plain.note == "mine"
    assert isinstance(plain(torch.zeros(2, 3, 6, 6)), Tensor)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: ResidualCNN().eval(), (2, 3, 6, 6)),
        (ViT, (2, 3, 8, 8)),
        (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), (2, 4)),
    ],
)
def test_a_network_is_copied_with_parameters_of_its_own(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    plain = make()
    network, x = momentgen.convert(plain), moments(*shape)
    expected = network(x)
    again = copy.deepcopy(network)
    close(again(x), expected)
    with torch.no_grad():
        for part in again.parameters():
            part.zero_()
    close(network(x), expected)


def test_a_network_is_pickled_and_saved() -> None:
    network, x = momentgen.convert(ResidualCNN().eval(), method="ap2"), moments(2, 3, 6, 6)
    expected = network(x)
    buffer = io.BytesIO()
    torch.save(network, buffer)
    buffer.seek(0)
    for again in (pickle.loads(pickle.dumps(network)), torch.load(buffer, weights_only=False)):
        assert type(again) is type(network)
        close(again(x), expected)
    other = momentgen.convert(ResidualCNN().eval(), method="ap2")
    buffer = io.BytesIO()
    torch.save(network.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    close(other(x), expected)
    plain = ResidualCNN()
    plain.load_state_dict(network.state_dict())


def test_a_law_is_pickled_as_its_moments() -> None:
    law = torch.relu(diagonal(torch.randn(3), torch.rand(3)) + 1)
    for again in (pickle.loads(pickle.dumps(law)), copy.deepcopy(law)):
        assert type(again) is Diagonal
        close(again.moments(), law.moments())  # type: ignore[attr-defined]


def test_shared_parts_stay_shared() -> None:
    shared = nn.Linear(4, 4)
    plain = nn.Sequential(shared, nn.ReLU(), shared)
    network: Any = momentgen.convert(plain)
    assert network[0] is network[2]
    assert network[0] is not shared
    assert network[0].weight is shared.weight
    again = copy.deepcopy(network)
    assert again[0] is again[2]


# Methods in threads, tasks and processes at once.
METHODS: tuple[Any, ...] = ("ap1", "ap2")


def _network(compiled: bool) -> Any:
    network = momentgen.convert(mlp(), "ap2")
    return torch.compile(network, backend="eager", fullgraph=True) if compiled else network


def _expected(network: Any, x: Any) -> dict[str, Any]:
    found = {}
    for name in METHODS:
        with momentgen.method(name):
            found[name] = tuple(part.detach() for part in network(x))
    return found


def _in_threads(work: Callable[[Any], None], names: tuple[Any, ...]) -> None:
    """Run side by side; what fails in a thread fails here."""
    with ThreadPoolExecutor(len(names)) as threads:
        for done in [threads.submit(work, name) for name in names]:
            done.result()


@pytest.mark.parametrize("compiled", [False, True])
def test_threads_have_their_own_methods(compiled: bool) -> None:
    torch._dynamo.reset()
    network, x = _network(compiled), moments(5, 4)
    expected, start = _expected(network, x), threading.Barrier(6)

    def work(name: Any) -> None:
        start.wait()
        for _ in range(50):
            with momentgen.method(name):
                close((part.detach() for part in network(x)), expected[name])

    _in_threads(work, METHODS * 3)


def test_tasks_have_their_own_methods() -> None:
    network, x = _network(False), moments(5, 4)
    expected = _expected(network, x)

    async def work(name: Any) -> None:
        with momentgen.method(name):
            for _ in range(20):
                await asyncio.sleep(0)
                close((part.detach() for part in network(x)), expected[name])

    async def all_at_once() -> None:
        await asyncio.gather(*(work(name) for name in METHODS * 3))

    asyncio.run(all_at_once())


def test_a_network_compiled_by_two_threads_at_once_serves_both() -> None:
    torch._dynamo.reset()
    network, x = _network(False), moments(5, 4)
    expected, fast = _expected(network, x), torch.compile(network, backend="eager", fullgraph=True)
    found: dict[str, Any] = {}

    def work(name: Any) -> None:
        with momentgen.method(name):
            found[name] = tuple(part.detach() for part in fast(x))

    _in_threads(work, METHODS)
    for name in METHODS:
        close(found[name], expected[name])
