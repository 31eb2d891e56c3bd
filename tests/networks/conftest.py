"""Attention runs by the functions that a network calls, not by fused shortcuts."""

from collections.abc import Iterator

import pytest
import torch

#: without doctests, and not to be imported before a test needs them: some import timm or transformers
collect_ignore_glob = ["zoo*.py", "third_party.py"]


@pytest.fixture(autouse=True)
def _no_fast_path() -> Iterator[None]:
    """Without gradients, torch's transformer layers otherwise skip their own modules on plain tensors."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)
