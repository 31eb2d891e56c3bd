"""An expression in ``x``, typed by a user, as sympy's: read, never run.

:mod:`ast` parses the text.  Only numbers, ``x``, arithmetic, comparisons and the functions of rule files are accepted;
everything else is refused before sympy sees it.  ``sympy.sympify`` would execute it as Python.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import sympy
from sympy import Expr
from sympy.logic.boolalg import Boolean

from momentgen.errors import RuleError
from momentgen.rule.symbols import Phi, S, phi, x

#: characters of a text, how deep operations may be nested in it, and bits of a number
_LONGEST, _DEEPEST, _MOST_BITS = 2000, 50, 1024

_VALUES: Mapping[str, Expr] = {"x": x, "pi": sympy.pi, "E": sympy.E}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{f.__name__: f for f in (sympy.Abs, sympy.Max, sympy.Min, sympy.Heaviside, sympy.Rational, Phi, phi, S)},
    **{f.__name__: f for f in (sympy.exp, sympy.log, sympy.sqrt, sympy.cbrt, sympy.sign, sympy.erf, sympy.erfc)},
    **{f.__name__: f for f in (sympy.sin, sympy.cos, sympy.tan, sympy.asin, sympy.acos, sympy.atan)},
    **{f.__name__: f for f in (sympy.sinh, sympy.cosh, sympy.tanh, sympy.asinh, sympy.acosh, sympy.atanh)},
    "abs": sympy.Abs,
    "max": sympy.Max,
    "min": sympy.Min,
    "relu": lambda z: sympy.Max(z, 0),
    "sigmoid": S,
    "softplus": lambda z: sympy.log(1 + sympy.exp(z)),
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: lambda base, exponent: _power(base, exponent),
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: sympy.Lt,
    ast.LtE: sympy.Le,
    ast.Gt: sympy.Gt,
    ast.GtE: sympy.Ge,
}


def parse(text: str) -> Expr:
    """The expression in ``x`` that ``text`` writes.

    It may have

    - numbers (a decimal is an exact fraction), ``x``, ``pi`` and ``E``;
    - ``+ - * / **``, and ``^`` for the last;
    - the functions that sympy and rule files have for activations;
    - ``Piecewise((a, x > 0), (b, True))``, or shorter ``a if x > 0 else b``; comparisons may be joined by ``And``.

    Raises:
        RuleError: if it writes anything else, or something too long, too deep or too large.

    >>> parse("x*Phi(x) + 0.5"), parse("0 if x < 0 else x")
    (x*Phi(x) + 1/2, Piecewise((0, x < 0), (x, True)))
    """
    shown = text if len(text) <= 100 else f"{text[:100]}..."
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"it has {len(text)} characters, more than {_LONGEST}")
        return _number(ast.parse(text.strip().replace("^", "**"), mode="eval").body, 0)
    # Those of Python's parser, of sympy for a function's arguments, and of this module.
    except (SyntaxError, TypeError, ValueError, ArithmeticError, MemoryError, RecursionError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise RuleError(repr(shown), f"expected an expression in x, in sympy's syntax: {said}") from error


def _number(node: ast.AST, depth: int) -> Any:
    value = _value(node, depth + 1)
    if not isinstance(value, Expr):
        raise ValueError("a comparison stands where a number is expected; Heaviside and Piecewise make one of it")
    return value


def _condition(node: ast.AST, depth: int) -> Any:
    value = _value(node, depth + 1)
    if isinstance(value, Expr) or not isinstance(value, Boolean):  # a symbol is both
        raise ValueError("a number stands where a comparison is expected")
    return value


def _value(node: ast.AST, depth: int) -> Any:
    """A number, an expression or a condition."""
    if depth > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} deep")
    match node:
        case ast.Constant(value=bool(truth)):
            return sympy.true if truth else sympy.false
        case ast.Constant(value=int(whole)):
            return _small(sympy.Integer(whole))
        case ast.Constant(value=float(decimal)) if math.isfinite(decimal):
            return sympy.Rational(repr(decimal))
        case ast.Name(id=name) if name in _VALUES:
            return _VALUES[name]
        case ast.Name(id=name) if name not in (*_FUNCTIONS, "Piecewise", "And"):
            raise ValueError(f"unknown symbol {name}; known are {', '.join(_VALUES)}")
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_number(inner, depth)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _number(inner, depth)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _small(_ARITHMETIC[type(op)](_number(left, depth), _number(right, depth)))
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
            sides = [_number(side, depth) for side in (left, *others)]
            pairs = zip(ops, sides, sides[1:], strict=False)
            return sympy.And(*(_COMPARISONS[type(op)](one, other) for op, one, other in pairs))
        case ast.IfExp(test=test, body=body, orelse=other):
            return sympy.Piecewise((_number(body, depth), _condition(test, depth)), (_number(other, depth), True))
        case ast.Call(func=ast.Name(id="Piecewise"), args=branches, keywords=[]):
            pairs_of = [(branch.elts if isinstance(branch, ast.Tuple) else []) for branch in branches]
            if any(len(pair) != 2 for pair in pairs_of):
                raise ValueError("Piecewise: expected pairs (value, condition)")
            return sympy.Piecewise(*((_number(value, depth), _condition(when, depth)) for value, when in pairs_of))
        case ast.Call(func=ast.Name(id="And"), args=parts, keywords=[]):
            return sympy.And(*(_condition(part, depth) for part in parts))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_number(argument, depth) for argument in arguments))
        case ast.Call(func=ast.Name(id=name)) if name not in _FUNCTIONS:
            raise ValueError(f"unknown function {name}; known are {', '.join(sorted({*_FUNCTIONS, 'Piecewise'}))}")
    raise ValueError(f"{type(node).__name__} is no part of an expression here")


def _power(base: Any, exponent: Any) -> Any:
    """Not of numbers whose digits would fill the memory."""
    if exponent.is_Rational and base.is_Rational:
        bits = max(base.p.bit_length(), base.q.bit_length())
        if bits > 1 and abs(exponent) * bits > _MOST_BITS:
            raise ValueError(f"a power has more than {_MOST_BITS} bits")
    return base**exponent


def _small(value: Any) -> Any:
    if value.is_Rational and max(value.p.bit_length(), value.q.bit_length()) > _MOST_BITS:
        raise ValueError(f"a number has more than {_MOST_BITS} bits")
    return value
