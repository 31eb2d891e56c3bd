"""``Eagerly``: within it, what ``torch.compile`` has compiled runs as it was written.

A network may call compiled functions.  ``torch.compile`` would trace the modes of torch functions in which a network
runs, which takes minutes and may fail.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch

__all__ = ["Eagerly"]

_lock = threading.Lock()
#: how many contexts are entered, in all threads
_depth = 0
#: goes back to what was in force before the first of them
_before: Any = None


class Eagerly:
    """Within the context compiled functions run eagerly, in all threads, since torch has one setting for all.

    Nothing is done where nothing can have been compiled, or where a compiler runs this very code.
    """

    def __enter__(self) -> None:
        global _depth, _before
        loaded = "torch._dynamo.eval_frame" in sys.modules
        self._entered = loaded and torch._C._dynamo.eval_frame.get_eval_frame_callback() in (None, False)
        if self._entered:
            with _lock:
                _depth += 1
                if _depth == 1:
                    _before = torch.compiler.set_stance("force_eager")

    def __exit__(self, *_: object) -> None:
        global _depth, _before
        if self._entered:
            with _lock:
                _depth -= 1
                if _depth == 0:
                    _before.__exit__(None, None, None)
                    _before = None
