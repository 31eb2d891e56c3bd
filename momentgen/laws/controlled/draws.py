"""Noise that the network draws: every row draws its own, and as a source it joins A.

Dropout multiplies a value by a mask of mean 1; ``randn_like`` and its neighbours are noise by themselves.  What other
functions draw is in the rows alone, which is right and costs more of them.  What a network draws after it has seeded
the generator is certain, since all rows have the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.controlled.call import Call, Shifted
from momentgen.laws.controlled.noise import Source, drawn_beside
from momentgen.laws.controlled.pull import pulled
from momentgen.laws.rules.noise import channels

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
    if _is_seeded(call, x):
        return pulled(call)
    scale = _scale(call.name, x, p)
    kept = scale > 0
    call.out = x * scale
    if _in_common(call, x, x):
        call.mode.common.drawn(call.out, kept.to(x.dtype) / (1 - p) - 1, p / (1 - p), lambda: x)
        return None
    mean = call.average(x)
    source = _source(call, kept, lambda row: row.to(x.dtype) / (1 - p) - 1, p / (1 - p))

    def shifted() -> Tensor:
        noise = source(kept.shape, x) * mean()
        return noise + call.shift(x) if call.random(x) else noise

    return shifted


def _scale(name: str, x: Tensor, p: float) -> Tensor:
    """What dropout multiplies a value by, with torch's own draws; of channels one number for each."""
    if name == "dropout":
        return F.dropout(torch.ones_like(x), p)
    batch = channels(name, x.dim())
    one = x.new_ones((*x.shape[:batch], *[1] * (x.dim() - batch)))
    return torch.feature_dropout(one, p, True) if batch == 2 else torch.feature_dropout(one[None], p, True)[0]


def _is_seeded(call: Call, like: Any) -> bool:
    """Whether every row draws the same numbers here, from a generator that the network seeds."""
    generator = call.kwargs.get("generator")
    device = torch.device(like.device if isinstance(like, Tensor) else call.kwargs.get("device") or "cpu")
    if generator is None and device.type == "cuda":
        generator = torch.cuda.default_generators[device.index or 0]
    call.record.draws_by((torch.default_generator if generator is None else generator).get_state())
    return call.record.seeded


def _by_itself(call: Call, mean: float, var: float, antithetic: bool) -> Shifted | None:
    """Noise that is a value of its own; antithetic, the second row of a pair has that of the first, reflected."""
    call.mode.draws_now()
    seeded = _is_seeded(call, call.argument(0, "input"))
    call.run()
    out = call.out
    if seeded or not isinstance(out, Tensor) or not out.is_floating_point():
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

        def draw(row: int) -> Tensor:
            one = rows.get(row)
            return drawn_beside(size, var) if one is None or one.shape != shape else centred(one).reshape(size)

        def draws(wanted: range) -> list[Tensor]:
            return [draw(row) for row in wanted]

        call.mode.sources.append(Source(leaf, draws, var))

        return leaf.view(shape)

    return source
