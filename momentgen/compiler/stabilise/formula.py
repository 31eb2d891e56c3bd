r"""Variants given by formulas: the literature's approximations, computed as they are written down.

A :class:`~momentgen.rule.Formula` states mean and variance; a :class:`~momentgen.rule.Fitted` states the variance up to
free numbers, which are fitted here.  Both become graphs in which what can be rewritten does not cancel:

- 1 - Phi(z) is Phi(-z), 1 - S(z) is S(-z), and 1 - mean is the mean's own complement;
- exp(g)·phi(z) and exp(g)·Phi(z) have their exponents combined;
- an output that vanishes where Phi and S go to 1 is written in Phi(-z) and S(-z) there.

What is left of cancellation belongs to the formula.  Errors are therefore measured in ulp of the sum of the
magnitudes of an output's terms; where it has one term, or terms of one sign, that is its ulp.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import sympy as sp
from flint import arb, ctx

from momentgen.compiler.approximate import Polynomial, fit_parameter
from momentgen.compiler.derive import Derivation
from momentgen.compiler.derive.proof import function
from momentgen.compiler.oracle import BallFunction, ball_function, evaluate
from momentgen.compiler.real import Graph, evaluate_float64
from momentgen.compiler.stabilise import kink
from momentgen.compiler.stabilise.expressions import MagnitudeTranslator, Translator, exponent_of
from momentgen.compiler.stabilise.forms import output_forms
from momentgen.compiler.stabilise.functions import FunctionWriter
from momentgen.compiler.stabilise.kink import FLOAT64, Precision
from momentgen.compiler.stabilise.stable import OUTPUTS, PARTIALS, ErrorMeasure, Stable
from momentgen.compiler.ulp import SMALLEST_NORMAL, ulp_error, unit
from momentgen.errors import BuildError
from momentgen.rule import Fitted, Formula, Parameter, Rule
from momentgen.symbols import Phi, S, mu, phi, v

__all__ = ["FormulaTruth", "TermsUlp", "Written", "stable_variants", "write"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
_FLOAT32 = Precision(fit=1e-9, reach=18.7, scaled=True)
_GOAL, _SHARE = 8.0, 0.8
_BOX = {"a": (-18.7, 18.7), "mu": (-100.0, 100.0), "log2_var": (-50.0, 50.0)}
_HOMOGENEOUS_BOX = {"a": (-18.7, 18.7), "log2_var": (-50.0, 50.0)}
_TINY_VARIANCE = 1e-300  # stands for v = 0 in exact values: what differs from the limit is below 1e-140
_DIVERGES = 1e100  # and what is larger there is a term in 1/sigma, which counts as 0 at v = 0
_CHECK_MU, _CHECK_V, _CHECK_BITS = (-7.0, -0.75, 0.0, 1.5, 4.0), (0.03125, 1.0, 50.0), 1024
_M, _N, _M_MU, _M_V = (sp.Symbol(f"_{name}", real=True) for name in ("mean", "complement", "mean_mu", "mean_v"))


# --- rewriting ---------------------------------------------------------------------
def _complement(expr: sp.Expr) -> sp.Expr | None:
    """1 - expr without a difference from 1, where expr is Phi, S or the mean, or has one of them as a term."""
    if isinstance(expr, (Phi, S)):
        return type(expr)(-expr.args[0])
    if expr == _M:
        return _N
    if isinstance(expr, sp.Add):
        for term in expr.args:
            if isinstance(term, (Phi, S)):
                return type(term)(-term.args[0]) - (expr - term)
    return None


def _mirror(expr: sp.Expr) -> sp.Expr:
    """Every b - c·f with numbers b, c > 0 and f one of Phi, S, the mean, as (b - c)·f + b·(1 - f)."""

    def rewrite(total: sp.Expr) -> sp.Expr:
        constant = sp.Add(*(term for term in total.args if term.is_number))
        for term in total.args:
            number, f = term.as_coeff_Mul()
            other = None if term.is_number or f.is_Add else _complement(f)
            if other is not None and (constant * number).is_negative:
                return total - constant - term + (constant + number) * f + constant * other
        return total

    return expr.replace(lambda e: isinstance(e, sp.Add), rewrite)


def _combined(expr: sp.Expr) -> sp.Expr:
    """Expanded, with exp(g)·phi(z) = phi(y) where g - z²/2 = -y²/2 for the argument y of a Phi or phi."""
    arguments = sorted({f.args[0] for f in expr.atoms(Phi, phi)}, key=sp.default_sort_key)

    def combine(term: sp.Expr) -> sp.Expr:
        factors = sp.Mul.make_args(term)
        exponents = [(factor, g) for factor in factors if (g := exponent_of(factor)) is not None]
        densities = [factor for factor in factors if isinstance(factor, phi)]
        if not exponents or len(densities) != 1:
            return term
        total = sp.expand(sum(g for _, g in exponents) - densities[0].args[0] ** 2 / 2)
        for y in arguments:
            if sp.expand(total + y**2 / 2) == 0:
                used = {densities[0], *(factor for factor, _ in exponents)}
                return sp.Mul(phi(y), *(factor for factor in factors if factor not in used))
        return term

    return sp.expand(sp.Add(*(combine(term) for term in sp.Add.make_args(sp.expand(expr)))))


def _shorter(expr: sp.Expr) -> sp.Expr:
    """The expression, or expanded where it has an exponential to combine or becomes shorter."""
    combined = _combined(expr)
    return combined if expr.has(sp.exp) or combined.count_ops() < expr.count_ops() else expr


def _factored(expr: sp.Expr) -> sp.Expr:
    """Factored where it is rational in v and the mean."""
    return expr if expr.has(Phi, phi, S, sp.exp) or any(not e.is_Integer for e in _powers(expr)) else sp.factor(expr)


def _powers(expr: sp.Expr) -> set[sp.Expr]:
    return {p.exp for p in expr.atoms(sp.Pow) if not p.is_number}


@dataclass(frozen=True)
class Written:
    """The six outputs of a formula, rewritten.

    Attributes:
        outputs: name -> expression in mu, v, the parameters and the named symbols.
        named: symbol -> the expression it stands for.
        mirrored: name -> the same output for where every argument in ``arguments`` is positive.
        arguments: of Phi and S in the mirrored outputs.
    """

    outputs: Mapping[str, sp.Expr]
    named: Mapping[sp.Symbol, sp.Expr]
    mirrored: Mapping[str, sp.Expr] = field(default_factory=dict)
    arguments: tuple[sp.Expr, ...] = ()

    def plain(self, name: str, *, mirrored: bool = False) -> sp.Expr:
        """An output in mu, v and the parameters alone."""
        expr = self.mirrored.get(name, self.outputs[name]) if mirrored else self.outputs[name]
        while expr.free_symbols & set(self.named):
            expr = expr.subs(self.named)
        return expr


def write(mean: sp.Expr, var: sp.Expr, parameters: tuple[Parameter, ...] = (), rule: str = "") -> Written:
    """Partials of a formula, and all six outputs without needless cancellation.

    Args:
        mean, var: in ``mu``, ``v``, the parameters, Phi, phi, S and exp.
        parameters: of the rule.
        rule: its name, for messages.

    Raises:
        BuildError: if a rewritten output differs from the formula's, which is a defect of this module.

    >>> write(S(mu), S(mu) * (1 - S(mu))).outputs["var"]
    _complement*_mean
    """
    expanded = _shorter(mean)
    complement = _complement(expanded)
    within = var if complement is None else var.subs(mean, _M)
    slope = sp.diff(within, _M)
    direct = {s: sp.diff(within, s) for s in (mu, v)}
    named = {_M: expanded, _M_MU: _shorter(sp.diff(mean, mu)), _M_V: _shorter(sp.diff(mean, v))}
    outputs = {
        "mean": _M,
        "var": _mirror(within),
        "dmean_dmu": _M_MU,
        "dmean_dvar": _M_V,
        "dvar_dmu": _mirror(_factored(direct[mu])) + _mirror(_factored(slope)) * _M_MU,
        "dvar_dvar": _mirror(_factored(direct[v])) + _mirror(_factored(slope)) * _M_V,
    }
    if complement is not None:
        named[_N] = complement
    named = {symbol: _mirror(expr) for symbol, expr in named.items()}
    written = _two_sided(Written(outputs, named))
    original = {"mean": mean, "var": var}
    original |= {f"d{k}_d{n}": sp.diff(e, s) for k, e in (("mean", mean), ("var", var)) for n, s in (("mu", mu), ("var", v))}
    _check(written, original, parameters, rule)
    return written


def _check(written: Written, original: Mapping[str, sp.Expr], parameters: tuple[Parameter, ...], rule: str) -> None:
    """Refute the rewriting, or fail to: at some points, balls of both forms must overlap."""
    names = ["mu", "v", *(p.name for p in parameters)]
    exprs = [*original.values()]
    for side in (False, True):
        exprs += [written.plain(name, mirrored=side) for name in original]
    function, count = ball_function(exprs, names), len(original)
    precision = ctx.prec
    try:
        ctx.prec = _CHECK_BITS
        for point in itertools.product(_CHECK_MU, _CHECK_V, *((float(p.default or 0.0), 0.375) for p in parameters)):
            balls = function(*point)
            for i, (name, expr) in enumerate(original.items()):
                for form in (balls[count + i], balls[2 * count + i]):
                    if not (form.overlaps(balls[i]) and form.rad() < 1e-30 and balls[i].rad() < 1e-30):
                        at = ", ".join(f"{n} = {value:g}" for n, value in zip(names, point, strict=True))
                        cause = f"{name} rewritten is {form.str(12)} at {at}, by the formula {balls[i].str(12)}"
                        raise BuildError(rule, "stabilise", cause, expr)
    finally:
        ctx.prec = precision


def _two_sided(written: Written) -> Written:
    """With a second form of every output whose terms do not vanish, but their sum does, where Phi and S go to 1."""
    mean = written.named[_M]
    mirrored: dict[str, sp.Expr] = {}
    found: set[sp.Expr] = set()
    for name, expr in written.outputs.items():
        expr = expr.subs(_M, mean) if isinstance(mean, (Phi, S)) else expr
        functions = expr.atoms(Phi, S)
        limits = dict.fromkeys(functions, sp.Integer(1)) | dict.fromkeys(expr.atoms(phi), sp.Integer(0))
        if not isinstance(expr, sp.Add) or expr.has(sp.exp) or expr.free_symbols & set(written.named) or not functions:
            continue
        terms = [term.subs(limits) for term in expr.args]
        if sp.expand(sp.Add(*terms)) != 0 or all(term == 0 for term in terms):
            continue
        stand_in = {f: sp.Dummy() for f in functions}
        flipped = sp.expand(expr.subs({f: 1 - d for f, d in stand_in.items()}))
        mirrored[name] = flipped.subs({d: type(f)(-f.args[0]) for f, d in stand_in.items()})
        found |= {f.args[0] for f in functions}
    return Written(written.outputs, written.named, mirrored, tuple(sorted(found, key=sp.default_sort_key)))


# --- graphs ------------------------------------------------------------------------
@dataclass(frozen=True)
class _Side:
    """How the graphs of a variant are made.

    Attributes:
        written: the outputs.
        own: names of the outputs that the formula gives; the others are those of the exact variant.
        exact: writes the exact outputs named, with their fits.
        parameters: names, in order.
        floor: where var is negative: None (nowhere), "rounding", or "formula".
    """

    written: Written
    parameters: tuple[str, ...]
    derivation: Derivation
    exact_mean: bool
    floor: str | None = None

    def graph(self, precision: Precision, names: tuple[str, ...]) -> tuple[Graph, tuple[Polynomial, ...]]:
        """The named outputs at a precision, and what was fitted."""
        graph, fits = Graph(("mean", "var"), self.parameters), ()
        if self.exact_mean:
            graph, fits = self.start(precision, tuple(n for n in names if n in ("mean", "dmean_dmu", "dmean_dvar")))
        translator = Translator(FunctionWriter(graph, precision), self.written.named)
        exact = dict(graph.outputs)
        graph.outputs.clear()
        for name in names:
            node = exact[name] if name in exact else self.output(translator, name)
            graph.output(name, translator.f.like_inputs(node))
        return graph, tuple(dict.fromkeys((*fits, *translator.f.fits)))

    def start(self, precision: Precision, names: tuple[str, ...]) -> tuple[Graph, tuple[Polynomial, ...]]:
        """The graph of the exact mean, or of its partials."""
        d = self.derivation
        forms = output_forms(d.mean, d.second, int(d.degree))
        return kink.build_graph(forms, _defaults(d.rule), precision, names)

    def output(self, translator: Translator, name: str) -> int:
        """One output of the formula."""
        g = translator.g
        node = self.two_sided(translator, name)
        if self.floor is None or not (name == "var" or name.startswith("dvar")):
            return node
        var = node if name == "var" else self.two_sided(translator, "var")
        if name != "var" and self.floor == "rounding":
            return node
        return g.select(g.lt(var, g.const(0)), g.const(0), node)

    def two_sided(self, translator: Translator, name: str) -> int:
        """An output in the form that suits the arguments' signs."""
        node = translator.node(self.written.outputs[name])
        if name not in self.written.mirrored:
            return node
        g = translator.g
        positive = None
        for z in self.written.arguments:
            z_node, negated = translator.arguments.argument(z)
            sign = g.lt(z_node, g.const(0)) if negated else g.lt(g.const(0), z_node)
            positive = sign if positive is None else g.both(positive, sign)
        assert positive is not None
        return g.select(positive, translator.node(self.written.mirrored[name]), node)

    def magnitudes(self) -> Graph:
        """The sums of the magnitudes of each output's terms, and the variance as ``value``, for float64."""
        graph = Graph(("mean", "var"), self.parameters)
        translator = Translator(FunctionWriter(graph, FLOAT64), self.written.named)
        sizes = MagnitudeTranslator(translator)
        for name in self.written.outputs:
            graph.output(name, self.two_sided(sizes, name))
        graph.output("value", self.two_sided(translator, "var"))
        return graph


