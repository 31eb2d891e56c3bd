"""The normal form of a pointwise expression, by which expressions whose moments are known are recognised.

Scalar factors and summands are taken out, and factors and summands stand in one order.  So the many ways to write an
activation become one (:mod:`momentgen.laws.history` has expressions).  Known are the generated ops, squares, bells
exp(−a (x + b)²) and the larger of two lines.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.activations import generated_op
from momentgen.laws.diagonal import diagonal
from momentgen.laws.history import IDENTITIES, same_value
from momentgen.laws.law import Law, MomentsOf

__all__ = ["known", "normal_form"]

#: (scale, shift, core): scale·core + shift; core is "x", or a function's name and the normal forms of its arguments
Form = tuple[float, float, Any]


def _rounded(value: float) -> float:
    """Six digits: constants are written out in many ways."""
    return float(f"{value:.6g}")


def normal_form(law: Law, source: Law) -> Form | None:
    """The expression with scalar factors and summands taken out; None if constants are not numbers."""
    if same_value(law, source):
        return 1.0, 0.0, "x"
    entry, args, kwargs = law._call  # type: ignore[misc]
    name = entry.name
    if name in IDENTITIES:
        return normal_form(args[0], source)
    parts: list[Any] = []
    for arg in args:
        part = normal_form(arg, source) if isinstance(arg, Law) else arg
        if part is None or not isinstance(part, int | float | tuple | str | type(None)):
            return None
        parts.append(part)
    if name == "neg":
        return -parts[0][0], -parts[0][1], parts[0][2]
    if name in ("rsub", "rdiv"):
        parts = [parts[1], parts[0]]
    if name in ("add", "sub", "rsub"):
        return _sum(parts[0], parts[1], (-1 if name != "add" else 1) * kwargs.get("alpha", 1))
    if name == "mul":
        return _product(parts[0], parts[1])
    if name == "div" and not isinstance(parts[1], tuple):
        return _product(parts[0], 1 / parts[1])
    if name in ("div", "rdiv"):
        return 1.0, 0.0, ("div", *_rounded_forms(parts))
    if name == "pow" and parts[1] == 2:
        return _product(parts[0], parts[0])
    if name == "square":
        return _product(parts[0], parts[0])
    if any(isinstance(value, Tensor | Law) for value in kwargs.values()):
        return None
    named = zip(sorted(kwargs), _rounded_forms([kwargs[key] for key in sorted(kwargs)]), strict=True)
    return 1.0, 0.0, (name, *_rounded_forms(parts), *named)


def _rounded_forms(parts: list[Any]) -> tuple[Any, ...]:
    return tuple(
        (_rounded(part[0]), _rounded(part[1]), part[2])
        if isinstance(part, tuple)
        else _rounded(part)
        if isinstance(part, float | int) and not isinstance(part, bool)
        else part
        for part in parts
    )


def _sum(a: Any, b: Any, sign: float) -> Form:
    if not isinstance(a, tuple):
        return sign * b[0], a + sign * b[1], b[2]
    if not isinstance(b, tuple):
        return a[0], a[1] + sign * b, a[2]
    if a[2] == b[2]:
        return a[0] + sign * b[0], a[1] + sign * b[1], a[2]
    # a core with factor 1 first, in an order that does not depend on how it was written
    first, second = sorted([(a[0], a[2]), (sign * b[0], b[2])], key=lambda part: repr(part[1]))
    if first[0] == 0:
        return second[0], a[1] + sign * b[1], second[1]
    core = ("sum", first[1], _rounded(second[0] / first[0]), second[1])
    return first[0], a[1] + sign * b[1], core


def _product(a: Any, b: Any) -> Form:
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        form, factor = (a, b) if isinstance(a, tuple) else (b, a)
        return form[0] * factor, form[1] * factor, form[2]
    factors = []
    scale = 1.0
    for own, shift, core in (a, b):
        if own == 0:
            return _product(b if core is a[2] else a, shift)
        scale *= own
        factors.append((1.0, _rounded(shift / own), core))
    return scale, 0.0, ("mul", *sorted(factors, key=repr))


def _templates() -> dict[str, tuple[Callable[[Any], Any], ...]]:
    """Activations as they are written by hand: name of the op -> ways to write it."""
    root, two_pi = math.sqrt(0.5), math.sqrt(2 / math.pi)
    return {
        "relu_squared": (lambda x: F.relu(x) ** 2,),
        "silu": (lambda x: x * torch.sigmoid(x), lambda x: x / (1 + torch.exp(-x))),
        "mish": (lambda x: x * torch.tanh(F.softplus(x)), lambda x: x * torch.tanh(F.softplus(x, 1.0, 20.0))),
        "gelu": (lambda x: x * (1 + torch.erf(x * root)), lambda x: 2 * x * torch.special.ndtr(x)),
        "gelu_tanh": (
            lambda x: x * (1 + torch.tanh(two_pi * (x + 0.044715 * torch.pow(x, 3)))),
            lambda x: x * (1 + torch.tanh(two_pi * (x + 0.044715 * x * x * x))),
            lambda x: x * (1 + torch.tanh(two_pi * x * (1 + 0.044715 * x * x))),
        ),
        "hardswish": (
            lambda x: x * F.relu6(x + 3),
            lambda x: x * F.hardsigmoid(x),
            lambda x: x * torch.clamp(x + 3, 0, 6),
            lambda x: x * torch.clamp(x + 3, min=0, max=6),
            lambda x: x * F.hardtanh(x + 3, 0.0, 6.0),
            lambda x: x * F.hardtanh(x + 3, min_val=0.0, max_val=6.0),
        ),
        "softsign": (lambda x: x / (1 + torch.abs(x)),),
        "tanhshrink": (lambda x: x - torch.tanh(x),),
    }


#: the value of a template's op, over the product that is written: x (1 + erf(x/√2)) is 2 GELU
_FACTORS = {"gelu": 2.0, "gelu_tanh": 2.0}
_SIXTHS = ("relu6", "clamp", "hardtanh")


@functools.cache
def _patterns() -> dict[str, tuple[str, float]]:
    """Core of the normal form -> op, and what the core is over the op."""
    found: dict[str, tuple[str, float]] = {}
    for op, writings in _templates().items():
        for write in writings:
            x = diagonal(torch.zeros(1, device="meta"), torch.ones(1, device="meta"))
            form = normal_form(write(x), x)
            if form is None or form[1] != 0:
                continue
            factor = 6.0 if any(name in repr(form[2]) for name in _SIXTHS) else _FACTORS.get(op, 1.0)
            found[repr(form[2])] = (op, factor / form[0])
    return found


def known(form: Form | None) -> tuple[float, float, float, Any] | None:
    """scale, shift, factor of the argument, and op of an expression scale·op(factor·x) + shift; None if not known."""
    if form is None:
        return None
    scale, shift, core = form
    if core == "x":
        return scale, shift, 1.0, _itself
    if torch.compiler.is_compiling():
        found = _traced_patterns.get(repr(core))
    else:
        found = _patterns().get(repr(core))
        _traced_patterns.update(_patterns())
    if found is not None:
        return scale * found[1], shift, 1.0, generated_op(found[0], "an activation written by hand")
    if core[0] == "mul" and all(part[0] == 1 and part[2] == "x" for part in core[1:]):
        first, second = core[1][1], core[2][1]
        middle, half = (first + second) / 2, (first - second) / 2
        return scale, shift - scale * half * half, 1.0, functools.partial(_square, middle)
    if core[0] in ("maximum", "minimum", "fmax", "fmin", "max", "min") and all(part[2] == "x" for part in core[1:]):
        return _bent(scale, shift, core)
    if core[0] == "exp" and (of_bell := _bell(core[1])) is not None:
        return scale, shift, 1.0, of_bell
    # x·sigmoid(c x) is SiLU(c x)/c
    if core[0] == "mul" and (1.0, 0.0, "x") in core[1:]:
        other = core[2] if core[1] == (1.0, 0.0, "x") else core[1]
        if other[:2] == (1.0, 0.0) and other[2][0] == "sigmoid" and other[2][1][1:] == (0.0, "x"):
            inner = other[2][1][0]
            return scale / inner, shift, inner, generated_op("silu", "an activation written by hand")
    return None


def _square(shift: float, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of (X + shift)²."""
    square = (mean + shift) * (mean + shift)
    return square + var, 2 * var * (var + 2 * square)


