"""Methods that run a network example by example: how many are computed together, and with how much memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from laws.small_networks import Of, differentiable
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.errors import InputError
from momentgen.laws import examples
from momentgen.laws.adjoint import Adjoint


@pytest.mark.parametrize("gradients", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["adjoint", "covariance"])
@pytest.mark.parametrize("name", ["perceptron", "norm", "softmax", "pool", "residual", "gated", "attention"])
def test_examples_of_a_batch_are_computed_together(name: str, method: Any, gradients: bool) -> None:
    """What torch.vmap cannot run is run one example after another, with the same numbers and tens of times slower."""
    net, x = differentiable(name)
    batch = Moments(*[part.expand(3, *part.shape[1:]).contiguous() for part in x])
    with torch.set_grad_enabled(gradients), momentgen.laws.listening() as notes:
        momentgen.convert(net, method=method)(batch)
    assert not [text for text in notes if "one example after another" in text]


def test_a_wide_layer_is_computed_a_few_examples_at_a_time(
    monkeypatch: pytest.MonkeyPatch, chunks: list[int | None]
) -> None:
    """16 channels of 64 x 64 take 256 KiB an example, times 26 rows: of 16 MiB that is two, and the least is 8."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(16), nn.Flatten(), nn.Linear(256, 3))
    converted = momentgen.convert(net.eval(), "adjoint")
    x = Moments(torch.randn(20, 1, 64, 64), torch.full((20, 1, 64, 64), 0.1))
    with torch.no_grad():
        found = converted(x)
        assert chunks == [None, 7]  # three parts of like length; None is the comparison of examples at their means
        monkeypatch.setattr(examples, "_at_once", lambda batch, _: batch)
        whole = converted(x)
    torch.testing.assert_close(found.mean, whole.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.covariance, whole.covariance, rtol=1e-4, atol=1e-5)


def test_a_second_call_runs_a_network_once_and_one_of_another_shape_is_right_too() -> None:
    """What was found of a network's sources is tried first, and found out again where it is something else."""
    torch.manual_seed(0)
    runs = 0

    def counting(x: Tensor) -> Tensor:
        nonlocal runs
        runs += isinstance(x, Adjoint)
        return torch.tanh(x)

    layers = Of(counting), nn.AdaptiveAvgPool1d(4), nn.Linear(4, 3)
    net = momentgen.convert(nn.Sequential(*layers).eval(), "adjoint")
    wide, narrow = (Moments(torch.randn(2, 1, size), torch.rand(2, 1, size)) for size in (8, 5))
    with torch.no_grad():
        first = net(wide)
        once = runs
        second = net(wide)
        twice = runs
        net(narrow)
        third = net(wide)
        fresh = momentgen.convert(nn.Sequential(*net.children()), "adjoint")(wide)
    assert (once, twice - once) == (2, 1)
    for found in (second, third, fresh):
        assert torch.equal(first.mean, found.mean)
        assert torch.equal(first.covariance, found.covariance)


@pytest.mark.parametrize("method", ["adjoint", "covariance"])
@pytest.mark.parametrize("size", [2, 12, 28])
def test_examples_that_interact_behind_the_first_ones_are_seen(size: int, method: Any) -> None:
    group = torch.cat([torch.arange(8), 8 + torch.arange(56) // size])

    def grouped(x: Tensor) -> Tensor:
        return torch.zeros(100, 3).index_add(0, group[: len(x)], x)[group[: len(x)]]

    with pytest.raises(InputError, match="another result within the batch"):
        momentgen.convert(Of(grouped).eval(), method)(momentgen.noisy(torch.randn(64, 3), std=1.0))
