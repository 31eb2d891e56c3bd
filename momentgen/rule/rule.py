"""The rule language: one activation as data.

A rule file defines one module-level ``rule``: the activation ``f`` as a sympy
expression in ``x``, its parameters and the wanted accuracy.  The author may add
closed forms and approximations.  No algorithm lives in a rule.  Rule files
import this module, which also loads and checks them; the compiler does the rest.
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
from momentgen.rule.expressions import HIGHEST_POWER, check_expression, check_number, is_number
from momentgen.rule.files import RuleSource, load_rule_sources, run_rule_file
from momentgen.rule.inputs import (
    COVARIANCE,
    MEAN_AND_VARIANCE,
    LogisticInput,
    Noise,
    Parameter,
    input_symbols,
    moment_symbols,
    partial_names,
)
from momentgen.rule.names import check_distinct, check_name, check_parameter_name, check_text
from momentgen.rule.reduction import Reduction, Score
from momentgen.rule.symbols import Phi, S, a, cov, mu, mu1, mu2, phi, sigma, sigmoid, v, v1, v2, x, x1, x2

__all__ = [
    "Accuracy",
    "Fitted",
    "Formula",
    "LogisticInput",
    "Noise",
    "Parameter",
    "Phi",
    "Reduction",
    "Rescaled",
    "Rule",
    "S",
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
    "sigmoid",
    "v",
    "v1",
    "v2",
    "x",
    "x1",
    "x2",
]

INPUTS = ("normal", "logistic")
#: parameters of one rule: certificates are measured at the ends and inside of the range of each
MOST_PARAMETERS = 16


@dataclass(frozen=True)
class Accuracy:
    """The goals of the generated float32 code.

    There are three kinds:

    - goals in ulp, one per variant, for outputs and partials alike;
    - with ``moments``, goals that follow from how steep f is and how far it
      ranges: see :mod:`momentgen.compiler.measure.moments`;
    - beside these, absolute goals for ``mean`` and ``var``, which hold where they are stricter.
      They are for a smooth f of one normal input without parameters.
      Partials are then within 1e-5 of their largest value over all means at that variance.

    By default a homogeneous f has goals in ulp, and any other has ``moments``.
    """

    ulp: Mapping[str, float] = field(default_factory=dict, hash=False)
    mean_abs: float | None = None
    var_abs: float | None = None
    moments: bool = False


@dataclass(frozen=True)
class Formula:
    """A variant in closed form: mean and variance in ``mu``, ``v`` and the parameters.

    Max(mu, 0) and Heaviside(mu, 0) or (mu, 1) may occur in it; to partials they are constants, at the step too.

    Args:
        mean, var: the formulas.
        citation: where they come from.
        doc: what they are as an approximation of the exact moments, for the certificate.
    """

    mean: Expr
    var: Expr
    citation: str = ""
    doc: str = ""


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
class Rescaled:
    """f in units of its own: f(x) = scale·of((x - centre)/width) + offset; the compiler proves it.

    The code for ``of`` then serves f at every value of the parameters, with its accuracy in f's units.  The error
    allowed to the mean of f is ``scale`` times that allowed to the mean of ``of``.

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
        outputs: what the op returns: ``("mean", "var")`` of f; or ``("covariance",)``, that of f(x1) and f(x2), where f
            is written in ``x`` and stands for both.
        noise: a random factor of f that the caller does not give.
        bernoulli: whether the output is a draw: 1 with probability f, else 0.
        conditional_var: the variance given x of an output that is random beyond its input, with mean f(x) given x.  It
            is a smooth function of ``x`` and the parameters, nowhere negative, in f's units where f is ``rescaled``.
        input: distribution of the input, given its mean ``mu`` and variance ``v``.
        mean, var, partials: closed forms by the author; the compiler proves or refutes them.
        variants: name -> :class:`Formula`, :class:`Fitted` or :class:`LogisticInput`; ``exact`` is always there.
        rescaled: f as another function in other units.
        accuracy: what is asked of the generated code.
        domain: ``mean`` -> the largest |mean|, ``var`` -> the largest variance for which this is asked; beyond them
            outputs and gradients are NaN.  By default neither has a limit.
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
    outputs: tuple[str, ...] = MEAN_AND_VARIANCE
    noise: Noise | None = None
    bernoulli: bool = False
    conditional_var: Expr | None = None
    input: str = "normal"
    mean: Expr | None = None
    var: Expr | None = None
    partials: Mapping[str, Expr] = field(default_factory=dict, hash=False)
    variants: Mapping[str, Formula | Fitted | LogisticInput] = field(default_factory=dict, hash=False)
    rescaled: Rescaled | None = None
    accuracy: Accuracy = Accuracy(ulp={"exact": 8.0, "tight": 2.0}, moments=True)
    domain: Mapping[str, float] = field(default_factory=dict, hash=False)
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

    @property
    def arguments(self) -> tuple[Symbol, ...]:
        """The symbols of the random inputs in f: one, where f is taken of each input by itself."""
        return input_symbols(("x",) if self.outputs == COVARIANCE else self.inputs)


