"""Attention runs by the functions that a network calls, not by fused shortcuts; and each method that runs on laws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def _as_written() -> Iterator[None]:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(0)
    yield
    torch.backends.mha.set_fastpath_enabled(fast)


@pytest.fixture(params=["ap2", "adjoint", "covariance"])
def method(request: pytest.FixtureRequest) -> Any:
    """Each method that runs on laws, where a test says nothing else of its methods."""
    return request.param


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """How many examples at a time torch.vmap is asked for, call by call that says."""
    sizes: list[int | None] = []
    vmap = torch.vmap

    def spying(*args: Any, **kwargs: Any) -> Any:
        if "chunk_size" in kwargs:
            sizes.append(kwargs["chunk_size"])
        return vmap(*args, **kwargs)

    monkeypatch.setattr(torch, "vmap", spying)
    return sizes