def _bell(power: Form) -> MomentsOf | None:
    """Moments of exp(−a (X + b)(X + c) + d), a > 0; None for another power."""
    scale, shift, core = power
    if scale >= 0 or core[0] != "mul" or not all(part[0] == 1 and part[2] == "x" for part in core[1:]):
        return None
    first, second = core[1][1], core[2][1]
    half = (first - second) / 2
    height = math.exp(shift - scale * half * half)

    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        m, v = _bell_of(-scale, mean + (first + second) / 2, var)
        return m * height, v * (height * height)

    return moments


def _bell_of(steepness: Any, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of exp(−a X²), a ≥ 0 a number or a tensor."""
    once, twice = 1 + 2 * steepness * var, 1 + 4 * steepness * var
    square = steepness * mean * mean
    first, second = (-square / once).exp() * once.rsqrt(), (-2 * square / twice).exp() * twice.rsqrt()
    # log of the second moment over the squared mean: nothing cancels where that is small
    spread = steepness * var
    share = 4 * square * spread / (once * twice) + torch.log1p(4 * spread * spread / twice) / 2
    return first, torch.where(share < 1, first * first * share.clamp_max(1).expm1(), second - first * first)


def _bent(scale: float, shift: float, core: Any) -> tuple[float, float, float, Any]:
    """The larger or the smaller of two straight lines: one slope and b more above the kink."""
    lines = sorted(part[:2] for part in core[1:])
    (slope, start), (steep, other) = lines if "max" in core[0] else lines[::-1]
    bend = steep - slope
    if bend == 0:
        height = max(start, other) if "max" in core[0] else min(start, other)
        return scale * slope, shift + scale * height, 1.0, _itself
    kink = (start - other) / bend

    def op(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        relu = generated_op("relu", "the larger of two lines")
        (up, up_var), (down, down_var) = relu(mean - kink, var), relu(kink - mean, var)
        total = steep * steep * up_var + slope * slope * down_var + 2 * steep * slope * up * down
        return steep * up - slope * down + (steep * kink + other), total

    return scale, shift, 1.0, op


#: the patterns, where torch.compile traces and cannot make them
_traced_patterns: dict[str, tuple[str, float]] = {}


def _itself(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    return mean, var
