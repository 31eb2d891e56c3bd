"""The method ``controlled``: a softmax at the end of a network, and networks whose functions it does not see."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws.small_networks import Of, trained
from sampling import assert_within, draws_of
from torch import Tensor, nn

import momentgen
from momentgen import Moments, noisy
from momentgen.errors import UnsupportedError


def after(network: nn.Module, function: Callable[[Tensor], Tensor]) -> nn.Module:
    """A network, and a function of its logits."""
    return nn.Sequential(network, Of(function)).eval()


#: what is written after a softmax of logits
WRITTEN = [
    "p = logits.softmax(1).mul_(3)",
    "p = logits.softmax(1); p[:, 0] = 0",
    "p = logits.log_softmax(1); p.clamp_(max=-0.8)",
    "p = logits.softmax(1); logits.mul_(3)",
    "p = logits.softmax(1)\nif float(logits[0, 0]) > 0: p *= 2",
]


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference mode"])
@pytest.mark.parametrize("written", WRITTEN)
def test_what_is_written_into_after_a_softmax_counts(written: str, inference: bool) -> None:
    def writes(logits: Tensor) -> Tensor:
        known = {"logits": logits}
        exec(written, known)
        return known["p"]

    linear = nn.Linear(4, 3)
    network = after(linear, writes)
    with torch.no_grad():
        linear.bias[0] = 0
    x = noisy(0.3 * torch.randn(1, 4), std=0.3)
    with torch.inference_mode(inference), torch.no_grad():
        drawn, found = draws_of(network, x, 8000), momentgen.convert(network)(x)
    assert_within(found, drawn, 5)


def test_the_error_of_two_classes_of_one_example_is_not_understated() -> None:
    network = nn.Sequential(nn.Linear(5, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 2), nn.Softmax(1))
    covered, generator = [], torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.eval().parameters():
            parameter.normal_(0, 0.5 if parameter.dim() == 1 else 1.5 / parameter.shape[1] ** 0.5, generator=generator)
        for _ in range(60):
            x = torch.randn(1, 5, generator=generator)
            std = network(x + 0.2 * torch.randn(20_000, 5, generator=generator)).std(0)
            if std.min() > 0.005:
                found = momentgen.convert(network)(noisy(x, std=0.2))
                covered.append((found.std[0] - std).abs() < 2 * found.std_error[0])
    assert torch.stack(covered).double().mean() > 0.85


@pytest.mark.parametrize("last", [nn.Softmax(-1), nn.LogSoftmax(-1)])
def test_probabilities_of_two_classes_have_the_sigma_of_sampling(last: nn.Module) -> None:
    """Nearly certain ones above all, of which the slope says nothing."""
    torch.manual_seed(0)
    logits = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    with torch.no_grad():
        logits[2].weight.mul_(12)
    net = nn.Sequential(logits, last).eval()
    x = Moments(torch.randn(6, 8), torch.full((6, 8), 0.02))
    with torch.no_grad():
        found = momentgen.convert(net)(x)
        drawn = net(x.mean + x.std * torch.randn(20_000, 6, 8)).double()
    torch.testing.assert_close(found.var.double().sqrt(), drawn.std(0), rtol=0.15, atol=1e-3)


def test_the_stated_error_of_probabilities_covers_logits_that_are_not_normal() -> None:
    """Where an example's class is seldom another, normal logits of exact moments give a σ that is far too small."""
    logits, images = trained(10)
    net, x = nn.Sequential(logits, nn.Softmax(-1)).eval(), Moments(images, 0.1)
    with torch.no_grad():
        drawn = net(x.mean + x.std * torch.randn(5000, *images.shape)).double().std(0)
        large, within = drawn > 0.05, []
        for seed in range(3):
            found = momentgen.convert(net, seed=seed)(x)
            within.append(((found.std - drawn).abs() < 2 * found.std_error + 0.03 * drawn)[large])
    assert torch.cat(within).double().mean() > 0.85


_MASK = torch.tensor([True, False, False, False])


