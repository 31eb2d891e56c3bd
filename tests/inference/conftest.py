"""Fits run on one thread, as small tensors want it, and those that are short on purpose do not say so."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _quiet_and_on_one_thread() -> Iterator[None]:
    from sklearn.exceptions import ConvergenceWarning

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
    torch.set_num_threads(before)
