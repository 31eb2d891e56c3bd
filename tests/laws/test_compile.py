"""``torch.compile`` of converted networks: what eager mode computes, compiled once for each method."""

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config
from laws.small_networks import Of, noisy, same, small
from networks.third_party import allow_torchvision
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch_networks import NETWORKS, ResidualCNN, close, encoder_layer, gradients, mlp, moments, pooled

import momentgen
from momentgen import Moments
from momentgen.errors import UnsupportedError


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield
    torch._dynamo.reset()


def compiled(network: nn.Module, backend: str = "aot_eager") -> Any:
    return torch.compile(network, backend=backend, fullgraph=True)


_NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn": (lambda: ResidualCNN().eval(), (3, 3, 6, 6)),
    **{name: NETWORKS[name] for name in ("vit", "encoder layer")},
    "cnn in training": (lambda: ResidualCNN().train(), (3, 3, 6, 6)),
}


def _equals_eager(name: str, backend: str, relative: float) -> None:
    make, shape = _NETWORKS[name]
    plain = make()
    again = copy.deepcopy(plain)  # training changes the statistics of a batch norm
    network, fast = momentgen.convert(plain, "ap2"), compiled(momentgen.convert(again, "ap2"), backend)
    for is_new in (True, False):  # the second time on other data, for which nothing is compiled
        x = moments(*shape)
        expected = gradients(network, x, plain.parameters())
        with torch._dynamo.config.patch(error_on_recompile=not is_new):
            close(gradients(fast, x, again.parameters()), expected, relative)
        close(again.state_dict().values(), plain.state_dict().values())


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("cnn in training", "aot_eager"),
        *(pytest.param(name, "aot_eager", marks=pytest.mark.slow) for name in ("vit", "encoder layer", "cnn")),
        pytest.param("cnn", "inductor", marks=pytest.mark.slow),
    ],
)
def test_output_and_gradients_equal_eager_and_new_data_are_not_compiled_for(name: str, backend: str) -> None:
    _equals_eager(name, backend, 1e-4 if backend == "inductor" else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernels",
    [
        1,
        pytest.param(
            64,
            marks=pytest.mark.xfail(
                reason="torch 2.13's inductor fuses the backward of two norms around GELU wrongly on the CPU; "
                "aot_eager with inductor's decompositions and partition is right"
            ),
        ),
    ],
)
def test_a_vit_by_inductor_equals_eager(kernels: int) -> None:
    """With at most so many operations fused into one kernel; 64 is inductor's own choice."""
    with torch._inductor.config.patch(max_fusion_size=kernels, force_disable_caches=True):
        _equals_eager("vit", "inductor", 1e-4)


def test_code_of_one_method_is_never_run_under_another() -> None:
    network = momentgen.convert(mlp(), "ap2")
    fast, x = compiled(network, "eager"), moments(5, 4)
    for method in ("ap1", "ap2", "ap1", "ap2", "sample", "ap2"):
        with momentgen.method(method):  # type: ignore[arg-type]
            torch.manual_seed(1)
            out = fast(x)
            torch.manual_seed(1)
            close(out, network(x))
    momentgen.laws.set_method(network, "ap1")
    assert not fast(x).var.any()
    with momentgen.method("ap2"):
        assert fast(x).var.all()


def test_more_networks_than_torch_keeps_versions_of_one_code() -> None:
    with torch._dynamo.config.patch(recompile_limit=1):
        for kind in (nn.ReLU, nn.Tanh, nn.GELU):
            network, x = momentgen.convert(kind(), "ap2"), moments(3)
            close(compiled(network, "eager")(x), network(x))


def test_variances_that_are_expanded_or_made_within() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    network = momentgen.convert(plain, "ap2")
    fast, x = compiled(network, "eager"), torch.randn(2, 3, 6, 6)
    for var in (torch.rand(()).expand(x.shape), torch.rand(3, 6, 6).expand(x.shape)):
        close(fast(Moments(x, var)), network(Moments(x, var)))
    close(fast(x), network(x))
    expected = network(Moments(x, 0.01))
    for make in (lambda x: Moments(x, 0.01), lambda x: momentgen.noisy(x, std=0.1)):
        whole = torch.compile(lambda x, make=make: network(make(x)), backend="eager", fullgraph=True)
        close(whole(x), expected)


