"""Networks whose functions the method ``controlled`` does not see: scripted ones, and those of an inner gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws.small_networks import Of
from sampling import assert_within, draws_of
from torch import Tensor, nn

import momentgen
from momentgen import noisy
from momentgen.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 3)).eval()


def _around(net: nn.Module, x: Tensor) -> Tensor:
    """A scripted part among others, beside which the value goes on."""
    x = net.first(x).relu()
    found: Tensor = torch.softmax(net.part(x) + x[:, :3], -1)
    return found


def _function(x: Tensor) -> Tensor:
    return torch.tanh(x) * x.exp()


class Forces(nn.Module):
    """The gradient of an energy, as of molecules."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(6, 30), nn.SiLU(), nn.Linear(30, 20), nn.SiLU(), nn.Linear(20, 1))

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x if x.requires_grad else x.requires_grad_()
            (found,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return -found


NETWORKS: dict[str, Callable[[], Any]] = {
    "a scripted module": lambda: torch.jit.script(_plain()),
    "a traced module": lambda: torch.jit.trace(_plain(), torch.randn(16, 6)),  # type: ignore[no-untyped-call]
    "a scripted part": lambda: Of(_around, first=nn.Linear(6, 6), part=torch.jit.script(_plain())),
    "a scripted function": lambda: Of(
        lambda net, x: net.functions[0](net.linear(x)), linear=nn.Linear(6, 3), functions=[torch.jit.script(_function)]
    ),
    "an inner gradient": Forces,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_sixteen_rows_know_sigma_better_than_sampling(name: str) -> None:
    network = NETWORKS[name]().eval()
    x = noisy(torch.randn(16, 6), std=0.1)
    drawn = draws_of(network, x, 4000)
    with torch.no_grad():
        found = momentgen.convert(network, max_rows=16)(x)
    std = drawn.std(0)
    assert found.rows == 16
    assert (found.std / std).log().square().mean().sqrt() < 0.12  # of 16 draws: 0.18
    assert ((found.std - std).abs() < 2 * (found.std_error.square() + (std / 90).square()).sqrt()).double().mean() > 0.7


def test_an_inner_gradient_without_a_graph_of_its_own_is_sampled() -> None:
    forces = Forces()
    network, x = Of(lambda net, x: net.forces(x).detach(), forces=forces).eval(), noisy(torch.randn(8, 6), std=0.1)
    with torch.no_grad():
        assert_within(momentgen.convert(network)(x), draws_of(network, x, 4000), 5)


def test_other_methods_refuse_an_inner_gradient_vmap_and_functional_call_by_name(method: Any) -> None:
    def made(net: Any, x: Tensor) -> Any:
        """Weights that depend on the input."""
        return torch.func.functional_call(net.part, {"weight": x[:1] * x[0, :, None]}, (x,))

    x = noisy(torch.randn(2, 6), std=0.1)
    for network, name in (
        (Forces(), "grad"),
        (Of(lambda x: torch.vmap(torch.tanh)(x)), "vmap"),
        (Of(made, part=nn.Linear(6, 6, bias=False)), "functional_call"),
    ):
        with pytest.raises(UnsupportedError, match=name):
            momentgen.convert(network.eval(), method)(x)


def test_forward_derivatives_within_a_network_are_sampled() -> None:
    x = noisy(torch.zeros(2, 3), std=0.3)
    network = Of(lambda x: torch.func.jvp(lambda y: y.sin() * x.cos(), (x,), (torch.ones_like(x),))[1])
    found = momentgen.convert(network, "controlled")(x)
    twice, four = math.exp(-2 * 0.09), math.exp(-8 * 0.09)
    std = ((3 + 4 * twice + four) / 8 - (1 + twice) ** 2 / 4) ** 0.5  # of cos²
    assert ((found.std - std).abs() < 4 * found.std_error).all()


@pytest.mark.parametrize("grad", [False, True])
def test_values_that_go_through_numpy_are_sampled(grad: bool) -> None:
    x = noisy(torch.zeros(3, 4), std=0.1)
    with torch.set_grad_enabled(grad):
        found = momentgen.convert(Of(lambda x: torch.from_numpy(3 * x.mul_(2).numpy())), "controlled")(x)
    assert ((found.std - 0.6).abs() < 4 * found.std_error).all()
    assert not x.mean.any()


def test_a_certain_input_is_run_once() -> None:
    plain, x = _plain(), torch.randn(4, 6)
    found = momentgen.convert(torch.jit.script(plain))(x)
    torch.testing.assert_close(found.mean, plain(x))
    assert not found.var.any()