# --- truth and measure ---------------------------------------------------------------
class _TiltedBalls(BallFunction):
    """As its base, with exp(g)·Phi(z) by confluent hypergeometric functions: erfc is not tight beyond 10^5."""

    def __init__(self, exprs: tuple[sp.Expr, ...], names: tuple[str, ...]) -> None:
        tilted: dict[tuple[sp.Expr, sp.Expr], sp.Symbol] = {}

        def name(product: sp.Expr) -> sp.Expr:
            exponents = [(f, g) for f in product.args if (g := exponent_of(f)) is not None]
            cdfs = [f for f in product.args if isinstance(f, Phi)]
            if not exponents or len(cdfs) != 1:
                return product
            key = sp.expand(sum(g for _, g in exponents)), cdfs[0].args[0]
            used = {cdfs[0], *(f for f, _ in exponents)}
            symbol = tilted.setdefault(key, sp.Symbol(f"_tilted{len(tilted)}"))
            return sp.Mul(symbol, *(f for f in product.args if f not in used))

        named = tuple(expr.replace(lambda e: isinstance(e, sp.Mul), name) for expr in exprs)
        super().__init__(named, (*names, *(str(symbol) for symbol in tilted.values())))
        self._given, self.names = (exprs, names), names
        parts = [part for g, z in tilted for part in (g, z, sp.expand(g - z**2 / 2))]
        self._parts = ball_function(parts, names)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given

    def __call__(self, *values: float | arb) -> list[arb]:
        parts = iter(self._parts(*values))
        return super().__call__(*values, *(_tilted(g, z, e) for g, z, e in zip(parts, parts, parts, strict=True)))