def test_tuples_of_random_values_are_joined() -> None:
    network, x = (
        momentgen.convert(Of(lambda x: torch.cat((x, torch.stack((x, x + 1), dim=1).flatten(0, 1)), dim=0)), "ap2"),
        moments(2, 3),
    )
    close(compiled(network, "eager")(x), network(x))


def test_a_checkpoint_within_the_network_has_the_same_gradients() -> None:
    plain = Of(lambda net, x: checkpoint(net.inner, x, use_reentrant=False), inner=mlp())
    x = moments(5, 4)
    network = momentgen.convert(plain, "ap2")
    close(gradients(compiled(network), x, plain.parameters()), gradients(network, x, plain.parameters()))


@pytest.mark.slow
def test_a_model_of_transformers() -> None:
    allow_torchvision()
    transformers = pytest.importorskip("transformers")
    configuration = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    network = momentgen.convert(transformers.BertModel(configuration, add_pooling_layer=False).eval(), "ap2")
    x = moments(2, 3, 8)
    out = torch.compile(network, backend="eager", fullgraph=True)(inputs_embeds=x)
    close(out.last_hidden_state, network(inputs_embeds=x).last_hidden_state)


#: classes of torch.nn's activations -> their arguments, where one is needed
_NEEDED: dict[str, tuple[Any, ...]] = {
    "Threshold": (0.1, 2.0), "Softmax": (-1,), "Softmin": (-1,), "LogSoftmax": (-1,)
}  # fmt: skip
#: of another shape, tested with attention
_OTHERS = ("Softmax2d", "MultiheadAttention")


def test_every_activation_compiles_into_the_same_graph() -> None:
    names = [name for name in torch.nn.modules.activation.__all__ if name not in _OTHERS]
    layers = nn.ModuleDict({name: getattr(nn, name)(*_NEEDED.get(name, ())) for name in names})

    def each(net: Any, x: Any) -> dict[str, Any]:
        x = net.linear(x)
        return {name: layer(x) for name, layer in net.layers.items()}

    network = momentgen.convert(Of(each, linear=nn.Linear(4, 4), layers=layers).eval(), method="ap2")
    x = moments(3, 4)
    found, wanted = compiled(network, "eager")(x), network(x)
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        torch.testing.assert_close(tuple(found[name]), tuple(want), msg=name)


# The default in code that torch compiles, exports, traces and transforms.
def test_compiled_networks_have_the_bits_of_eager_mode() -> None:
    network = momentgen.convert(small())
    fast: Any = torch.compile(network, backend="eager")
    for size in (3, 3, 5):
        x = noisy(size, 4)
        same(fast(x), network(x))
    certain = noisy(3, 4).mean
    same(fast(certain), network(certain))
    with momentgen.method("ap2"):
        same(fast(x), network(x))
    same(fast(x), network(x))
    network.train()
    same(fast(x), network(x))


def test_code_around_a_network_is_compiled_and_methods_may_be_entered_in_it() -> None:
    network, x = momentgen.convert(small()), noisy(3, 4)

    @torch.compile(backend="eager")
    def run(x: Moments) -> Any:
        first = network(Moments(x.mean * 2, x.var))
        with momentgen.method("ap2"):
            second = network(x)
        return first.mean + 1, second, network(x)

    doubled, ap2, default = run(x)
    assert torch.equal(doubled, network(Moments(x.mean * 2, x.var)).mean + 1)
    same(ap2, momentgen.convert(small(), "ap2")(x))
    same(default, network(x))


def test_whole_graphs_are_refused_in_our_words() -> None:
    network, x = momentgen.convert(small()), noisy(3, 4)
    said = r'cannot be compiled in full or exported.*method="ap2" can'
    with pytest.raises(RuntimeError, match=f"(?s){said}"):
        torch.compile(network, backend="eager", fullgraph=True)(x)
    torch._dynamo.reset()
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=f"(?s){said}"):
            torch.export.export(network, (x,), strict=strict)


