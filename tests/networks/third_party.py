"""How timm and transformers are imported where torch has no CUDA.

Both import torchvision.  The torchvision of the package index is built for CUDA: next to a torch
without it, its compiled library does not load, and importing it stops at the first operator of
that library.  No network here calls these operators; that they are declared is enough.
"""

import functools
import importlib.util
from pathlib import Path

import torch

__all__ = ["allow_torchvision"]

#: those that torchvision gives a meta kernel on import, whether its library was loaded or not.
DECLARED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


@functools.cache
def allow_torchvision() -> torch.library.Library | None:
    """Let ``import torchvision`` succeed: declare the operators that its library would have, if it does not load.

    The declarations last as long as what is returned, hence the cache.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ImportError("the networks of timm and transformers need torchvision: pip install -e '.[dev]'")
    try:
        for path in Path(spec.origin).parent.glob("_C*.so"):
            torch.ops.load_library(str(path))
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in DECLARED:
            library.define(schema)
        return library
    return None
