"""What a function of one value is, and its moments: a generated op, or quadrature split at its kinks.

Its values at a few thousand places tell what it is, however it was written.  Bells exp(−a (x + b)²) have a closed form,
for they may be one over what overflows.  The values also tell where it bends and jumps,
and whether it is defined: ``1/tanh(x) - 1/x`` is, though ``1/x`` has no moments.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import momentgen.generated
from momentgen.extras import SITE
from momentgen.laws.activations import UNDEFINED
from momentgen.laws.notes import are_heard, note
from momentgen.laws.numerics.quadrature import GRADED, elsewhere, quadrature
from momentgen.laws.table import TABLE, names
from momentgen.runtime.dynamo import constant_result

#: (name, arguments, keyword arguments) of each step; ("value", 0) is the program's own, ("value", k) that of step k
Steps = tuple[tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]], ...]


class Code(NamedTuple):
    """A function of each element: its steps, what computes each of them, and the tensors among their arguments."""

    steps: Steps = ()
    calls: tuple[Callable[..., Any], ...] = ()
    tensors: tuple[Tensor, ...] = ()

    def values(self, x: Tensor) -> list[Any]:
        """The value itself and what each step makes of it."""
        found: list[Any] = [x]

        def given(arg: Any) -> Any:
            return arg if type(arg) is not tuple else (found if arg[0] == "value" else self.tensors)[arg[1]]

        for (_, args, named), call in zip(self.steps, self.calls, strict=True):
            found.append(call(*map(given, args), **{name: given(arg) for name, arg in named}))
        return found

    def value(self, x: Tensor) -> Tensor:
        """What the function makes of a tensor."""
        found: Tensor = self.values(x)[-1]
        return found


#: functions with poles, or an end to their domain: where they are defined and finite, but for the ends
_DOMAINS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(names("sqrt rsqrt log log2 log10 lgamma digamma"), (0.0, math.inf)),
    **dict.fromkeys(names("acos asin atanh erfinv"), (-1.0, 1.0)),
    "log1p": (-1.0, math.inf), "acosh": (1.0, math.inf), "tan": (-math.pi / 2, math.pi / 2), "logit": (0.0, 1.0),
}  # fmt: skip
#: functions that rules of their own serve for a value that is not a function of another
CLOSED = frozenset(names("sqrt rsqrt reciprocal rdiv div"))
#: where functions bend or jump, from their parameters
_BENDS: dict[str, Callable[..., tuple[float, ...]]] = {
    **dict.fromkeys(names("relu abs leaky_relu elu selu celu softsign prelu"), lambda *_: (0.0,)),
    "relu6": lambda: (0.0, 6.0), **dict.fromkeys(names("hardsigmoid hardswish"), lambda: (-3.0, 3.0)),
    "hardtanh": lambda min_val=-1.0, max_val=1.0: (min_val, max_val),
    "clamp": lambda min=None, max=None: tuple(bound for bound in (min, max) if bound is not None),
    "clamp_min": lambda min: (min,), "clamp_max": lambda max: (max,),
    "threshold": lambda threshold, value: (threshold,),
    **dict.fromkeys(names("softshrink hardshrink"), lambda lambd=0.5: (-lambd, lambd)),
}  # fmt: skip
_LARGER = frozenset(names("maximum minimum fmax fmin max min"))
_POLYNOMIAL = frozenset(names("pow square mul add sub rsub neg div"))


def _is_value(arg: Any) -> bool:
    """Whether an argument of a step is a value of the code."""
    return type(arg) is tuple and arg[0] == "value"


def _is_entire(step: Any) -> bool:
    """Whether a power is whole and not negative; other functions are not asked."""
    exponent = step[1][1] if step[0] == "pow" and len(step[1]) > 1 else dict(step[2]).get("exponent", 1)
    return isinstance(exponent, int | float) and exponent >= 0 and exponent == int(exponent)


def _marks(step: Any, values: list[Any]) -> Iterator[tuple[str, Any]]:
    """What is 0 where a step bends or has a pole, and below 0 outside of its domain (an ``edge``)."""
    name, args, named = step
    first = values[args[0][1]] if _is_value(args[0]) else args[0]
    if name in _LARGER:
        yield "bend", first - (values[args[1][1]] if _is_value(args[1]) else args[1])
    elif name in _BENDS:
        skips = name in ("leaky_relu", "elu", "celu", "prelu")
        own = {key: value for key, value in named if key not in ("negative_slope", "alpha", "inplace", "weight")}
        given = () if skips else (value for value in args[1:] if not isinstance(value, bool))  # a flag ``inplace``
        for bound in _BENDS[name](*given, **own):
            yield "bend", first - bound
    elif name == "div" and _is_value(args[1]):
        yield "pole", values[args[1][1]]
    elif name in ("rdiv", "reciprocal"):
        yield "pole", first
    elif name == "pow" and not _is_entire(step):
        yield "pole" if _is_entire((name, (args[0], -args[1]), ())) else "edge", first
    for sign, end in zip((1, -1), _DOMAINS.get(name, ()), strict=False):
        if abs(end) != math.inf:
            yield "edge", sign * (first - end)


#: what a program is: a kind, its numbers, the places of its bends, and whether it needs float64
Facts = tuple[str, tuple[float, ...], tuple[float, ...], bool]

#: more bends than this are not cut at
_CUTS_AT_MOST = 8


@constant_result
def _analysed(steps: Steps) -> Facts:
    """What a program of numbers is; ``undefined`` where it has no moments, or is not known to have."""
    found: Facts = _kept(_examined, steps)
    return found


@constant_result
def root_of_affine(steps: Steps) -> tuple[float, float, int] | None:
    """s, e and ±1 of a function ``s √(q + e)`` of q, or ``s / √(q + e)``; None of any other.

    A small number behind the root, or below which it is not let fall, counts as √e.
    """
    found: tuple[float, float, int] | None = _kept(_root, steps)
    return found


@functools.lru_cache(4096)
def _kept(function: Callable[[Steps], Any], steps: Steps) -> Any:
    return elsewhere(function, steps)


def _root(steps: Steps) -> tuple[float, float, int] | None:
    q = torch.tensor([0.0, 1e-4, 1e-2, 1.0, 1e2, 1e14], dtype=torch.float64)
    values = Code(steps, tuple([_call(name) for name, *_ in steps])).value(q)
    for power in (1, -1):
        root = values**power
        scale = float(root[-1]) / 1e7
        least = float(root[0]) / scale if scale > 0 else -1.0
        if least >= 0 and bool(((root / scale - (q + least**2).sqrt()).abs()[:-1] <= _SMALL).all()):
            return scale**power, least**2, power
    return None


#: a number behind a root, in units of the root, that counts as one under it
_SMALL = 1e-3


def _call(name: str) -> Callable[..., Any]:
    return next(entry.call for entry in TABLE.values() if entry.name == name and entry.kind != "write")


def _grid() -> Tensor:
    """Numbers up to a million, close near 0."""
    return torch.sinh(torch.linspace(-14.5, 14.5, 4001, dtype=torch.float64))


def _examined(steps: Steps) -> Facts:
    undefined: Facts = ("undefined", (), (), False)
    if not all(_is_value(arg) or type(arg) is not tuple for _, args, _ in steps for arg in args):
        return undefined
    code, x = Code(steps, tuple([_call(name) for name, *_ in steps])), _grid()

    f, (out, near) = code.value, (code.value(x), x.abs() <= 50)

    def marks(at: Tensor) -> list[tuple[str, Any]]:
        own = code.values(at)
        return [mark for number, step in enumerate(steps) for mark in _marks(step, own[: number + 1])]

    def mark_at(index: int, at: Tensor) -> Tensor:
        found: Tensor = marks(at)[index][1]
        return found

    poles: list[float] = []
    bends: list[float] = []
    for index, (kind, mark) in enumerate(marks(x)):
        if kind == "edge" and bool((mark < 0).any()):
            return undefined
        stays = (mark[1:-1] == 0) & (mark[:-2] == 0) & (mark[2:] == 0) & near[1:-1]
        if kind != "bend" and not bool(out[1:-1][stays].isfinite().all()):
            return undefined
        (bends if kind == "bend" else poles).extend(_zeros(functools.partial(mark_at, index), x))
    if (bool(out[x.abs() < 5].isnan().any()) and not poles) or not all(_is_integrable(f, pole) for pole in poles):
        return undefined
    cuts = tuple(sorted({float(f"{place:.12g}") for place in (*bends, *poles)}))
    if poles and len(cuts) > _CUTS_AT_MOST:
        return undefined
    kind, numbers = _form(f, {name for name, *_ in steps}, bool(poles))
    return kind, numbers, cuts, bool(poles)


def _zeros(h: Callable[[Tensor], Tensor], x: Tensor) -> list[float]:
    """Where ``h`` is 0, isolated: it changes its sign or touches."""
    size = h(x).abs().nan_to_num(math.inf)
    middle, before, after = size[1:-1], size[:-2], size[2:]
    is_least = (middle <= before) & (middle <= after) & ((middle < before) | (middle < after))
    places = 1 + is_least.nonzero().flatten()
    places = places[x[places].abs().argsort()][:64]
    low, high = x[places - 1], x[places + 1]
    scale = torch.maximum(size[places - 1], size[places + 1])
    least, at = size[places], x[places]
    for _ in range(16):
        step = (high - low) / 32
        points = low[:, None] + step[:, None] * torch.arange(33)
        points[:, 0] = at  # the best so far: an exact 0 is not lost
        sizes = h(points.flatten()).abs().nan_to_num(math.inf).view(points.shape)
        least, best = sizes.min(1)
        at = points.gather(1, best[:, None])[:, 0]
        low, high = torch.maximum(at - 1.5 * step, low), torch.minimum(at + 1.5 * step, high)
    return [
        float(place) for place, size, most in zip(at, least, scale, strict=True) if size <= 1e-9 * min(float(most), 1)
    ]


def _is_integrable(f: Callable[[Tensor], Tensor], pole: float) -> bool:
    """Whether the square of ``f`` is integrable about a place: it grows by less than the distance to the power −½."""
    distance = max(1.0, abs(pole)) * torch.tensor([1e-3, -1e-3, 1e-5, -1e-5], dtype=torch.float64)
    far, close = f(pole + distance).abs().view(2, 2).amax(1).tolist()
    return close <= 5 * far + 1e-6


# ---------------------------------------------------------------------- forms

#: activations as torch computes them, by the name of the op
_OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu_squared": lambda x: F.relu(x) ** 2, "silu": F.silu, "mish": F.mish, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "hardswish": F.hardswish, "softsign": F.softsign,
    "tanhshrink": F.tanhshrink, "logistic_transform": torch.sigmoid, "tanh": torch.tanh, "softplus": F.softplus,
    "erf": torch.erf, "cos": torch.cos, "sin": torch.sin, "relu": F.relu, "abs": torch.abs, "square": torch.square,
}  # fmt: skip


def _form(f: Callable[[Tensor], Tensor], used: set[str], has_poles: bool) -> Any:
    """What function ``f`` is, from its values: a kind and its numbers."""

    def at(*places: float) -> list[float]:
        found: list[float] = f(torch.tensor(places, dtype=torch.float64)).tolist()
        return found

    def agrees(g: Callable[[Tensor], Tensor], tolerance: float, reach: float) -> bool:
        x = _grid()
        x = x[x.abs() <= reach] + 1e-7  # beside 0, where what is removable is not computed
        values = f(x)
        scale = values[x.abs() <= 3].abs().max()
        return bool(((values - g(x)).abs() <= tolerance * (scale + values.abs())).all())

    low, zero, high = at(-1.0, 1e-9, 1.0)
    line = (high - low) / 2, (high + low) / 2
    if agrees(lambda x: line[0] * x + line[1], 1e-9, 300):
        return "itself", (*line, 1.0)
    for name, op in _OPS.items():
        one, other = (float(op(torch.tensor(place, dtype=torch.float64))) for place in (1.0, -0.5))
        first, second = at(1.0, -0.5)
        scale = (first - second) / (one - other)
        shift = first - scale * one
        shift = 0.0 if abs(shift) < 1e-6 * abs(scale) else shift
        if agrees(lambda x, op=op, scale=scale, shift=shift: scale * op(x) + shift, 2e-6, 300):  # type: ignore[misc]
            return name, (round(scale, 9) if abs(scale - round(scale, 9)) < 1e-12 else scale, shift, 1.0)
    if low and high / low < 0 and high != -low:  # x sigmoid(c x) is SiLU(c x)/c
        inner = math.log(-high / low)
        scale = high * (1 + math.exp(-inner)) / inner
        if agrees(lambda x: scale * F.silu(inner * x), 2e-6, 300):
            return "silu", (scale, 0.0, inner)
    if used & {"exp", "exp2"} and zero and high / zero > 0 and low / zero > 0:
        left, right = math.log(low / zero), math.log(high / zero)
        steepness, slope = -(left + right) / 2, (right - left) / 2
        if agrees(lambda x: zero * torch.exp(slope * x - steepness * x * x), 1e-9, 3):
            if steepness < 1e-12:
                return "exp", (zero, 0.0, slope)
            middle = -slope / (2 * steepness)
            return "bell", (zero * math.exp(steepness * middle * middle), steepness, middle)
    return ("polynomial" if used <= _POLYNOMIAL and not has_poles else "integral"), ()


# -------------------------------------------------------------------- moments


def is_defined(code: Code) -> bool:
    """Whether the function has moments for every normal value, as far as that can be told."""
    if code.tensors:
        used = {name for name, args, _ in code.steps if name != "div" or _is_value(args[1])}
        return used.isdisjoint((*CLOSED, *_DOMAINS, *UNDEFINED)) and all(map(_is_entire, code.steps))
    return _analysed(code.steps)[0] != "undefined"


def moments(code: Code, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of a function of a normal value, from those of the value."""
    known: Any = ("integral", (), tuple(_cuts(code, mean)), False) if code.tensors else _analysed(code.steps)
    kind, numbers, cuts, wide = known
    if kind in ("polynomial", "integral"):
        _note(code)
        if kind == "polynomial":
            return quadrature(code.value, mean, var)
        if len(cuts) > _CUTS_AT_MOST and not code.tensors:  # as a function with kinks everywhere
            return quadrature(code.value, mean, var, 3 * GRADED, ())
        return quadrature(code.value, mean, var, GRADED, cuts, wide)
    if kind == "bell":
        height, steepness, middle = numbers
        m, v = _bell(steepness, mean + middle, var)
        return m * height, v * (height * height)
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


def _cuts(code: Code, mean: Tensor) -> Iterator[Tensor]:
    """Where a program with tensors bends, of steps whose arguments are affine in its value."""
    at = [code.values(torch.full_like(mean, k)) for k in (0, 1, 2)]
    for number, step in enumerate(code.steps):
        for marks in zip(*(list(_marks(step, values[: number + 1])) for values in at), strict=True):
            zero, one, two = (mark for _, mark in marks)
            slope = one - zero
            usable = ((two - one - slope).abs() <= 1e-5 * slope.abs()) & (slope != 0)
            yield torch.where(usable, -zero / torch.where(usable, slope, 1), mean).to(mean.dtype).expand(mean.shape)


def _note(code: Code) -> None:
    if are_heard():
        *first, last = (name for name, *_ in code.steps)
        text = f"{last} of {', '.join(dict.fromkeys(first))}" if first else last
        note(f"{text}: integrated by quadrature; a rule of its own would make it exact and fast ({SITE}/ops/)")
