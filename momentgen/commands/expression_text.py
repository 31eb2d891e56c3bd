"""An expression in ``x``, typed by a user, as sympy's: read, never run.

:mod:`ast` parses the text.  Only numbers, ``x``, arithmetic, comparisons and the functions of rule files are accepted;
everything else is refused before sympy sees it.  ``sympy.sympify`` would execute it as Python.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

import sympy
from sympy import Expr
from sympy.logic.boolalg import Boolean

from momentgen.errors import RuleError
from momentgen.rule.symbols import Phi, S, phi, x

#: characters of a text, and how deep operations may be nested in it
_LONGEST, _DEEPEST = 2000, 50
#: of a number; its powers are not computed beyond
_MOST_BITS = 1024

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
_CONDITIONS: Mapping[str, Callable[..., Any]] = {
    **{f.__name__: f for f in (sympy.And, sympy.Or, sympy.Not)},
    "Eq": sympy.Eq,
    "Ne": sympy.Ne,
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: sympy.Lt,
    ast.LtE: sympy.Le,
    ast.Gt: sympy.Gt,
    ast.GtE: sympy.Ge,
    ast.Eq: sympy.Eq,
    ast.NotEq: sympy.Ne,
}


class _RefusedError(Exception):
    """A text is no expression; says why."""


def parse(text: str) -> Expr:
    """The expression in ``x`` that ``text`` writes.

    It may have

    - numbers (a decimal is an exact fraction), ``x``, ``pi`` and ``E``;
    - ``+ - * / **``, and ``^`` for the last;
    - the functions that sympy and rule files have for activations;
    - ``Piecewise((a, x > 0), (b, True))``, or shorter ``a if x > 0 else b``.

    Raises:
        RuleError: if it writes anything else, or something too long, too deep or too large.

    >>> parse("x*Phi(x) + 0.5"), parse("0 if x < 0 else x")
    (x*Phi(x) + 1/2, Piecewise((0, x < 0), (x, True)))
    """
    shown = text if len(text) <= 100 else f"{text[:100]}..."
    try:
        return _number(_read(text))
    except _RefusedError as error:
        raise RuleError(repr(shown), f"expected an expression in x, in sympy's syntax: {error}") from error


def _read(text: str) -> Any:
    if len(text) > _LONGEST:
        raise _RefusedError(f"it has {len(text)} characters, more than {_LONGEST}")
    try:
        tree = ast.parse(text.strip().replace("^", "**"), mode="eval").body
    except SyntaxError as error:
        raise _RefusedError(str(error.msg)) from error
    except (ValueError, MemoryError, RecursionError) as error:  # a NUL; nested beyond what Python's parser takes
        raise _RefusedError(str(error) or "it is nested too deep") from error
    stack: list[tuple[ast.AST, int]] = [(tree, 1)]
    while stack:
        node, depth = stack.pop()
        if depth > _DEEPEST:
            raise _RefusedError(f"it is nested more than {_DEEPEST} deep")
        stack.extend((child, depth + 1) for child in ast.iter_child_nodes(node))
    try:
        return _value(tree)
    except (TypeError, ValueError, ArithmeticError) as error:  # sympy's own refusals: of a function's arguments
        raise _RefusedError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def _value(node: ast.AST) -> Any:
    """A number, an expression or a condition."""
    if isinstance(node, ast.Constant):
        return _constant(node.value)
    if isinstance(node, ast.Name):
        if node.id in _VALUES:
            return _VALUES[node.id]
        if node.id in _FUNCTIONS or node.id in _CONDITIONS or node.id == "Piecewise":
            raise _RefusedError(f"the function {node.id} lacks its argument")
        raise _RefusedError(f"unknown symbol {node.id}; known are x, pi, E")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        inner = _number(_value(node.operand))
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.Invert)):
        return sympy.Not(_condition(node.operand))
    if isinstance(node, ast.BoolOp) or (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr))):
        return _joined(node)
    if isinstance(node, ast.BinOp):
        return _operation(node)
    if isinstance(node, ast.Compare):
        sides = [_number(_value(side)) for side in (node.left, *node.comparators)]
        if any(type(op) not in _COMPARISONS for op in node.ops):
            raise _RefusedError("expected comparisons by < <= > >= == !=")
        pairs = zip(node.ops, sides, sides[1:], strict=False)
        return sympy.And(*(_COMPARISONS[type(op)](left, right) for op, left, right in pairs))
    if isinstance(node, ast.IfExp):
        branch = (_number(_value(node.body)), _condition(node.test))
        return sympy.Piecewise(branch, (_number(_value(node.orelse)), True))
    if isinstance(node, ast.Call):
        return _call(node)
    raise _RefusedError(f"{type(node).__name__} is no part of an expression")


def _constant(value: object) -> Any:
    if isinstance(value, bool):
        return sympy.true if value else sympy.false
    if isinstance(value, int):
        if value.bit_length() > _MOST_BITS:
            raise _RefusedError(f"a number has more than {_MOST_BITS} bits")
        return sympy.Integer(value)
    if isinstance(value, float) and math.isfinite(value):
        return sympy.Rational(repr(value))
    raise _RefusedError(f"expected real, finite numbers, got {value!r:.100}")


def _operation(node: ast.BinOp) -> Any:
    left, right = _number(_value(node.left)), _number(_value(node.right))
    if isinstance(node.op, ast.Pow):
        return _power(left, right)
    if type(node.op) not in _ARITHMETIC:
        raise _RefusedError(f"expected + - * / **, got {type(node.op).__name__}")
    return _small(_ARITHMETIC[type(node.op)](left, right))


def _power(base: Any, exponent: Any) -> Any:
    """Not of numbers whose digits would fill the memory."""
    if exponent.is_Rational and base.is_Rational:
        bits = max(base.p.bit_length(), base.q.bit_length())
        if bits > 1 and abs(exponent) * bits > _MOST_BITS:
            raise _RefusedError(f"a power has more than {_MOST_BITS} bits")
    return _small(base**exponent)


def _small(value: Any) -> Any:
    if value.is_Rational and max(value.p.bit_length(), value.q.bit_length()) > 2 * _MOST_BITS:
        raise _RefusedError(f"a number has more than {2 * _MOST_BITS} bits")
    return value


def _joined(node: ast.BoolOp | ast.BinOp) -> Any:
    """Conditions joined by and, or; & and | bind as Python binds them."""
    both = isinstance(node.op, (ast.And, ast.BitAnd))
    parts = node.values if isinstance(node, ast.BoolOp) else [node.left, node.right]
    return (sympy.And if both else sympy.Or)(*map(_condition, parts))


def _call(node: ast.Call) -> Any:
    if not isinstance(node.func, ast.Name):
        raise _RefusedError("expected a function's name before its arguments")
    if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
        raise _RefusedError(f"{node.func.id}: expected arguments without names and stars")
    name = node.func.id
    if name == "Piecewise":
        return sympy.Piecewise(*map(_branch, node.args))
    if name in _CONDITIONS:
        read = _condition if name in ("And", "Or", "Not") else lambda part: _number(_value(part))
        return _CONDITIONS[name](*map(read, node.args))
    if name not in _FUNCTIONS:
        raise _RefusedError(f"unknown function {name}; known are {', '.join(sorted({*_FUNCTIONS, 'Piecewise'}))}")
    return _FUNCTIONS[name](*(_number(_value(argument)) for argument in node.args))


def _branch(node: ast.AST) -> tuple[Any, Any]:
    if not isinstance(node, ast.Tuple) or len(node.elts) != 2:
        raise _RefusedError("Piecewise: expected pairs (value, condition)")
    return _number(_value(node.elts[0])), _condition(node.elts[1])


def _number(value: Any) -> Any:
    if not isinstance(value, Expr):
        raise _RefusedError("a comparison stands where a number is expected; Heaviside and Piecewise make one of it")
    return value


def _condition(node: ast.AST) -> Any:
    value = _value(node)
    if isinstance(value, Expr) or not isinstance(value, Boolean):  # a symbol is both
        raise _RefusedError("a number stands where a comparison is expected")
    return value
