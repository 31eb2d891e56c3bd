"""Functions that are written over others: attention, recurrent layers, gated units, ``addmm`` and its like.

Each is a few lines over functions of torch that laws have rules for.  So it serves every law that has those.  Attention
has a rule of its own for moments.  ``F.multi_head_attention_forward`` is run from torch's own code object.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.modules.rnn import RNNBase

from momentgen.errors import UnsupportedError
from momentgen.laws.diagonal import Diagonal, made, pair
from momentgen.laws.law import Law, Rule, rule
from momentgen.laws.programs import alike
from momentgen.laws.table import Entry

__all__ = []


def _by_body(function: Any) -> Rule:
    """The rule of a function of torch.nn.functional whose body runs on laws, instead of handing itself to them."""
    asked = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    known = {**function.__globals__, **dict.fromkeys(asked, lambda *_: False)}
    body = types.FunctionType(function.__code__, known, function.__name__, function.__defaults__)
    defaults = function.__kwdefaults__ or {}

    def rule(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return body(*args, **{**defaults, **kwargs})

    return rule


_plain_dtype = F._none_or_dtype


def _dtype_of_mask(mask: Any) -> torch.dtype | None:
    """The type of a mask's numbers, also of a law: a mask may be an argument of the network."""
    return mask.dtype if isinstance(mask, Law) else _plain_dtype(mask)


# nn.MultiheadAttention and nn.Transformer ask it of their masks before they call a function that laws know.
F._none_or_dtype = _dtype_of_mask  # type: ignore[assignment]
rule(Diagonal, "multi_head_attention_forward")(_by_body(F.multi_head_attention_forward))


# ------------------------------------------------------ recurrent layers

_plain_check = RNNBase.check_input


def _check_input(self: RNNBase, input: Any, batch_sizes: Any) -> None:
    """Check a recurrent layer's input, a law of float32 also where weights are of half precision."""
    own = self._flat_weights[0].dtype  # type: ignore[union-attr]
    form = torch.empty(input.shape, dtype=own, device="meta") if isinstance(input, Law) else input
    _plain_check(self, form, batch_sizes)


RNNBase.check_input = _check_input  # type: ignore[method-assign]


def _lstm_step(x: Any, state: tuple[Any, ...], w: tuple[Any, ...]) -> tuple[Any, ...]:
    h, c = state
    gates = F.linear(x, w[0], w[2]) + F.linear(h, w[1], w[3])
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * torch.tanh(c)
    return (h if w[4] is None else F.linear(h, w[4]), c)


def _gru_step(x: Any, state: tuple[Any, ...], w: tuple[Any, ...]) -> tuple[Any, ...]:
    (h,) = state
    of_x, of_h = F.linear(x, w[0], w[2]).chunk(3, -1), F.linear(h, w[1], w[3]).chunk(3, -1)
    r, z = torch.sigmoid(of_x[0] + of_h[0]), torch.sigmoid(of_x[1] + of_h[1])
    n = torch.tanh(of_x[2] + r * of_h[2])
    return (torch.lerp(n, h, z),)


def _rnn_step(activation: Callable[[Any], Any]) -> Callable[..., tuple[Any, ...]]:
    def step(x: Any, state: tuple[Any, ...], w: tuple[Any, ...]) -> tuple[Any, ...]:
        return (activation(F.linear(x, w[0], w[2]) + F.linear(state[0], w[1], w[3])),)

    return step


_STEPS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "lstm": _lstm_step,
    "gru": _gru_step,
    "rnn_tanh": _rnn_step(torch.tanh),
    "rnn_relu": _rnn_step(torch.relu),
}


