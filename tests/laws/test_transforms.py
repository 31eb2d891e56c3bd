"""torch.func, make_fx and fake tensors over converted networks."""

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch_networks import NETWORKS, ResidualCNN, close, encoder_layer, mlp, moments, pooled

import momentgen
from momentgen import Moments

_NETWORKS = list(NETWORKS.values())


def pair_of(network: nn.Module) -> Callable[[Tensor, Tensor], Any]:
    return lambda mean, var: tuple(network(Moments(mean, var)))


@pytest.mark.parametrize(("make", "shape"), _NETWORKS)
def test_vmap_is_one_network_after_the_other(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    network, x = momentgen.convert(make(), "ap2"), moments(3, *shape)
    out = torch.vmap(network)(x)
    assert type(out) is Moments
    for place in range(3):
        close((part[place] for part in out), network(Moments(x.mean[place], x.var[place])))


@pytest.mark.parametrize(("make", "shape"), _NETWORKS)
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


def test_jacobians_by_rows_and_by_columns_agree() -> None:
    network, x = momentgen.convert(mlp(), "ap2"), moments(4)
    rows = torch.func.jacrev(pair_of(network), (0, 1))(*x)
    columns = torch.func.jacfwd(pair_of(network), (0, 1))(*x)
    for a, b in zip(rows, columns, strict=True):
        close(a, b)
    assert rows[1][0].shape == (3, 4)


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
@pytest.mark.parametrize(("make", "shape"), _NETWORKS[:2])
def test_make_fx_traces_a_network(make: Callable[[], nn.Module], shape: tuple[int, ...], mode: str) -> None:
    network, x = momentgen.convert(make(), "ap2"), moments(*shape)
    graph = make_fx(network, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
    y = moments(*shape)
    close(graph(y), network(y))


@pytest.mark.parametrize(("make", "shape"), _NETWORKS)
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
