"""The bow tie layer: the paper's unit under each method, and in networks."""

from __future__ import annotations

import math

import torch

import momentgen
from momentgen import Moments, nn
from momentgen.generated import bow_tie


def moments(*shape: int) -> Moments:
    torch.manual_seed(1)
    return Moments(torch.randn(*shape), torch.rand(*shape))


def test_ap2_is_the_op_with_the_layer_s_parameters() -> None:
    x = moments(5, 3)
    found, want = nn.BowTie(0.3, 0.2)(x), bow_tie(*x, tau=0.3, eta=0.2)
    assert all(map(torch.equal, found, want))


def test_ap1_is_the_unit_s_mean_bit_for_bit() -> None:
    x, layer = torch.linspace(-3, 3, 41), nn.BowTie(0.3, 0.2)
    with momentgen.method("ap1"):
        out = layer(x)
    assert torch.equal(out.mean, x * torch.sigmoid(x / 0.3))
    assert not out.var.any()


def test_a_draw_without_noise_is_the_input_or_0_with_the_gate_s_probability() -> None:
    torch.manual_seed(3)
    x = torch.full((200_000,), -0.4)
    with momentgen.method("sample"):
        drawn = nn.BowTie(0.5)(x).mean
    open_ = drawn == x
    assert (open_ | (drawn == 0)).all()
    p = 1 / (1 + math.exp(0.8))
    assert abs(open_.double().mean().item() - p) < 5 * math.sqrt(p * (1 - p) / x.numel())


def test_a_draw_has_normal_noise_whether_the_gate_is_open_or_not() -> None:
    torch.manual_seed(3)
    x = torch.cat([torch.full((100_000,), -50.0), torch.full((100_000,), 50.0)]).double()
    with momentgen.method("sample"):
        noise = nn.BowTie(0.5, 0.7)(x).mean - x.clamp_min(0)
    for part in noise.chunk(2):
        assert abs(part.mean().item()) < 5 * 0.7 / math.sqrt(part.numel())
        assert abs(part.var().item() / 0.49 - 1) < 5 * math.sqrt(2 / part.numel())
        assert abs((part**4).mean().item() / 0.49**2 - 3) < 5 * math.sqrt(96 / part.numel())


def test_its_parameters_are_shown() -> None:
    assert repr(nn.BowTie(0.25, 0.5)) == "BowTie(tau=0.25, eta=0.5)"
