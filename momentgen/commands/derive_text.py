"""``momentgen derive``: what the compiler derives from a rule or an expression, to be read.

The moments come from :func:`momentgen.compiler.derive.derive`, which works with expanded sums in ``mu`` and ``v``.
Here they are only rewritten: in ``sigma``, with ``a = mu/sigma``, and terms of Phi and phi collected.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from momentgen.errors import MomentgenError
from momentgen.rule import Rule, load_rules
from momentgen.rule.files import known_rules
from momentgen.rule.symbols import Phi, mu, phi, v, x

_SIGMA = Symbol("sigma", positive=True)
_A = Symbol("a", real=True)
_M = Symbol("m", real=True)
#: what symbols beside mu stand for
LEGEND: Mapping[Symbol, Expr] = {_A: mu / _SIGMA, _M: Symbol("mean"), _SIGMA: sympy.sqrt(v)}
_TEX = {
    "f(x)": "f(x)",
    "mean": r"\mathbb{E}\,f(X)",
    "var": r"\operatorname{Var} f(X)",
    "dmean_dmu": r"\frac{\partial}{\partial\mu}\,\mathbb{E}\,f(X)",
    "dmean_dvar": r"\frac{\partial}{\partial v}\,\mathbb{E}\,f(X)",
    "dvar_dmu": r"\frac{\partial}{\partial\mu}\operatorname{Var} f(X)",
    "dvar_dvar": r"\frac{\partial}{\partial v}\operatorname{Var} f(X)",
}


@dataclass(frozen=True)
class Derived:
    """Moments in readable form.

    Attributes:
        rule: what was derived.
        outputs: ``mean``, ``var`` and the four partials, as far as they are closed; in the symbols of ``LEGEND``.
        note: what has no closed form, where that is the variance: ``outputs`` are the mean and its partials then.
    """

    rule: Rule
    outputs: Mapping[str, Expr]
    note: str = ""

    @property
    def where(self) -> dict[Symbol, Expr]:
        """The part of ``LEGEND`` that is needed."""
        used: set[Symbol] = set().union(*(e.free_symbols for e in self.outputs.values()))
        used |= {_SIGMA} if _A in used else set()
        return {symbol: meaning for symbol, meaning in LEGEND.items() if symbol in used}

    def text(self, *, latex: bool = False, width: int = 100) -> str:
        """All of it as text to print: sympy's two-dimensional notation, or LaTeX."""
        show = _latex if latex else _pretty
        lines = [show("f(x)", self.rule.f, width), *(show(name, e, width) for name, e in self.outputs.items())]
        if self.where:
            lines += ["where", *(show(str(symbol), e, width) for symbol, e in self.where.items())]
        if self.note:
            lines.append(f"% {self.note}" if latex else self.note)
        return ("\n" if latex else "\n\n").join(lines)


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
    return f"{_TEX.get(name, sympy.latex(Symbol(name)))} = {sympy.latex(_words(expression))}"


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
            return load_rules(folder / f"{what}.py")[0]
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
    mean = derive_mean(derivation)
    if mean is None:
        raise MomentgenError(
            f"rule {rule.name}: f is outside the closed algebra (piecewise polynomial, exponential, Phi, phi). So "
            f"there is no closed form to print; `momentgen build` says whether it can be compiled, in `{rule.f}`"
        )
    slopes = [sympy.diff(mean, symbol) for symbol in (mu, v)]
    outputs = dict(zip(("mean", *PARTIALS), map(readable, (mean, *slopes)), strict=False))
    second, var, note = derivation.second, derivation.var, ""
    if rule.conditional_var is not None:
        note = f"var: the output has a variance given x, {rule.conditional_var}; `momentgen build` computes it"
    elif second is None or var is None:
        note = "var: f**2 is outside the closed algebra; `momentgen build` computes it"
    if note or var is None:
        return Derived(rule, outputs, note)
    # Phi keep E f² and what is taken off it from uniting.
    apart = var.has(Phi, phi)
    forms = [second, *(sympy.diff(second, symbol) for symbol in (mu, v))]
    off = [-(_M**2), *(-2 * _M * outputs[name] for name in PARTIALS[:2])]
    whole = [var, *(derivation.partials[name] for name in PARTIALS[2:])]
    of_var = [
        sympy.Add(readable(form), rest, evaluate=False) if apart else readable(plain)
        for form, rest, plain in zip(forms, off, whole, strict=True)
    ]
    found = {**outputs, **dict(zip(("var", *PARTIALS[2:]), of_var, strict=True))}
    return Derived(rule, {name: found[name] for name in ("mean", "var", *PARTIALS)})


def readable(expression: Expr) -> Expr:
    """An expression in ``mu``, ``v`` and parameters in mu and sigma, with a for mu/sigma, and collected."""

    def named(argument: Expr) -> Expr:
        ratio = sympy.simplify(argument * _SIGMA / mu)
        return ratio * _A if ratio.is_number else sympy.factor(sympy.together(argument))

    form = expression.subs(v, _SIGMA**2).replace(Phi, lambda z: Phi(named(z))).replace(phi, lambda z: phi(named(z)))
    functions = sorted(form.atoms(Phi, phi), key=str)
    if not functions:
        return min(sympy.powsimp(sympy.expand(form)), sympy.powsimp(sympy.factor(form)), key=sympy.count_ops)
    return sympy.collect(sympy.powsimp(sympy.expand(form), combine="exp"), functions, func=sympy.factor)
