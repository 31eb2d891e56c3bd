"""Expressions: functions of one value, one after another or together, are one function of that value.

``x * sigmoid(x)`` is not a product of independent values.  ``relu(x) ** 2`` closed function by function takes
``relu(x)`` for a normal value, which it is not.  So a pointwise function of laws that are pointwise functions of one
law (:mod:`~momentgen.laws.history`) is one expression of that law.  It may be a generated op (SiLU, GELU, Mish and
their like written by hand), or scaling where all is affine; otherwise it is integrated.  The integral is put off until
the moments are needed, since a longer expression may have an op.  A single function keeps its op.

A function with poles or an end to its domain (a root, a quotient) starts a new expression.  An integral would meet
values that its argument does not take.  It joins one where the bounds of its argument keep away from them.
"""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws.activations import UNDEFINED
from momentgen.laws.diagonal import pair
from momentgen.laws.dispatch import dispatch
from momentgen.laws.history import (
    await_writes,
    expression,
    is_inside,
    leads_to_chain,
    moved_law,
    operand,
    out_of_place,
    same_value,
    start_of,
    value_at,
)
from momentgen.laws.law import DEPTH, History, Law, MomentsOf, laws_in, new_law, versions
from momentgen.laws.normal_form import known, normal_form
from momentgen.laws.notes import note
from momentgen.laws.numerics.quadrature import quadrature
from momentgen.laws.table import KINKED, TABLE, Entry, names

__all__ = ["chained", "nodes_for", "pending", "settle"]


def pending(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], source: Law) -> Any:
    """A pointwise function of ``source`` whose moments are computed when somebody asks for them."""
    law: Any = new_law(type(source), None)  # type: ignore[arg-type]
    law._noise = source._noise
    law._history = History((entry, args, kwargs), source, source._depth + 1, versions(args), settle)
    of = cast(list[Law], expression(law, source))
    is_long = _length(law) > _LONGEST or len(of) > _MOST
    has_tensors = any(isinstance(value, Tensor) for inner in of for value in inner._call[1])  # type: ignore[index]
    if is_long or (not torch.is_grad_enabled() and source.requires_grad) or has_tensors:
        settle(law)  # at once: it is long enough, or gradients may be enabled again later, or tensors may be written to
        if source._depth >= DEPTH or len(of) > _MOST:
            note(f"{entry.name}: a function of many functions of one value, which is taken as normal from there on")
            law._history = None  # what it is a function of is let go
    elif not torch.compiler.is_compiling():
        # before anything that it is a function of is written to
        for value in {id(part): part for inner in of for part in laws_in(inner._call[1])}.values():  # type: ignore[index]
            await_writes(value, law)
    return law


def _length(law: Law) -> int:
    """How many functions an expression that is not integrated yet has."""
    if law._mean is not None:
        return 0
    args = () if law._call is None else law._call[1]
    return 1 + sum(_length(value) for value in laws_in(args))


#: an expression of more functions than this is integrated at once
_LONGEST = 12
#: an expression of more functions than this counts as a value of its own
_MOST = 24


def settle(law: Any) -> None:
    """Compute the moments of a pending law."""
    law._mean, law._var = _moments(law, law._of)(*pair(law._of))


def _moments(law: Law, source: Law) -> MomentsOf:
    """What gives mean and variance of an expression, from those of its source."""
    between = cast(list[Law], expression(law, source))
    found = known(normal_form(law, source)) if len(between) <= _LONGEST else None
    if found is None:
        rule = text(law, source) if len(between) <= _LONGEST else f"{between[-1]._call[0].name}(…)"  # type: ignore[index]
        name = f"my_{law._call[0].name}"  # type: ignore[index]
        note(f"{rule}: integrated by quadrature; the rule Rule({name!r}, f={rule}) would make it exact and fast")
        return functools.partial(quadrature, functools.partial(value_at, law, source), **_nodes(between))
    scale, shift, inner, op = found

    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        m, v = op(mean * inner, var * (inner * inner)) if inner != 1 else op(mean, var)
        return (m if scale == 1 and shift == 0 else m * scale + shift), (v if scale == 1 else v * (scale * scale))

    return moments


#: functions that jump, those whose slopes jump, and those that leave a polynomial one
_JUMPS = frozenset(names("threshold hardshrink unit_step"))
_SHARP = KINKED.union(names("unit_step maximum minimum fmax fmin"))
_POLYNOMIAL = frozenset(names("pow square mul add sub rsub neg div"))


def _nodes(laws: list[Law]) -> dict[str, Any]:
    """How many nodes an expression takes, and which.

    Args:
        laws: of the expression.
    """
    return nodes_for({_name(*law._call[:2]) for law in laws})  # type: ignore[index]


def _name(entry: Entry, args: tuple[Any, ...]) -> str:
    """Name of a function; ``rdiv`` of one that divides by a law."""
    return "rdiv" if entry.name == "div" and isinstance(args[1], Law) else entry.name


def nodes_for(used: set[str]) -> dict[str, Any]:
    """How many nodes an expression of these functions takes, and which: of polynomials those of Gauss and Hermite.

    Elsewhere these lie too far apart for an input that is wider than a bend, also of smooth functions.
    """
    if used <= _POLYNOMIAL:
        return {}
    return {"nodes": 164 if used & _JUMPS else 56, "graded": True, "sharp": bool(used & _SHARP)}


