"""Closed forms in ball arithmetic, with as many digits as it takes.

A sympy expression is compiled once to straight-line calls on ``flint.arb`` and
run at doubled precision until every output is relatively accurate.  arb has
unbounded exponents, so nothing under- or overflows.  Where the one ``Phi`` has
a positive argument, 1 - Phi(-z) is put in and expanded first: the ones cancel
exactly, and a tail of size exp(-5e7) does not need 7e7 bits.  Where it is zero,
1/2 is put in: what vanishes by symmetry is zero, not a small ball.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import sympy
from flint import arb, ctx, fmpq
from sympy import Expr, Symbol

from momentgen.compiler.toolchain.arrays import F64, Bools
from momentgen.rule.symbols import Phi, S, phi

_MAX_BITS = 1 << 16
_SERVED = 16  # points after which fewer bits are tried again
_FAR = -64  # where Phi is by its expansion
_RELATIVE, _LEAST = 60, 92  # bits of a value; those that are tried first


def ball_function(expr: Expr | Sequence[Expr], names: Iterable[str | Symbol]) -> BallFunction:
    """Compile ``expr`` (one or several) as a function of ``names``, in that order.

    >>> f = ball_function(sympy.sympify("x**2 - 1"), ["x"])
    >>> f(3.0)
    [8.00000000000000]
    """
    exprs = (expr,) if isinstance(expr, Expr) else tuple(expr)
    return BallFunction(exprs, tuple(str(name) for name in names))


class BallFunction:
    """Several expressions of several named numbers, as a function of balls.

    Args:
        exprs: in Phi, phi, S, exp, log, sqrt, erf, erfc, Heaviside, trigonometric functions, powers, +, *.
        names: of the arguments; every free symbol must be among them.

    Raises:
        ValueError: for a symbol not named, or a function that balls cannot evaluate.
    """

    def __init__(self, exprs: tuple[Expr, ...], names: tuple[str, ...]) -> None:
        self.exprs, self.names = exprs, names
        #: packed point -> packed values: a build asks for the same points again and again
        self.found: dict[bytes, bytes] = {}
        unknown = sorted({str(s) for e in exprs for s in e.free_symbols} - set(names))
        if unknown:
            raise ValueError(f"expected symbols {', '.join(names)}, got also {', '.join(unknown)}")
        self._plain = _compile(exprs, names)
        arguments = {z for e in exprs for call in e.atoms(Phi) for z in call.args}
        self._argument: Callable[..., list[arb]] | None = None
        self._reflected = self._middle = self._plain
        if len(arguments) == 1:
            (z,) = arguments
            self._reflected = _compile(tuple(sympy.expand(e.subs(Phi(z), 1 - Phi(-z))) for e in exprs), names)
            half = sympy.Rational(1, 2)
            self._middle = _compile(tuple(sympy.expand(e.subs({Phi(z): half, phi(z): phi(0)})) for e in exprs), names)
            self._argument = _compile((z,), names)

    def __call__(self, *values: float | arb) -> list[arb]:
        """Balls at the current precision ``flint.ctx.prec``."""
        balls = [v if isinstance(v, arb) else arb(float(v)) for v in values]
        if self._argument is not None:
            (z,) = self._argument(*balls)
            if z.is_zero():
                return self._middle(*balls)
            if z > 0:
                return self._reflected(*balls)
        return self._plain(*balls)

    def accurate_from(
        self, bits: int, values: Sequence[float], relative_bits: int = _RELATIVE, floor_bits: int = 200
    ) -> tuple[list[arb], int]:
        """Balls relatively accurate to ``relative_bits``, or surely below 2**-floor_bits, and with how many bits.

        ``bits`` are tried first.

        Raises:
            ArithmeticError: if 65,536 bits do not suffice.
        """
        precision = ctx.prec
        try:
            while True:
                ctx.prec = bits
                balls = self(*values)
                if all(_good(b, relative_bits, floor_bits) for b in balls):
                    return balls, bits
                bits *= 2
                if bits > _MAX_BITS:
                    # A ball of 65,536 bits has 20,000 digits.
                    shown = [v.str(17) if isinstance(v, arb) else repr(v) for v in values]
                    at = ", ".join(f"{n} = {text}" for n, text in zip(self.names, shown, strict=True))
                    outcome = zip(self.exprs, balls, strict=True)
                    bad = [f"{_short(e)} = {b.str(8)}" for e, b in outcome if not _good(b, relative_bits, floor_bits)]
                    raise ArithmeticError(f"{_MAX_BITS} bits do not determine {', '.join(bad)} at {at}")
        finally:
            ctx.prec = precision


def evaluate(function: BallFunction, values: Mapping[str, npt.ArrayLike]) -> F64:
    """Closed forms at float64 points, each output right to its last place (1 ulp of float64).

    A value proven below 2**-200 is left there.

    Args:
        function: the closed forms.
        values: name -> numbers, broadcast against each other.

    Returns:
        an array of the broadcast shape, with a leading axis over outputs.

    >>> evaluate(ball_function(sympy.exp(Symbol("x")), ["x"]), {"x": [0.0, 1.0]})
    array([[1.        , 2.71828183]])
    """
    points, shape = _prepare(function, values)
    keys = [struct.pack(f"{len(point)}d", *point) for point in points]
    _find(function, {key: point for key, point in zip(keys, points, strict=True) if key not in function.found})
    rows = np.frombuffer(b"".join(map(function.found.__getitem__, keys))).reshape(len(points), len(function.exprs))
    return rows.T.copy().reshape(len(function.exprs), *shape)


def _find(function: BallFunction, points: Mapping[bytes, tuple[float, ...]]) -> None:
    """Add values at ``points`` to what the function has found."""
    start = _LEAST
    served = 0  # points in a row for which the bits to start with were enough
    for key, point in points.items():
        balls, bits = function.accurate_from(start, point)
        served = served + 1 if bits == start else 0
        start = bits if served < _SERVED else max(start // 2, _LEAST)
        served %= _SERVED
        function.found[key] = struct.pack(f"{len(balls)}d", *map(float, balls))


class ClosedFormTruth:
    """Exact outputs of closed forms, from rigorous balls.

    Args:
        outputs: by name, in the inputs' and the parameters' names.
        params: names of the parameters.
        inputs: names of the inputs.
        inside: where the measure looks; elsewhere values are infinite, not evaluated.
    """

    def __init__(
        self,
        outputs: Mapping[str, Expr],
        params: tuple[str, ...] = (),
        inputs: tuple[str, ...] = ("mu", "v"),
        inside: Callable[..., Bools] | None = None,
    ) -> None:
        self.names, self.inputs, self.inside = tuple(outputs), inputs, inside
        self.function = ball_function(list(outputs.values()), [*inputs, *params])

    def __call__(self, *given: Any) -> dict[str, F64]:
        """Exact values at float32 arrays, one an input, then the parameters."""
        *points, params = given
        wide = [array.astype(np.float64) for array in points]
        known = np.ones(wide[0].shape, np.bool_) if self.inside is None else self.inside(*wide)
        values = dict(zip(self.inputs, (array[known] for array in wide), strict=True))
        rows = np.full((len(self.names), *wide[0].shape), np.inf)
        rows[:, known] = evaluate(self.function, {**values, **params})
        return dict(zip(self.names, rows, strict=True))


def _prepare(
    function: BallFunction, values: Mapping[str, npt.ArrayLike]
) -> tuple[list[tuple[float, ...]], tuple[int, ...]]:
    """The points, and the shape of their arrays."""
    missing = [name for name in function.names if name not in values]
    if missing:
        raise ValueError(f"expected values for {', '.join(function.names)}, none came for {', '.join(missing)}")
    arrays = np.broadcast_arrays(*(np.asarray(values[name], dtype=np.float64) for name in function.names))
    for name, array in zip(function.names, arrays, strict=True):
        if not np.isfinite(array).all():
            raise ValueError(f"expected finite numbers for {name}")
    shape = arrays[0].shape if arrays else ()
    return list(zip(*(array.ravel().tolist() for array in arrays), strict=True)), shape


def _short(expr: Expr) -> str:
    text = str(expr)
    return text if len(text) <= 80 else f"{text[:80]} ..."


def _good(ball: arb, relative_bits: int, floor_bits: int) -> bool:
    return ball.rel_accuracy_bits() >= relative_bits or bool(abs(ball) < arb(2) ** -floor_bits)


@lru_cache(maxsize=64)
def _roots(bits: int) -> tuple[arb, arb]:
    """sqrt(2 pi) and sqrt(2) at the current precision, which is ``bits``."""
    return (2 * arb.pi()).sqrt(), arb(2).sqrt()


def _phi(z: arb) -> arb:
    return (-z * z / 2).exp() / _roots(ctx.prec)[0]


def _upper(z: arb) -> arb:
    """Phi(z), without cancellation in either tail."""
    if z < _FAR:  # erfc is not tight beyond 1e5
        return (-z * z / 2).exp() * (z * z / 2).hypgeom_u(arb(0.5), arb(0.5)) / (2 * arb.pi().sqrt())
    return (-z / _roots(ctx.prec)[1]).erfc() / 2


def _logistic(z: arb) -> arb:
    return 1 / (1 + (-z).exp())


def _log1pexp(z: arb) -> arb:
    """log(1 + e^z), relatively accurate for z -> -oo."""
    return z.exp().log1p() if z < 0 else z + (-z).exp().log1p()


def _step(z: arb, at_zero: arb) -> arb:
    """Heaviside(z, at_zero); where the sign of z is open, all that it may be."""
    if z.is_zero():
        return at_zero
    return arb(1) if z > 0 else arb(0) if z < 0 else arb(0.5, 0.5).union(at_zero)


def _whole(base: Any, power: int) -> Any:
    """A positive power: python-flint's of a ball about 0 may be NaN."""
    value = base**power
    return value if value.is_finite() else math.prod([base] * power)


