"""The method ``controlled`` where outputs are many, of unlike sizes, or beside what is asked for."""

from __future__ import annotations

import pytest
import torch
from laws.small_networks import Of
from torch import Tensor, nn

import momentgen
from momentgen import noisy
from momentgen.errors import InputError
from momentgen.laws.controlled.linear import _dimension


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
        whole, divided = (momentgen.convert(network, memory=memory)(x, scale) for memory in (None, 50_000))
        again = momentgen.convert(network, memory=50_000)(x, scale)
    assert divided[0].factor.shape[0] == 12
    assert not torch.equal(whole[0].std, divided[0].std)
    off = (divided[0].std - whole[0].std) / (divided[0].std_error ** 2 + whole[0].std_error ** 2).sqrt()
    assert off.square().mean() < 2
    assert divided[1].shape == (12,)
    assert divided[2] == "text"
    assert torch.equal(divided[0].std, again[0].std)
    for wrong in (0, -1, 1.5):
        with pytest.raises(InputError, match="memory as a number of bytes"):
            momentgen.convert(network, memory=wrong)
