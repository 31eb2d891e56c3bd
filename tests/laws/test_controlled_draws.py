"""What a network draws, by the method ``controlled``: seeded by itself, drawn in a part of the rows, whole channels."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from sampling import assert_within, draws_of
from torch import Tensor, nn

import momentgen
from momentgen import Moments, noisy
from momentgen.errors import InputError
from momentgen.laws.controlled.linear import _dimension


def between(function: Callable[[Tensor], Tensor]) -> nn.Module:
    """A function between two linear layers."""
    torch.manual_seed(1)
    first, last = nn.Linear(6, 6), nn.Linear(6, 3)
    return nn.Sequential(first, Of(function), last).eval()


def _own_generator(x: Tensor) -> Tensor:
    return torch.tanh(x @ torch.randn(6, 6, generator=torch.Generator().manual_seed(7)))


def _seeded(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def seeded(x: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return function(x)

    return seeded


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a generator of its own": _own_generator,
    "seeded normal numbers": _seeded(lambda x: torch.tanh(x @ torch.randn(6, 6))),
    "seeded uniform numbers": _seeded(lambda x: torch.tanh(x @ torch.rand(6, 6))),
    "seeded dropout": _seeded(lambda x: F.dropout(torch.tanh(x), 0.4)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_network_draws_by_itself_has_the_moments_of_plain_calls(name: str) -> None:
    network, x = between(FUNCTIONS[name]), noisy(torch.linspace(-1, 1, 12).view(2, 6), std=0.3)
    with torch.random.fork_rng():
        drawn = draws_of(network, x, 600)
    with torch.no_grad():
        found = momentgen.convert(network, max_rows=512, rtol=0.04)(x)
    assert_within(found, drawn)


@pytest.mark.parametrize(
    "noise",
    [
        lambda x: x + torch.randn_like(x),
        lambda x: x + F.dropout(torch.ones_like(x), 0.5) - 1,
        lambda x: x + torch.randn(20),
    ],
    ids=["normal", "dropout", "in common"],
)
def test_noise_of_a_part_of_the_draws_counts_in_these(noise: Callable[[Tensor], Tensor]) -> None:
    network = Of(lambda x: noise(x) if torch.rand(()) < 0.5 else x).eval()
    x = noisy(torch.zeros(2, 20), std=1e-3)
    for seed in range(6):  # the last of the first rows, which makes the linear part, draws in some of them
        found = momentgen.convert(network, seed=seed, max_rows=64)(x)
        assert ((found.std - 0.5**0.5).abs() < 5 * found.std_error + 1e-3).all()


@pytest.mark.filterwarnings("ignore:dropout[23]d")
@pytest.mark.parametrize(
    ("function", "shape", "channels"),
    [
        (F.dropout1d, (2, 5, 4), 2),
        (F.dropout1d, (5, 4), 1),
        (F.dropout2d, (2, 5, 4), 2),
        (F.dropout2d, (2, 5, 2, 2), 2),
        (F.dropout3d, (2, 5, 2, 2), 1),
        (F.dropout3d, (5, 4), 1),
    ],
    ids=["one dimension", "one, without a batch", "of vectors", "two", "three, without a batch", "three, of vectors"],
)
def test_channels_fall_as_torch_has_them_fall(function: Any, shape: tuple[int, ...], channels: int) -> None:
    def dropped(x: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of each channel, which falls as a whole or not at all, and of all channels of an example."""
        sums = function(x, 0.4).flatten(channels).sum(-1)
        return sums, sums.sum(-1) if channels == 2 else sums

    x = Moments(torch.rand(shape) + 1, torch.full(shape, 1e-6))
    with torch.no_grad():
        sums, total = momentgen.convert(Of(dropped).eval(), "controlled")(x)
    expected = x.mean.flatten(channels).sum(-1).square() * 0.4 / 0.6
    for part, var in ((sums, expected), (total, expected.sum(-1) if channels == 2 else expected)):
        assert ((part.std - var.sqrt()).abs() < 4 * part.std_error + 0.02 * var.sqrt()).all()


def test_the_noise_of_an_input_is_not_drawn_again_by_the_network() -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    def watched(x: Tensor) -> Tensor:
        own = torch.randn_like(x)
        seen.append((x, own))
        return x * own

    momentgen.convert(Of(watched).eval(), max_rows=16)(noisy(torch.zeros(1, 100), std=1.0))
    assert not any(torch.equal(x, own) for x, own in seen)


def test_a_large_seed_is_one_as_any_other() -> None:
    network = between(lambda x: x)
    x = noisy(torch.ones(2, 6), std=0.3)
    first, second = (momentgen.convert(network, seed=seed)(x).std for seed in (2**40, 2**40))
    assert torch.equal(first, second)


