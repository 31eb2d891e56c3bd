"""Units that a ReLU has switched off bring no numbers below the normal range into products, slow with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import momentgen
import momentgen.generated
from momentgen import Moments
from momentgen.inference import MeanField, randomise
from momentgen.laws.numerics.dust import gradient_of_weight, product, without_dust
from momentgen.nn import functional

_TINY = torch.finfo(torch.float32).tiny
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "convolution", "convolution_backward"))


def below_normal(values: Tensor) -> int:
    """How many values are below the normal range, 0 left out."""
    return int(((values != 0) & (values.abs() < _TINY)).sum())


class Operands(TorchDispatchMode):
    """Counts what matrix products and convolutions are given, and what of it is below the normal range."""

    def __init__(self) -> None:
        super().__init__()
        self.met = self.below = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket.__name__ in _PRODUCTS:
            for value in args:
                if isinstance(value, Tensor) and value.dtype == torch.float32:
                    self.met += 1
                    self.below += below_normal(value)
        return function(*args, **(kwargs or {}))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )  # fmt: skip


def lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def hand_written() -> nn.Module:
    """A product that is written as one."""
    parts = {"first": nn.Linear(784, 64), "second": nn.Parameter(torch.randn(64, 10) / 8)}
    return Of(lambda net, x: torch.relu(net.first(x.flatten(1))) @ net.second, **parts)


def images(noise: float, batch: int = 8) -> tuple[Moments, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(batch, 1, 28, 28, generator=generator)
    var = noise**2 * (0.5 + torch.rand(batch, 1, 28, 28, generator=generator))
    return Moments(x, var), torch.randint(0, 10, (batch,), generator=generator)


@pytest.mark.parametrize("noise", [0.1, 0.03, 0.01])
@pytest.mark.parametrize("make", [mlp, lenet, hand_written])
def test_no_product_of_a_training_step_is_given_a_number_below_the_normal_range(
    make: Callable[[], nn.Module], noise: float
) -> None:
    torch.manual_seed(0)
    net = momentgen.convert(make(), "ap2")
    x, y = images(noise)
    hidden: list[Tensor] = []
    with Operands() as operands:
        functional.nll_loss(net(x), y).backward()
    with torch.no_grad():  # there was something to leave out
        first = next(part for part in net.modules() if isinstance(part, nn.Linear | nn.Conv2d))
        given = x.mean if isinstance(first, nn.Conv2d) else x.mean.flatten(1)
        spread = x.var if isinstance(first, nn.Conv2d) else x.var.flatten(1)
        law = momentgen.convert(nn.Sequential(first, nn.ReLU()), "ap2")(Moments(given, spread))
        hidden += [law.mean, law.var]
    assert sum(map(below_normal, hidden)) > 0
    assert operands.met > 10
    assert operands.below == 0


@pytest.mark.parametrize("method", ["ap2", "sample", "local"])
def test_no_product_is_given_a_number_below_the_normal_range_by_any_method(method: Any) -> None:
    torch.manual_seed(0)
    net = momentgen.convert(mlp().eval(), method)
    if method in ("sample", "local"):
        net = randomise(net, MeanField(std=1e-3))
    x, _ = images(0.03, batch=2)
    with torch.no_grad(), Operands() as operands:
        net(x)
    assert operands.met > 0
    assert operands.below == 0


def test_variational_training_at_little_noise_gives_products_no_number_below_the_normal_range() -> None:
    torch.manual_seed(0)
    net = momentgen.convert(randomise(mlp(), MeanField(std=1e-4)), "ap2")
    x, y = images(0.01)
    with Operands() as operands:
        functional.nll_loss(net(x), y).backward()
    assert operands.met > 10
    assert operands.below == 0


def test_only_what_is_nothing_beside_the_largest_of_float32_is_taken_as_zero() -> None:
    values = torch.tensor([[3.0, -1e-25, 1e-30, -1e-31, 1e-40], [-1e-38, 1e-38, 1e-44, 0.0, 1e-40]])
    expected = torch.tensor([[3.0, -1e-25, 1e-30, 0.0, 0.0], [-1e-38, 1e-38, 1e-44, 0.0, 1e-40]])
    assert torch.equal(torch.vmap(without_dust)(values), expected)
    for row, wanted in zip(values, expected, strict=True):
        assert torch.equal(without_dust(row), wanted)
        assert torch.equal(torch.compile(without_dust, backend="eager", fullgraph=True)(row), wanted)
    double = values.double()
    assert without_dust(double) is double
    assert without_dust(values[:, :0]).shape == (2, 0)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_nothing_is_zero_beside_what_is_not_finite(number: float) -> None:
    values = torch.tensor([number, 1.0, 1e-35, -1e-42])
    torch.testing.assert_close(without_dust(values), values, rtol=0, atol=0, equal_nan=True)
    batched = torch.vmap(without_dust)(values[None])[0]
    torch.testing.assert_close(batched, values, rtol=0, atol=0, equal_nan=True)


def test_what_is_taken_as_zero_has_its_derivative_all_the_same() -> None:
    """A mean of 0 beside others changes with the input as these do."""
    values = torch.tensor([0.0, 1e-40, 2.0], requires_grad=True)
    (grad,) = torch.autograd.grad(without_dust(values).sum(), values)
    assert torch.equal(grad, torch.ones(3))
    still = values.detach()
    assert torch.equal(torch.func.jacrev(without_dust)(still), torch.eye(3))
    assert torch.equal(torch.func.jacfwd(without_dust)(still), torch.eye(3))
    assert torch.equal(torch.func.vmap(torch.func.grad(lambda x: without_dust(x).sum()))(still[None])[0], grad)


def test_derivatives_of_products_are_those_of_torch() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)

    def penalty(call: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        out = call(x, weight)
        first = torch.autograd.grad(out.square().sum(), (x, weight), create_graph=True)
        return (out, *first, *torch.autograd.grad(sum(part.pow(3).sum() for part in first), (x, weight)))  # type: ignore[union-attr]

    for ours, theirs in zip(penalty(lambda *given: product(F.linear, *given)), penalty(F.linear), strict=True):
        torch.testing.assert_close(ours, theirs)
    grad = torch.randn(5, 3)
    torch.testing.assert_close(gradient_of_weight(grad, x), grad.t() @ x)


@pytest.mark.parametrize("make", [mlp, lenet])
def test_second_derivatives_and_compiled_training_agree_with_float64(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net = momentgen.convert(make(), "ap2")
    x, y = images(0.05, batch=2)

    def gradients(run: Any, given: Moments) -> list[Tensor]:
        loss = functional.nll_loss(run(given), y)
        return list(torch.autograd.grad(loss, list(net.parameters())))

    compiled = gradients(torch.compile(net, backend="aot_eager", fullgraph=True), x)
    for ours, theirs in zip(gradients(net, x), compiled, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)

    def of_penalty(given: Moments) -> Tensor:
        loss = functional.nll_loss(net(given), y)
        first = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        return torch.cat([part.flatten() for part in torch.autograd.grad(
            sum(part.square().sum() for part in first), list(net.parameters())  # type: ignore[arg-type]
        )])  # fmt: skip

    ours = of_penalty(x)
    net.double()
    exact = of_penalty(Moments(x.mean.double(), x.var.double()))
    assert (ours - exact).norm() < 1e-3 * exact.norm()


def test_what_a_network_returns_is_not_cut() -> None:
    x = Moments(torch.tensor([[0.0, -12.0]]), torch.ones(1, 2))
    found = momentgen.convert(nn.Sequential(nn.ReLU()), "ap2")(x)
    assert torch.equal(found.mean, momentgen.generated.relu(*x).mean)
    assert torch.equal(found.var, momentgen.generated.relu(*x).var)
    assert 0 < found.var[0, 1] < 1e-30


def test_sums_of_units_that_are_off_are_those_of_float64(method: Any) -> None:
    torch.manual_seed(0)
    laws: list[Any] = []

    def units(net: Any, x: Tensor) -> Tensor:
        """ReLUs of one value, each some standard deviations off, then a sum."""
        hidden = torch.relu(net.first(x))
        laws.append(hidden)
        return net.last(hidden)

    net = Of(units, first=nn.Linear(1, 400), last=nn.Linear(400, 3)).eval()
    nn.init.ones_(net.first.weight)
    with torch.no_grad():
        net.first.bias.copy_(-0.01 * torch.linspace(0, 16, 400))
    x = Moments(torch.zeros(1, 1), torch.full((1, 1), 1e-4))
    with torch.no_grad():
        converted = momentgen.convert(net, method=method)
        found = converted(x)
        exact = momentgen.convert(net.double(), method=method)(Moments(x.mean.double(), x.var.double()))
    torch.testing.assert_close(found.mean.double(), exact.mean, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.var.double(), exact.var, rtol=1e-4, atol=0)
    if method != "ap2":
        torch.testing.assert_close(found.covariance.double(), exact.covariance, rtol=1e-4, atol=0)