def _tilted(g: arb, z: arb, combined: arb) -> arb:
    """exp(g)·Phi(z), with combined = g - z²/2."""
    if z < -64:  # J_0(-z) = U(1/2, 1/2, z²/2)/sqrt(2)
        return combined.exp() * (z * z / 2).hypgeom_u(arb(0.5), arb(0.5)) / (2 * arb.pi().sqrt())
    return g.exp() * (-z / arb(2).sqrt()).erfc() / 2


class FormulaTruth:
    """Exact values of a formula, from rigorous balls; at v = 0 its limits, terms in 1/sigma counting as 0.

    Where ``floored`` says so, a variance below 0 counts as 0, and so do its partials.  Survives pickling.
    """

    def __init__(self, written: Written, parameters: tuple[str, ...], *, floored: bool) -> None:
        self.names, self.floored = tuple(written.outputs), floored
        symbols = ["mu", "v", *parameters]
        self.sides = [
            _TiltedBalls(tuple(written.plain(name, mirrored=side) for name in self.names), tuple(symbols))
            for side in (False, True)
        ]
        self.arguments = [ball_function(z, symbols) for z in written.arguments]

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        v_exact = np.where(var == 0, _TINY_VARIANCE, var.astype(np.float64))
        values = {"mu": mean.astype(np.float64), "v": v_exact, **params}
        upper = np.full(mean.shape, bool(self.arguments))
        for z in self.arguments:
            upper &= evaluate(z, values).value[0] > 0
        rows = np.empty((len(self.names), mean.size))
        for side, chosen in zip(self.sides, (~upper, upper), strict=True):
            if chosen.any():
                at = {name: value[chosen] if isinstance(value, np.ndarray) else value for name, value in values.items()}
                rows[:, chosen] = evaluate(side, at).value
        rows[:, (var == 0)] = np.where(np.abs(rows[:, var == 0]) > _DIVERGES, 0.0, rows[:, var == 0])
        exact = dict(zip(self.names, rows, strict=True))
        if self.floored:
            below = exact["var"] < 0
            exact |= {name: np.where(below, 0.0, exact[name]) for name in ("var", "dvar_dmu", "dvar_dvar")}
        return exact


