"""The method ``controlled`` against draws of the plain network: σ, its stated error, and what runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as td
import torch.nn.functional as F
from laws.small_networks import Of, TwoHeads, convolutional
from sampling import draws_of
from torch import Tensor, nn
from torch_networks import Recurrent

import momentgen
from momentgen import Moments, noisy
from momentgen.errors import InputError
from momentgen.inference import MeanField, randomise
from momentgen.laws import listening


def _written(x: Tensor) -> Tensor:
    z = torch.zeros_like(x)
    z[:, 0] = x[:, 1]
    z[:, 1:].add_(x[:, 1:].tanh())
    z.mul_(2.0)
    return F.relu_(z - 0.1)


def _routed(net: nn.Module, x: Tensor) -> Tensor:
    """Each example goes to the expert that its largest value says."""
    chosen, out = x.argmax(1), x.new_zeros(len(x), 2)
    for place, expert in enumerate(net.experts):
        mine = chosen == place
        if bool(mine.any()):
            out[mine] = expert(x[mine])
    return out


GRAPH = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
#: name -> network, input
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 3), (6, 5)),
    "perceptron": (lambda: nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 20), nn.SiLU(), nn.Linear(20, 3)),
        (6, 5)),
    "convolutional": (convolutional, (6, 1, 8, 8)),
    "attention": (TwoHeads, (6, 5, 16)),
    "writes": (lambda: Of(_written), (6, 4)),
    "recurrent": (lambda: Recurrent(nn.LSTM), (6, 5, 4)),
    "decisions": (lambda: Of(_routed, experts=nn.ModuleList(nn.Linear(4, 2) for _ in range(4))), (6, 4)),
    "a number each": (lambda: Of(lambda x: (x.sin() * x).sum(-1)), (6, 4)),
    "no batch": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), (4,)),
    "sequence first": (lambda: Of(lambda x: x.transpose(0, 1).exp().mean(1)), (6, 3, 4)),
    "a graph": (lambda: Of(lambda x: torch.zeros_like(x).index_add(0, GRAPH[1], x[GRAPH[0]].tanh())), (4, 3)),
    "one number of all": (lambda: Of(lambda x: x.square().mean()), (6, 4)),
    "spectral": (lambda: Of(lambda x: torch.fft.rfft(x).abs().square()), (6, 8)),
    "sorted": (lambda: Of(lambda x: x.sort(-1).values[:, -1:]), (6, 4)),
    "softmax": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Softmax(1)), (6, 5)),
    "log softmax": (lambda: nn.Sequential(nn.Linear(5, 4), nn.LogSoftmax(-1)), (6, 5)),
    "many outputs": (lambda: nn.Sequential(nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 80)), (4, 8)),
    "scripted": (lambda: Of(torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))), (6, 4)),
    "dropout": (lambda: nn.Sequential(nn.Linear(5, 20), nn.Dropout(0.3), nn.ReLU(), nn.Linear(20, 2)), (6, 5)),
    "noise by hand": (lambda: Of(lambda x: x.tanh() + 0.3 * torch.randn_like(x)), (6, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_any_network_has_the_moments_of_its_draws_within_the_stated_error(name: str) -> None:
    make, shape = NETWORKS[name]
    network = make().eval()
    for part in network.modules():
        if isinstance(part, nn.Dropout):
            part.train()
    x = noisy(torch.randn(shape), std=0.3)
    drawn = draws_of(network, x, 2000)
    with torch.no_grad():
        found = momentgen.convert(network, "controlled", rtol=0.03)(x)
    assert found.mean.shape == found.var.shape == found.std_error.shape == found.mean_error.shape == drawn.shape[1:]
    std = drawn.std(0)
    some = std > 0.01 * std.mean()
    off = ((found.std - std) / (found.std_error.square() + (std.square() / (2 * len(drawn)))).sqrt())[some]
    assert (off.abs() < 2.5).double().mean() > 0.8, off
    assert (found.std / std).log()[some].abs().median() < 0.1
    away = (found.mean - drawn.mean(0)) / (found.mean_error.square() + std.square() / len(drawn)).sqrt()
    assert away[some].abs().mean() < 1.5, away


def test_rows_go_on_until_the_error_asked_for_or_the_limit_which_a_note_says() -> None:
    network, x = Of(lambda x: (3 * x).sin()).eval(), noisy(torch.zeros(2, 8), std=1.0)
    few = momentgen.convert(network, "controlled", rtol=0.5)(x)
    many = momentgen.convert(network, "controlled", rtol=0.04)(x)
    assert few.rows == 64 < many.rows < 256  # rows of a small network are together at no cost
    wide = momentgen.convert(network, "controlled", rtol=0.5)(noisy(torch.zeros(2000, 8), std=1.0))
    assert wide.rows < 64  # those of a large one are not
    with listening() as notes:
        least = momentgen.convert(network, "controlled", rtol=1e-3, max_rows=32)(x)
    assert least.rows == 32
    assert any("rtol=0.001" in note for note in notes)


@pytest.mark.parametrize("of", ["dropout", "weights", "distribution"])
def test_the_same_seed_gives_the_same_bits_and_leaves_the_users_draws_alone(of: str) -> None:
    network: nn.Module = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5 if of == "dropout" else 0.0), nn.Tanh()).train()
    if of == "weights":
        network = randomise(network, MeanField(std=0.03))
    x = noisy(torch.randn(2, 3), td.Exponential(1.0)) if of == "distribution" else noisy(torch.randn(2, 3), std=0.2)
    net = momentgen.convert(network, "controlled")
    before = torch.get_rng_state()
    one, two = net(x), net(x)
    assert all(map(torch.equal, one, two))
    assert torch.equal(before, torch.get_rng_state())
    with momentgen.method("controlled", seed=1):
        assert not torch.equal(net(x).var, one.var)


def test_no_noise_has_no_variance_and_no_error() -> None:
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(4, 3)
    for given in (x, noisy(x, std=0.0)):
        found = momentgen.convert(network, "controlled")(given)
        torch.testing.assert_close(found.mean, network(x))
        assert not found.var.any()
    assert not found.std_error.any()


def test_a_count_of_few_values_is_that_of_most_draws() -> None:
    """Of three values, each above 0 with probability .58, mostly two are; at most nodes of a product rule all are."""
    x = noisy(torch.full((2, 3), 0.2, dtype=torch.float64), std=1.0)
    assert all(momentgen.propagate(lambda x: (x > 0).sum(-1), x, seed=seed).tolist() == [2, 2] for seed in range(5))


def test_a_value_beyond_a_domain_is_not_spread() -> None:
    x = noisy(torch.tensor([[0.1, 4.0], [4.0, 4.0]]), std=0.3)
    with listening() as notes:
        found = momentgen.convert(Of(lambda x: x.log()), "controlled")(x)
    assert found.var.isnan().tolist() == [[True, False], [False, False]]
    assert any("not finite" in note for note in notes)


@pytest.mark.parametrize("name", ["perceptron", "convolutional", "attention", "dropout", "softmax", "scripted"])
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    make, shape = NETWORKS[name]
    network = make().double().eval()
    x = torch.randn(shape, dtype=torch.float64)
    net = momentgen.convert(network, "controlled", max_rows=16)

    def value(std: Tensor, _: Tensor) -> Tensor:
        out = net(noisy(x, std=std))
        return out.mean.sin().sum() + out.var.sum() + out.covariance.cos().sum()

    leaves = torch.tensor(0.3, dtype=torch.float64, requires_grad=True), next(network.parameters())
    assert torch.autograd.gradcheck(value, leaves, rtol=1e-6, atol=1e-6, fast_mode=True)


def test_what_fails_in_the_plain_network_fails_alike() -> None:
    def wrong(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        momentgen.convert(Of(wrong), "controlled")(noisy(torch.zeros(2, 3), std=0.1))


def test_a_function_that_refuses_its_derivative_runs_without_a_linear_part_and_a_note_says_so() -> None:
    network, x = Of(lambda x: torch.special.zeta(x, torch.ones(()))), noisy(torch.full((2, 6), 4.0), std=0.3)
    drawn = draws_of(network, x, 2000)
    with torch.no_grad(), listening() as notes:
        found = momentgen.convert(network, "controlled", rtol=0.1)(x)
    assert ((found.std - drawn.std(0)).abs() < 3 * found.std_error + 0.1 * drawn.std(0)).all()
    assert any("no linear part" in note for note in notes)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_network_that_hands_noise_on_in_one_direction_of_the_batch_is_one_example(reverse: bool) -> None:
    """Time is in dimension 0, and later steps depend on earlier ones only."""
    torch.manual_seed(0)

    def time_first(net: Any, x: Tensor) -> Tensor:
        out: Tensor = net.inner(x.flip(0))[0].flip(0) if reverse else net.inner(x)[0]
        return out

    network = Of(time_first, inner=nn.GRU(4, 2)).requires_grad_(False).eval()
    x = Moments(torch.randn(5, 3, 4), 0.1 * torch.rand(5, 3, 4))
    found, drawn = momentgen.convert(network)(x), draws_of(network, x, 4000)
    off = (found.std - drawn.std(0)) / (found.std_error**2 + (drawn.std(0) / 8000**0.5) ** 2).sqrt()
    assert off.square().mean() < 2.5


def test_functions_of_each_value_have_their_own_coefficients() -> None:
    """What averaged slopes leave over of one value says nothing of another."""
    x = noisy(torch.tensor([[0.1, -0.4, 0.0, 0.9], [-1.9, -0.5, 0.6, -1.5]]), std=1.0)
    network = Of(lambda x: F.softplus(x).log()).eval()
    drawn = draws_of(network, x, 20_000)
    for seed in range(5):
        with momentgen.method("controlled", max_rows=64, rtol=1e-9, seed=seed):
            found = momentgen.convert(network)(x)
        assert ((found.std / drawn.std(0)).log().abs() < 0.03).all()


def test_a_kink_that_few_rows_meet_is_not_missed_in_silence() -> None:
    x = noisy(torch.full((1, 4), 0.5), std=0.3)
    network = Of(torch.abs).eval()
    drawn = draws_of(network, x, 20_000)
    for seed in range(20):
        found = momentgen.convert(network, seed=seed)(x)
        assert ((found.std - drawn.std(0)).abs() < 4 * found.std_error + 1e-3).all()


EVENTS: dict[str, tuple[Callable[[Tensor], Tensor], list[float], float]] = {
    "another value is the largest": (lambda x: x.amax(1), [0.87, 0.13], 0.3),
    "a jump at three deviations": (lambda x: F.hardshrink(x, 0.3), [-0.46, 1.0, 0.47], 0.05),
    "a kink of curved functions": (lambda x: torch.fmin(x.square(), 1 - x.square()), [0.5, 0.6, 0.3], 0.05),
    "a bound on either side": (F.hardsigmoid, [0.0, 1.5], 1.58),
    "the sign of a difference": (lambda x: x.std(1), [1.0, 0.2], 0.3),
}


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_that_all_rows_may_miss_is_in_the_stated_error(name: str) -> None:
    function, mean, std = EVENTS[name]
    x = noisy(torch.tensor([mean]), std=std)
    network = Of(function).eval()
    drawn = function(x.mean + std * torch.randn(400_000, len(mean))).double()
    for seed in range(12):
        with torch.no_grad():
            found = momentgen.convert(network, seed=seed)(x)
        assert ((found.std - drawn.std(0)).abs() < 4 * found.std_error + 0.005 * drawn.std(0)).all()
        assert ((found.mean - drawn.mean(0)).abs() < 4 * found.mean_error + 0.005 * drawn.std(0)).all()


def test_what_one_coefficient_for_all_outputs_changes_is_in_the_stated_error() -> None:
    x = noisy(torch.zeros(2, 3), std=1.0)
    drawn = F.softplus(torch.randn(2_000_000, dtype=torch.float64)).log().std()
    for seed in range(4):
        with torch.no_grad():
            found = momentgen.convert(Of(lambda x: F.softplus(x).log()).eval(), seed=seed)(x)
        assert ((found.std - drawn).abs() < 4 * found.std_error + 0.002 * drawn).all()


def test_values_that_no_row_changes_have_a_note_where_a_kink_may_keep_them() -> None:
    x = noisy(torch.tensor([[-5.0, *[1.0] * 5]]), std=1.2)
    for function, said in ((F.relu, True), (torch.tanh, False), (lambda x: F.pad(x.tanh(), (1, 0)), False)):
        with torch.no_grad(), listening() as notes:
            found = momentgen.convert(Of(function).eval())(x)
        assert any("1 value(s) are the same in all 256 rows" in note for note in notes) == said
        assert (found.std_error[0, 0] > 0) == (function is not F.pad) or not said


def _into_a_random_tensor(x: Tensor) -> Tensor:
    y = 2 * x.clone()
    y[..., 0] = 3 * x[..., -1]
    return y


def _added_and_viewed(x: Tensor) -> Tensor:
    total = torch.zeros(1, 1)
    total.index_add_(0, torch.zeros(len(x), dtype=torch.long), x.sum(1, keepdim=True))
    total = total.view(-1)
    total /= 2
    return total


@pytest.mark.parametrize(
    ("written", "std"), [(_into_a_random_tensor, [[1.5, 1.0, 1.0]] * 8), (_added_and_viewed, [0.5 * 24**0.5 / 2])]
)
def test_what_is_written_in_place_keeps_the_linear_part(written: Callable[[Tensor], Tensor], std: Any) -> None:
    with torch.no_grad():
        found = momentgen.convert(Of(written).eval())(noisy(torch.randn(8, 3), std=0.5))
    torch.testing.assert_close(found.std, torch.tensor(std))
    assert found.std_error.abs().max() < 1e-4


@pytest.mark.parametrize(("std", "said"), [(1e-9, True), (1e-6, True), (1e-4, False)])
def test_noise_next_to_the_rounding_of_values_is_said(std: float, said: bool) -> None:
    with listening() as notes:
        momentgen.convert(nn.Linear(3, 2).eval())(noisy(torch.ones(2, 3), std=std))
    assert any("roundings of its values in torch.float32" in text for text in notes) == said
    with listening() as notes:
        momentgen.convert(nn.Linear(3, 2).double().eval())(noisy(torch.ones(2, 3).double(), std=std))
    assert not any("roundings" in text for text in notes)


def test_a_random_complex_output_is_refused_with_what_to_return() -> None:
    x = noisy(torch.zeros(2, 4), std=1.0)
    with pytest.raises(InputError, match=r"complex.*view_as_real"):
        momentgen.convert(Of(torch.fft.fft).eval())(x)
    found = momentgen.convert(Of(lambda x: torch.view_as_real(torch.fft.fft(x))).eval())(x)
    torch.testing.assert_close(found.std[:, 1].square().sum(-1), torch.tensor([4.0, 4.0]))


@pytest.mark.parametrize("std", [1.0, 2.0, 3.0])
def test_slopes_that_overflow_or_are_orders_apart_leave_the_answer_right(std: float) -> None:
    x = momentgen.noisy(torch.tensor([[0.5, 1.0, 1.5]]), std=std)
    found = momentgen.convert(Of(lambda x: x.square().exp().reciprocal()).eval())(x)
    draws = (x.mean + std * torch.randn(200_000, 3, generator=torch.Generator().manual_seed(0))).square().neg().exp()
    assert ((found.mean - draws.mean(0)).abs() <= 4 * found.mean_error).all()
    assert ((found.std - draws.std(0)).abs() <= 4 * found.std_error).all()


def test_dropout_of_a_single_value_is_drawn() -> None:
    net = momentgen.convert(nn.Dropout(0.5), "controlled", max_rows=2048, rtol=0.02)
    found = net(momentgen.noisy(torch.ones(()), std=1.0))
    assert abs(found.std.item() - 3**0.5) <= 4 * found.std_error.item()  # E (2 b x)^2 - 1, of b half the time 1