#: what the compiled source may call.
_NAMESPACE: Mapping[str, Any] = {
    "_phi": _phi,
    "_Phi": _upper,
    "_S": _logistic,
    "_log1pexp": _log1pexp,
    "_step": _step,
    "_q": lambda p, q: arb(fmpq(p, q)),
    "_whole": _whole,
    "_pi": arb.pi,
    "arb": arb,
}
_METHODS = {
    sympy.exp: "exp",
    sympy.log: "log",
    sympy.erf: "erf",
    sympy.erfc: "erfc",
    sympy.sin: "sin",
    sympy.cos: "cos",
    sympy.tan: "tan",
    sympy.atan: "atan",
    sympy.sinh: "sinh",
    sympy.cosh: "cosh",
    sympy.tanh: "tanh",
    sympy.LambertW: "lambertw",
    sympy.gamma: "gamma",
}


def _compile(exprs: tuple[Expr, ...], names: tuple[str, ...]) -> Callable[..., list[arb]]:
    """Straight-line Python over arb, common subexpressions shared."""
    shared, results = sympy.cse([_log1p(e) for e in exprs], symbols=sympy.numbered_symbols("_t"), order="none")
    # A name of the caller's could be one of ours: arguments are numbered.
    writer = _Writer({name: f"_x{i}" for i, name in enumerate(names)})
    lines = [f"def compiled({', '.join(writer.arguments.values())}):"]
    lines += [f"    {symbol} = {writer.source(expr)}" for symbol, expr in shared]
    # A constant result must be a ball as well.
    lines.append(f"    return [{', '.join(f'arb({writer.source(r)})' for r in results)}]")
    scope: dict[str, Any] = {**_NAMESPACE, **writer.constants}
    exec("\n".join(lines), scope)
    compiled: Callable[..., list[arb]] = scope["compiled"]
    return compiled


