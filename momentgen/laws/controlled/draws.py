"""Noise that the network draws: every row draws its own, and as a source it joins A.

Dropout multiplies a value by a mask of mean 1; ``randn_like`` and its neighbours are noise by themselves.  What other
functions draw is in the rows alone, which is right and costs more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.controlled.call import Call, Shifted
from momentgen.laws.controlled.noise import Source
from momentgen.laws.controlled.pull import pulled

__all__ = ["drawn"]


def drawn(call: Call) -> Shifted | None:
    """The rule of functions that draw."""
    name = call.name
    if name in ("dropout", "dropout1d", "dropout2d", "dropout3d"):
        return _dropout(call)
    if name in ("randn_like", "randn"):
        return _by_itself(call, 0.0, 1.0, antithetic=True)
    if name == "normal_":
        mean, std = call.argument(1, "mean", 0.0), call.argument(2, "std", 1.0)
        return _by_itself(call, mean, std**2, antithetic=True)
    if name in ("rand_like", "rand"):
        return _by_itself(call, 0.5, 1 / 12, antithetic=False)
    if call.argument(2, "training", call.kwargs.get("train", True)):
        call.mode.draws_now()
    return pulled(call)


def _dropout(call: Call) -> Shifted | None:
    x, p = call.argument(0, "input"), call.argument(1, "p", 0.5)
    training = call.argument(2, "training", call.kwargs.get("train", True))
    if not isinstance(x, Tensor) or not x.is_floating_point() or not training or not 0 < p < 1:
        return pulled(call)
    call.mode.draws_now()
    channels = call.name[-2:] in ("1d", "2d", "3d")
    lone = channels and x.dim() == int(call.name[-2]) + 1  # without a batch
    shape = (x.shape[:1] if lone else x.shape[:2]) if channels else x.shape
    kept = torch.rand(shape, device=x.device) >= p
    kept = kept.view((*shape, *[1] * (x.dim() - len(shape))))  # of no dimensions too
    call.out = x * kept / (1 - p)
    if _in_common(call, x, x):
        call.mode.common.drawn(call.out, kept.to(x.dtype) / (1 - p) - 1, p / (1 - p), lambda: x)
        return None
    mean = call.average(x)
    source = _source(call, kept, lambda row: row.to(x.dtype) / (1 - p) - 1, p / (1 - p))

    def shifted() -> Tensor:
        noise = source(kept.shape, x) * mean()
        return noise + call.shift(x) if call.random(x) else noise

    return shifted


def _by_itself(call: Call, mean: float, var: float, antithetic: bool) -> Shifted | None:
    """Noise that is a value of its own; antithetic, the second row of a pair has that of the first, reflected."""
    call.mode.draws_now()
    call.run()
    out = call.out
    if not isinstance(out, Tensor) or not out.is_floating_point():
        return None
    before = call.record.noise.get(call.mode.row - 1) if antithetic and call.mode.row % 2 else None
    if before is not None and before.shape == out.shape and not out.requires_grad:
        call.out = out = 2 * mean - before
    if _in_common(call, out, call.argument(0, "input")):
        call.record.noise[call.mode.row] = out.detach().clone()
        call.mode.common.drawn(out, out.detach() - mean, var, None)
        return None
    source = _source(call, out.detach().clone(), lambda row: row - mean, var)
    return lambda: source(out.shape, out)


def _in_common(call: Call, drawn: Tensor, of: Any) -> bool:
    """Whether all examples have what was drawn in common: it belongs to a parameter, or has no batch in front."""
    common = call.mode.common
    return (
        common.batch > 1
        and not call.random(of)
        and (not drawn.dim() or drawn.shape[0] % common.batch != 0 or common.is_parameter(of))
    )


def _source(
    call: Call, drawn: Tensor, centred: Callable[[Tensor], Tensor], var: float
) -> Callable[[torch.Size, Tensor], Tensor]:
    """Remember what a row drew; returns what makes the source, in the last row."""
    rows = call.record.noise
    rows[call.mode.row] = drawn
    batch = call.mode.common.batch

    def source(shape: torch.Size, like: Tensor) -> Tensor:
        # with the batch in front, also where values of an example are folded there
        size = shape if batch == 1 or shape[0] % batch else (batch, shape[0] // batch, *shape[1:])
        leaf = torch.zeros(size, dtype=like.dtype, device=like.device, requires_grad=True)

        def draws(wanted: range) -> list[Tensor | None]:
            known = [rows.get(row) for row in wanted]
            return [None if one is None or one.shape != shape else centred(one).reshape(size) for one in known]

        call.mode.sources.append(Source(leaf, draws, var))

        return leaf.view(shape)

    return source