class TermsUlp:
    """|computed - exact| in ulp of the sum of the magnitudes of the output's terms; 0 where that is below the normal range.

    With ``floored``, partials of the variance are not measured where the variance is within rounding of 0: there
    they jump to 0.  Survives pickling.
    """

    def __init__(self, graph: Graph, *, floored: bool) -> None:
        self.graph, self.floored = graph, floored
        self._last: tuple[F32, F32, dict[str, F64]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}

    def scales(self, mean: F32, var: F32) -> dict[str, F64]:
        """The magnitudes of all outputs; kept for the points last seen."""
        if self._last is None or self._last[0] is not mean or self._last[1] is not var:
            points = {"mean": mean.astype(np.float64), "var": var.astype(np.float64)}
            values = evaluate_float64(self.graph, points)
            sizes = {name: np.broadcast_to(values[i], mean.shape) for name, i in self.graph.outputs.items()}
            self._last = mean, var, sizes
        return self._last[2]

    def __call__(self, output: str, computed: F32, exact: F64, mean: F32, var: F32) -> F64:
        sizes = self.scales(mean, var)
        scale = np.maximum(np.abs(sizes[output]), np.abs(exact))
        with np.errstate(all="ignore"):
            error = np.abs(computed.astype(np.float64) - exact) / unit(scale)
        counted = scale >= SMALLEST_NORMAL
        if self.floored and output.startswith("dvar"):
            counted &= np.abs(sizes["value"]) > 2.0**-18 * np.abs(sizes["var"])
        return np.where(np.isfinite(computed), np.where(counted, error, 0.0), np.inf)


