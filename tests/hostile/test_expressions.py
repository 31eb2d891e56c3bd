"""Texts that are no expressions in x are refused, and none is run; an expression means what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import sympy
from hostile.refusals import FAST, refusing_warnings
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Expr, Heaviside, Max, Piecewise, exp

from momentgen.commands.expression_text import parse
from momentgen.errors import RuleError
from momentgen.rule import Phi, S, x

HOSTILE_TEXTS = [
    "__import__('os').system('touch {}')", "open('{}', 'w')", "exec(\"open('{}', 'w')\")",
    "().__class__.__mro__[1].__subclasses__()", "x.__class__", "x.subs", "(lambda: x)()", "[x for x in (1,)]",
    "9**9**9", "9**9**9**9", "2**-9999999", "(9**300)**(9**300)", "1e999*x", "1j*x", "9" * 1000, "x:=1",
    "(" * 500 + "x" + ")" * 500, "-" * 1900 + "x", "x+" * 900 + "x", "x" * 3000, "sin(" * 60 + "x" + ")" * 60, "", " ",
    "\0", "x\0", "x;x", "x\nx", "import os", "'x'", "b'x'", "f'{{x}}'", "...", "x[0]", "{{x}}", "*x", "Max(*[x])",
    "exp(x=1)", "Max", "Phi(x)(x)", "(x>0)*x", "x and x", "x % 2", "x // 2", "x @ x", "~x", "y", "f(x)", "Piecewise()",
    "Piecewise(x)", "Piecewise((x, 1))", "sqrt(x, 2, 3)", "Abs()", "Rational(x, 2)", "x if x else 1",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=lambda text: ascii(text[:30]))
def test_a_text_that_is_no_expression_is_refused_and_not_run(text: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with refusing_warnings(), pytest.raises(RuleError, match="expected an expression in x"):
        parse(text.format(trace))
    assert not trace.exists()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("x*Phi(x)", x * Phi(x)),
        ("0.1*x", x / 10),
        ("x^2 - -x", x**2 + x),
        ("max(x, 0) + relu(x)", 2 * Max(x, 0)),
        ("0 if x < 0 else x", Piecewise((0, x < 0), (x, True))),
        ("Piecewise((x, And(x > -1, x < 1)), (0, True))", Piecewise((x, sympy.And(x > -1, x < 1)), (0, True))),
        ("Piecewise((x, -1 < x < 1), (0, True))", Piecewise((x, sympy.And(x > -1, x < 1)), (0, True))),
        ("Heaviside(x, 0)*sigmoid(x)", Heaviside(x, 0) * S(x)),
        ("sqrt(2)*exp(-x**2/2)", sympy.sqrt(2) * exp(-(x**2) / 2)),
    ],
)
def test_an_expression_means_what_it_says(text: str, meant: Expr) -> None:
    assert parse(text) == meant


@given(text=st.text(max_size=30) | st.text("x()+-*/^.,0123456789eE[]{}'\"_:=<> \n\\andorif", max_size=30))
@settings(FAST, max_examples=300)
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        assert isinstance(parse(text), Expr)
    except RuleError:
        return