@pytest.mark.parametrize(
    "transformed",
    [
        lambda run, x: torch.func.jacrev(run)(x),
        lambda run, x: torch.func.jacfwd(run)(x),
        lambda run, x: torch.vmap(run)(torch.stack([x, 2 * x])),
    ],
    ids=["jacrev", "jacfwd", "vmap"],
)
def test_transforms_of_the_default_are_refused_with_what_to_use(transformed: Any) -> None:
    network, x = momentgen.convert(small()), noisy(3, 4)
    with pytest.raises(UnsupportedError, match=r"torch\.func.*method=\"ap2\""):
        transformed(lambda mean: network(Moments(mean, x.var)).var, x.mean)
    with momentgen.method("ap2"):
        assert transformed(lambda mean: network(Moments(mean, x.var)).var, x.mean).isfinite().all()


# torch.func, make_fx and fake tensors over converted networks.
_EVERY = list(NETWORKS.values())


def pair_of(network: nn.Module) -> Callable[[Tensor, Tensor], Any]:
    return lambda mean, var: tuple(network(Moments(mean, var)))


@pytest.mark.parametrize(("make", "shape"), _EVERY)
def test_vmap_is_one_network_after_the_other(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    network, x = momentgen.convert(make(), "ap2"), moments(3, *shape)
    out = torch.vmap(network)(x)
    assert type(out) is Moments
    for place in range(3):
        close((part[place] for part in out), network(Moments(x.mean[place], x.var[place])))


@pytest.mark.parametrize(("make", "shape"), _EVERY)
def test_forward_and_reverse_derivatives_agree(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    network = momentgen.convert(make().double(), "ap2")
    x, tangents = (tuple(part.double() for part in moments(*shape)) for _ in range(2))
    out, forward = torch.func.jvp(pair_of(network), x, tangents)
    _, pull = torch.func.vjp(pair_of(network), *x)
    weights = tuple(torch.randn_like(part) for part in out)
    sides = [(a * b).sum() for a, b in zip(weights, forward, strict=True)]
    others = [(a * b).sum() for a, b in zip(pull(weights), tangents, strict=True)]
    # A max pool's reverse mode integrates the derivatives, forward mode differentiates the sum over the nodes; both are
    # within 2e-5 of the exact derivatives in float64 (test_maximum.py).
    rtol = 2e-5 if make is pooled else 1e-6
    torch.testing.assert_close(sum(sides), sum(others), rtol=rtol, atol=1e-9)


def test_second_derivatives_are_those_of_differences() -> None:
    network = momentgen.convert(mlp().double(), "ap2")
    x = Moments(*(part.double() for part in moments(4)))

    def total(mean: Tensor) -> Tensor:
        return network(Moments(mean, x.var)).var.sum()

    hessian = torch.func.hessian(total)(x.mean)
    step = 1e-4
    for place in range(4):
        shift = step * torch.eye(4, dtype=torch.float64)[place]
        difference = (torch.func.grad(total)(x.mean + shift) - torch.func.grad(total)(x.mean - shift)) / (2 * step)
        torch.testing.assert_close(hessian[place], difference, rtol=1e-5, atol=1e-7)


def test_functional_call_differentiates_in_given_parameters() -> None:
    plain, x = mlp(), moments(5, 4)
    network = momentgen.convert(plain, "ap2")
    given = {name: part.detach().clone() for name, part in network.named_parameters()}
    found = torch.func.grad(lambda p: torch.func.functional_call(network, p, (x,)).var.sum())(given)
    expected = torch.autograd.grad(network(x).var.sum(), list(plain.parameters()), allow_unused=True)
    for (name, grad), other in zip(found.items(), expected, strict=True):
        close([grad], [torch.zeros_like(given[name]) if other is None else other])


def test_an_ensemble_is_mapped_over_its_parameters() -> None:
    networks, x = [momentgen.convert(mlp(), "ap2") for _ in range(3)], moments(5, 4)
    parameters, buffers = torch.func.stack_module_state(networks)  # type: ignore[arg-type]
    out = torch.vmap(lambda p: torch.func.functional_call(networks[0], (p, buffers), (x,)))(parameters)
    for place, network in enumerate(networks):
        close((part[place] for part in out), network(x))


@pytest.mark.parametrize("mode", ["real", "symbolic"])
@pytest.mark.parametrize(("make", "shape"), _EVERY[:2])
def test_make_fx_traces_a_network(make: Callable[[], nn.Module], shape: tuple[int, ...], mode: str) -> None:
    network, x = momentgen.convert(make(), "ap2"), moments(*shape)
    graph = make_fx(network, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
    y = moments(*shape)
    close(graph(y), network(y))


@pytest.mark.parametrize(("make", "shape"), _EVERY)
def test_no_value_is_looked_at_on_the_way(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    with FakeTensorMode():
        plain = make()
        out = momentgen.convert(plain, "ap2")(moments(*shape))
        plain_out = plain(torch.zeros(shape))
    assert out.mean.shape == out.var.shape == plain_out.shape


def test_second_derivatives_of_sigma_are_those_of_differences() -> None:
    torch.manual_seed(0)
    network = momentgen.convert(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double().eval())
    x, along = torch.randn(2, 2, 4, dtype=torch.float64)

    def slope(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(network(momentgen.noisy(x, std=0.3)).std.sum(), x)
        return found

    start = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(network(momentgen.noisy(start, std=0.3)).std.sum(), start, create_graph=True)
    (second,) = torch.autograd.grad(first, start, along)
    difference = (slope(x + 1e-4 * along) - slope(x - 1e-4 * along)) / 2e-4
    torch.testing.assert_close(second, difference, rtol=1e-5, atol=1e-7)


# ``torch.export`` of converted networks, with moments for input and output.
def export(network: nn.Module, x: Moments, strict: bool, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*side effects")  # the depth at which tracing is, put back at once
        return torch.export.export(network, (x,), strict=strict, **options)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_network_is_saved_and_loaded(strict: bool) -> None:
    network, x = momentgen.convert(ResidualCNN().eval(), "ap2"), moments(2, 3, 6, 6)
    buffer = io.BytesIO()
    torch.export.save(export(network, x, strict), buffer)
    buffer.seek(0)
    y = moments(2, 3, 6, 6)
    out = torch.export.load(buffer).module()(y)
    assert type(out) is Moments
    close(out, network(y))


@pytest.mark.parametrize(
    ("make", "argument", "shape", "strict"),
    [
        (mlp, "input", (4,), False),
        (mlp, "input", (4,), True),
        (pooled, "input", (3, 6, 6), False),
        pytest.param(pooled, "input", (3, 6, 6), True, marks=pytest.mark.slow),
        (lambda: ResidualCNN().eval(), "x", (3, 6, 6), False),
        (lambda: ResidualCNN().eval(), "x", (3, 6, 6), True),
        pytest.param(encoder_layer, "src", (3, 8), False, marks=pytest.mark.slow),
        pytest.param(encoder_layer, "src", (3, 8), True, marks=pytest.mark.slow),
    ],
)
def test_the_size_of_the_batch_is_free(
    make: Callable[[], nn.Module], argument: str, shape: tuple[int, ...], strict: bool
) -> None:
    network, batch = momentgen.convert(make(), "ap2"), torch.export.Dim("batch")
    shapes = {argument: Moments({0: batch}, {0: batch})}  # type: ignore[arg-type]
    program = export(network, moments(3, *shape), strict, dynamic_shapes=shapes)
    x = moments(5, *shape)
    close(program.module()(x), network(x))


def test_arguments_have_the_names_of_the_plain_network() -> None:
    class Two(nn.Module):
        def forward(self, first: Any, second: Any) -> Any:
            return first - second

    network, x, y = momentgen.convert(Two(), "ap2"), moments(3), moments(3)
    program = torch.export.export(network, (x,), {"second": y}, strict=False)
    close(program.module()(x, second=y), network(x, y))


def test_an_exported_network_runs_by_the_method_in_force_at_export() -> None:
    network, x = momentgen.convert(mlp(), "ap2"), moments(2, 4)
    with momentgen.method("ap1"):
        program = export(network, x, strict=False)
    out = program.module()(x)
    assert not out.var.any()
    close([out.mean], [network(x).mean], 1.0)
