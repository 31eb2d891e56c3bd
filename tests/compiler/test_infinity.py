"""Enclosures over [X, oo): held against mpmath at points far out."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
import sympy as sp
from flint import arb

from momentgen.compiler.oracle.infinity import enclose_tail
from momentgen.errors import BuildError
from momentgen.symbols import Phi, S, phi, x

_T = sp.sqrt(2 / sp.pi) * (x + sp.Rational(44715, 1000000) * x**3)
FUNCTIONS = {
    "sigmoid": S(x),
    "logsigmoid": sp.log(S(x)),
    "silu": x * S(x),
    "softplus": sp.log(1 + sp.exp(x)),
    "mish": x * sp.tanh(sp.log(1 + sp.exp(x))),
    "gelu": x * Phi(x),
    "gelu_tanh": x * (1 + sp.tanh(_T)) / 2,
    "tanhshrink": x - sp.tanh(x),
    "erf": sp.erf(x),
    "density": phi(x) * (1 + x**2),
    "thirds": sp.tanh(x) / 3 + x / 7,
    "atan": sp.atan(x),
    "huber": sp.sqrt(1 + x**2) - 1,
    "rational": (1 + 2 * x**3) / (3 + x**2),
    "mixed": x / (1 + x**2) * sp.tanh(x) + sp.atan(1 + 2 * x),
}
POWERS = ("atan", "huber", "rational")  # without exponentials, which mpmath would have to resolve


def _truth(f: sp.Expr) -> sp.Expr:
    """Without our own symbols, for mpmath."""
    f = f.replace(S, lambda z: 1 / (1 + sp.exp(-z))).replace(Phi, lambda z: sp.erfc(-z / sp.sqrt(2)) / 2)
    return f.replace(phi, lambda z: sp.exp(-(z**2) / 2) / sp.sqrt(2 * sp.pi))


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_function_is_where_the_enclosure_says_at_any_point_beyond(name: str, side: int) -> None:
    f, start = FUNCTIONS[name], 20.0
    away = start + np.array([0.0, *np.random.default_rng(3).exponential(15.0, 5), 1e6 if name in POWERS else 100.0])
    for derivative in (0, 1, 2):
        slope, offset, rest = enclose_tail(f, start, side, name, derivative).line()
        exact = sp.lambdify(x, _truth(f).diff(x, derivative), "mpmath")
        with mp.workdps(300):
            for point in away:
                value = mp.mpf(exact(side * mp.mpf(float(point))))
                gap = abs(arb(mp.nstr(value, 80)) - slope * arb(float(point)) - offset)
                assert gap.lower() <= rest, (derivative, point)


def test_enclosures_of_exponential_tails_are_tight() -> None:
    slope, offset, rest = enclose_tail(x * S(x), 30.0, 1, "silu").line()
    assert (slope, offset) == (1, 0)
    assert 30 * mp.exp(-30) <= float(rest) * (1 + 1e-12) <= 1.01 * 30 * mp.exp(-30)


@pytest.mark.parametrize(
    ("f", "expected"),
    [(sp.sin(x), "got sin"), (sp.exp(-sp.exp(-x)), "growing exponential"), (sp.log(1 + x**2), "positive constant")],
)
def test_what_is_not_enclosed_is_refused_with_rule_stage_and_cause(f: sp.Expr, expected: str) -> None:
    with pytest.raises(BuildError, match=rf"rule mine, stage approximate: no enclosure over \(-oo, -20\].*{expected}"):
        enclose_tail(f, 20.0, -1, "mine")
