"""The default in code that torch compiles, exports, traces and transforms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from laws.small_networks import noisy, same, small

import momentgen
from momentgen import Moments
from momentgen.errors import UnsupportedError


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("method", [None, pytest.param("controlled", marks=pytest.mark.slow)])
def test_compiled_networks_have_the_bits_of_eager_mode(method: Any) -> None:
    network = momentgen.convert(small(), method)
    fast: Any = torch.compile(network, backend="eager")
    for size in (3, 3, 5):
        x = noisy(size, 4)
        same(fast(x), network(x))
    certain = noisy(3, 4).mean
    same(fast(certain), network(certain))
    with momentgen.method("ap2"):
        same(fast(x), network(x))
    same(fast(x), network(x))
    network.train()
    same(fast(x), network(x))


def test_code_around_a_network_is_compiled_and_methods_may_be_entered_in_it() -> None:
    network, x = momentgen.convert(small()), noisy(3, 4)

    @torch.compile(backend="eager")
    def run(x: Moments) -> Any:
        first = network(Moments(x.mean * 2, x.var))
        with momentgen.method("ap2"):
            second = network(x)
        return first.mean + 1, second, network(x)

    doubled, ap2, default = run(x)
    assert torch.equal(doubled, network(Moments(x.mean * 2, x.var)).mean + 1)
    same(ap2, momentgen.convert(small(), "ap2")(x))
    same(default, network(x))


@pytest.mark.parametrize("method", [None, pytest.param("controlled", marks=pytest.mark.slow)])
def test_whole_graphs_are_refused_in_our_words(method: Any) -> None:
    network, x = momentgen.convert(small(), method), noisy(3, 4)
    said = r'cannot be compiled in full or exported.*method="ap2" can'
    with pytest.raises(RuntimeError, match=f"(?s){said}"):
        torch.compile(network, backend="eager", fullgraph=True)(x)
    torch._dynamo.reset()
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=f"(?s){said}"):
            torch.export.export(network, (x,), strict=strict)


def test_what_goes_by_ap2_compiles_as_a_whole() -> None:
    network, x = momentgen.convert(small(), "ap2"), noisy(3, 4)
    fast: Any = torch.compile(network, backend="eager", fullgraph=True)
    same(fast(x.mean), network(x.mean))  # certain
    torch.export.export(network, (x.mean,))
    same(fast(x), network(x))


@pytest.mark.parametrize(
    "transformed",
    [
        lambda run, x: torch.func.jacrev(run)(x),
        lambda run, x: torch.func.jacfwd(run)(x),
        lambda run, x: torch.vmap(run)(torch.stack([x, 2 * x])),
    ],
    ids=["jacrev", "jacfwd", "vmap"],
)
def test_transforms_of_the_default_are_refused_with_what_to_use(transformed: Any) -> None:
    network, x = momentgen.convert(small()), noisy(3, 4)
    with pytest.raises(UnsupportedError, match=r"torch\.func.*method=\"ap2\""):
        transformed(lambda mean: network(Moments(mean, x.var)).var, x.mean)
    with momentgen.method("ap2"):
        assert transformed(lambda mean: network(Moments(mean, x.var)).var, x.mean).isfinite().all()