_GENERATOR, _NUMBERS = torch.Generator(), np.random.default_rng(0)
#: what draws numbers that torch's generator does not know, each of σ 2
UNSEEN: dict[str, Callable[[], Any]] = {
    "Python": lambda: random.gauss(0.0, 2.0),
    "NumPy": lambda: 2 * np.random.randn(),  # noqa: NPY002 - networks do
    "a generator of NumPy": lambda: 2 * _NUMBERS.normal(),
    "a generator of torch": lambda: 2 * torch.randn((), generator=_GENERATOR),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_numbers_of_other_generators_count_where_the_input_is_certain(name: str) -> None:
    def draws(net: Any, x: Tensor) -> Tensor:
        net.calls += 1
        return x + UNSEEN[name]()

    network: Any = momentgen.convert(Of(draws, calls=0).eval(), rtol=0.02, max_rows=1024)
    with torch.no_grad():
        found = network(torch.zeros(2, 1))
    assert found.std_error is not None
    # Of torch's generator it is exact but for rounding.
    assert ((found.std - 2).abs() < 5 * found.std_error + 1e-6).all()
    assert network.calls == 1  # a draw starts from what was kept before the call


# The method ``controlled`` where outputs are many, of unlike sizes, or beside what is asked for.
def test_large_outputs_do_not_mix_into_small_ones_where_there_are_many() -> None:
    network = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 100), nn.Sigmoid()).double().eval()
    with torch.no_grad():
        network[2].bias.copy_(torch.linspace(-12, 0, 100))
        network[2].weight.mul_(2)
    x = noisy(torch.randn(2, 12, dtype=torch.float64), std=0.1)
    with torch.no_grad():
        std = network(x.mean + x.std * torch.randn(20_000, 2, 12, dtype=torch.float64)).std(0)
        found = [momentgen.convert(network, "controlled", seed=seed, max_rows=64)(x) for seed in range(4)]
    covered = torch.stack([(one.std - std).abs() < 2 * (one.std_error + 0.005 * std) for one in found])
    assert covered.double().mean() > 0.8


def test_directions_of_many_outputs_are_counted() -> None:
    one = torch.randn(16, 4, 2) @ torch.randn(2, 200)
    signs = torch.tensor([1.0, -1.0]).repeat(8)[:, None, None]
    assert _dimension(signs * one[::2].repeat_interleave(2, 0)) < 4
    assert _dimension(signs * torch.randn(8, 4, 200).repeat_interleave(2, 0)) > 100


class Cache:
    """Comes beside the outputs, as a cache of keys and values."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


def test_what_comes_beside_the_outputs_is_right_and_does_not_count_for_the_rows() -> None:
    network = Of(lambda x: (x.sum(1), (5 * x).sin().mean(), Cache((9 * x).cos())))
    x = noisy(torch.zeros(4, 6), std=0.4)
    with torch.no_grad():
        found = momentgen.convert(network, "controlled", rtol=0.8)(x)
        many = [network(x.mean + x.std * torch.randn(4, 6)) for _ in range(4000)]
        alone = momentgen.convert(Of(lambda x: (x.sum(1), (5 * x).sin().mean())), "controlled", rtol=0.8)(x)
    assert found[0].rows == alone[0].rows < 256
    torch.testing.assert_close(found[0].std, torch.full((4,), 0.4 * 6**0.5))
    for one, drawn in ((found[1], [row[1] for row in many]), (found[2].keys, [row[2].keys for row in many])):
        std = torch.stack(drawn).std(0)
        assert one.std.shape == std.shape
        assert ((one.std - std).abs() < 2.5 * one.std_error).double().mean() > 0.8


def test_small_outputs_beside_large_ones_that_go_with_them_keep_their_digits() -> None:
    network = nn.Sequential(nn.Linear(3, 40, bias=False)).eval()
    with torch.no_grad():
        network[0].weight.mul_(10.0 ** torch.linspace(-7, 3, 40)[torch.randperm(40), None])
    found = momentgen.convert(network)(noisy(torch.zeros(3, 3), std=0.5))
    torch.testing.assert_close(found.std, 0.5 * network[0].weight.norm(dim=1).expand(3, 40), rtol=1e-4, atol=0)


def test_a_batch_that_takes_more_than_memory_allows_is_divided() -> None:
    """Parts have draws of their own, and outputs of every kind come together again."""
    torch.manual_seed(0)
    linear = nn.Linear(10, 5)
    network = Of(lambda net, x, scale: (net.linear(x).tanh() * scale, x.argmax(1), "text"), linear=linear).eval()
    x, scale = noisy(torch.randn(12, 10), std=0.5), torch.rand(12, 1) + 0.5
    with torch.no_grad():
        whole, divided = (momentgen.convert(network, memory=memory)(x, scale) for memory in (None, 5e4))
        again = momentgen.convert(network, memory=50_000)(x, scale)
    assert divided[0].factor.shape[0] == 12
    assert not torch.equal(whole[0].std, divided[0].std)
    off = (divided[0].std - whole[0].std) / (divided[0].std_error ** 2 + whole[0].std_error ** 2).sqrt()
    assert off.square().mean() < 2
    assert divided[1].shape == (12,)
    assert divided[2] == "text"
    assert torch.equal(divided[0].std, again[0].std)
    for wrong in (0, -1, "256 MB"):
        with pytest.raises(InputError, match="memory as a number of bytes"):
            momentgen.convert(network, memory=wrong)
