"""Inference mode around a call says nothing of uncertainty."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import momentgen


@pytest.mark.parametrize("method", [None, "ap2"])
def test_inference_mode_around_a_call_changes_nothing(method: Any) -> None:
    torch.manual_seed(0)
    network = momentgen.convert(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).eval(), method)
    x = torch.randn(2, 4)
    with torch.no_grad():
        expected = network(momentgen.noisy(x, std=0.3))
    with torch.inference_mode():
        found = network(momentgen.noisy(x.clone(), std=0.3))
    torch.testing.assert_close((found.mean, found.var), (expected.mean, expected.var))
    assert method is not None or found.rows == expected.rows