@rule(Diagonal, *_STEPS)
def _recurrent(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch.lstm, gru and rnn: (input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first)."""
    if not isinstance(args[3], bool):
        raise UnsupportedError(f"{entry.name}: packed sequences of random values have no rule; pass a padded batch")
    x, hx, params, biases, layers, dropout, train, both_ways, batch_first = args
    step, is_lstm = _STEPS[entry.name], entry.name == "lstm"
    states = tuple(hx) if is_lstm else (hx,)
    directions = 2 if both_ways else 1
    # With a projection an LSTM's output is narrower than its cell: one weight more.
    projected = is_lstm and states[0].shape[-1] != states[1].shape[-1]
    per = (4 if biases else 2) + (1 if projected else 0)
    if batch_first:
        x = x.transpose(0, 1)
    last: list[list[Any]] = [[] for _ in states]
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            own = list(params[place * per : (place + 1) * per])
            hr = own.pop() if projected else None
            weights = (own[0], own[1], own[2] if biases else None, own[3] if biases else None, hr)
            state = tuple(part[place] for part in states)
            found: list[Any] = []
            steps = list(x.unbind(0))
            for value in reversed(steps) if direction else steps:
                state = step(value, state, weights)
                found.append(state[0])
            outputs.append(torch.stack(found[::-1] if direction else found))
            for kept, part in zip(last, state, strict=True):
                kept.append(part)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < layers - 1:
            x = F.dropout(x, dropout, True)
    out = x.transpose(0, 1) if batch_first else x
    return (out, *(torch.stack(part) for part in last))


@rule(Diagonal, *[f"{name}_cell" for name in _STEPS])
def _cell(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, hx, w_ih, w_hh, *bias = args
    b_ih, b_hh = bias or (None, None)
    name = entry.name.removesuffix("_cell")
    state = _STEPS[name](x, tuple(hx) if name == "lstm" else (hx,), (w_ih, w_hh, b_ih, b_hh, None))
    return state if name == "lstm" else state[0]


# ------------------------------------------------------------ the others


def _glu(x: Any, dim: int = -1) -> Any:
    first, second = x.chunk(2, dim)
    return first * torch.sigmoid(second)


def _times(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * factor


_WRITTEN: dict[str, Callable[..., Any]] = {
    "glu": _glu,
    "softmin": lambda input, dim=None, _stacklevel=3, dtype=None: F.softmax(-input, dim, dtype=dtype),
    "addcmul": lambda input, tensor1, tensor2, value=1: input + _times(tensor1 * tensor2, value),
    "addcdiv": lambda input, tensor1, tensor2, value=1: input + _times(tensor1 / tensor2, value),
    "trace": lambda input: input.diagonal().sum(),
    "linalg_vecdot": lambda x, y, dim=-1: (x * y).sum(dim),
    "vdot": lambda input, other: (input * other).sum(),
}


@rule(Diagonal, *_WRITTEN)
def _written_out(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _WRITTEN[entry.name](*args, **kwargs)


@rule(Diagonal, "addmm", "addbmm", "baddbmm", "addmv", "addr")
def _add_product(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    product = (torch.outer if entry.name == "addr" else torch.matmul)(args[1], args[2])
    product = _times(product.sum(0) if entry.name == "addbmm" else product, kwargs.get("alpha", 1))
    beta = kwargs.get("beta", 1)
    return product if beta == 0 else product + _times(args[0], beta)  # what is not added may be anything


@rule(Diagonal, "lerp")
def _lerp(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``a + w (b − a)``; for independent a, b, w: Var w (m_b − m_a)² + E w² Var b + E (1 − w)² Var a."""
    a, b, w = args
    laws = [value for value in args if isinstance(value, Diagonal)]
    of_one = len(laws) != 1 and alike(*laws)
    if of_one or (isinstance(a, Diagonal) and isinstance(b, Diagonal) and alike(a, b)):
        return a + w * (b - a)
    (m_a, v_a), (m_b, v_b), (m, v) = pair(a), pair(b), pair(w)
    own = 0.0 if v is None else v
    terms = [] if v is None else [v * (m_b - m_a) ** 2]
    terms += [] if v_b is None else [(m * m + own) * v_b]
    terms += [] if v_a is None else [((1 - m) ** 2 + own) * v_a]
    return made(m_a + m * (m_b - m_a), sum(terms[1:], terms[0]))
