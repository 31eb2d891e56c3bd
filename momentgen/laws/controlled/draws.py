"""Noise that the network draws: every row draws its own, and as a source it joins A.

Dropout multiplies a value by a mask of mean 1; ``randn_like`` and its neighbours are noise by themselves.  What other
functions draw is in the rows alone, which is right and costs more of them.  What a network draws after it has seeded
the generator is certain, since all rows have the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.controlled.common import Common
from momentgen.laws.controlled.noise import Source, drawn_beside
from momentgen.laws.controlled.state import Call, Phase, tangent
from momentgen.laws.rules.noise import channels
from momentgen.laws.table import Entry

__all__ = ["drawn", "draws"]

#: functions that draw and take no tensor
_MAKES_NOISE: Final = frozenset({torch.randn, torch.rand})


#: mean and *variance* of values that are drawn by themselves, and whether the second row of a pair reflects the first
_OF_THEIR_OWN: Final = {
    **dict.fromkeys(("randn_like", "randn"), (0.0, 1.0, True)),
    **dict.fromkeys(("rand_like", "rand"), (0.5, 1 / 12, False)),
}


def draws(func: Any, entry: Entry | None) -> bool:
    """Whether a function may draw noise that joins A."""
    return func in _MAKES_NOISE if entry is None else entry.kind == "noise" or func in _MAKES_NOISE


def drawn(call: Call, common: Common) -> None:
    """Compute the result of a function that draws, with what it drew as a source where the network is linearised."""
    if call.name in ("dropout", "dropout1d", "dropout2d", "dropout3d"):
        _dropout(call, common)
    elif call.name == "normal_":
        _by_itself(call, common, call.argument(1, "mean", 0.0), call.argument(2, "std", 1.0) ** 2, True)
    elif call.name in _OF_THEIR_OWN:
        _by_itself(call, common, *_OF_THEIR_OWN[call.name])
    else:
        if call.argument(2, "training", call.kwargs.get("train", True)):
            call.state.draws_now()
        call.run()
        call.state.curved = True
        call.state.ruled &= not call.random(call.argument(0, "input")) or call.name in ("dropout", "alpha_dropout")


def _dropout(call: Call, common: Common) -> None:
    x, p, state = call.argument(0, "input"), call.argument(1, "p", 0.5), call.state
    training = call.argument(2, "training", call.kwargs.get("train", True))
    if not isinstance(x, Tensor) or not x.is_floating_point() or not training or not 0 < p < 1:
        call.run()
        return
    state.draws_now()
    if _is_seeded(call, x):
        call.run()
        return
    front = x.dim() if call.name == "dropout" else channels(call.name, x.dim())  # of a channel one number
    scale = F.dropout(x.new_ones((*x.shape[:front], *[1] * (x.dim() - front))), p)
    noise = (scale > 0).to(x.dtype) / (1 - p) - 1
    if _in_common(call, common, x, x):
        call.out = common.drawn(x * scale, noise, p / (1 - p), lambda: x)
        return
    mean = call.average(x)
    call.out = x.detach() + tangent(x) if state.phase is Phase.AVERAGES else x * scale
    _joined(call, common, noise, p / (1 - p), mean)


def _is_seeded(call: Call, like: Any) -> bool:
    """Whether every row draws the same numbers here, from a generator that the network seeds."""
    if call.state.linearises:
        return call.record.seeded
    generator = call.kwargs.get("generator")
    device = torch.device(like.device if isinstance(like, Tensor) else call.kwargs.get("device") or "cpu")
    if generator is None and device.type == "cuda":
        generator = torch.cuda.default_generators[device.index or 0]
    call.record.draws_by((torch.default_generator if generator is None else generator).get_state())
    return call.record.seeded


def _by_itself(call: Call, common: Common, mean: float, var: float, antithetic: bool) -> None:
    """Noise that is a value of its own; antithetic, the second row of a pair has that of the first, reflected."""
    state, rows = call.state, call.record.noise
    state.draws_now()
    seeded = _is_seeded(call, call.argument(0, "input"))
    call.run()
    out = call.out
    if seeded or not isinstance(out, Tensor) or not out.is_floating_point():
        return
    before = rows.get(state.row - 1) if antithetic and state.row % 2 and not state.linearises else None
    if before is not None and before.shape == out.shape and not out.requires_grad:
        call.out = out = mean - before
    if _in_common(call, common, out, call.argument(0, "input")):
        if not state.linearises:
            rows[state.row] = out.detach() - mean
        call.out = common.drawn(out, out.detach() - mean, var, None)
        return
    _joined(call, common, out.detach() - mean, var, None)


def _in_common(call: Call, common: Common, drawn: Tensor, of: Any) -> bool:
    """Whether all examples have what was drawn in common: it belongs to a parameter, or has no batch in front."""
    return (
        common.batch > 1
        and not call.random(of)
        and (not drawn.dim() or drawn.shape[0] % common.batch != 0 or common.is_parameter(of))
    )


def _joined(call: Call, common: Common, noise: Tensor, var: float, scale: Callable[[], Tensor] | None) -> None:
    """Remember what a row drew; where the network is linearised, it is a source."""
    state, rows, shape, batch = call.state, call.record.noise, noise.shape, common.batch
    if not state.linearises:
        rows[state.row] = noise
        state.follow(call.out)
        return
    # with the batch in front, also where values of an example are folded there
    size = shape if batch == 1 or shape[0] % batch else torch.Size((batch, shape[0] // batch, *shape[1:]))

    def draw(row: int) -> Tensor:
        one = rows.get(row)
        return drawn_beside(size, var) if one is None or one.shape != shape else one.reshape(size)

    def source(leaf: Tensor) -> Source:
        return Source(leaf, lambda wanted: [draw(row) for row in wanted], var)

    leaf = state.leaf(id(call.record), lambda: torch.zeros(size, dtype=call.out.dtype, device=noise.device), source)
    assert leaf is not None
    part = leaf.view(shape)
    call.out = call.out + (part if scale is None else part * scale())
    state.follow(call.out)
