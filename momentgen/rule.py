"""The rule language: one activation as data.

A rule file defines one module-level ``rule``: the activation ``f`` as a sympy
expression in ``x``, its parameters, the accuracy wanted, and, where the author
has them, closed forms and approximations.  No algorithm lives in a rule.  This
module is what rule files import and what loads and checks them; the compiler
takes it from there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import sympy
from sympy import Expr, Symbol

from momentgen.errors import RuleError
from momentgen.rule_files import RuleSource, check_name, load_rule_sources, run_rule_file
from momentgen.rule_inputs import (
    InputBox,
    LogisticInput,
    Noise,
    Parameter,
    input_symbols,
    moment_symbols,
    partial_names,
)
from momentgen.rule_reduction import Reduction, Score
from momentgen.symbols import Phi, S, a, cov, mu, mu1, mu2, phi, sigma, v, v1, v2, x, x1, x2

__all__ = [
    "Accuracy",
    "Fitted",
    "Formula",
    "InputBox",
    "LogisticInput",
    "Noise",
    "Parameter",
    "Phi",
    "Reduction",
    "Rescaled",
    "Rule",
    "S",
    "ScaleMixture",
    "Score",
    "a",
    "cov",
    "load_reductions",
    "load_rules",
    "mu",
    "mu1",
    "mu2",
    "phi",
    "sigma",
    "v",
    "v1",
    "v2",
    "x",
    "x1",
    "x2",
]

INPUTS = ("normal", "logistic")


@dataclass(frozen=True)
class Accuracy:
    """What the generated float32 code is asked to reach.

    Either goals in ulp, one a variant, for outputs and partials alike; or
    absolute goals for ``mean`` and ``var`` everywhere, and a relative one for
    ``var`` inside ``var_rel_domain``; or, with ``moments``, what follows from how
    steep f is and how far it ranges: see
    :mod:`momentgen.compiler.stabilise.moments_measure`.  A rule that says nothing
    is held to ulp where f is homogeneous, and to ``moments`` elsewhere.
    """

    ulp: Mapping[str, float] = field(default_factory=dict, hash=False)
    mean_abs: float | None = None
    var_abs: float | None = None
    var_rel: float | None = None
    var_rel_domain: InputBox | None = None
    moments: bool = False


@dataclass(frozen=True)
class Formula:
    """A variant in closed form: mean and variance in ``mu``, ``v`` and the parameters."""

    mean: Expr
    var: Expr
    citation: str = ""


@dataclass(frozen=True)
class Fitted:
    """A variant with free numbers that the compiler fits.

    Args:
        var: the variance, in ``mu``, ``v``, the parameters and the free symbols.
        free: name of each free symbol -> the interval to search.
        mean: the mean; None for the exact one.
        objective: ``max_kl``: minimise the maximum over ``domain`` of KL(N(m, exact var) || N(m, fitted var)).
        domain: (variable, low, high); the variable is ``a``.
        at: parameter values to fit at (default values for those not named).
    """

    var: Expr
    free: Mapping[str, tuple[float, float]] = field(hash=False)
    mean: Expr | None = None
    objective: Literal["max_kl"] = "max_kl"
    domain: tuple[str, float, float] = ("a", -10.0, 10.0)
    at: Mapping[str, float] = field(default_factory=dict, hash=False)
    citation: str = ""


@dataclass(frozen=True)
class ScaleMixture:
    """A surrogate for a sigmoid: sum_i p_i Phi(s_i x) with ``terms`` terms.

    Smoothing by a Gaussian keeps the form and cannot enlarge the sup-error, so
    one bound holds for every (mu, v).

    Args:
        of: what is replaced; ``"logistic"`` stands for ``S(x)``.
        terms: how many terms to fit.
        sup_error: bound the fit must prove.
    """

    of: Expr | str
    terms: int
    sup_error: float
    citation: str = ""


@dataclass(frozen=True)
class Rescaled:
    """f in units of its own: f(x) = scale·of((x - centre)/width) + offset; the compiler proves it.

    What serves ``of`` then serves f at every value of the parameters, with its accuracy in f's units: an error allowed
    to the mean of ``of`` is allowed ``scale``-fold to that of f.

    Args:
        of: the base, in ``x``; parameters may occur in it too.
        centre, width, scale, offset: rational functions of the parameters; ``width`` and ``scale`` positive.
    """

    of: Expr
    centre: Expr = sympy.S.Zero
    width: Expr = sympy.S.One
    scale: Expr = sympy.S.One
    offset: Expr = sympy.S.Zero


@dataclass(frozen=True)
class Rule:
    """One activation, checked when it is made.

    Args:
        name: an identifier equal to the stem of the rule's file.
        f: the activation, in the inputs' and the parameters' symbols.
        parameters: in the order of the op's signature.
        inputs: names of the random inputs: ``x``, or ``x1`` and ``x2``.
        covariance: whether two inputs may be dependent, their covariance being given too.
        noise: a random factor of f that the caller does not give.
        bernoulli: whether the output is a draw: 1 with probability f, else 0.
        input: distribution of the input, given its mean ``mu`` and variance ``v``.
        mean, var, partials: closed forms by the author; the compiler proves or refutes them.
        variants: name -> :class:`Formula`, :class:`Fitted` or :class:`LogisticInput`; ``exact`` is always there.
        surrogate: stands in for an ``f`` outside the closed algebra.
        rescaled: f as another function in other units.
        accuracy: what is asked of the generated code.
        citation, doc: where the rule comes from, and one line on what it is.
        digest: SHA-256 of the rule file, set by :func:`load_rules`.

    Raises:
        RuleError: saying what is wrong, and in which expression.

    >>> Rule("relu", f=sympy.Max(x, 0)).f
    Max(0, x)
    """

    name: str
    f: Expr
    parameters: tuple[Parameter, ...] = ()
    inputs: tuple[str, ...] = ("x",)
    covariance: bool = False
    noise: Noise | None = None
    bernoulli: bool = False
    input: str = "normal"
    mean: Expr | None = None
    var: Expr | None = None
    partials: Mapping[str, Expr] = field(default_factory=dict, hash=False)
    variants: Mapping[str, Formula | Fitted | LogisticInput] = field(default_factory=dict, hash=False)
    surrogate: ScaleMixture | None = None
    rescaled: Rescaled | None = None
    accuracy: Accuracy = Accuracy(ulp={"exact": 8.0, "tight": 2.0}, moments=True)
    citation: str = ""
    doc: str = ""
    digest: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_name(self.name, str(self.name))
        _Checker(self).check()

    @property
    def defaults(self) -> dict[str, float]:
        """Default value of every parameter."""
        return {p.name: float(p.default) for p in self.parameters if p.default is not None}

    @property
    def moments(self) -> dict[str, Symbol]:
        """What the op takes for its inputs, each with its symbol in formulas."""
        return moment_symbols(len(self.inputs), self.covariance)


class _Checker:
    """All that can be wrong with a rule by itself."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def error(self, cause: str, expression: object | None = None) -> RuleError:
        return RuleError(self.rule.name, cause, expression)

    def check(self) -> None:
        rule = self.rule
        if not isinstance(rule.parameters, tuple) or not all(isinstance(p, Parameter) for p in rule.parameters):
            raise self.error(f"parameters must be a tuple of Parameter, got {rule.parameters!r}")
        if rule.input not in INPUTS:
            raise self.error(f"input must be one of {', '.join(INPUTS)}, got {rule.input!r}")
        names = [p.name for p in rule.parameters]
        if len(set(names)) < len(names):
            raise self.error(f"parameter names must differ, got {', '.join(names)}")
        for parameter in rule.parameters:
            self.check_parameter(parameter)
        symbols = [p.symbol for p in rule.parameters]
        self.check_inputs(symbols)
        noise = [] if rule.noise is None else [rule.noise.symbol]
        self.check_expression("f", rule.f, [*input_symbols(rule.inputs), *noise, *symbols])
        moments = [*rule.moments.values(), *symbols]
        for what, expression in (("mean", rule.mean), ("var", rule.var)):
            if expression is not None:
                self.check_expression(what, expression, moments)
        for key, expression in self.mapping("partials", rule.partials):
            known = [name for pair in partial_names(tuple(rule.moments)).values() for name in pair]
            if key not in known:
                raise self.error(f"partials must be named {', '.join(known)}, got {key!r}")
            self.check_expression(key, expression, moments)
        for key, variant in self.mapping("variants", rule.variants):
            self.check_variant(key, variant, moments)
        if rule.surrogate is not None:
            self.check_surrogate(rule.surrogate, symbols)
        if rule.rescaled is not None:
            self.check_rescaled(rule.rescaled, symbols)
        self.check_accuracy(rule.accuracy)

    def mapping(self, what: str, value: Any) -> Iterable[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise self.error(f"{what} must be a dict, got {value!r}")
        return value.items()

    def check_inputs(self, parameters: list[Symbol]) -> None:
        rule = self.rule
        if rule.inputs not in (("x",), ("x1", "x2")):
            raise self.error(f"inputs must be ('x',) or ('x1', 'x2'), got {rule.inputs!r}")
        if rule.covariance and len(rule.inputs) == 1:
            raise self.error("a covariance needs two inputs, got one")
        if rule.noise is not None:
            self.check_expression("noise, mean", rule.noise.mean, parameters)
            self.check_expression("noise, var", rule.noise.var, parameters)

    def check_parameter(self, p: Parameter) -> None:
        check_name(p.name, f"{self.rule.name}, parameter {p.name}")
        taken = {*self.rule.inputs, *self.rule.moments, *map(str, self.rule.moments.values()), "variant"}
        if p.name in taken:
            raise self.error(f"parameter name {p.name!r} is taken by the op's own arguments")
        if p.default is None:
            raise self.error(f"parameter {p.name} has no default")
        for what in ("default", "low", "high"):
            value = getattr(p, what)
            if isinstance(value, bool) or not isinstance(value, (int, float, sympy.Number)) or value != value:
                raise self.error(f"parameter {p.name}: {what} must be a number, got {value!r}")
        if p.low > p.high:
            raise self.error(f"parameter {p.name}: low = {p.low} exceeds high = {p.high}")
        if not p.low <= p.default <= p.high or not math.isfinite(p.default):
            raise self.error(f"parameter {p.name}: default {p.default} is outside its range [{p.low}, {p.high}]")

    def check_expression(self, what: str, value: Any, allowed: Iterable[Symbol]) -> None:
        if not isinstance(value, Expr):
            hint = "; wrap a number in sympy.Integer or Rational" if isinstance(value, (int, float)) else ""
            raise self.error(f"{what} must be a sympy expression, got {type(value).__name__}{hint}", value)
        if value.has(sympy.nan, sympy.zoo):
            raise self.error(f"{what} is undefined", value)
        known = set(allowed)
        for symbol in sorted(value.free_symbols - known, key=str):
            same = [k for k in known if str(k) == str(symbol)]
            cause = (
                f"symbol {symbol} has other assumptions than the rule's own: import it, or use Parameter.symbol"
                if same
                else f"unknown symbol {symbol}; known are {', '.join(sorted(map(str, known)))}"
            )
            raise self.error(f"{what}: {cause}", value)
        for call in value.atoms(sympy.core.function.AppliedUndef):
            raise self.error(f"{what}: unknown function {call.func}", value)

    def check_variant(self, name: Any, variant: Any, moments: list[Symbol]) -> None:
        check_name(name, f"{self.rule.name}, variant {name}")
        if name in ("exact", "tight"):
            raise self.error(f"variant name {name!r} is reserved for the compiler's own")
        if isinstance(variant, LogisticInput):
            return
        if isinstance(variant, Formula):
            self.check_expression(f"variant {name}, mean", variant.mean, moments)
            self.check_expression(f"variant {name}, var", variant.var, moments)
            return
        if not isinstance(variant, Fitted):
            raise self.error(
                f"variant {name}: expected a Formula, a Fitted or a LogisticInput, got {type(variant).__name__}"
            )
        if variant.mean is not None:
            self.check_expression(f"variant {name}, mean", variant.mean, moments)
        if not isinstance(variant.free, Mapping) or not variant.free:
            raise self.error(f"variant {name}: free must map each free symbol to its interval, got {variant.free!r}")
        for symbol, interval in variant.free.items():
            if not (isinstance(interval, tuple) and len(interval) == 2 and interval[0] < interval[1]):
                raise self.error(f"variant {name}: {symbol} needs an interval (low, high), got {interval!r}")
        free = [s for s in variant.var.free_symbols if str(s) in variant.free]
        for symbol in sorted(set(variant.free) - {str(s) for s in free}):
            raise self.error(f"variant {name}: free symbol {symbol} does not occur in var", variant.var)
        self.check_expression(f"variant {name}, var", variant.var, [*moments, *free])
        if variant.objective != "max_kl":
            raise self.error(f"variant {name}: unknown objective {variant.objective!r}, expected max_kl")
        if not (len(variant.domain) == 3 and variant.domain[0] == "a" and variant.domain[1] < variant.domain[2]):
            raise self.error(f"variant {name}: domain must be ('a', low, high), got {variant.domain!r}")
        known = {p.name: p for p in self.rule.parameters}
        for key, value in variant.at.items():
            if key not in known:
                raise self.error(f"variant {name}: at names the unknown parameter {key!r}")
            if not known[key].low <= value <= known[key].high:
                raise self.error(f"variant {name}: at {key} = {value} is outside its range")

    def check_surrogate(self, surrogate: Any, symbols: list[Symbol]) -> None:
        if not isinstance(surrogate, ScaleMixture):
            raise self.error(f"surrogate must be a ScaleMixture, got {type(surrogate).__name__}")
        if isinstance(surrogate.of, str):
            if surrogate.of != "logistic":
                raise self.error(f"surrogate: of must be 'logistic' or an expression, got {surrogate.of!r}")
        else:
            self.check_expression("surrogate", surrogate.of, [x, *symbols])
        if not isinstance(surrogate.terms, int) or not 1 <= surrogate.terms <= 32:
            raise self.error(f"surrogate: terms must be a whole number from 1 to 32, got {surrogate.terms!r}")
        if not surrogate.sup_error > 0:
            raise self.error(f"surrogate: sup_error must be positive, got {surrogate.sup_error!r}")

    def check_rescaled(self, rescaled: Any, symbols: list[Symbol]) -> None:
        if not isinstance(rescaled, Rescaled):
            raise self.error(f"rescaled must be a Rescaled, got {type(rescaled).__name__}")
        if len(self.rule.inputs) > 1 or self.rule.noise is not None or self.rule.input != "normal":
            raise self.error("rescaled is for functions of one normal input")
        self.check_expression("rescaled, of", rescaled.of, [x, *symbols])
        for what in ("centre", "width", "scale", "offset"):
            value = getattr(rescaled, what)
            self.check_expression(f"rescaled, {what}", value, symbols)
            if not value.is_rational_function(*symbols):
                raise self.error(f"rescaled: {what} must be a rational function of the parameters", value)

    def check_accuracy(self, goal: Any) -> None:
        if not isinstance(goal, Accuracy):
            raise self.error(f"accuracy must be an Accuracy, got {type(goal).__name__}")
        goals = {**{f"ulp[{k}]": w for k, w in self.mapping("accuracy.ulp", goal.ulp)}}
        goals |= {k: getattr(goal, k) for k in ("mean_abs", "var_abs", "var_rel") if getattr(goal, k) is not None}
        if not goals and not goal.moments:
            raise self.error("accuracy states no goal: give ulp, mean_abs and var_abs, or moments")
        for key, value in goals.items():
            if not value > 0:
                raise self.error(f"accuracy: {key} must be positive, got {value!r}")
        if (goal.var_rel is None) != (goal.var_rel_domain is None):
            raise self.error("accuracy: var_rel and var_rel_domain go together")


def load_rules(path: str | Path) -> tuple[Rule, ...]:
    """Load and check every rule under ``path``, a directory or one file; sorted by name.

    Raises:
        RuleError: for the first file at fault: a syntax error (with its line), an error on import, no ``rule`` or
            several, a wrong rule, a name used twice or unlike its file's.
    """
    return tuple(rule for rule in _load_all(path) if isinstance(rule, Rule))


def load_reductions(path: str | Path) -> tuple[Reduction, ...]:
    """Load and check every rule over an axis; as :func:`load_rules`, which has all others."""
    return tuple(rule for rule in _load_all(path) if isinstance(rule, Reduction))


def _load_all(path: str | Path) -> tuple[Rule | Reduction, ...]:
    sources = load_rule_sources(path)
    loaded = [(source, _load(source)) for source in sources]
    first: dict[str, RuleSource] = {}
    for source, rule in loaded:
        if rule.name in first:
            raise RuleError(rule.name, f"duplicate name: {first[rule.name].path.name} and {source.path.name} use it")
        first[rule.name] = source
    for source, rule in loaded:
        if rule.name != source.name:
            raise RuleError(rule.name, f"the file {source.path.name} must define a rule named {source.name!r}")
    return tuple(rule for _, rule in loaded)


def _load(source: RuleSource) -> Rule | Reduction:
    namespace = run_rule_file(source)
    if "rule" not in namespace:
        raise RuleError(source.name, f"{source.path.name} defines no module-level `rule`")
    rule = namespace["rule"]
    if not isinstance(rule, (Rule, Reduction)):
        raise RuleError(source.name, f"`rule` must be a momentgen.rule.Rule, got {type(rule).__name__}")
    others = [k for k, value in namespace.items() if isinstance(value, (Rule, Reduction)) and value is not rule]
    if others:
        raise RuleError(source.name, f"{source.path.name} must define one rule, got also {', '.join(sorted(others))}")
    return dataclasses.replace(rule, digest=source.sha256)
