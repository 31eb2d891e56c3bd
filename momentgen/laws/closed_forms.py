"""Moments of a program of one normal value: a generated op, a closed form, or quadrature split at its kinks.

:mod:`~momentgen.laws.analysis` tells which.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import momentgen.generated
from momentgen.laws.activations import UNDEFINED
from momentgen.laws.analysis import (
    CLOSED,
    CUTS_AT_MOST,
    DOMAINS,
    Steps,
    analysed,
    is_entire,
    is_value,
    marks_of,
    values_of,
)
from momentgen.laws.law import Law
from momentgen.laws.movement import moved_part
from momentgen.laws.notes import are_heard, note
from momentgen.laws.numerics.quadrature import GRADED, quadrature
from momentgen.laws.table import Entry

__all__ = ["Function", "Move", "is_defined", "moments", "number_of", "start", "value"]


class Move(NamedTuple):
    """A movement: entry, arguments after the first, keyword arguments, and which of several results."""

    entry: Entry
    rest: tuple[Any, ...]
    named: dict[str, Any]
    place: int | None


class Function(NamedTuple):
    """A program in one value, each element alone.

    Attributes:
        source: the law of the value.
        moves: how the value was moved before.
        steps: of the program.
        calls: what computes each.
        tensors: those among their arguments.
    """

    source: Law
    moves: tuple[Move, ...]
    steps: Steps
    calls: tuple[Callable[..., Any], ...]
    tensors: tuple[Tensor, ...]


def start(function: Function) -> tuple[Tensor, Tensor]:
    """Mean and variance of a program's value, after its moves."""
    parts = []
    for part in function.source._parts():
        for entry, rest, named, place in function.moves:
            part = moved_part(entry, part, rest, named)
            part = part if place is None else part[place]
        parts.append(part)
    return parts[0], parts[1]


def number_of(given: Any) -> float | None:
    """A number, also of a plain tensor of one element; None for anything else."""
    if not isinstance(given, Tensor):
        return given if isinstance(given, int | float) else None
    if torch.compiler.is_compiling() or type(given) is not Tensor or given.numel() != 1 or given.requires_grad:
        return None
    return given.item() if given.is_cpu and not torch._C._functorch.is_functorch_wrapped_tensor(given) else None


def is_defined(function: Function) -> bool:
    """Whether the program has moments for every normal value, as far as that can be told."""
    if function.tensors:
        used = {name for name, args, _ in function.steps if name != "div" or is_value(args[1])}
        return used.isdisjoint((*CLOSED, *DOMAINS, *UNDEFINED)) and all(map(is_entire, function.steps))
    return analysed(function.steps)[0] != "undefined"


def moments(function: Function, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the program, from those of its value."""
    run = functools.partial(value, function)
    if function.tensors:
        cuts: tuple[Any, ...] = tuple(_cuts(function, mean))
        _note(function)
        return quadrature(run, mean, var, GRADED, cuts)
    kind, numbers, cuts, wide = analysed(function.steps)
    if kind in ("polynomial", "integral"):
        _note(function)
        if kind == "polynomial":
            return quadrature(run, mean, var)
        if len(cuts) > CUTS_AT_MOST:  # as a function with kinks everywhere
            return quadrature(run, mean, var, 3 * GRADED, ())
        return quadrature(run, mean, var, GRADED, cuts, wide)
    if kind == "square":
        scale, middle, shift = numbers
        square = (mean + middle).square()
        return scale * (square + var) + shift, scale * scale * (2 * var * (var + 2 * square))
    if kind == "bell":
        height, steepness, middle = numbers
        m, v = _bell(steepness, mean + middle, var)
        return m * height, v * (height * height)
    if kind == "bent":
        return _bent(numbers, mean, var)
    scale, shift, inner = numbers
    if kind == "itself":
        return scale * mean + shift, scale * scale * var
    op = getattr(momentgen.generated, kind)
    m, v = op(mean * inner, var * (inner * inner)) if inner != 1 else op(mean, var)
    return (m if scale == 1 and shift == 0 else m * scale + shift), (v if scale == 1 else v * (scale * scale))


def _bell(steepness: float, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of exp(−a X²), a ≥ 0."""
    once, twice = 1 + 2 * steepness * var, 1 + 4 * steepness * var
    square = steepness * mean * mean
    first, second = (-square / once).exp() * once.rsqrt(), (-2 * square / twice).exp() * twice.rsqrt()
    # log of the second moment over the squared mean: nothing cancels where that is small
    spread = steepness * var
    share = 4 * square * spread / (once * twice) + torch.log1p(4 * spread * spread / twice) / 2
    return first, torch.where(share < 1, first * first * share.clamp_max(1).expm1(), second - first * first)


def _bent(numbers: tuple[float, ...], mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of a line up to a kink and another from there: slopes before and after, and the value at the kink."""
    kink, before, after, height = numbers
    relu = momentgen.generated.relu
    (up, up_var), (down, down_var) = relu(mean - kink, var), relu(kink - mean, var)
    # nothing cancels: the terms keep three quarters of their absolute sum
    total = after * after * up_var + before * before * down_var + 2 * after * before * up * down
    return after * up - before * down + height, total


# ----------------------------------------------------------------- evaluation


def value(function: Function, x: Tensor) -> Tensor:
    """What the program makes of a tensor."""
    found: Tensor = values_of(function.steps, function.calls, function.tensors, x)[-1]
    return found


def _cuts(function: Function, mean: Tensor) -> Iterator[Tensor]:
    """Where a program with tensors bends, of steps whose arguments are affine in its value."""
    at = [values_of(function.steps, function.calls, function.tensors, torch.full_like(mean, k)) for k in (0, 1, 2)]
    for number, step in enumerate(function.steps):
        for marks in zip(*(list(marks_of(step, values[: number + 1])) for values in at), strict=True):
            zero, one, two = (mark for _, mark in marks)
            slope = one - zero
            usable = ((two - one - slope).abs() <= 1e-5 * slope.abs()) & (slope != 0)
            yield torch.where(usable, -zero / torch.where(usable, slope, 1), mean).to(mean.dtype).expand(mean.shape)


def _note(function: Function) -> None:
    if not are_heard():
        return
    rule = _text(function.steps) if len(function.steps) <= 12 else f"{function.steps[-1][0]}(…)"
    name = f"my_{function.steps[-1][0]}"
    note(f"{rule}: integrated by quadrature; the rule Rule({name!r}, f={rule}) would make it exact and fast")


_SIGNS = {"add": "+", "sub": "-", "rsub": "-", "mul": "*", "div": "/", "rdiv": "/", "pow": "**"}


def _text(steps: Steps) -> str:
    """The program as a formula in x."""
    texts = ["x"]
    for name, args, _ in steps:
        own = [
            (texts[arg[1]] if arg[0] == "value" else "c")
            if type(arg) is tuple
            else f"{arg:.6g}"
            if isinstance(arg, float)
            else str(arg)
            for arg in args
        ]
        left, *rest = own[::-1] if name in ("rsub", "rdiv") else own
        is_sign = name in _SIGNS and len(rest) == 1
        texts.append(f"({left} {_SIGNS[name]} {rest[0]})" if is_sign else f"{name}({', '.join(own)})")
    return texts[-1]