@pytest.mark.parametrize("added", [False, True], ids=["filled", "added"])
@pytest.mark.parametrize("end", ["softmax", "log_softmax", "logits"])
def test_masked_classes_are_certain_and_the_others_are_those_of_a_network_without_them(end: str, added: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 4)).eval()
    without = nn.Sequential(plain[0], plain[1], nn.Linear(20, 3)).eval()
    without[2].weight, without[2].bias = (nn.Parameter(part[1:]) for part in (plain[2].weight, plain[2].bias))

    def masked(logits: Tensor) -> Tensor:
        filled = logits.masked_fill(_MASK, -torch.inf)
        return logits + torch.zeros(4).masked_fill(_MASK, -torch.inf) if added else filled

    def ended(logits: Tensor) -> Tensor:
        return logits if end == "logits" else getattr(logits, end)(-1)

    x = noisy(torch.randn(3, 6), std=0.3)
    with momentgen.laws.listening() as notes:
        found = momentgen.convert(after(plain, lambda logits: ended(masked(logits))), max_rows=32)(x)
    expected = momentgen.convert(after(without, ended), max_rows=32)(x)
    assert not any("not finite" in text for text in notes)
    assert (found.mean[:, 0] == (0 if end == "softmax" else -torch.inf)).all()
    torch.testing.assert_close(found.std[:, 0], torch.zeros(3), rtol=0, atol=1e-3)
    assert ((found.std[:, 1:] - expected.std).abs() < 3 * (found.std_error[:, 1:] + expected.std_error)).all()
    assert ((found.mean[:, 1:] - expected.mean).abs() < 3 * (found.mean_error[:, 1:] + expected.mean_error)).all()
    found.std.sum().backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in plain.parameters())


def test_a_softmax_of_the_largest_logits_of_each_draw_has_the_moments_of_its_draws() -> None:
    def largest(logits: Tensor) -> Tensor:
        return logits.masked_fill(logits < logits.topk(2, -1).values[:, -1:], -torch.inf).softmax(-1)

    torch.manual_seed(0)
    network, x = after(nn.Linear(6, 3), largest), noisy(torch.randn(3, 6), std=0.3)
    with torch.no_grad():
        assert_within(momentgen.convert(network)(x), draws_of(network, x, 8000))


@pytest.mark.parametrize("gap", [0.0, 6.0, 10.0])
def test_the_error_of_classes_that_are_seldom_likely_is_not_understated(gap: float) -> None:
    generator = torch.Generator().manual_seed(0)
    linear, x = nn.Linear(6, 4), torch.randn(3, 6, generator=generator)
    with torch.no_grad():
        linear.weight.normal_(generator=generator)
        linear.bias.copy_(torch.tensor([gap, 0.0, 0.0, 0.0]))
        found = momentgen.convert(nn.Sequential(linear, nn.Softmax(1)).eval())(noisy(x, std=0.4))
        logits = linear(x) + 0.4 * torch.randn(400_000, 1, 6, generator=generator) @ linear.weight.mT
        std = logits.softmax(-1).double().std(0)
    assert found.std_error is not None
    off = (found.std - std).abs() / (found.std_error + 0.005 * std)
    assert (off < 3).double().mean() > 0.9


def test_two_stated_errors_hold_sigma_of_log_probabilities_whose_logits_are_not_normal() -> None:
    """The normal law of these logits holds 90 % of them."""
    z = []
    for start in range(3):
        torch.manual_seed(start)
        net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 5), nn.LogSoftmax(-1)).eval()
        net.requires_grad_(False)[2].weight.mul_(4)
        x = noisy(torch.randn(6, 12), std=1.5)
        drawn = torch.cat([net(x.mean + 1.5 * torch.randn(2000, 6, 12)) for _ in range(20)]).double()
        std = drawn.std(0)
        of_truth = std.square() * (((drawn - drawn.mean(0)) / std).pow(4).mean(0) - 1) / (4 * len(drawn))
        for seed in range(8):
            out = momentgen.convert(net, seed=seed)(x)
            z.append((out.std - std) / (out.std_error.square() + of_truth).sqrt())
    assert float((torch.stack(z).abs() < 2).double().mean()) > 0.93


# Networks whose functions the method does not see: scripted ones, and those of an inner gradient.
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