def _plain_ulp(output: str, computed: F32, exact: F64, mean: F32, var: F32) -> F64:
    return ulp_error(computed, exact)


# --- variants ------------------------------------------------------------------------
def _defaults(rule: Rule) -> dict[str, Any]:
    return {p.name: mpmath.mpf(p.default) for p in rule.parameters}


def _settings(rule: Rule) -> tuple[dict[str, float], ...]:
    """The default, and both ends and the middle of each parameter's range."""
    settings = [rule.defaults]
    for p in rule.parameters:
        if not (math.isfinite(p.low) and math.isfinite(p.high)):
            raise BuildError(rule.name, "stabilise", f"parameter {p.name} needs a finite range, got [{p.low}, {p.high}]")
        for share in (0.0, 0.3, 1.0):
            setting = {**rule.defaults, p.name: p.low + share * (p.high - p.low)}
            if setting not in settings:
                settings.append(setting)
    return tuple(settings)


def _lowest(written: Written, rule: Rule) -> tuple[float, dict[str, float]]:
    """The lowest variance by the formula on a grid, relative to its terms, and where."""
    side = _Side(written, tuple(p.name for p in rule.parameters), None, False)  # type: ignore[arg-type]
    graph = side.magnitudes()
    spread = np.concatenate([-np.geomspace(60, 1e-3, 200), [0.0], np.geomspace(1e-3, 60, 200)])
    log_v, shape = np.meshgrid(np.linspace(-40, 40, 161), spread, indexing="ij")
    variances = np.exp2(log_v)
    lowest, where = 0.0, {}
    for setting in _settings(rule):
        for scale in (1.0, np.sqrt(variances)):
            means = shape * scale
            values = evaluate_float64(graph, {"mean": means, "var": variances, **setting})
            size = np.broadcast_to(np.abs(values[graph.outputs["var"]]), means.shape)
            value = np.broadcast_to(values[graph.outputs["value"]], means.shape)
            relative = np.where(size > 1e-300, value / np.where(size > 1e-300, size, 1.0), 0.0)
            i = np.unravel_index(np.argmin(relative), relative.shape)
            if relative[i] < lowest:
                lowest = float(relative[i])
                where = {"mean": float(means[i]), "var": float(variances[i]), "value": float(value[i]), **setting}
    return lowest, where


