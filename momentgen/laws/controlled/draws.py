"""Noise that the network draws: every row draws its own, and as a source it joins A.

Dropout multiplies a value by a mask of mean 1; ``randn_like`` and its neighbours are noise by themselves.  What other
functions draw is in the rows alone, which is right and costs more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.controlled.pull import pulled
from momentgen.laws.controlled.shift import Call, Shifted, Source

__all__ = ["drawn"]


def drawn(call: Call) -> Shifted | None:
    """The rule of functions that draw."""
    name = call.name
    if name in ("dropout", "dropout1d", "dropout2d", "dropout3d"):
        return _dropout(call)
    if name in ("randn_like", "randn"):
        return _by_itself(call, 0.0, 1.0)
    if name in ("rand_like", "rand"):
        return _by_itself(call, 0.5, 1 / 12)
    return pulled(call)


def _dropout(call: Call) -> Shifted | None:
    x, p = call.argument(0, "input"), call.argument(1, "p", 0.5)
    training = call.argument(2, "training", call.kwargs.get("train", True))
    if not isinstance(x, Tensor) or not x.is_floating_point() or not training or not 0 < p < 1:
        return pulled(call)
    channels = call.name[-2:] in ("1d", "2d", "3d")
    lone = channels and x.dim() == int(call.name[-2]) + 1  # without a batch
    shape = (x.shape[:1] if lone else x.shape[:2]) if channels else x.shape
    kept = torch.rand(shape, device=x.device) >= p
    kept = kept.view(*shape, *[1] * (x.dim() - len(shape)))
    call.out = x * kept / (1 - p)
    mean = call.average(x)
    shape = kept.shape
    source = _source(call, kept, lambda row: row.to(x.dtype) / (1 - p) - 1, p / (1 - p))

    def shifted() -> Tensor:
        noise = source(shape, x) * mean()
        return noise + call.shift(x) if call.random(x) else noise

    return shifted


def _by_itself(call: Call, mean: float, var: float) -> Shifted | None:
    call.run()
    out = call.out
    if not isinstance(out, Tensor) or not out.is_floating_point():
        return None
    source = _source(call, out.detach().clone(), lambda row: row - mean, var)
    return lambda: source(out.shape, out)


def _source(
    call: Call, drawn: Tensor, centred: Callable[[Tensor], Tensor], var: float
) -> Callable[[Any, Tensor], Tensor]:
    """Remember what a row drew; returns what makes the source, in the last row."""
    rows = call.record.noise
    rows[call.mode.row] = drawn

    def source(shape: Any, like: Tensor) -> Tensor:
        leaf = torch.zeros(shape, dtype=like.dtype, device=like.device, requires_grad=True)
        call.mode.sources.append(Source(leaf, lambda row: centred(rows[row]) if row in rows else None, var))
        return leaf.view_as(leaf)

    return source
