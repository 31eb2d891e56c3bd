"""Networks run on one thread, and attention by the functions that a network calls, not by fused shortcuts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def _as_written() -> Iterator[None]:
    threads, fast = torch.get_num_threads(), torch.backends.mha.get_fastpath_enabled()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    torch.backends.mha.set_fastpath_enabled(fast)


@pytest.fixture(params=["ap2", "adjoint", "covariance"])
def method(request: pytest.FixtureRequest) -> Any:
    """Each method that runs on laws, where a test says nothing else of its methods."""
    return request.param
