"""Parameters that scale: f as a function without parameters, in units that depend on them.

    f(x) = scale of((x - centre)/width) + offset

A rule may state these units by ``rescaled``.  Where it does not, centre and width are guessed from f: from its
breakpoints, and from arguments of its functions that are lines or parabolas in x.  Scale and offset follow from the
values at two points.  Guesses are checked as stated units are.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import sympy
from sympy import Expr, Rational

from momentgen.compiler.function.pieces import Pieces, samples_of, split, vanishes
from momentgen.errors import BuildError, MomentgenError
from momentgen.rule import Rescaled, Rule
from momentgen.rule.symbols import x

_CLOSE, _SAMPLES = 1e-9, 8  # what numbers differ by at most, of the largest; settings at which they are compared
#: where values are compared, in units of the base
_POINTS = tuple(Rational(*point) for point in ((1, 3), (-1, 3), (4, 3), (-4, 3), (5, 2), (-5, 2)))


def check_rescaled(rule: Rule, rescaled: Rescaled, pieces: Pieces) -> None:
    """Check f(centre + width·x) = scale·of(x) + offset, piece by piece, breakpoints included.

    Raises:
        BuildError: where it does not hold, or ``width`` or ``scale`` is not positive for every value of the parameters.
    """
    for what in ("width", "scale"):
        expression: Expr = getattr(rescaled, what)
        for sample in samples_of(rule.parameters):
            value = expression.subs(sample)
            if not (value.is_finite and value > 0):
                at = ", ".join(f"{symbol} = {float(w):g}" for symbol, w in sample.items())
                raise BuildError(
                    rule.name, "derive", f"rescaled: {what} must be positive, got {value} at {at}", expression
                )
    base = split(rescaled.of, rule.parameters)
    inner = rescaled.centre + rescaled.width * x
    if len(base.pieces) != len(pieces.pieces):
        cause = f"rescaled: f has {len(pieces.pieces)} pieces, its base {len(base.pieces)}"
        raise BuildError(rule.name, "derive", cause, rescaled.of)
    for own, other in zip(pieces, base, strict=True):
        if own.high != sympy.oo and not vanishes(own.high - inner.subs(x, other.high)):
            cause = f"rescaled: f breaks at {own.high}, its base where f would at {inner.subs(x, other.high)}"
            raise BuildError(rule.name, "derive", cause, rescaled.of)
        difference = own.expr.subs(x, inner) - rescaled.scale * other.expr - rescaled.offset
        if not vanishes(difference):
            cause = (
                f"rescaled: f({inner}) is not {rescaled.scale} times its base plus {rescaled.offset}; they differ by"
            )
            raise BuildError(rule.name, "derive", cause, sympy.simplify(difference))


def found_units(rule: Rule, pieces: Pieces) -> Rescaled | None:
    """The units in which f, of those ``pieces``, has no parameters; None where it has none, or none are found.

    >>> from momentgen.compiler.function.pieces import split
    >>> from momentgen.rule import Parameter, S
    >>> beta = Parameter("beta", default=1, low=0.5, high=4)
    >>> swish = Rule("swish", f=x * S(beta.symbol * x), parameters=(beta,))
    >>> found = found_units(swish, split(swish.f, swish.parameters))
    >>> found.of, found.width, found.scale
    (x*S(x), 1/beta, 1/beta)
    """
    if not rule.parameters:
        return None
    ones = {p.symbol: sympy.Integer(p.low > 0) for p in rule.parameters}
    usual = {p.symbol: sympy.nsimplify(p.default, rational=True) for p in rule.parameters}
    samples = samples_of(rule.parameters)[:_SAMPLES]
    # f of one degree in x and a parameter together, as x/(K + x), has that parameter for its unit.
    together = [(sympy.Integer(0), width) for p in rule.parameters if p.low > 0 for width in (p.symbol, 1 / p.symbol)]
    for (centre, width), at in itertools.product(dict.fromkeys([*_maps(pieces), *together]), (ones, usual)):
        units = _units(rule.f, pieces, centre, width, at, samples)
        if units is not None:
            with contextlib.suppress(MomentgenError):  # a rule of this kind has no units, or f is not what these say
                check_rescaled(replace(rule, rescaled=units), units, pieces)
                return units
    return None


def _maps(pieces: Pieces) -> Iterator[tuple[Expr, Expr]]:
    """Centres and widths to try."""
    zero, one = sympy.Integer(0), sympy.Integer(1)
    yield zero, one
    kinks = pieces.kinks
    for kink in kinks:
        yield kink, one
    if kinks:
        yield zero, kinks[-1]
        yield (kinks[0] + kinks[-1]) / 2, (kinks[-1] - kinks[0]) / 2
    for part in itertools.chain.from_iterable(sympy.preorder_traversal(piece.expr) for piece in pieces):
        inner = part.args[0] if isinstance(part, sympy.Function) or part.is_Pow else zero
        degree = sympy.degree(inner, x) if inner.has(x) and inner.is_polynomial(x) else 0
        if degree not in (1, 2):
            continue
        first, second, *_ = sympy.Poly(inner, x).all_coeffs()
        for side in (1, -1):
            size = side * first if degree == 1 else sympy.sqrt(side * first).replace(sympy.Abs, lambda of: of)
            yield sympy.cancel(-second / (degree * first)), 1 / size


def _units(
    f: Expr, pieces: Pieces, centre: Expr, width: Expr, at: Mapping[Expr, Expr], samples: Sequence[Mapping[Expr, Expr]]
) -> Rescaled | None:
    """Units of this centre and width, whose base is f at ``at``; None if f cannot be that base in any."""
    here = centre.subs(at), width.subs(at)
    if not (here[0].is_finite and here[1].is_positive):
        return None
    base = f.subs(at).subs(x, here[0] + here[1] * x)
    inner = centre + width * x
    ends = [sympy.cancel((kink - centre) / width) for kink in pieces.kinks]
    if any(end.free_symbols for end in ends):
        return None

    def value(point: Expr) -> Expr:
        return pieces.pieces[sum(bool(end < point) for end in ends)].expr.subs(x, inner.subs(x, point))

    values = [value(point) for point in _POINTS]
    plain = _numbers([base.subs(x, point) for point in _POINTS])
    low, high = int(np.argmin(plain.real)), int(np.argmax(plain.real))
    if not abs(plain[high] - plain[low]) > 0:
        return None
    for sample in samples:  # numbers tell in no time what sympy would work at for minutes
        own = _numbers([each.subs(sample) for each in values])
        line = own[low] + (own[high] - own[low]) / (plain[high] - plain[low]) * (plain - plain[low])
        if not np.abs(own - line).max() <= _CLOSE * np.abs(own).max():
            return None
    least = base.subs(x, _POINTS[low])
    scale = sympy.cancel((values[high] - values[low]) / (base.subs(x, _POINTS[high]) - least))
    offset = sympy.cancel(values[low] - scale * least)
    if not (scale.is_rational_function() and offset.is_rational_function()):
        return None
    return Rescaled(base, centre=centre, width=width, scale=scale, offset=offset)


def _numbers(values: Sequence[Expr]) -> npt.NDArray[np.complex128]:
    """Values as numbers; NaN for what has none."""
    found = [sympy.N(value) for value in values]
    return np.array([complex(number) if number.is_finite else np.nan for number in found], np.complex128)
