"""Functions whose derivative rows record: what its mean is made of, and how that takes the place of the derivative.

A pointwise function's derivative is the mean of its slope, and a product's the mean of the other factor.  A max pool
has the mean of its one-hot derivative.  What is linear in the noise has the derivative that autograd knows.

Noise that the network draws is a source: every row draws its own.  Dropout multiplies a value by a mask of mean 1;
``randn_like`` and its neighbours are noise by themselves.  What other functions draw is in the rows alone, which is
right and costs more of them.  What a network draws after it has seeded the generator is certain, since all rows have
the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.controlled.common import Common
from momentgen.laws.controlled.network import BESIDE
from momentgen.laws.controlled.state import (
    Call,
    Own,
    Phase,
    Rule,
    Source,
    Tangent,
    drawn_beside,
    has_derivative,
    tangent,
)
from momentgen.laws.nests import tensors_in
from momentgen.laws.rules.noise import channels
from momentgen.laws.table import names


def rule_of(call: Call) -> Rule | None:
    """The rule of a function that has a random argument; None for what autograd alone knows."""
    if call.entry is None or any(isinstance(value, Tensor) and value.is_complex() for value in call.args):
        return None
    if call.entry.kind == "pointwise":
        rest = tensors_in((*call.args[1:], *call.kwargs.values()))
        return None if any(map(call.state.moves, rest)) or not call.args else _pointwise
    if call.name in _SMOOTH:
        return None if is_linear(call) or call.argument(4, "dropout_p") else _at_means
    found = _BY_NAME.get(call.name)
    return None if found is None else found(call)


# --------------------------------------------------------------------- linear

_PLAIN: Final = frozenset(
    names(
        "add sub rsub neg fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 hfft2 ihfft2 fftn ifftn rfftn irfftn "
        "hfftn ihfftn complex view_as_complex view_as_real imag trace trapezoid trapz diff requires_grad_"
    )
)
#: decisions that choose values, and so have a derivative
_CHOOSING: Final = frozenset(names("sort topk kthvalue median mode cummax cummin remainder fmod frac unique"))


def decides(call: Call) -> bool:
    """Whether a function has no derivative."""
    return call.entry is not None and call.entry.kind == "decision" and call.name not in _CHOOSING


def is_linear(call: Call) -> bool:
    """Whether a function is linear in what is random: what rows say of its derivative, one row says."""
    if call.entry is None:
        return not has_derivative(call.out) and not isinstance(call.out, list | tuple)
    name, kind = call.name, call.entry.kind
    random = [place for place, moves in enumerate(call.moves) if moves]
    if kind in ("movement", "write") or name in _PLAIN:
        return True
    if name == "div":
        return random == [0] and call.argument(2, "rounding_mode") is None
    if name == "batch_norm":
        return random == [0] and call.function is F.batch_norm and not call.argument(5, "training", False)
    if kind == "affine" or name in ("addmm", "addbmm", "baddbmm", "addmv", "addr"):
        factors = {0, 1} if kind == "affine" else {1, 2}
        return not factors <= set(random)
    return len(random) == 1 and (kind == "product" or name in ("mul", "bilinear"))


def without_rule(call: Call) -> None:
    """Note what a function without a rule, which has been computed, means for the rows."""
    linear, decided = is_linear(call), decides(call)
    call.state.curved |= decided or not linear
    call.state.ruled &= decided or linear


# ------------------------------------------------------------------- pointwise

#: slopes that cost less than autograd, of argument and result
_SLOPES: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": lambda x, y: y.detach().sign(),  # a fraction of the time of y > 0 as numbers
    "sigmoid": lambda x, y: y * (1 - y),
    "tanh": lambda x, y: 1 - y * y,
    # torch has no second derivative of these two
    "hardsigmoid": lambda x, y: ((x > -3) & (x < 3)).to(x.dtype) / 6,
    "hardswish": lambda x, y: torch.where(x >= 3, 1, torch.where(x > -3, (2 * x + 3) / 6, 0)),
}


def _pointwise(call: Call) -> Tangent | None:
    """A function of each value by itself: the mean of its slope."""
    x = call.args[0]
    known = _SLOPES.get(call.name)
    if known is not None or call.state.phase.linearises:
        call.run()
    slope = _slope_by_autograd(call, x) if known is None else lambda: known(x, call.out).to(x.dtype)
    if slope is None:
        return None
    mean = call.average(slope)
    return lambda: tangent(x) * _finite(mean())


def _finite(slope: Tensor) -> Tensor:
    """The mean of slopes, 0 where one overflows: there the linear part ends, and the rows alone are right."""
    return torch.where(slope.isfinite(), slope, 0)


def _slope_by_autograd(call: Call, x: Tensor) -> Tensor | Callable[[], Tensor] | None:
    """The slope of each value, and the result in ``call.out``; None where there is none."""
    keeps = call.state.keeps_graph
    if call.state.phase.linearises:
        return lambda: torch.func.grad(lambda value: call.function(value, *call.args[1:], **call.kwargs).sum())(x)
    with torch.enable_grad():
        own = x.view_as(x) if keeps and x.requires_grad else x.detach().requires_grad_()
        out = call.function(own, *call.args[1:], **call.kwargs)
        if not isinstance(out, Tensor) or not out.requires_grad:
            call.out = out
            return None
        (slope,) = torch.autograd.grad(out, own, torch.ones_like(out), create_graph=keeps)
    call.out = out if keeps else out.detach()
    return slope


# ------------------------------------------------------------------- the others


#: smooth functions of several values; of others two rows' derivatives are nearer than that at the mean of their values
_SMOOTH: Final = frozenset(names("softmax log_softmax mul matmul mm bmm scaled_dot_product_attention"))


def _at_means(call: Call) -> Tangent:
    """A smooth function of several values: its derivative at their means over the rows, of a product the mean one."""
    call.run()
    random = list({id(value): value for value in call.given if call.state.moves(value)}.values())
    means = [call.average(value) for value in random]
    return lambda: call.derivative(random, [mean() for mean in means], map(tangent, random))


def _norm(call: Call) -> Rule | None:
    """Layer norm and group norm with certain weights."""
    exact = not torch.is_autocast_enabled(call.args[0].device.type)
    return _normalised if exact and not any(call.moves[1:]) else None


def _normalised(call: Call) -> Tangent:
    """With means of its own: at the mean of its values a norm is of less spread, and too steep."""
    x, weight, layers = call.args[0], call.argument(2, "weight"), call.name == "layer_norm"
    front = x.dim() - len(call.argument(1, "normalized_shape")) if layers else 1
    groups = () if layers else (call.argument(1, "num_groups"),)
    parts = (*x.shape[:front], *groups, -1)
    call.run()
    var, centre = torch.var_mean(x.reshape(parts), -1, correction=0, keepdim=True)
    means = [call.average(part.to(x.dtype)) for part in (x, centre, (var + call.argument(4, "eps", 1e-5)).rsqrt())]

    def found() -> Tensor:
        value, middle, slope = (mean() for mean in means)
        shift, own = tangent(x).reshape(parts), (value.reshape(parts) - middle) * slope
        shift = shift - shift.mean(-1, keepdim=True) - own * (own * shift).mean(-1, keepdim=True)
        shift = (shift * slope).reshape(x.shape)
        return shift if weight is None else shift * (weight if layers else weight.view(-1, *[1] * (x.dim() - 2)))

    return found


def _choice(call: Call) -> Rule | None:
    """``where``, ``masked_fill`` and the larger or smaller of two: each side by the share of rows that choose it."""
    sides = call.args[1:] if call.name == "where" else call.args[:2]
    if call.name == "masked_fill":
        return _chosen if len(call.args) == 3 else None
    pair = len(sides) == 2 and (call.name == "where" or all(isinstance(value, Tensor) for value in sides))
    return _chosen if pair else None


def _chosen(call: Call) -> Tangent:
    call.run()
    a, b = call.args[:2]
    if call.name == "where":
        condition, a, b = call.args
    elif call.name == "masked_fill":
        b, condition, a = call.args
    else:
        condition = a > b if call.name in ("maximum", "fmax") else a < b
    share = call.average(condition if call.state.constant(condition) else condition.to(call.out.dtype))

    def found() -> Tensor:
        part = share().to(call.out.dtype)
        parts = [tangent(value) * weight for value, weight in ((a, part), (b, 1 - part)) if call.state.moves(value)]
        return sum(parts[1:], parts[0]) if parts else torch.zeros_like(call.out)

    return found


def _max_pool(call: Call) -> Rule | None:
    """A max pool: the share of rows in which each value is its window's largest."""
    dims, x = int(call.name[-2]), call.args[0]
    given = (("kernel_size", None), ("stride", None), ("padding", 0), ("dilation", 1))
    values = (call.argument(place + 1, name, default) for place, (name, default) in enumerate(given))
    sizes, steps, pads, gaps = ((one,) * dims if isinstance(one, int) else tuple(one or ()) for one in values)
    steps = steps or sizes
    if call.argument(5, "ceil_mode", False) or call.argument(6, "return_indices", False) or not x.numel():
        return None
    if steps == sizes and not any(pads) and set(gaps) == {1}:
        return lambda call: _tiled(call, dims, sizes)
    return (lambda call: _windows(call, sizes, steps, pads, gaps)) if dims == 2 and x.dim() == 4 else None


