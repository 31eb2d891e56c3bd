"""A network left in training mode, or in two modes at once: one warning, and the method in its repr."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import momentgen
from momentgen import noisy
from momentgen.laws import TrainingModeWarning, notes


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Iterator[None]:
    before = set(notes._warned)
    notes._warned.clear()
    yield
    notes._warned.update(before)


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def _told(network: nn.Module, calls: int = 2) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(calls):
            network(noisy(torch.randn(2, 3), std=0.1))
    return [str(one.message) for one in found if one.category is TrainingModeWarning]


class Wrapper(nn.Module):
    """As DDP is: a module around another one, with a flag of its own."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Any) -> Any:
        return self.module(x)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_training_mode_without_gradients_warns_once(without: Any) -> None:
    with without():
        told = _told(momentgen.convert(_network()))
    assert len(told) == 1
    assert "training mode and needs no gradient" in told[0]
    assert ".eval()" in told[0]


def test_training_mode_of_frozen_parameters_warns() -> None:
    assert len(_told(momentgen.convert(_network().requires_grad_(False)))) == 1


@pytest.mark.parametrize("outer", [True, False], ids=["outer in training", "inner in training"])
def test_a_wrapper_in_another_mode_than_all_within_warns_once(outer: bool) -> None:
    wrapper = Wrapper(_network()).train(not outer)
    wrapper.training = outer
    told = _told(momentgen.convert(wrapper))
    assert len(told) == 1
    assert f"the default method is {'ap2' if outer else 'controlled'}" in told[0]


def test_a_wrapper_around_a_converted_network_in_evaluation_answers_by_controlled() -> None:
    wrapper = Wrapper(momentgen.convert(_network().eval()))
    assert wrapper.training
    assert _told(wrapper) == []
    assert wrapper(noisy(torch.randn(2, 3), std=0.1)).rows is not None


def test_what_fits_its_use_does_not_warn() -> None:
    dropout_drawn = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2)).eval()
    dropout_drawn[1].train()
    for network in (
        momentgen.convert(_network()),
        momentgen.convert(_network().eval()),
        momentgen.convert(dropout_drawn),
    ):
        assert _told(network) == []
    with torch.no_grad():
        assert _told(momentgen.convert(_network(), "ap2")) == []
        assert _told(momentgen.nn.ReLU().train()) == []
        with momentgen.method("controlled"):
            assert _told(momentgen.convert(_network())) == []


def test_reprs_name_the_method() -> None:
    network = momentgen.convert(_network())
    assert repr(network).endswith("# method: ap2, the default in training mode")
    assert repr(network.eval()).endswith("# method: controlled, the default in evaluation mode")
    assert repr(momentgen.convert(_network(), "local")).endswith("# method: local")
    assert "method" not in repr(momentgen.nn.ReLU())
    found = network(noisy(torch.randn(2, 3), std=0.1))
    assert repr(found).endswith(f", controlled, {found.rows} rows)")
