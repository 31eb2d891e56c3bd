"""Methods in threads, tasks and processes at once."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch_networks import close, mlp, moments

import momentgen

METHODS: tuple[Any, ...] = ("ap1", "ap2")


def _network(compiled: bool) -> Any:
    network = momentgen.convert(mlp(), "ap2")
    return torch.compile(network, backend="eager", fullgraph=True) if compiled else network


def _expected(network: Any, x: Any) -> dict[str, Any]:
    found = {}
    for name in METHODS:
        with momentgen.method(name):
            found[name] = tuple(part.detach() for part in network(x))
    return found


def _in_threads(work: Callable[[Any], None], names: tuple[Any, ...]) -> None:
    """Run side by side; what fails in a thread fails here."""
    with ThreadPoolExecutor(len(names)) as threads:
        for done in [threads.submit(work, name) for name in names]:
            done.result()


@pytest.mark.parametrize("compiled", [False, True])
def test_threads_have_their_own_methods(compiled: bool) -> None:
    torch._dynamo.reset()
    network, x = _network(compiled), moments(5, 4)
    expected, start = _expected(network, x), threading.Barrier(6)

    def work(name: Any) -> None:
        start.wait()
        for _ in range(50):
            with momentgen.method(name):
                close((part.detach() for part in network(x)), expected[name])

    _in_threads(work, METHODS * 3)


def test_tasks_have_their_own_methods() -> None:
    network, x = _network(False), moments(5, 4)
    expected = _expected(network, x)

    async def work(name: Any) -> None:
        with momentgen.method(name):
            for _ in range(20):
                await asyncio.sleep(0)
                close((part.detach() for part in network(x)), expected[name])

    async def all_at_once() -> None:
        await asyncio.gather(*(work(name) for name in METHODS * 3))

    asyncio.run(all_at_once())


def test_a_network_compiled_by_two_threads_at_once_serves_both() -> None:
    torch._dynamo.reset()
    network, x = _network(False), moments(5, 4)
    expected, fast = _expected(network, x), torch.compile(network, backend="eager", fullgraph=True)
    found: dict[str, Any] = {}

    def work(name: Any) -> None:
        with momentgen.method(name):
            found[name] = tuple(part.detach() for part in fast(x))

    _in_threads(work, METHODS)
    for name in METHODS:
        close(found[name], expected[name])