class _LogOnePlusExp(sympy.Function):
    """log(1 + exp(z)) as one node."""

    nargs = 1


def _log1p(expr: Expr) -> Expr:
    """Name every log(1 + exp(z)), which loses all its digits for z -> -oo if evaluated as written."""

    def name(argument: Expr) -> Expr:
        rest = argument - 1
        return _LogOnePlusExp(rest.args[0]) if isinstance(rest, sympy.exp) else sympy.log(argument)

    return expr.replace(sympy.log, name)


class _Writer:
    """Writes one expression as Python source over arb."""

    def __init__(self, arguments: dict[str, str]) -> None:
        self.arguments = arguments
        self.constants: dict[str, Any] = {}

    def source(self, expr: Expr) -> str:
        if isinstance(expr, Symbol):
            return self.arguments.get(str(expr), str(expr))
        if isinstance(expr, (sympy.Rational, sympy.Float)):
            exact = sympy.Rational(expr)
            return self.constant(int(exact.p), int(exact.q))
        if expr is sympy.pi:
            return "_pi()"
        if expr is sympy.E:
            return "arb(1).exp()"
        if isinstance(expr, sympy.Pow):
            return self.power(expr.base, expr.exp)
        if isinstance(expr, sympy.Mul) and expr.args[0] == -1:
            return f"(-({' * '.join(self.source(arg) for arg in expr.args[1:])}))"
        args = [self.source(arg) for arg in expr.args]
        if isinstance(expr, (sympy.Add, sympy.Mul)):
            return "(" + (" + " if isinstance(expr, sympy.Add) else " * ").join(args) + ")"
        if isinstance(expr, (Phi, phi, S)):
            return f"_{type(expr).__name__}({args[0]})"
        if isinstance(expr, (_LogOnePlusExp, sympy.Abs)):
            return f"{'abs' if isinstance(expr, sympy.Abs) else '_log1pexp'}({args[0]})"
        if isinstance(expr, sympy.Heaviside):
            return f"_step({args[0]}, {args[1]})"
        method = _METHODS.get(type(expr))
        if method is not None:
            return f"({args[0]}).{method}()"
        raise ValueError(f"ball arithmetic has no {type(expr).__name__}: {expr}")

    def constant(self, p: int, q: int) -> str:
        """p/q: made once where it has few bits, or else at the precision of each call."""
        if abs(p) >= 1 << 32 or q & (q - 1) or q >= 1 << 32:
            return f"_q({p}, {q})"
        name = f"_c{p}_{q}".replace("-", "m")
        self.constants[name] = arb(p) / q
        return name

    def power(self, base: Expr, exponent: Expr) -> str:
        b = self.source(base)
        if isinstance(exponent, sympy.Integer):
            return f"_whole({b}, {int(exponent)})" if exponent > 0 else f"(1 / {b} ** {-int(exponent)})"
        if isinstance(exponent, sympy.Rational) and exponent.q == 2:
            root = f"{b}.sqrt()" if exponent.p > 0 else f"{b}.rsqrt()"
            return root if abs(exponent.p) == 1 else f"({root} ** {abs(exponent.p)})"
        return f"({b} ** {self.source(exponent)})"
