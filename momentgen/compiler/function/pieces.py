"""An activation as finitely many smooth pieces: what both derive and exact values start from.

``Max``, ``Min``, ``Abs``, ``sign``, ``Heaviside`` and ``Piecewise`` are
resolved.  Where a breakpoint or a branch depends on a parameter, the choice
must be the same over the parameter's whole range, which is tried at its ends,
its middle and its default.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sympy
from sympy import Abs, Expr, Heaviside, Max, Min, Piecewise, sign
from sympy.core.relational import Relational

from momentgen.rule import Parameter, x

_SWITCHES = (Max, Min, Abs, sign, Heaviside, Piecewise)
_MOST_BREAKPOINTS = 100  # beyond, deriving takes hours
_STAIRS = (sympy.floor, sympy.ceiling, sympy.frac, sympy.Mod)
#: functions by others that all stages know
_OTHERS: Mapping[type[Expr], Callable[[Expr], Expr]] = {
    sympy.sinc: lambda z: sympy.sin(z) / z,
    sympy.tan: lambda z: sympy.sin(z) / sympy.cos(z),
    sympy.cot: lambda z: sympy.cos(z) / sympy.sin(z),
    sympy.sec: lambda z: 1 / sympy.cos(z),
    sympy.csc: lambda z: 1 / sympy.sin(z),
    sympy.sech: lambda z: 1 / sympy.cosh(z),
    sympy.csch: lambda z: 1 / sympy.sinh(z),
    sympy.coth: lambda z: sympy.cosh(z) / sympy.sinh(z),
    sympy.asin: lambda z: sympy.atan(z / sympy.sqrt(1 - z**2)),
    sympy.acos: lambda z: sympy.pi / 2 - sympy.atan(z / sympy.sqrt(1 - z**2)),
    sympy.acot: lambda z: sympy.atan(1 / z),
    sympy.acosh: lambda z: sympy.log(z + sympy.sqrt(z - 1) * sympy.sqrt(z + 1)),
    sympy.atanh: lambda z: sympy.log((1 + z) / (1 - z)) / 2,
}


def rewritten(f: Expr) -> Expr:
    """f with its rarer functions written by those that all stages know.

    >>> rewritten(sympy.sech(x))
    1/cosh(x)
    """
    for function, form in _OTHERS.items():
        f = f.replace(function, form)
    return f


class PiecesError(Exception):
    """An expression does not split into finitely many smooth pieces; says why, and names the part at fault."""

    def __init__(self, cause: str, expression: object) -> None:
        self.cause, self.expression = cause, expression
        super().__init__(f"{cause}: {expression}")


@dataclass(frozen=True)
class Piece:
    """``expr`` on the interval from ``low`` to ``high``; the ends may be infinite."""

    low: Expr
    high: Expr
    expr: Expr


@dataclass(frozen=True)
class Pieces:
    """Pieces from left to right, covering the real line.

    >>> split(Max(x, 0)).kinks
    (0,)
    """

    pieces: tuple[Piece, ...]

    def __iter__(self) -> Iterator[Piece]:
        return iter(self.pieces)

    def __str__(self) -> str:
        """As a rule would say it.

        >>> str(split(Abs(x)))
        'Piecewise((-x, x < 0), (x, True))'
        """
        *before, last = self.pieces
        parts = [(piece.expr, x < piece.high) for piece in before]
        return str(Piecewise(*parts, (last.expr, True), evaluate=False) if parts else last.expr)

    @property
    def kinks(self) -> tuple[Expr, ...]:
        """The breakpoints, from left to right."""
        return tuple(piece.high for piece in self.pieces[:-1])

    def map(self, function: Callable[[Expr], Expr]) -> Pieces:
        """The pieces with ``function`` applied to each expression."""
        return Pieces(tuple(Piece(p.low, p.high, function(p.expr)) for p in self.pieces))

    @property
    def is_polynomial(self) -> bool:
        """Whether every piece is a polynomial in ``x``."""
        return all(p.expr.is_polynomial(x) for p in self.pieces)

    @property
    def degree(self) -> Expr | None:
        """d with f(c x) = c**d f(x) for every c > 0; None if there is none or f is zero."""
        if any(kink != 0 for kink in self.kinks):
            return None
        degrees = set()
        for piece in self.pieces:
            for term in sympy.Add.make_args(sympy.expand(piece.expr)):
                coefficient, power = term.as_independent(x, as_Add=False)
                if coefficient != 0:
                    degrees.add(power.as_base_exp()[1] if power != 1 else sympy.Integer(0))
                    if power not in (1, x) and power.as_base_exp()[0] != x:
                        return None
        return degrees.pop() if len(degrees) == 1 else None


def split(f: Expr, parameters: Sequence[Parameter] = ()) -> Pieces:
    """Resolve ``f`` into smooth pieces; floats in it are the fractions that they are, so that what cancels does.

    Raises:
        PiecesError: if a breakpoint cannot be found, or branches change places within a parameter's range.

    >>> [(p.low, p.expr) for p in split(Abs(x))]
    [(-oo, -x), (0, x)]
    """
    f = sympy.sympify(f).replace(lambda e: e.is_Float, lambda e: sympy.Rational(e))
    if steps := f.atoms(*_STAIRS):
        cause = "it has infinitely many jumps; write finitely many of them with Heaviside or Piecewise"
        raise PiecesError(cause, min(steps, key=str))
    samples = samples_of(parameters)
    breakpoints: list[Expr] = []
    for condition in _conditions(f):
        for root in _roots(condition):
            if not any(vanishes(root - known) for known in breakpoints):
                breakpoints.append(root)
                if len(breakpoints) > _MOST_BREAKPOINTS:
                    raise PiecesError(
                        f"expected at most {_MOST_BREAKPOINTS} breakpoints, got more", f"{str(f)[:80]} ..."
                    )
    breakpoints = _sorted(breakpoints, samples)
    ends = [-sympy.oo, *breakpoints, sympy.oo]
    pieces: list[Piece] = []
    for low, high in itertools.pairwise(ends):
        expr = _resolve(f, low, high, samples)
        if pieces and vanishes(pieces[-1].expr - expr):
            pieces[-1] = Piece(pieces[-1].low, high, expr)
        else:
            pieces.append(Piece(low, high, expr))
    _check_samples(f, pieces, samples[0])
    return Pieces(tuple(pieces))


def _check_samples(f: Expr, pieces: Sequence[Piece], sample: Mapping[Expr, Expr]) -> None:
    """Guard against a breakpoint missed: the pieces must reproduce f, here at the default parameters."""
    if len(pieces) == 1 and not f.has(*_SWITCHES):
        return
    for k in range(-24, 25):
        point = sympy.Rational(k**3 * 7 + 5 * k + 1, 1000)
        home = next(p for p in pieces if p.high == sympy.oo or point < p.high.subs(sample))
        got, want = (e.subs(sample).subs(x, point).evalf(20) for e in (home.expr, f))
        if abs(got - want) > 1e-12 * (1 + abs(want)):
            raise PiecesError(f"cannot find all breakpoints: the pieces miss f at x = {float(point):g}", f)


def vanishes(difference: Expr) -> bool:
    """Whether an expression is 0 whatever its symbols are; False where sympy cannot tell.

    >>> vanishes(sympy.exp(2 * x) - sympy.exp(x) ** 2)
    True
    """
    if difference == 0 or sympy.expand(difference) == 0:
        return True
    # A value surely not zero spares the search for a simplification.
    point = {s: sympy.Rational(7 + 4 * i, 12) for i, s in enumerate(sorted(difference.free_symbols, key=str))}
    value = difference.subs(point).evalf(30)
    return not (value.is_number and abs(value) > 1e-20) and sympy.simplify(difference) == 0


def samples_of(parameters: Sequence[Parameter]) -> list[dict[Expr, Expr]]:
    """Parameter values to decide at: default first, then corners and middle of the finite ranges."""
    axes = []
    for p in parameters:
        default = 0.0 if p.default is None else float(p.default)
        low = p.low if math.isfinite(p.low) else min(default - 1, default * 4)
        high = p.high if math.isfinite(p.high) else max(default + 1, default * 4)
        inner = [low + (high - low) * w for w in (0.5, 0.01, 0.99)]
        axes.append([(p.symbol, sympy.Rational(value)) for value in dict.fromkeys([default, low, high, *inner])])
    grid = itertools.islice(itertools.product(*axes), 256)
    return [dict(point) for point in grid]


def _conditions(f: Expr) -> Iterator[Expr]:
    """Expressions in ``x`` whose sign decides a branch."""
    for node in sympy.preorder_traversal(f):
        if not isinstance(node, _SWITCHES) or not node.has(x):
            continue
        if isinstance(node, (Max, Min)):
            for left, right in itertools.combinations(node.args, 2):
                yield left - right
        elif isinstance(node, Piecewise):
            for _, condition in node.args:
                if condition.has(x) and not condition.atoms(Relational):
                    raise PiecesError("a branch must be decided by comparisons", node)
                yield from (atom.lhs - atom.rhs for atom in condition.atoms(Relational))
        else:
            yield node.args[0]


def _roots(condition: Expr) -> list[Expr]:
    """Real roots in ``x`` of ``condition``, itself resolved if it contains switches."""
    condition = sympy.expand(condition)
    if not condition.has(x):
        return []
    if condition.has(*_SWITCHES):
        inner = [root for part in _conditions(condition) for root in _roots(part)]
        branches = {
            condition.replace(lambda e: isinstance(e, _SWITCHES), lambda _, value=b: value)
            for b in _branches(condition)
        }
        return inner + [root for branch in branches for root in _roots(branch)]
    poly = condition.as_poly(x)
    if poly is not None and poly.degree() == 1:
        return [sympy.simplify(-poly.nth(0) / poly.nth(1))]
    if poly is not None and not poly.free_symbols_in_domain:
        return list(dict.fromkeys(poly.real_roots()))
    if condition.has(sympy.sin, sympy.cos, sympy.tan):
        raise PiecesError("a periodic condition has infinitely many breakpoints", condition)
    try:
        roots = sympy.solve(condition, x)
    except NotImplementedError:
        roots = []
    if not roots and not (condition.is_positive or condition.is_negative):
        raise PiecesError("cannot find where the branch changes", condition)
    return [root for root in roots if root.is_extended_real is not False]


def _branches(condition: Expr) -> set[Expr]:
    """Expressions that a switch inside ``condition`` can take."""
    found: set[Expr] = set()
    for node in condition.atoms(*_SWITCHES):
        if isinstance(node, (Max, Min)):
            found |= set(node.args)
        elif isinstance(node, Abs):
            found |= {node.args[0], -node.args[0]}
        elif isinstance(node, Piecewise):
            found |= {expr for expr, _ in node.args}
        else:
            found |= {sympy.Integer(-1), sympy.Integer(0), sympy.Integer(1)}
    return found


def _sorted(points: list[Expr], samples: list[dict[Expr, Expr]]) -> list[Expr]:
    """Breakpoints in the order they have for every parameter value tried."""
    for point in points:
        values = [complex(point.subs(sample)) for sample in samples]
        if any(abs(value.imag) > 1e-12 or not math.isfinite(value.real) for value in values):
            raise PiecesError("a breakpoint is not a real number for every parameter value allowed", point)
    keys = [tuple(float(sympy.re(p.subs(sample).evalf(30))) for sample in samples) for p in points]
    order = sorted(range(len(points)), key=lambda i: keys[i])
    for i, j in itertools.pairwise(order):
        if any(left > right for left, right in zip(keys[i], keys[j], strict=True)):
            pair = f"{points[i]} and {points[j]}"
            raise PiecesError("the order of two breakpoints depends on a parameter", pair)
    return [points[i] for i in order]


def _between(low: Expr, high: Expr) -> str:
    """The interval in words.

    >>> _between(sympy.Integer(0), sympy.Integer(1)), _between(-sympy.oo, sympy.Integer(0))
    ('0 < x < 1', 'x < 0')
    """
    return f"{'' if low == -sympy.oo else f'{low} < '}x{'' if high == sympy.oo else f' < {high}'}"


def _inside(low: Expr, high: Expr, sample: Mapping[Expr, Expr]) -> Expr:
    """A rational point between the ends."""
    left, right = low.subs(sample), high.subs(sample)
    if left == -sympy.oo and right == sympy.oo:
        return sympy.Rational(1, 3)
    if left == -sympy.oo:
        return sympy.Rational(float(right)) - sympy.Rational(4, 3)
    if right == sympy.oo:
        return sympy.Rational(float(left)) + sympy.Rational(4, 3)
    return sympy.Rational((float(left) + float(right)) / 2)


def _resolve(f: Expr, low: Expr, high: Expr, samples: list[dict[Expr, Expr]]) -> Expr:
    """``f`` on an interval within which no branch changes."""
    points = [(sample, _inside(low, high, sample)) for sample in samples]
    # An interval may be empty for some parameter values: what holds there does not matter.
    points = [(s, at) for s, at in points if low.subs(s) < at < high.subs(s)] or points[:1]

    def values(expr: Expr) -> list[float]:
        return [float(sympy.re(expr.subs(s).subs(x, at).evalf(30))) for s, at in points]

    def signs(expr: Expr) -> int:
        """The one sign that ``expr`` has; 0 only where it vanishes throughout."""
        got = values(expr)
        if min(got) < -1e-25 and max(got) > 1e-25:
            raise PiecesError("which branch holds depends on a parameter's value; narrow its range", expr)
        return 1 if max(got) > 1e-25 else -1 if min(got) < -1e-25 else 0

    def resolve(expr: Expr) -> Expr:
        if not expr.has(*_SWITCHES):
            return expr
        if isinstance(expr, Piecewise):
            for branch, condition in expr.args:
                held = {bool(condition.subs(s).subs(x, at)) for s, at in points}
                if len(held) > 1:
                    raise PiecesError("which branch holds depends on a parameter's value; narrow its range", expr)
                if held == {True}:
                    return resolve(branch)
            raise PiecesError(f"no branch holds for {_between(low, high)}; give f a value there", expr)
        if isinstance(expr, (Max, Min)):
            args = [resolve(arg) for arg in expr.args]
            best = args[0]
            for arg in args[1:]:
                better = signs(arg - best)
                if better * (1 if isinstance(expr, Max) else -1) > 0:
                    best = arg
            return best
        if isinstance(expr, (Abs, sign, Heaviside)):
            inner = resolve(expr.args[0])
            held_sign = signs(inner)
            if isinstance(expr, Abs):
                return inner if held_sign >= 0 else -inner
            if isinstance(expr, sign):
                return sympy.Integer(held_sign)
            return sympy.Integer(held_sign > 0) if held_sign else expr.args[1]
        return expr.func(*(resolve(arg) for arg in expr.args))

    return resolve(f)