@lru_cache
def _is_product(expr: sp.Expr) -> bool:
    """Whether no difference occurs outside the arguments of functions: such a variance is not rounded below 0."""
    if isinstance(expr, (Phi, S, phi, sp.exp)) or expr.is_nonnegative:
        return True
    if isinstance(expr, sp.Pow):
        return bool(expr.exp.is_even) or _is_product(expr.base)
    return isinstance(expr, (sp.Mul, sp.Add)) and all(_is_product(arg) for arg in expr.args)


def stable_variants(derivation: Derivation) -> list[Stable]:
    """One :class:`Stable` for each :class:`~momentgen.rule.Formula` and :class:`~momentgen.rule.Fitted` of the rule.

    Raises:
        BuildError: if a variant without a mean of its own belongs to a rule whose exact mean is not of the form that
            :mod:`momentgen.compiler.stabilise.kink` covers, or a formula has functions other than Phi, phi, S, exp.
    """
    return [_variant(derivation, name, variant) for name, variant in derivation.rule.variants.items()]


def _variant(derivation: Derivation, name: str, variant: Formula | Fitted) -> Stable:
    rule = derivation.rule
    names = tuple(p.name for p in rule.parameters)
    facts: dict[str, Any] = {}
    mean, var = variant.mean, variant.var
    if isinstance(variant, Fitted):
        var, facts = _fit(derivation, variant, name)
    exact_mean = mean is None and kink.applies(derivation)
    mean = derivation.mean if mean is None else mean
    if mean is None:
        raise BuildError(rule.name, "stabilise", f"variant {name} needs a mean: the rule has no exact one in closed form")
    try:
        written = write(mean, var, rule.parameters, rule.name)
        floor = None
        lowest, where = _lowest(written, rule)
        if lowest < -1e-12:
            floor = "formula"
            facts["negative"] = {"treated": "var and its partials are 0 where the formula is negative", **where}
        elif not _is_product(written.plain("var")):
            floor = "rounding"
        side = _Side(written, names, derivation, exact_mean, floor)
        forward, fits = side.graph(_FLOAT32, OUTPUTS)
        partials, more = side.graph(_FLOAT32, PARTIALS)
        forward64, partials64 = (side.graph(FLOAT64, outputs)[0] for outputs in (OUTPUTS, PARTIALS))
    except BuildError as error:
        cause = error.cause if error.cause.startswith("variant") else f"variant {name}: {error.cause}"
        raise BuildError(rule.name, "stabilise", cause, error.expression) from error
    floored = floor == "formula"
    in_ulp = exact_mean or bool(rule.parameters)
    measure: ErrorMeasure = _plain_ulp if in_ulp else TermsUlp(side.magnitudes(), floored=floored)
    goal = float(rule.accuracy.ulp.get("exact", _GOAL)) if in_ulp else _GOAL
    return Stable(
        variant=name,
        forward=forward,
        partials=partials,
        forward64=forward64,
        partials64=partials64,
        truth=FormulaTruth(written, names, floored=floored),
        measure=measure,
        goal=goal,
        aim=goal * _SHARE,
        unit="ulp" if in_ulp else "ulp of the terms",
        box=_HOMOGENEOUS_BOX if exact_mean else _BOX,
        settings=_settings(rule),
        fits=tuple(dict.fromkeys((*fits, *more))),
        facts=facts,
        doc=_doc(variant, exact_mean, in_ulp),
    )


