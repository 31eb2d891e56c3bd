"""``torch.export`` of converted networks, with moments for input and output."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch_networks import ResidualCNN, close, encoder_layer, mlp, moments, pooled

import momentgen
from momentgen import Moments


def export(network: nn.Module, x: Moments, strict: bool, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*side effects")  # the depth at which tracing is, put back at once
        return torch.export.export(network, (x,), strict=strict, **options)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_network_is_saved_and_loaded(strict: bool) -> None:
    network, x = momentgen.convert(ResidualCNN().eval(), "ap2"), moments(2, 3, 6, 6)
    buffer = io.BytesIO()
    torch.export.save(export(network, x, strict), buffer)
    buffer.seek(0)
    y = moments(2, 3, 6, 6)
    out = torch.export.load(buffer).module()(y)
    assert type(out) is Moments
    close(out, network(y))


@pytest.mark.parametrize(
    ("make", "argument", "shape", "strict"),
    [
        (mlp, "input", (4,), False),
        (mlp, "input", (4,), True),
        (pooled, "input", (3, 6, 6), False),
        pytest.param(pooled, "input", (3, 6, 6), True, marks=pytest.mark.slow),
        (lambda: ResidualCNN().eval(), "x", (3, 6, 6), False),
        (lambda: ResidualCNN().eval(), "x", (3, 6, 6), True),
        pytest.param(encoder_layer, "src", (3, 8), False, marks=pytest.mark.slow),
        pytest.param(encoder_layer, "src", (3, 8), True, marks=pytest.mark.slow),
    ],
)
def test_the_size_of_the_batch_is_free(
    make: Callable[[], nn.Module], argument: str, shape: tuple[int, ...], strict: bool
) -> None:
    network, batch = momentgen.convert(make(), "ap2"), torch.export.Dim("batch")
    shapes = {argument: Moments({0: batch}, {0: batch})}  # type: ignore[arg-type]
    program = export(network, moments(3, *shape), strict, dynamic_shapes=shapes)
    x = moments(5, *shape)
    close(program.module()(x), network(x))


def test_arguments_have_the_names_of_the_plain_network() -> None:
    class Two(nn.Module):
        def forward(self, first: Any, second: Any) -> Any:
            return first - second

    network, x, y = momentgen.convert(Two(), "ap2"), moments(3), moments(3)
    program = torch.export.export(network, (x,), {"second": y}, strict=False)
    close(program.module()(x, second=y), network(x, y))


def test_an_exported_network_runs_by_the_method_in_force_at_export() -> None:
    network, x = momentgen.convert(mlp(), "ap2"), moments(2, 4)
    with momentgen.method("ap1"):
        program = export(network, x, strict=False)
    out = program.module()(x)
    assert not out.var.any()
    close([out.mean], [network(x).mean], 1.0)
