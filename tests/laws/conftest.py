"""Attention runs by the functions that a network calls, not by fused shortcuts; and the method that runs on laws."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _as_written() -> Iterator[None]:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(0)
    yield
    torch.backends.mha.set_fastpath_enabled(fast)


@pytest.fixture
def method() -> str:
    """The method that runs on laws, where a test says nothing else of its methods."""
    return "ap2"
