"""The rule language: one activation as data.

A rule file defines one module-level ``rule``: the activation ``f`` as a sympy
expression in ``x``, its parameters and the wanted accuracy.  The author may add
closed forms and approximations.  No algorithm lives in a rule.  Rule files
import this module, which also loads and checks them; the compiler does the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sympy import Expr, Symbol

from momentgen.errors import RuleError
from momentgen.rule.checks import Checker
from momentgen.rule.files import RuleSource, load_rule_sources, run_rule_file
from momentgen.rule.inputs import Noise, Parameter, input_symbols, moment_symbols
from momentgen.rule.names import check_name
from momentgen.rule.parts import USUAL_ACCURACY, Accuracy, Formula, Rescaled
from momentgen.rule.symbols import Phi, S, a, cov, mu, mu1, mu2, phi, sigma, sigmoid, v, v1, v2, x, x1, x2

__all__ = [
    "Accuracy",
    "Formula",
    "Noise",
    "Parameter",
    "Phi",
    "Rescaled",
    "Rule",
    "S",
    "a",
    "cov",
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
        conditional_var: the variance given x of an output that is random beyond its input, with mean f(x) given x.  It
            is a smooth function of ``x`` and the parameters, nowhere negative, in f's units where f is ``rescaled``.
        mean, var, partials: closed forms by the author; the compiler compares them with its own on a grid.
        variants: name -> :class:`Formula`; ``exact`` is always there.
        rescaled: f as another function in other units.
        accuracy: what is asked of the generated code.
        domain: ``mean`` -> the largest |mean|, ``var`` -> the largest variance for which this is asked; beyond them
            outputs and gradients are NaN.  By default neither has a limit.
        citation, doc: where the rule comes from, and one line on what it is.
        digest: SHA-256 of the rule file, set by :func:`load_rules`.

    Raises:
        RuleError: saying what is wrong, and in which expression.

    >>> from sympy import Max
    >>> Rule("relu", f=Max(x, 0)).f
    Max(0, x)
    """

    name: str
    f: Expr
    parameters: tuple[Parameter, ...] = ()
    inputs: tuple[str, ...] = ("x",)
    covariance: bool = False
    noise: Noise | None = None
    bernoulli: bool = False
    conditional_var: Expr | None = None
    mean: Expr | None = None
    var: Expr | None = None
    partials: Mapping[str, Expr] = field(default_factory=dict, hash=False)
    variants: Mapping[str, Formula] = field(default_factory=dict, hash=False)
    rescaled: Rescaled | None = None
    accuracy: Accuracy = USUAL_ACCURACY
    domain: Mapping[str, float] = field(default_factory=dict, hash=False)
    citation: str = ""
    doc: str = ""
    digest: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_name(self.name, str(self.name))
        Checker(self).check()

    @property
    def defaults(self) -> dict[str, float]:
        """Default value of every parameter."""
        return {p.name: float(p.default) for p in self.parameters if p.default is not None}

    @property
    def in_formulas(self) -> Rule:
        """The rule with its parameters called as in formulas and generated code, where a name may be taken."""
        names = {p.name: p.symbol.name for p in self.parameters}
        if all(name == other for name, other in names.items()):
            return self
        return replace(self, parameters=tuple(replace(p, name=names[p.name]) for p in self.parameters))

    @property
    def moments(self) -> dict[str, Symbol]:
        """What the op takes for its inputs, each with its symbol in formulas."""
        return moment_symbols(len(self.inputs), self.covariance)

    @property
    def arguments(self) -> tuple[Symbol, ...]:
        """The symbols of the random inputs in f."""
        return input_symbols(self.inputs)


def load_rules(path: str | Path) -> tuple[Rule, ...]:
    """Load and check every rule under ``path``, a directory or one file; sorted by name.

    Raises:
        RuleError: for the first file at fault: a syntax error (with its line), an error on import, or a wrong rule.
            Also for no ``rule`` or several, and a name used twice or unlike its file's.
    """
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


def _load(source: RuleSource) -> Rule:
    rule = _made(source)
    if _made(source) != rule:
        cause = f"{source.path.name} gives another rule each time that it runs; write the numbers themselves "
        raise RuleError(source.name, f"{cause}in the place of a clock or random numbers")
    return rule


def _made(source: RuleSource) -> Rule:
    namespace = run_rule_file(source)
    if "rule" not in namespace:
        raise RuleError(source.name, f"{source.path.name} defines no module-level `rule`")
    rule = namespace["rule"]
    if not isinstance(rule, Rule):
        raise RuleError(source.name, f"`rule` must be a momentgen.rule.Rule, got {type(rule).__name__}")
    others = [k for k, value in namespace.items() if isinstance(value, Rule) and value is not rule]
    if others:
        raise RuleError(source.name, f"{source.path.name} must define one rule, got also {', '.join(sorted(others))}")
    return dataclasses.replace(rule, digest=source.sha256)
