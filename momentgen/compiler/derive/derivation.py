"""The derivation of one rule: moments, partials, and the checks they pass."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import sympy
from sympy import Expr, Rational

from momentgen.compiler.derive import normal
from momentgen.compiler.derive.proof import check_author, grid
from momentgen.compiler.derive.scaling import check_rescaled, found_units
from momentgen.compiler.function.pieces import Pieces, PiecesError, rewritten, samples_of, split, vanishes
from momentgen.errors import BuildError
from momentgen.rule import Rescaled, Rule
from momentgen.rule.symbols import Phi, mu, v, x

#: where the sign is looked at, in units of the rule's width
_PLACES = tuple(side * place for place in (0.01, 0.1, 0.5, 1, 2, 4, 8, 16, 40) for side in (-1, 1))
_DIGITS = 30


def conditional_rule(rule: Rule) -> Rule:
    """Var(Y | x) as a rule.

    Raises:
        BuildError: if it is constant in x, or negative somewhere.

    >>> from momentgen.rule import Accuracy, S
    >>> gate = Rule("gate", f=x * S(x), conditional_var=x**2 * S(x) * S(-x), accuracy=Accuracy(moments=True))
    >>> conditional_rule(gate).f
    x**2*S(-x)*S(x)
    """
    given = rule.conditional_var
    if given is None:
        raise BuildError(rule.name, "derive", "expected a conditional variance", rule.f)
    if not given.has(x):
        cause = "conditional_var is constant in x: add it to the variance that the op gives, as nn.InjectedNoise does"
        raise BuildError(rule.name, "derive", cause, given)
    _check_sign(rule, given)
    return Rule(rule.name, f=given, parameters=rule.parameters, accuracy=rule.accuracy)


def _check_sign(rule: Rule, given: Expr) -> None:
    """Refute that it is nowhere negative, or fail to.

    Raises:
        BuildError: with the point.
    """
    for sample in samples_of(rule.parameters):
        centre, width = 0.0, 1.0
        if rule.rescaled is not None:
            centre, width = (float(e.subs(sample)) for e in (rule.rescaled.centre, rule.rescaled.width))
        for point in (centre + place * width for place in _PLACES):
            value = given.subs({**sample, x: Rational(point)}).evalf(_DIGITS)
            if value.is_negative:
                at = ", ".join(f"{symbol} = {float(w):g}" for symbol, w in sample.items())
                cause = f"conditional_var must not be negative, got {float(value):.6g} at x = {point:g} {at}".rstrip()
                raise BuildError(rule.name, "derive", cause, given)


def base_rule(rule: Rule, rescaled: Rescaled) -> Rule:
    """The base as a rule, with those of the parameters that occur in it.

    >>> line = Rule("line", f=2 * x, rescaled=Rescaled(x, scale=sympy.Integer(2)))
    >>> base_rule(line, line.rescaled).f
    x
    """
    used = tuple(p for p in rule.parameters if p.symbol in rescaled.of.free_symbols)
    return Rule(rule.name, f=rescaled.of, parameters=used, accuracy=rule.accuracy)


@dataclass(frozen=True)
class Derivation:
    """What derive hands on; all expressions in ``mu``, ``v`` and the parameters' symbols.

    ``mean``, ``second`` and ``var`` are None, and ``partials`` empty, where f
    is outside the algebra: strategies then work from f itself.

    Attributes:
        rule: the rule derived.
        mean, second, var: E f, E f^2 and Var f, expanded.
        partials: ``dmean_dmu``, ``dmean_dvar``, ``dvar_dmu``, ``dvar_dvar``.
        degree: d with f(c x) = c^d f(x) for c > 0, else None.
        kinks: breakpoints of f, from left to right.
        is_piecewise_polynomial: whether every piece of f is a polynomial.
        pieces: f resolved into its pieces.
        units: in which f is another function; the rule's own, or those that :func:`in_units` gave it.
        base: the derivation of that function.
        conditional: of the variance given x, where the output is random beyond its input; all else is of f then.
    """

    rule: Rule
    mean: Expr | None
    second: Expr | None
    var: Expr | None
    partials: Mapping[str, Expr] = field(hash=False)
    degree: Expr | None
    kinks: tuple[Expr, ...]
    is_piecewise_polynomial: bool
    pieces: Pieces
    units: Rescaled | None = None
    base: Derivation | None = None
    conditional: Derivation | None = None


def derive(rule: Rule) -> Derivation:
    """Moments of ``rule`` in closed form, checked against the author's own formulas.

    Raises:
        BuildError: if f is outside the algebra and the goals are in ulp, a moment diverges, a formula of the author's
            is wrong (with the point where it is worst), f is not its base in other units as the rule says, or what it
            gives as the variance given x is none.

    >>> derive(Rule("relu", f=sympy.Max(x, 0))).partials["dmean_dmu"]
    Phi(mu/sqrt(v))
    """
    rule = replace(rule.in_formulas, f=rewritten(rule.f))
    own = _own(rule)
    if rule.rescaled is not None:
        check_rescaled(rule, rule.rescaled, own.pieces)
    elif own.degree is None:  # of one degree, f may have any parameters
        rule = replace(rule, rescaled=found_units(rule, own.pieces))
        own = replace(own, rule=rule)
    if rule.conditional_var is not None:
        own = replace(own, conditional=derive(conditional_rule(rule)))
    return own if rule.rescaled is None else in_units(own, rule.rescaled)


def in_units(derivation: Derivation, units: Rescaled) -> Derivation:
    """The derivation of an f that is another function in other units, with that function as its base."""
    return replace(derivation, units=units, base=_own(base_rule(derivation.rule, units)))


def derive_mean(derivation: Derivation) -> Expr | None:
    """E f in closed form, also where E f^2 has none; None where E f has none either.

    Raises:
        BuildError: if it diverges.

    >>> derive_mean(derive(Rule("gelu", f=x * Phi(x)))).free_symbols == {mu, v}
    True
    """
    if derivation.mean is not None:
        return derivation.mean
    try:
        return normal.expectation(derivation.pieces)
    except normal.DivergentError as error:
        raise BuildError(derivation.rule.name, "derive", error.cause, error.expression) from error
    except normal.AlgebraError:
        return None


def _own(rule: Rule) -> Derivation:
    """The derivation of f as it stands."""
    try:
        pieces = split(rule.f, rule.parameters)
    except PiecesError as error:
        raise BuildError(rule.name, "derive", f"f is outside the algebra: {error.cause}", error.expression) from error
    if len(pieces.pieces) == 1 and _is_constant(pieces.pieces[0].expr, rule):
        cause = "f is constant, at all but single points: its variance is 0, and there is nothing to compile"
        raise BuildError(rule.name, "derive", cause, rule.f)
    for kink in pieces.kinks:
        if rule.f.subs(x, kink) is sympy.nan:
            raise BuildError(rule.name, "derive", f"f has no value at x = {kink}: give it one there", rule.f)
    facts = {
        "degree": pieces.degree,
        "kinks": pieces.kinks,
        "is_piecewise_polynomial": pieces.is_polynomial,
        "pieces": pieces,
    }
    try:
        mean = normal.expectation(pieces)
        # Y² = Y for a draw of 0 or 1.
        second = mean if rule.bernoulli else normal.expectation(pieces.map(lambda e: sympy.expand(e**2)))
    except normal.DivergentError as error:
        first = _divergence_of_square(pieces) or error  # the second moment diverges before the mean does
        raise BuildError(rule.name, "derive", first.cause, first.expression) from error
    except normal.AlgebraError as error:
        if rule.f == Phi(x):
            # E Phi(X)² has no closed form here.
            mean = normal.expectation(pieces)
            check_author(rule, {"mean": mean}, grid(rule.parameters))
            return Derivation(rule, mean, None, None, {}, **facts)  # type: ignore[arg-type]
        goal = rule.accuracy
        if not (goal.moments or goal.relative) and goal.mean_abs is goal.var_abs is None:
            cause = f"f is {error.cause}, which takes the accuracy Accuracy(moments=True)"
            raise BuildError(rule.name, "derive", cause, error.expression) from error
        return Derivation(rule, None, None, None, {}, **facts)  # type: ignore[arg-type]
    var = normal.expanded(second - mean**2)
    partials = {
        f"d{name}_d{by}": normal.expanded(sympy.diff(moment, symbol))
        for name, moment in (("mean", mean), ("var", var))
        for by, symbol in (("mu", mu), ("var", v))
    }
    check_author(rule, {"mean": mean, "var": var, **partials}, grid(rule.parameters))
    return Derivation(rule, mean, second, var, partials, **facts)  # type: ignore[arg-type]


def _divergence_of_square(pieces: Pieces) -> normal.DivergentError | None:
    try:
        normal.expectation(pieces.map(lambda e: sympy.powsimp(sympy.expand(e**2))))
    except normal.DivergentError as error:
        return error
    except normal.AlgebraError:
        return None
    return None


_APART = tuple(Rational(n, 15) for n in (-200, -35, -12, 3, 41, 130))


def _is_constant(expr: Expr, rule: Rule) -> bool:
    """Whether an expression does not depend on x, though x occurs in it; False where sympy cannot tell."""
    if not expr.has(x):
        return True
    default = expr.subs(samples_of(rule.parameters)[0])
    values = [default.subs(x, at).evalf(30) for at in _APART]
    if not all(value.is_number and value.is_finite for value in values):
        return False
    return all(abs(value - values[0]) < 1e-20 for value in values) and vanishes(expr - expr.subs(x, _APART[0]))


def affine_parameters(rule: Rule) -> tuple[str, ...]:
    """Their names; none of a rule of two inputs, or of an output that is random beyond its input.

    >>> from momentgen.rule import Parameter, x
    >>> slope = Parameter("slope", default=0.1, low=0, high=1)
    >>> affine_parameters(Rule("leaky", f=sympy.Max(x, slope.symbol * x), parameters=(slope,)))
    ('slope',)
    """
    plain = len(rule.inputs) == 1 and rule.noise is None and not rule.bernoulli
    if not rule.parameters or not plain or rule.conditional_var is not None:
        return ()
    try:
        pieces = split(rule.f, rule.parameters)
    except PiecesError:
        return ()
    moving = set().union(*(kink.free_symbols for kink in pieces.kinks)) if pieces.kinks else set()
    found = [p for p in rule.parameters if p.symbol not in moving and _bilinear(pieces, p.symbol, p.symbol)]
    if not all(_bilinear(pieces, p.symbol, q.symbol) for p, q in itertools.combinations(found, 2)):
        return ()
    return tuple(p.name for p in found)


def _bilinear(pieces: object, p: sympy.Symbol, q: sympy.Symbol) -> bool:
    """Whether no branch has a second derivative in p and q."""
    return all(sympy.expand(sympy.diff(piece.expr, p, q)) == 0 for piece in pieces)  # type: ignore[attr-defined]