class _Checker:
    """All that can be wrong with a rule by itself."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def error(self, cause: str, expression: object | None = None) -> RuleError:
        return RuleError(self.rule.name, cause, expression)

    def check(self) -> None:
        rule = self.rule
        check_text(rule.doc, rule.name, "doc")
        check_text(rule.citation, rule.name, "citation")
        for what in ("covariance", "bernoulli"):
            if not isinstance(getattr(rule, what), bool):
                raise self.error(f"{what} must be True or False, got {getattr(rule, what)!r}")
        if not isinstance(rule.input, str) or rule.input not in INPUTS:
            raise self.error(f"input must be one of {', '.join(INPUTS)}, got {rule.input!r}")
        if not isinstance(rule.inputs, tuple) or rule.inputs not in (("x",), ("x1", "x2")):
            raise self.error(f"inputs must be ('x',) or ('x1', 'x2'), got {rule.inputs!r}")
        self.check_parameters()
        if not isinstance(rule.outputs, tuple) or rule.outputs not in (MEAN_AND_VARIANCE, COVARIANCE):
            raise self.error(f"outputs must be ('mean', 'var') or ('covariance',), got {rule.outputs!r}")
        symbols = [p.symbol for p in rule.parameters]
        noise = self.check_inputs(symbols)
        inputs = rule.arguments
        self.check_activation("f", rule.f, [*inputs, *noise, *symbols])
        for symbol in (*inputs, *noise):
            if symbol not in rule.f.free_symbols:
                cause = "is constant in the input, which leaves nothing to compile" if len(inputs) == 1 else "lacks it"
                raise self.error(f"f must depend on {symbol}, but {cause}", rule.f)
        moments = [*rule.moments.values(), *symbols]
        if rule.outputs == COVARIANCE:
            self.check_covariance()
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
        check_distinct(("exact", "tight", *rule.variants), rule.name, "variants")
        if rule.conditional_var is not None:
            self.check_conditional(rule.conditional_var, symbols)
        if rule.rescaled is not None:
            self.check_rescaled(rule.rescaled, symbols)
        self.check_accuracy(rule.accuracy)
        self.check_domain()

    def mapping(self, what: str, value: Any) -> Iterable[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise self.error(f"{what} must be a dict, got {value!r}")
        return value.items()

    def check_expression(self, what: str, value: Any, allowed: Iterable[Symbol]) -> None:
        check_expression(self.rule.name, what, value, allowed)

    def check_activation(self, what: str, value: Any, allowed: Iterable[Symbol]) -> None:
        check_expression(self.rule.name, what, value, allowed, highest=HIGHEST_POWER)

    def check_inputs(self, parameters: list[Symbol]) -> list[Symbol]:
        """The inputs' further properties; returns the noise's symbol, if there is one."""
        rule = self.rule
        if rule.covariance and len(rule.inputs) == 1:
            raise self.error("a covariance needs two inputs, got one")
        if rule.noise is None:
            return []
        if not isinstance(rule.noise, Noise):
            raise self.error(f"noise must be a Noise, got {type(rule.noise).__name__}")
        check_parameter_name(rule.noise.name, f"{rule.name}, noise {rule.noise.name}")
        if rule.noise.symbol.name in (*rule.inputs, *(p.name for p in rule.parameters)):
            raise self.error(f"noise name {rule.noise.name!r} is taken by an input or a parameter")
        check_text(rule.noise.citation, rule.name, "noise: citation")
        self.check_expression("noise, mean", rule.noise.mean, parameters)
        self.check_expression("noise, var", rule.noise.var, parameters)
        return [rule.noise.symbol]

    def check_covariance(self) -> None:
        """What else a rule may say whose output is the covariance of f(x1) and f(x2)."""
        rule = self.rule
        if not rule.covariance:
            raise self.error("the output 'covariance' needs two inputs and covariance=True")
        other = {"mean": rule.mean, "var": rule.var, "partials": rule.partials, "variants": rule.variants}
        other |= {"parameters": rule.parameters, "rescaled": rule.rescaled}
        other |= {"noise": rule.noise, "bernoulli": rule.bernoulli, "conditional_var": rule.conditional_var}
        for what, value in other.items():
            if value:
                raise self.error(f"beside the output 'covariance' no {what} can be given, got {value!r}")

    def check_parameters(self) -> None:
        given = self.rule.parameters
        if not isinstance(given, tuple) or not all(isinstance(p, Parameter) for p in given):
            raise self.error(f"parameters must be a tuple of Parameter, got {given!r}")
        if len(given) > MOST_PARAMETERS:
            raise self.error(f"expected at most {MOST_PARAMETERS} parameters, got {len(given)}")
        for parameter in given:
            self.check_parameter(parameter)
        names = [p.name for p in given]
        if len(set(names)) < len(names):
            raise self.error(f"parameter names must differ, got {', '.join(names)}")

    def check_parameter(self, p: Parameter) -> None:
        where = f"{self.rule.name}, parameter {p.name}"
        check_name(p.name, where)
        taken = {*self.rule.inputs, *self.rule.moments, *map(str, self.rule.moments.values()), "variant"}
        if p.name in taken:
            raise self.error(f"parameter name {p.name!r} is taken by the op's own arguments")
        check_parameter_name(p.name, where)
        check_text(p.doc, self.rule.name, f"parameter {p.name}: doc")
        if p.default is None:
            raise self.error(f"parameter {p.name} has no default")
        for what in ("default", "low", "high"):
            value = getattr(p, what)
            if value not in (math.inf, -math.inf):
                check_number(self.rule.name, f"parameter {p.name}: {what}", value)
        if p.low > p.high:
            raise self.error(f"parameter {p.name}: low = {p.low} exceeds high = {p.high}")
        if not p.low <= p.default <= p.high or not math.isfinite(p.default):
            raise self.error(f"parameter {p.name}: default {p.default} is outside its range [{p.low}, {p.high}]")

    def check_variant(self, name: Any, variant: Any, moments: list[Symbol]) -> None:
        check_name(name, f"{self.rule.name}, variant {name}")
        if name in ("exact", "tight"):
            raise self.error(f"variant name {name!r} is reserved for the compiler's own")
        if not isinstance(variant, (Formula, Fitted, LogisticInput)):
            kind = type(variant).__name__
            raise self.error(f"variant {name}: expected a Formula, a Fitted or a LogisticInput, got {kind}")
        check_text(variant.citation, self.rule.name, f"variant {name}: citation")
        if isinstance(variant, LogisticInput):
            return
        if isinstance(variant, Formula):
            check_text(variant.doc, self.rule.name, f"variant {name}: doc")
            self.check_expression(f"variant {name}, mean", variant.mean, moments)
            self.check_expression(f"variant {name}, var", variant.var, moments)
            return
        self.check_fitted(name, variant, moments)

    def check_fitted(self, name: str, variant: Fitted, moments: list[Symbol]) -> None:
        if variant.mean is not None:
            self.check_expression(f"variant {name}, mean", variant.mean, moments)
        if not isinstance(variant.free, Mapping) or not variant.free:
            raise self.error(f"variant {name}: free must map each free symbol to its interval, got {variant.free!r}")
        for symbol, interval in variant.free.items():
            if not _is_interval(interval):
                raise self.error(f"variant {name}: {symbol} needs an interval (low, high), got {interval!r}")
        symbols = variant.var.free_symbols if isinstance(variant.var, Expr) else set()
        free = [s for s in symbols if str(s) in variant.free]
        self.check_expression(f"variant {name}, var", variant.var, [*moments, *free])
        for symbol in sorted(map(str, set(variant.free) - {str(s) for s in free})):
            raise self.error(f"variant {name}: free symbol {symbol} does not occur in var", variant.var)
        if variant.objective != "max_kl":
            raise self.error(f"variant {name}: unknown objective {variant.objective!r}, expected max_kl")
        domain = variant.domain
        if not (isinstance(domain, tuple) and domain[:1] == ("a",) and _is_interval(domain[1:])):
            raise self.error(f"variant {name}: domain must be ('a', low, high), got {domain!r}")
        known = {p.name: p for p in self.rule.parameters}
        for key, value in self.mapping(f"variant {name}: at", variant.at):
            if key not in known:
                raise self.error(f"variant {name}: at names the unknown parameter {key!r}")
            check_number(self.rule.name, f"variant {name}: at {key}", value)
            if not known[key].low <= value <= known[key].high:
                raise self.error(f"variant {name}: at {key} = {value} is outside its range")

    def check_conditional(self, value: Any, symbols: list[Symbol]) -> None:
        rule = self.rule
        self.check_activation("conditional_var", value, [x, *symbols])
        if len(rule.inputs) > 1 or rule.noise is not None or rule.bernoulli or rule.input != "normal":
            raise self.error("conditional_var is for outputs of one normal input, without noise or bernoulli", value)
        if rule.accuracy != Accuracy(moments=True):
            raise self.error("beside conditional_var the accuracy must be Accuracy(moments=True)", value)
        of_f = [what for what, given in (("var", rule.var), ("partials", rule.partials or None)) if given is not None]
        of_f += [f"variant {k}" for k, w in rule.variants.items() if not isinstance(w, Formula)]
        if of_f:
            raise self.error(f"beside conditional_var no {of_f[0]} can be given: it would be that of f alone", value)

    def check_rescaled(self, rescaled: Any, symbols: list[Symbol]) -> None:
        if not isinstance(rescaled, Rescaled):
            raise self.error(f"rescaled must be a Rescaled, got {type(rescaled).__name__}")
        if len(self.rule.inputs) > 1 or self.rule.noise is not None or self.rule.input != "normal":
            raise self.error("rescaled is for functions of one normal input")
        self.check_activation("rescaled, of", rescaled.of, [x, *symbols])
        for what in ("centre", "width", "scale", "offset"):
            value = getattr(rescaled, what)
            self.check_expression(f"rescaled, {what}", value, symbols)
            if not value.is_rational_function(*symbols):
                raise self.error(f"rescaled: {what} must be a rational function of the parameters", value)

    def check_domain(self) -> None:
        rule = self.rule
        for name, most in self.mapping("domain", rule.domain):
            if name not in ("mean", "var"):
                raise self.error(f"domain must name mean or var, got {name!r}")
            check_number(rule.name, f"domain: {name}", most)
            if not most > 0:
                raise self.error(f"domain: {name} must be positive, got {most!r}")
        if rule.domain and (rule.inputs != ("x",) or rule.noise is not None or rule.outputs == COVARIANCE):
            raise self.error("domain is for the mean and the variance of f of one input")

    def check_accuracy(self, goal: Any) -> None:
        if not isinstance(goal, Accuracy):
            raise self.error(f"accuracy must be an Accuracy, got {type(goal).__name__}")
        goals: dict[str, Any] = {}
        for variant, ulps in self.mapping("accuracy.ulp", goal.ulp):
            if variant not in ("exact", "tight"):
                raise self.error(f"accuracy.ulp is for the variants exact and tight, got {variant!r}")
            goals[f"ulp[{variant}]"] = ulps
        absolute = {k: getattr(goal, k) for k in ("mean_abs", "var_abs") if getattr(goal, k) is not None}
        rule = self.rule
        if absolute and (rule.inputs != ("x",) or rule.input != "normal" or rule.noise or rule.rescaled):
            raise self.error("accuracy: mean_abs and var_abs are for f of one normal input, without noise or rescaled")
        goals |= absolute
        if not goals and not goal.moments:
            raise self.error("accuracy states no goal: give ulp, mean_abs and var_abs, or moments")
        for key, value in goals.items():
            check_number(self.rule.name, f"accuracy: {key}", value)
            if not value > 0:
                raise self.error(f"accuracy: {key} must be positive, got {value!r}")


def _is_interval(value: object) -> bool:
    """Whether it is (low, high), two numbers in order."""
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    return all(map(is_number, value)) and bool(value[0] < value[1])


def load_rules(path: str | Path) -> tuple[Rule, ...]:
    """Load and check every rule under ``path``, a directory or one file; sorted by name.

    Raises:
        RuleError: for the first file at fault: a syntax error (with its line), an error on import, or a wrong rule.
            Also for no ``rule`` or several, and a name used twice or unlike its file's.
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
