"""``momentgen derive``: what the compiler derives from a rule or an expression, to be read.

The moments come from :func:`momentgen.compiler.derive.derive`, which works with expanded sums in ``mu`` and ``v``.
Here they are only rewritten: in ``sigma``, with ``a = mu/sigma`` and other arguments of Phi and phi named, powers of
sigma taken out where f is homogeneous, and terms collected.  Of several such forms the shortest is shown.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy
from sympy import Expr, Symbol
from sympy.printing.pretty.stringpict import prettyForm

from momentgen.compiler.derive import Derivation, derive
from momentgen.compiler.stabilise import PARTIALS
from momentgen.errors import MomentgenError, RuleError
from momentgen.rule import Rule, load_rules
from momentgen.symbols import Phi, S, mu, phi, v, x

__all__ = ["Derived", "derived", "find_rule", "readable"]

_SIGMA = Symbol("sigma", positive=True)
_A = Symbol("a", real=True)
_M = Symbol("m", real=True)
_ALIASES = {"sigmoid": S, "relu": lambda z: sympy.Max(z, 0), "softplus": lambda z: sympy.log(1 + sympy.exp(z))}


@dataclass(frozen=True)
class Derived:
    """Moments in readable form; ``v = sigma**2``.

    Attributes:
        rule: what was derived.
        outputs: ``mean``, ``var`` and the four partials; the variance and its partials may use ``m`` for the mean.
        where: the symbols that stand for arguments of Phi and phi -> what they stand for, in ``mu`` and ``sigma``.
    """

    rule: Rule
    outputs: Mapping[str, Expr]
    where: Mapping[Symbol, Expr]

    def text(self, *, latex: bool = False, width: int = 100) -> str:
        """All of it as text to print: sympy's two-dimensional notation, or LaTeX."""
        show = _latex if latex else _pretty
        lines = [show("f(x)", self.rule.f, width), *(show(name, e, width) for name, e in self.outputs.items())]
        used: set[Symbol] = set().union(*(e.free_symbols for e in (*self.outputs.values(), *self.where.values())))
        legend = {**self.where, _M: Symbol("mean"), _SIGMA: sympy.sqrt(v)}
        if any(stands in used for stands in legend):
            lines.append("where")
        lines += [show(str(symbol), e, width) for symbol, e in legend.items() if symbol in used]
        return ("\n" if latex else "\n\n").join(lines)


_TEX = {
    "f(x)": "f(x)",
    "mean": r"\mathbb{E}\,f(X)",
    "var": r"\operatorname{Var} f(X)",
    "dmean_dmu": r"\frac{\partial}{\partial\mu}\,\mathbb{E}\,f(X)",
    "dmean_dvar": r"\frac{\partial}{\partial v}\,\mathbb{E}\,f(X)",
    "dvar_dmu": r"\frac{\partial}{\partial\mu}\operatorname{Var} f(X)",
    "dvar_dvar": r"\frac{\partial}{\partial v}\operatorname{Var} f(X)",
}


class _Word(Symbol):
    """A symbol printed as it is written, where sympy would make ``slope`` of ``negative_slope`` a subscript."""

    def _pretty(self, printer: Any) -> prettyForm:
        return prettyForm(self.name)

    def _latex(self, printer: Any) -> str:
        return rf"\mathrm{{{self.name}}}".replace("_", r"\_")


def _words(expression: Expr) -> Expr:
    return expression.subs(
        {s: _Word(s.name, real=True) for s in expression.free_symbols if len(s.name) > 1 and "_" in s.name}
    )


def _latex(name: str, expression: Expr, width: int) -> str:
    if expression == Symbol("mean"):
        return f"{name} = {_TEX['mean']}"
    left = _TEX.get(name) or sympy.latex(Symbol(name))
    return f"{left} = {sympy.latex(_words(expression))}"


def _pretty(name: str, expression: Expr, width: int) -> str:
    left = _Word(name) if name in _TEX else Symbol(name)
    equation = sympy.Eq(left, _words(expression), evaluate=False)
    return str(sympy.pretty(equation, use_unicode=True, num_columns=width))


def find_rule(what: str, rules: Path) -> Rule:
    """The rule called ``what`` in ``rules``, or a nameless one for the expression ``what`` in ``x``.

    Raises:
        RuleError: if it is neither: no such rule, no expression, or one with symbols other than ``x``.

    >>> find_rule("Max(x, 0)", Path("no_rules_here")).f
    Max(0, x)
    """
    if what.isidentifier() and what != "x":
        if (rules / f"{what}.py").is_file():
            return load_rules(rules / f"{what}.py")[0]
        there = sorted(p.stem for p in rules.glob("*.py") if not p.name.startswith("_"))
        raise RuleError(
            what, f"expected a rule in {rules} or an expression in x; the rules are: {', '.join(there) or 'none'}"
        )
    names: dict[str, Any] = {"x": x, "Phi": Phi, "phi": phi, "S": S, **_ALIASES}
    try:
        f = sympy.sympify(what, locals=names)
    except (sympy.SympifyError, SyntaxError, TypeError, AttributeError, ValueError) as error:
        reason = str(error).splitlines()[-1] if str(error) else type(error).__name__
        raise RuleError(what, f"expected an expression in x, in sympy's syntax: {reason}") from error
    # The rule's own checks say what is wrong with anything else.
    return Rule("expression", f=f)


