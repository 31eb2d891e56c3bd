"""What every method promises, of every network of torch's own layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_networks import NETWORKS, mlp

import momentgen
from momentgen import Moments, noisy
from momentgen.errors import MomentgenError
from momentgen.laws.methods import ALL

METHODS: tuple[Any, ...] = tuple(ALL)


def _run(name: str, method: Any, std: float) -> tuple[Moments, torch.Tensor]:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    plain = make().eval()
    x = noisy(torch.randn(shape), std=std)
    with torch.no_grad():
        return momentgen.convert(plain, method)(x), plain(x.mean)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_an_output_has_the_plain_shape_and_the_variance_and_errors_that_its_method_states(
    method: Any, name: str
) -> None:
    out, plain = _run(name, method, 0.3)
    assert out.mean.shape == out.var.shape == plain.shape
    assert out.mean.dtype is plain.dtype
    assert out.mean.isfinite().all()
    assert out.var.isfinite().all()
    assert bool((out.var > 0).any()) is ALL[method].is_distribution
    for stated in (out.std_error, out.mean_error, out.rows):
        assert (stated is not None) is (method == "controlled")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_of_a_certain_input_every_method_returns_the_plain_output(method: Any, name: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    plain, x = make().eval(), torch.randn(shape)
    with torch.no_grad():
        out = momentgen.convert(plain, method)(x)
        torch.testing.assert_close(out.mean, plain(x), rtol=1e-4, atol=1e-4)
    assert out.var.abs().max() < 1e-8


@pytest.mark.parametrize("method", METHODS)
def test_all_methods_but_the_default_compile_in_full(method: Any) -> None:
    torch._dynamo.reset()
    net = torch.compile(momentgen.convert(mlp().eval(), method), backend="eager", fullgraph=True)
    x = noisy(torch.zeros(NETWORKS["mlp"][1]), std=0.1)
    if method != "controlled":
        assert net(x).mean.isfinite().all()
    else:
        with pytest.raises((MomentgenError, torch._dynamo.exc.Unsupported)):
            net(x)
