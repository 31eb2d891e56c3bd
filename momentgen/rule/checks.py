"""Whether a rule is one: its parts by themselves, and what they may not be together.

:class:`~momentgen.rule.Rule` asks for it when it is made, so that the compiler meets no rule that is wrong by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sympy import Symbol

from momentgen.errors import RuleError
from momentgen.rule.expressions import HIGHEST_POWER, check_expression, check_number
from momentgen.rule.inputs import Noise, Parameter, partial_names
from momentgen.rule.names import check_distinct, check_name, check_text, is_taken
from momentgen.rule.parts import Accuracy, Formula, Rescaled
from momentgen.rule.symbols import x

#: parameters of one rule: certificates are measured at the ends and inside of the range of each
MOST_PARAMETERS = 16


class Checker:
    """All that can be wrong with a rule by itself.

    Args:
        rule: a :class:`~momentgen.rule.Rule` that is being made, of whatever its author gave.
    """

    def __init__(self, rule: Any) -> None:
        self.rule = rule

    def error(self, cause: str, expression: object | None = None) -> RuleError:
        return RuleError(self.rule.name, cause, expression)

    def check(self) -> None:
        """Look at all of it.

        Raises:
            RuleError: saying what is wrong, and in which expression.
        """
        rule = self.rule
        check_text(rule.doc, rule.name, "doc")
        check_text(rule.citation, rule.name, "citation")
        for what in ("covariance", "bernoulli"):
            if not isinstance(getattr(rule, what), bool):
                raise self.error(f"{what} must be True or False, got {getattr(rule, what)!r}")
        if not isinstance(rule.inputs, tuple) or rule.inputs not in (("x",), ("x1", "x2")):
            raise self.error(f"inputs must be ('x',) or ('x1', 'x2'), got {rule.inputs!r}")
        self.check_parameters()
        symbols = [p.symbol for p in rule.parameters]
        noise = self.check_inputs(symbols)
        inputs = rule.arguments
        self.check_activation("f", rule.f, [*inputs, *noise, *symbols])
        for symbol in (*inputs, *noise):
            if symbol not in rule.f.free_symbols:
                cause = "is constant in the input, which leaves nothing to compile" if len(inputs) == 1 else "lacks it"
                raise self.error(f"f must depend on {symbol}, but {cause}", rule.f)
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
        check_name(rule.noise.name, f"{rule.name}, noise {rule.noise.name}")
        if is_taken(rule.noise.name):
            raise self.error(f"noise name {rule.noise.name!r} already means something in formulas or in generated code")
        if rule.noise.symbol.name in (*rule.inputs, *(p.symbol.name for p in rule.parameters)):
            raise self.error(f"noise name {rule.noise.name!r} is taken by an input or a parameter")
        check_text(rule.noise.citation, rule.name, "noise: citation")
        self.check_expression("noise, mean", rule.noise.mean, parameters)
        self.check_expression("noise, var", rule.noise.var, parameters)
        return [rule.noise.symbol]

    def check_parameters(self) -> None:
        given = self.rule.parameters
        if not isinstance(given, tuple) or not all(isinstance(p, Parameter) for p in given):
            raise self.error(f"parameters must be a tuple of Parameter, got {given!r}")
        if len(given) > MOST_PARAMETERS:
            raise self.error(f"expected at most {MOST_PARAMETERS} parameters, got {len(given)}")
        for parameter in given:
            self.check_parameter(parameter)
        if len({p.symbol.name for p in given}) < len(given):
            raise self.error(f"parameter names must differ, got {', '.join(p.name for p in given)}")

    def check_parameter(self, p: Parameter) -> None:
        where = f"{self.rule.name}, parameter {p.name}"
        check_name(p.name, where)
        if p.name in {*self.rule.inputs, *self.rule.moments, "self", "variant"}:
            raise self.error(f"parameter name {p.name!r} is taken by the op's own arguments")
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
        if not isinstance(variant, Formula):
            raise self.error(f"variant {name}: expected a Formula, got {type(variant).__name__}")
        check_text(variant.citation, self.rule.name, f"variant {name}: citation")
        check_text(variant.doc, self.rule.name, f"variant {name}: doc")
        if variant.mean is not None:
            self.check_expression(f"variant {name}, mean", variant.mean, moments)
        self.check_expression(f"variant {name}, var", variant.var, moments)

    def check_conditional(self, value: Any, symbols: list[Symbol]) -> None:
        rule = self.rule
        self.check_activation("conditional_var", value, [x, *symbols])
        if len(rule.inputs) > 1 or rule.noise is not None or rule.bernoulli:
            raise self.error("conditional_var is for outputs of one normal input, without noise or bernoulli", value)
        if rule.accuracy != Accuracy(moments=True):
            raise self.error("beside conditional_var the accuracy must be Accuracy(moments=True)", value)
        of_f = [what for what, given in (("var", rule.var), ("partials", rule.partials or None)) if given is not None]
        of_f += [f"variant {k} without a mean" for k, w in rule.variants.items() if w.mean is None]
        if of_f:
            raise self.error(f"beside conditional_var no {of_f[0]} can be given: it would be that of f alone", value)

    def check_rescaled(self, rescaled: Any, symbols: list[Symbol]) -> None:
        if not isinstance(rescaled, Rescaled):
            raise self.error(f"rescaled must be a Rescaled, got {type(rescaled).__name__}")
        rule = self.rule
        if len(rule.inputs) > 1 or rule.noise is not None or rule.bernoulli:
            raise self.error("rescaled is for functions of one normal input, and not for draws of 0 or 1")
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
        if rule.domain and (rule.inputs != ("x",) or rule.noise is not None):
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
        if absolute and (rule.inputs != ("x",) or rule.noise or rule.rescaled):
            raise self.error("accuracy: mean_abs and var_abs are for f of one normal input, without noise or rescaled")
        goals |= absolute
        if not goals and not goal.moments and not goal.relative:
            raise self.error("accuracy states no goal: give ulp, mean_abs and var_abs, moments, or relative")
        if goal.relative and (goals or rule.inputs != ("x",) or rule.noise or rule.bernoulli):
            raise self.error("accuracy: relative is for f of one normal input, and without ulp, mean_abs and var_abs")
        for key, value in goals.items():
            check_number(self.rule.name, f"accuracy: {key}", value)
            if not value > 0:
                raise self.error(f"accuracy: {key} must be positive, got {value!r}")