def text(law: Law, source: Law) -> str:
    """The expression as a formula in x."""
    if same_value(law, source):
        return "x"
    entry, args, _ = law._call  # type: ignore[misc]
    parts = [text(arg, source) if isinstance(arg, Law) else _number(arg) for arg in args]
    if entry.name in _SIGNS and len(parts) == 2:
        left, right = parts if entry.name not in ("rsub", "rdiv") else parts[::-1]
        return f"({left} {_SIGNS[entry.name]} {right})"
    return f"{entry.name}({', '.join(parts)})"


_SIGNS = {"add": "+", "sub": "-", "rsub": "-", "mul": "*", "div": "/", "rdiv": "/", "pow": "**"}


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "c" if isinstance(value, Tensor) else str(value)


# ------------------------------------------------------------------- chains

#: pointwise functions that have rules of their own for arguments of one sign, or are refused
_OWN = frozenset((*names("sqrt rsqrt reciprocal"), *UNDEFINED))
#: powers that are functions by name
_ROOTS: dict[Any, Any] = {0.5: torch.sqrt, -0.5: torch.rsqrt, -1: torch.reciprocal}
#: functions of an exponential that are one: the factor of its argument
_OF_EXPONENTIALS = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}


def chained(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A pointwise function of a chain, or of a chain that was moved, as a function of the chain's start; else None.

    Args:
        entry: of the function.
        args: of the call, the first the only law.
        kwargs: of the call.
    """
    x = args[0]
    if x._call is None or any(isinstance(value, Tensor) for value in kwargs.values()):
        return None
    if laws_in((*args[1:], *kwargs.values())):  # as a random slope of PReLU
        return None
    if entry.name == "pow" and len(args) == 2 and not kwargs and args[1] in _ROOTS:
        entry, args = TABLE[_ROOTS[args[1]]], (x,)
    if entry.name in _OF_EXPONENTIALS and (under := operand(x, "exp")) is not None:
        argument: Any = under
        return torch.exp(argument * _OF_EXPONENTIALS[entry.name])  # which stays finite where exp itself does not
    if entry.name in _OWN and not is_inside(entry.name, x):
        return None
    if entry.name == "pow" and not _is_polynomial((*args[1:], *kwargs.values())[0]):
        return None
    if entry.name == "square" or (entry.name == "pow" and args[1:] == (2,)):
        under = operand(x, "sqrt")
        if under is not None:
            return under  # which is not negative
    if entry.name == "exp" and (found := _exp_of_sum(x)) is not None:
        return found
    start = start_of(x)
    if start is not None:
        return None if expression(x, start) is None else pending(entry, args, kwargs, start)
    if any(isinstance(value, Tensor) for value in (*args[1:], *kwargs.values())):
        return None
    place = moved_law(x)
    if place is None or not leads_to_chain(place):
        return None
    move, (inner, *rest), options = cast(Any, place._made)
    below = out_of_place(entry, (value_at(x, place, inner), *args[1:]), kwargs)
    found = dispatch(move, move.call, (below, *rest[:-1]), options)
    return found if rest[-1] is None else found[rest[-1]]


def _exp_of_sum(x: Law) -> Any:
    """``exp(a Σ u + b)`` of curved u, as the product of ``exp(a u)`` times ``exp(b)``; None for another power."""
    total = x
    while (made := total._made) is not None and made[0].kind == "arithmetic" and len(laws_in(made[1])) == 1:
        if made[0].name == "rdiv" or total._of is None or (made[0].name == "div" and isinstance(made[1][1], Law)):
            return None
        total = total._of
    if made is None or made[0].name not in ("sum", "mean") or total.shape != x.shape:
        return None
    _, (summed, *rest), kwargs = made
    if not leads_to_chain(summed):
        return None
    dims = kwargs.get("dim", rest[0] if rest else None)
    dims = range(summed.ndim) if dims is None else (dims,) if isinstance(dims, int) else dims
    dims = sorted(d % summed.ndim for d in dims) if summed.ndim else []
    zero = torch.zeros(total.shape, dtype=total.dtype, device=total.device)
    shift = value_at(x, total, zero)
    scale = value_at(x, total, zero + 1) - shift
    if made[0].name == "mean":
        scale = scale / math.prod(summed.shape[d] for d in dims)
    if not kwargs.get("keepdim", rest[1] if len(rest) > 1 else False):
        for d in dims:
            scale = scale.unsqueeze(d)
    product = _exp_of(summed, scale)
    for d in dims:
        product = product.prod(d, keepdim=True)
    return product.reshape(x.shape) * shift.exp()


def _exp_of(law: Any, scale: Tensor) -> Any:
    """``exp(scale · law)``; a scale that is one number is passed as a number, for which closed forms exist."""
    flat = scale.reshape(-1)
    fixed = not torch.compiler.is_compiling() and not scale.requires_grad
    if fixed and flat.numel() and not torch._C._functorch.is_batchedtensor(scale) and bool((flat == flat[0]).all()):
        return torch.exp(law * flat[0].item())
    return torch.exp(law * scale)


def _is_polynomial(exponent: Any) -> bool:
    return isinstance(exponent, int | float) and exponent == int(exponent) and exponent >= 0
