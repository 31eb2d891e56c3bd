"""What torch has once for all threads: its default generator, and the level of forward-mode differentiation.

Code that seeds the one or enters the other runs in one thread at a time.  Else threads would draw numbers of each
other's seeds, and take each other's level for their own.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager

__all__ = ["Lock", "one_thread"]


class Lock:
    """Gives a lock within which no other thread is; a thread may enter it again.

    A child that is forked while a thread is within has no such thread, and begins with a lock of its own.
    """

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.RLock()

    def __call__(self) -> AbstractContextManager[object]:
        return self._lock


one_thread = Lock()