def derived(rule: Rule) -> Derived:
    """Mean, variance and partials of ``rule`` in readable form.

    Raises:
        BuildError: if a moment diverges, or f is outside the algebra and no surrogate serves.
        MomentgenError: if f is outside the algebra, so that there is no closed form to show, or no function of x alone.

    >>> derived(Rule("relu", f=sympy.Max(x, 0))).outputs["mean"]
    mu*Phi(a) + sigma*phi(a)
    """
    if others := rule.f.free_symbols - {x, *(p.symbol for p in rule.parameters)}:
        names = ", ".join(sorted(map(str, others)))
        raise MomentgenError(f"rule {rule.name}: expected a function of x alone, but f has {names}, in `{rule.f}`")
    derivation = derive(rule)
    if derivation.mean is None or derivation.second is None or derivation.var is None:
        raise MomentgenError(
            f"rule {rule.name}: f or its square is outside the closed algebra (piecewise polynomial, exponential, Phi, "
            f"phi), so there is no closed form to print, only what `momentgen build` computes, in `{rule.f}`"
        )
    naming = _Naming()
    degree = _whole_degree(derivation)
    mean = readable(derivation.mean, naming, degree)
    second = readable(derivation.second, naming, None if degree is None else 2 * degree)
    outputs = {
        "mean": mean,
        "var": _or_less(readable(derivation.var, naming, None if degree is None else 2 * degree), second, -(_M**2)),
    }
    powers = {"dmean_dmu": 1, "dmean_dvar": 2, "dvar_dmu": 1, "dvar_dvar": 2}
    for name in PARTIALS:
        moments = 1 if name.startswith("dmean") else 2
        power = None if degree is None else moments * degree - powers[name]
        shown = readable(derivation.partials[name], naming, power)
        if moments == 2:
            symbol = mu if name.endswith("dmu") else v
            of_second = readable(sympy.expand(sympy.diff(derivation.second, symbol)), naming, power)
            shown = _or_less(shown, of_second, -2 * _M * outputs[name.replace("dvar_", "dmean_", 1)])
        outputs[name] = shown
    return Derived(rule, outputs, naming.where)


def _or_less(whole: Expr, second: Expr, rest: Expr) -> Expr:
    """``whole``, or the shorter ``second + rest``, E f^2 and what is taken off it, where Phi keep them from uniting."""
    return _shortest(whole, sympy.Add(second, rest, evaluate=False)) if whole.has(Phi, phi) else whole


def _whole_degree(derivation: Derivation) -> int | None:
    degree = derivation.degree
    return int(degree) if degree is not None and sympy.sympify(degree).is_Integer else None


class _Naming:
    """Names for the arguments of Phi and phi: ``a`` for mu/sigma, then b, c, d, h, ..."""

    def __init__(self) -> None:
        self.where: dict[Symbol, Expr] = {_A: mu / _SIGMA}
        self._free = [letter for letter in string.ascii_lowercase if letter not in "aefilmosvx"]

    def __call__(self, argument: Expr) -> Expr:
        argument = sympy.factor(sympy.together(argument))
        for symbol, stands_for in self.where.items():
            if sympy.expand(argument - stands_for) == 0:
                return symbol
            if sympy.expand(argument + stands_for) == 0:
                return -symbol
        if argument.count_ops() < 2 or not self._free:
            return argument
        symbol = Symbol(self._free.pop(0), real=True)
        self.where[symbol] = argument
        return symbol


def readable(expression: Expr, naming: _Naming | None = None, power: int | None = None) -> Expr:
    """``expression`` in mu and sigma, with arguments of Phi and phi named, and collected.

    Args:
        expression: in ``mu``, ``v`` and parameters, as derive gives it.
        naming: names given so far; more may be added.
        power: k where expression is sigma^k times a function of a = mu/sigma and the parameters.
    """
    naming = naming or _Naming()
    form = expression.subs(v, _SIGMA**2).replace(Phi, lambda z: Phi(naming(z))).replace(phi, lambda z: phi(naming(z)))
    candidates = [_collected(sympy.expand(form))]
    if power is not None:
        core = sympy.expand(form.subs(mu, _A * _SIGMA) / _SIGMA**power)
        if not core.has(_SIGMA, mu):
            candidates.append(sympy.Mul(_SIGMA**power, _collected(core), evaluate=False) if power else _collected(core))
    elif not form.has(Phi, phi):
        candidates += [form, sympy.factor(form), sympy.powsimp(sympy.factor(form))]
    return _shortest(*candidates)


def _collected(expanded: Expr) -> Expr:
    functions = sorted(expanded.atoms(Phi, phi), key=str)
    if not functions:
        return sympy.powsimp(expanded)
    return sympy.collect(sympy.powsimp(expanded, combine="exp"), functions, func=_factored)


def _factored(coefficient: Expr) -> Expr:
    return coefficient if coefficient.has(Phi, phi) else sympy.powsimp(sympy.factor(coefficient), combine="exp")


def _shortest(*forms: Expr) -> Expr:
    def length(form: Expr) -> int:
        return int(form.count_ops(visual=False))

    return min(forms, key=length)
