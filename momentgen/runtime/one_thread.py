"""What torch has once for all threads: its default generator, and the level of forward-mode differentiation.

Code that seeds the one or enters the other runs in one thread at a time.  Else threads would draw numbers of each
other's seeds, and take each other's level for their own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["one_thread"]

_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    # A child that is forked while a thread is within has no such thread.
    os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the context no other thread is within one; a thread may enter it again."""
    with _lock:
        yield
