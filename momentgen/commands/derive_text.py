"""``momentgen derive``: what the compiler derives from a rule or an expression, to be read.

The moments come from :func:`momentgen.compiler.derive.derive`, which works with expanded sums in ``mu`` and ``v``.
Here they are only rewritten: in ``sigma``, with ``a = mu/sigma``, names for other arguments of Phi and phi, and terms
collected.  Where f is homogeneous, powers of sigma are taken out.  The shortest of several such forms is shown.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy
from sympy import Expr, Symbol
from sympy.printing.pretty.stringpict import prettyForm

from momentgen.build.choice import no_such_rule
from momentgen.commands.expression_text import parse
from momentgen.compiler.derive import derive, derive_mean
from momentgen.compiler.ir.stable import PARTIALS
from momentgen.errors import MomentgenError, RuleError
from momentgen.rule import Rule, load_rules
from momentgen.rule.files import known_rules
from momentgen.rule.symbols import Phi, mu, phi, v, x

_SIGMA = Symbol("sigma", positive=True)
_A = Symbol("a", real=True)
_M = Symbol("m", real=True)


@dataclass(frozen=True)
class Derived:
    """Moments in readable form; ``v = sigma**2``.

    Attributes:
        rule: what was derived.
        outputs: ``mean``, ``var`` and the four partials, as far as they are closed; the variance and its partials may
            use ``m`` for the mean.
        where: the symbols that stand for arguments of Phi and phi -> what they stand for, in ``mu`` and ``sigma``.
        note: what has no closed form, where that is the variance: ``outputs`` are the mean and its partials then.
    """

    rule: Rule
    outputs: Mapping[str, Expr]
    where: Mapping[Symbol, Expr]
    note: str = ""

    def text(self, *, latex: bool = False, width: int = 100) -> str:
        """All of it as text to print: sympy's two-dimensional notation, or LaTeX."""
        show = _latex if latex else _pretty
        lines = [show("f(x)", self.rule.f, width), *(show(name, e, width) for name, e in self.outputs.items())]
        used: set[Symbol] = set().union(*(e.free_symbols for e in (*self.outputs.values(), *self.where.values())))
        legend = {**self.where, _M: Symbol("mean"), _SIGMA: sympy.sqrt(v)}
        if any(stands in used for stands in legend):
            lines.append("where")
        lines += [show(str(symbol), e, width) for symbol, e in legend.items() if symbol in used]
        if self.note:
            lines.append(f"% {self.note}" if latex else self.note)
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


def find_rule(what: str, rules: Path | None = None) -> Rule:
    """The rule called ``what``, or a nameless one for the expression ``what`` in ``x``, which is read and never run.

    Args:
        what: a name, or an expression as :func:`momentgen.commands.expression_text.parse` takes it.
        rules: directory of rule files; without it ``./rules`` and the rules that are installed, in this order.

    Raises:
        RuleError: if it is neither: no such rule, no expression, or one with symbols other than ``x``.

    >>> find_rule("Max(x, 0)").f
    Max(0, x)
    """
    if not what.isidentifier() or what == "x":
        # The rule's own checks say what is wrong with an f that is no activation.
        return Rule("expression", f=parse(what))
    folders = [rules] if rules is not None else known_rules()
    for folder in folders:
        if (folder / f"{what}.py").is_file():
            found = load_rules(folder / f"{what}.py")
            if not found:
                raise RuleError(what, "expected a rule with moments, got one over an axis, which has none to derive")
            return found[0]
    there = sorted({p.stem for folder in folders for p in folder.glob("*.py") if not p.name.startswith("_")})
    named = {folder.resolve(): str(folder) for folder in reversed(folders)}  # in a checkout both are one
    where = " or ".join(reversed(named.values())) or "./rules"
    raise no_such_rule(what, there, f"{where}, and no expression in x")


def derived(rule: Rule) -> Derived:
    """Mean, variance and partials of ``rule`` in readable form.

    Raises:
        BuildError: if a moment diverges, or f is outside the algebra and no strategy handles it.
        MomentgenError: if f is outside the algebra, so that there is no closed form to show, or no function of x alone.

    >>> derived(Rule("relu", f=sympy.Max(x, 0))).outputs["mean"]
    mu*Phi(a) + sigma*phi(a)
    """
    if others := rule.f.free_symbols - {x, *(p.symbol for p in rule.parameters)}:
        names = ", ".join(sorted(map(str, others)))
        raise MomentgenError(f"rule {rule.name}: expected a function of x alone, but f has {names}, in `{rule.f}`")
    derivation = derive(rule)
    mean_of_f = derivation.mean if derivation.mean is not None else derive_mean(derivation)
    if mean_of_f is None:
        raise MomentgenError(
            f"rule {rule.name}: f is outside the closed algebra (piecewise polynomial, exponential, Phi, phi). So "
            f"there is no closed form to print; `momentgen build` says whether it can be compiled, in `{rule.f}`"
        )
    note = ""
    if rule.conditional_var is not None:
        note = f"var: the output has a variance given x, {rule.conditional_var}; `momentgen build` computes it"
    elif derivation.second is None or derivation.var is None:
        note = "var: f**2 is outside the closed algebra; `momentgen build` computes it"
    naming = _Naming(p.name for p in rule.parameters)
    degree = derivation.degree if derivation.degree is not None and derivation.degree.is_Integer else None

    def forms(moment: Expr, factors: int) -> tuple[Expr, Expr, Expr]:
        """A moment of so many factors f, and its partials by mu and v."""
        power = None if degree is None or not moment.has(Phi, phi) else factors * degree
        return (
            readable(moment, naming, power),
            readable(sympy.diff(moment, mu), naming, None if power is None else power - 1),
            readable(sympy.diff(moment, v), naming, None if power is None else power - 2),
        )

    mean, *slopes = forms(mean_of_f, 1)
    if note:
        return Derived(rule, dict(zip(("mean", *PARTIALS), (mean, *slopes), strict=False)), naming.where, note)
    off = -(_M**2), *(-2 * _M * slope for slope in slopes)
    var, *var_slopes = map(_or_less, forms(derivation.var, 2), forms(derivation.second, 2), off)
    outputs = dict(zip(("mean", "var", *PARTIALS), (mean, var, *slopes, *var_slopes), strict=True))
    return Derived(rule, outputs, naming.where)


def _or_less(whole: Expr, second: Expr, rest: Expr) -> Expr:
    """``whole``, or the shorter ``second + rest``, E f^2 and what is taken off it, where Phi keep them from uniting."""
    return _shortest(whole, sympy.Add(second, rest, evaluate=False)) if whole.has(Phi, phi) else whole


class _Naming:
    """Names for the arguments of Phi and phi: ``a`` for mu/sigma, then b, c, d, h, ..., none of those ``taken``."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.where: dict[Symbol, Expr] = {_A: mu / _SIGMA}
        taken = {*taken, *"aefilmosvx"}
        self._free = [letter for letter in string.ascii_lowercase if letter not in taken]

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