def _tiled(call: Call, dims: int, sizes: tuple[int, ...]) -> Tangent:
    x = call.args[0]
    call.out, found = getattr(F, f"max_pool{dims}d")(x, sizes, return_indices=True)

    def chosen() -> Tensor:
        flat = found.reshape(-1, found.shape[-dims:].numel())
        ones = torch.ones((), dtype=x.dtype, device=x.device).expand(flat.shape)
        return x.new_zeros(flat.shape[0], x.shape[-dims:].numel()).scatter_(1, flat, ones).view(x.shape)

    share = call.average(chosen)
    mean = getattr(F, f"avg_pool{dims}d")
    return lambda: mean(tangent(x) * share(), sizes) * torch.Size(sizes).numel()


def _windows(call: Call, sizes: Any, steps: Any, pads: Any, gaps: Any) -> Tangent:
    """Of windows that overlap, each has its own share for each of its places."""
    x, count = call.args[0], torch.Size(sizes).numel()
    call.out, found = F.max_pool2d(x, sizes, steps, pads, gaps, return_indices=True)

    def chosen() -> Tensor:
        size = torch.arange(max(found.shape), device=x.device)
        starts = [size[:length] * step - pad for length, step, pad in zip(found.shape[2:], steps, pads, strict=True)]
        row, column = (found // x.shape[3] - starts[0][:, None]) // gaps[0], (found % x.shape[3] - starts[1]) // gaps[1]
        return F.one_hot(row * sizes[1] + column, count).to(x.dtype).movedim(-1, 2)

    share = call.average(chosen)

    def tangents() -> Tensor:
        columns = F.unfold(tangent(x), sizes, gaps, pads, steps)
        return (columns.view(*x.shape[:2], count, *found.shape[2:]) * share()).sum(2)

    return tangents


_BY_NAME: Final[dict[str, Callable[[Call], Rule | None]]] = {
    **dict.fromkeys((f"max_pool{d}d" for d in (1, 2, 3)), _max_pool),
    **dict.fromkeys(names("where masked_fill maximum minimum fmax fmin"), _choice),
    **dict.fromkeys(names("layer_norm group_norm"), _norm),
}


# --------------------------------------------------------- noise of the network

#: functions that draw and take no tensor
MAKES_NOISE: Final = frozenset({torch.randn, torch.rand})


#: mean and *variance* of values that are drawn by themselves, and how, where they are not normal
_OF_THEIR_OWN: Final[dict[str, tuple[float, float, Own | None]]] = {
    **dict.fromkeys(("randn_like", "randn"), (0.0, 1.0, None)),
    **dict.fromkeys(("rand_like", "rand"), (0.5, 1 / 12, lambda shape: torch.rand(shape) - 0.5)),
}


#: values of an example that are drawn for their law, at most, and how many examples are; more values count as normal
_DRAWN, _EXAMPLES = 2**14, 16


def drawn(call: Call, common: Common) -> None:
    """Compute the result of a function that draws, with what it drew as a source where the network is linearised."""
    if call.name in ("dropout", "dropout1d", "dropout2d", "dropout3d"):
        _dropout(call, common)
    elif call.name == "normal_":
        _by_itself(call, common, call.argument(1, "mean", 0.0), call.argument(2, "std", 1.0) ** 2, None)
    elif call.name in _OF_THEIR_OWN:
        _by_itself(call, common, *_OF_THEIR_OWN[call.name])
    else:
        if call.argument(2, "training", call.kwargs.get("train", True)):
            call.state.draws_now()
        call.run()
        call.state.curved = True
        call.state.ruled &= not call.state.moves(call.argument(0, "input")) or call.name in ("dropout", "alpha_dropout")


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

    def own(shape: tuple[int, ...]) -> Tensor:
        return (torch.rand(shape) >= p) / (1 - p) - 1

    if _in_common(call, common, x, x):
        call.out = common.drawn(x * scale, noise, p / (1 - p), lambda: x, own)
        return
    mean = call.average(x)
    call.out = x.detach() + tangent(x) if state.phase is Phase.AVERAGES else x * scale
    _joined(call, common, noise, p / (1 - p), mean, own)


def _is_seeded(call: Call, like: Any) -> bool:
    """Whether every row draws the same numbers here, from a generator that the network seeds."""
    if call.state.phase.linearises:
        return call.record.seeded
    generator = call.kwargs.get("generator")
    device = torch.device(like.device if isinstance(like, Tensor) else call.kwargs.get("device") or "cpu")
    if generator is None and device.type == "cuda":
        generator = torch.cuda.default_generators[device.index or 0]
    call.record.draws_by((torch.default_generator if generator is None else generator).get_state())
    return call.record.seeded


def _by_itself(call: Call, common: Common, mean: float, var: float, own: Own | None) -> None:
    """Noise that is a value of its own; if normal, the second row of a pair has that of the first, reflected."""
    state, rows = call.state, call.record.noise
    state.draws_now()
    seeded = _is_seeded(call, call.argument(0, "input"))
    call.run()
    out = call.out
    if seeded or not isinstance(out, Tensor) or not out.is_floating_point():
        return
    before = rows.get(state.row - 1) if own is None and state.row % 2 and not state.phase.linearises else None
    if before is not None and before.shape == out.shape and not out.requires_grad:
        call.out = out = mean - before
    if _in_common(call, common, out, call.argument(0, "input")):
        if not state.phase.linearises:
            rows[state.row] = out.detach() - mean
        call.out = common.drawn(out, out.detach() - mean, var, None, own)
        return
    _joined(call, common, out.detach() - mean, var, None, own)


def _in_common(call: Call, common: Common, drawn: Tensor, of: Any) -> bool:
    """Whether all examples have what was drawn in common: it belongs to a parameter, or has no batch in front."""
    return (
        common.batch > 1
        and not call.state.moves(of)
        and (not drawn.dim() or drawn.shape[0] % common.batch != 0 or common.is_parameter(of))
    )


def _joined(call: Call, common: Common, noise: Tensor, var: float, scale: Tangent | None, own: Own | None) -> None:
    """Remember what a row drew; where the network is linearised, it is a source, that ``own`` draws if not normal."""
    state, rows, shape, batch = call.state, call.record.noise, noise.shape, common.batch
    if not state.phase.linearises:
        rows[state.row] = noise
        state.follow(call.out)
        return
    # with the batch in front, also where values of an example are folded there
    size = shape if batch == 1 or shape[0] % batch else torch.Size((batch, shape[0] // batch, *shape[1:]))

    def draw(row: int) -> Tensor:
        one = rows.get(row)
        return drawn_beside(size, var, own) if one is None or one.shape != shape else one.reshape(size)

    def draws(wanted: range) -> Tensor | list[Tensor]:
        if own is not None and wanted.start >= BESIDE:
            return own((len(wanted), *size)).to(noise.device)
        return [draw(row) for row in wanted]

    def source(leaf: Tensor) -> Source:
        return Source(leaf, draws, var, normal=own is None or size.numel() > _DRAWN * min(batch, _EXAMPLES))

    leaf = state.leaf(id(call.record), lambda: torch.zeros(size, dtype=call.out.dtype, device=noise.device), source)
    assert leaf is not None
    part = leaf.view(shape)
    call.out = call.out + (part if scale is None else part * scale())
    state.follow(call.out)
