"""Random values whose places share memory, as those of ``expand``: the same as of a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws.small_networks import Of
from torch import Tensor

import momentgen
from momentgen import noisy

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": lambda one, x: one * x,
    "add": lambda one, x: one + x.sin(),
    "div": lambda one, x: one / (x.square() + 1),
    "pow": lambda one, x: one**2 + x,
    "clamp": lambda one, x: one.clamp(-0.1, 0.3) + x,
    "silu": lambda one, x: torch.nn.functional.silu(one) * x,
    "maximum": torch.maximum,
}


@pytest.mark.parametrize("method", ["ap2", "adjoint", "covariance", "controlled"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_expanded_value_counts_as_its_copy(name: str, method: Any) -> None:
    function = FUNCTIONS[name]
    x = noisy(torch.randn(2, 4), std=0.2)
    with torch.no_grad():
        expanded, copied = (
            momentgen.convert(Of(whole).eval(), method)(x)
            for whole in (
                lambda x: function(x[:, :1].expand_as(x), x),
                lambda x: function(x[:, :1].expand_as(x).clone(), x),
            )
        )
    torch.testing.assert_close(expanded.mean, copied.mean)
    torch.testing.assert_close(expanded.std, copied.std)
