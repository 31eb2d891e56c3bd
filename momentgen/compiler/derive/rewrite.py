r"""A formula's six outputs, rewritten so that no difference is left in them that can be avoided.

- 1 - Phi(z) is Phi(-z), 1 - S(z) is S(-z), and 1 - mean is the mean's own complement;
- exp(g)·phi(z) has its exponents combined, so that equal densities cancel symbolically;
- an output that vanishes where Phi and S go to 1 has a second form, in Phi(-z) and S(-z), for that side;
- Max(z, 0) is z·Heaviside(z, 0), and partials are those on either side of a step: at the step itself those of the
  side that its value is of.

What is left of cancellation belongs to the formula.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import sympy as sp

from momentgen.compiler.derive.proof import disprove
from momentgen.errors import BuildError
from momentgen.rule import Parameter
from momentgen.rule.symbols import Phi, S, mu, phi, v

_CHECK_MU, _CHECK_V = (-7.0, -0.75, 0.0, 1.5, 4.0), (0.03125, 1.0, 50.0)
_M, _N, _M_MU, _M_V = (sp.Symbol(f"_{name}", real=True) for name in ("mean", "complement", "mean_mu", "mean_v"))


def exponent_of(factor: sp.Expr) -> sp.Expr | None:
    """g, where the factor is exp(g); sympy writes exp(x·log(2)) as 2**x.

    >>> exponent_of(2**mu)
    mu*log(2)
    """
    if isinstance(factor, sp.exp):
        return factor.args[0]
    if isinstance(factor, sp.Pow) and factor.base.is_positive and factor.base.is_number and not factor.exp.is_number:
        return factor.exp * sp.log(factor.base)
    return None


def _stepped(expr: sp.Expr) -> sp.Expr:
    """With z·Heaviside(z, 0) for every Max(z, 0).

    Raises:
        BuildError: for the larger of other expressions.
    """

    def step(*args: sp.Expr) -> sp.Expr:
        others = [z for z in args if z != 0]
        if len(args) != 2 or len(others) != 1:
            raise BuildError("", "strategies", "expected Max of an expression and 0", sp.Max(*args))
        return others[0] * sp.Heaviside(others[0], 0)

    return expr.replace(sp.Max, step)


def _slope(expr: sp.Expr, symbol: sp.Symbol) -> sp.Expr:
    """The derivative beside steps, which are constants there."""
    return sp.diff(expr, symbol).replace(sp.DiracDelta, lambda *_: sp.Integer(0))


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
        mean, var: in ``mu``, ``v``, the parameters, Phi, phi, S, exp, and Max(mu, 0) and Heaviside of mu.
        parameters: of the rule.
        rule: its name, for messages.

    Raises:
        BuildError: if a rewritten output differs from the formula's, which is a defect of this module.

    >>> write(S(mu), S(mu) * (1 - S(mu))).outputs["var"]
    _complement*_mean
    """
    mean, var = _stepped(mean), _stepped(var)
    expanded = _shorter(mean)
    complement = _complement(expanded)
    within = var if complement is None else var.subs(mean, _M)
    slope = sp.diff(within, _M)
    direct = {s: _slope(within, s) for s in (mu, v)}
    named = {_M: expanded, _M_MU: _shorter(_slope(mean, mu)), _M_V: _shorter(_slope(mean, v))}
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
    for of, expr in (("mean", mean), ("var", var)):
        original |= {f"d{of}_dmu": _slope(expr, mu), f"d{of}_dvar": _slope(expr, v)}
    _check(written, original, parameters, rule)
    return written


def _check(written: Written, original: Mapping[str, sp.Expr], parameters: tuple[Parameter, ...], rule: str) -> None:
    """Refute the rewriting, or fail to."""
    axes = {"mu": _CHECK_MU, "v": _CHECK_V, **{p.name: (float(p.default or 0.0), 0.375) for p in parameters}}
    for (name, expr), side in itertools.product(original.items(), (False, True)):
        if worst := disprove(expr, written.plain(name, mirrored=side), axes):
            raise BuildError(rule, "strategies", f"{name} rewritten is not what the formula says, worst {worst}", expr)


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
    return replace(written, mirrored=mirrored, arguments=tuple(sorted(found, key=sp.default_sort_key)))
