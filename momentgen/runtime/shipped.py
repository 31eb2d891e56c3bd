"""Compiled kernels of this wheel: taken where the processor has what they need, before any compiler is asked."""

from __future__ import annotations

import ctypes
import functools
import logging
import platform
from pathlib import Path

import torch

from momentgen.native.shipped import FOLDER, file_name, levels_of
from momentgen.runtime.toolchain import torch_openmp

__all__ = ["load_shipped", "shipped_folder"]

_log = logging.getLogger(__name__)


@functools.cache
def shipped_folder() -> Path | None:
    """The directory of the best kernels that run on this processor; None where this installation has none."""
    if not FOLDER.is_dir():
        return None
    has = torch.cpu.get_capabilities()
    for level in levels_of(platform.machine()):
        if all(has.get(need) for need in level.needs) and (FOLDER / level.name).is_dir():
            return FOLDER / level.name
    return None


def load_shipped(stem: str, source: str) -> ctypes.CDLL | None:
    """The library of a source, where this wheel has it and it loads here."""
    folder = shipped_folder()
    if folder is None or not (path := folder / file_name(stem, source)).is_file():
        return None
    _offer_openmp()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        _log.info("%s does not load: %s", path, error)
        return None


@functools.cache
def _offer_openmp() -> None:
    """Let the kernels' open symbols find torch's OpenMP runtime, which torch may have loaded for itself alone."""
    if platform.system() == "Linux" and not hasattr(ctypes.CDLL(None), "GOMP_parallel") and (path := torch_openmp()):
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