def _doc(variant: Formula | Fitted, exact_mean: bool, in_ulp: bool) -> str:
    source = f" ({variant.citation})" if variant.citation else ""
    what = f"exact mean, variance fitted{source}" if exact_mean else f"the formula as published{source}"
    measured = "exact values of the formula, in ulp"
    if not in_ulp:
        measured += " of the sum of the magnitudes of an output's terms: what cancels in the formula is the formula's"
    return f"{what}; errors are against {measured}"


def _fit(derivation: Derivation, variant: Fitted, name: str) -> tuple[sp.Expr, dict[str, Any]]:
    """The variance with its free symbol fitted, and what the fit reached.

    Both variances are taken at v = 1, so mu is the argument a; the exact one must be sigma^(2d) times a function of a.
    """
    rule = derivation.rule
    if len(variant.free) != 1:
        cause = f"variant {name}: expected one free symbol, got {', '.join(variant.free)}"
        raise BuildError(rule.name, "stabilise", cause, variant.var)
    if derivation.var is None or derivation.degree is None:
        cause = f"variant {name}: a fit over a = mu/sigma needs an exact variance in closed form, homogeneous in x"
        raise BuildError(rule.name, "stabilise", cause, rule.f)
    ((free, bounds),) = variant.free.items()
    (symbol,) = (s for s in variant.var.free_symbols if str(s) == free)
    _, low, high = variant.domain
    at = {p.symbol: sp.Rational(float(variant.at.get(p.name, rule.defaults[p.name]))) for p in rule.parameters}
    exact = function(_accurate(derivation.var.subs(at).subs(v, 1)), [mu])
    family = function(variant.var.subs(at).subs(v, 1), [symbol, mu])
    fit = fit_parameter(exact, family, bounds=bounds, domain=(low, high), objective=variant.objective, what=free)
    facts = {
        free: mpmath.nstr(fit.value, 10),
        "objective": fit.kind,
        "objective_reached": mpmath.nstr(fit.objective, 6),
        "reached_at_a": [mpmath.nstr(a, 6) for a in fit.where],
        "domain_a": [float(low), float(high)],
        "fitted_at": {str(s): float(value) for s, value in at.items()},
    }
    return variant.var.subs(symbol, sp.Rational(mpmath.nstr(fit.value, 17))), facts


def _accurate(expr: sp.Expr) -> sp.Expr:
    return expr
