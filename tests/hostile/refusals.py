"""How hostile texts and rules are tried: so many examples, always the same ones, and a warning is an error."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, settings

FAST = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@contextmanager
def refusing_warnings() -> Iterator[None]:
    """Within it a warning, NumPy's above all, is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
