"""Texts, functions and parameters that nobody should write: each is refused with its cause, or means what it says."""

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
from hostile.strategies import FAST
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Abs, Expr, Float, Heaviside, Integer, Max, Min, Piecewise, Rational, cos, exp, log, oo, sign, sin

from momentgen.commands.expression_text import parse
from momentgen.compiler.derive import derive
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.pipeline import compile_rule
from momentgen.compiler.strategies import ways
from momentgen.errors import MomentgenError, RuleError
from momentgen.rule import Accuracy, Parameter, Phi, Rule, S, phi, x

# Texts that are no expressions in x are refused, and none is run; an expression means what it says.
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
    with warnings.catch_warnings(action="error"), pytest.raises(RuleError, match="expected an expression in x"):
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
    with suppress(RuleError):
        assert isinstance(parse(text), Expr)


# Functions and parameters of rules that nobody should write: each is refused with its cause, or can be compiled.
# ---------------------------------------------------------------- functions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "at_zero"),
    [(Heaviside(x, 0), 0.0), (sign(x), 0.0), (Heaviside(x), 0.5), (Piecewise((1, x > 0), (0, True)), 0.0)],
    ids=str,
)
def test_a_step_builds_with_its_own_value_at_the_jump(f: Expr, at_zero: float) -> None:
    accuracy = Accuracy(ulp={"exact": 8.0})
    with warnings.catch_warnings(action="error"):
        forward, _ = compile_rule(Rule("r", f=f, accuracy=accuracy)).programs["exact"]
    zero = np.zeros(1, np.float32)
    found = evaluate(forward, {"mean": zero, "var": zero})
    assert float(found["mean"][0]) == at_zero
    assert float(found["var"][0]) == 0


LEAVES = [x, x, x, Integer(0), Integer(1), Integer(-2), Rational(1, 3), sympy.pi, Float("0.1"), sympy.sqrt(2)]
HOSTILE = [
    oo, -oo, sympy.nan, sympy.zoo, sympy.I, Integer(10) ** 50, Rational(1, 10**50), Float("1e300"), Integer(10**9),
]  # fmt: skip
ONE: list[Callable[..., Any]] = [
    exp, sin, cos, sympy.tanh, sympy.atan, log, sympy.sqrt, Abs, sign, Heaviside, Phi, phi, S,
    lambda z: Heaviside(z, 0), lambda z: z**2, lambda z: z**3, lambda z: 1 / z, lambda z: -z, sympy.erf,
    lambda z: z**60 if z.has(x) else z,
]  # fmt: skip
TWO: list[Callable[..., Any]] = [
    lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b, lambda a, b: a / b, Max, Min,
    lambda a, b: a**b if a.has(x) or b.has(x) else a, lambda a, b: Piecewise((a, x > 0), (b, True)),
    lambda a, b: Piecewise((a, x > b), (x, True)),
]  # fmt: skip


def functions(leaves: list[Expr], depth: int) -> st.SearchStrategy[Any]:
    """Expressions of x as sympy makes them; None where it makes none."""

    def made(function: Callable[..., Any], *args: Any) -> Any:
        try:
            # sympy computes as many digits of a number as it has: exp(exp(10**9)) never ends
            if all(arg.is_number for arg in args) and any(bool(abs(arg) > 1000) for arg in args):
                return args[0]
            return function(*args)
        except Exception:  # sympy's own refusals are the user's
            return None

    found: st.SearchStrategy[Any] = st.sampled_from(leaves)
    for _ in range(depth):
        below = found
        one = st.builds(made, st.sampled_from(ONE), below)
        two = st.builds(made, st.sampled_from(TWO), below, below)
        found = below | one | two
    return found


@given(f=functions(LEAVES + HOSTILE, 3))
@settings(FAST, max_examples=300)
def test_any_function_makes_a_rule_or_is_refused(f: Any) -> None:
    with warnings.catch_warnings(action="error"), suppress(RuleError):
        Rule("r", f=f)


class _TooLongError(BaseException):
    """Not caught by anything below."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Ends what takes longer, which is for ``--timeout`` to say."""

    def ring(signum: int, frame: object) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.2)  # again, should a finaliser have swallowed it
    try:
        yield
    except _TooLongError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def derived_and_stabilised(f: Any, seconds: float) -> None:
    try:
        rule = Rule("r", f=f)
    except RuleError:
        return
    cause = ""
    try:
        with within(seconds), warnings.catch_warnings(action="error"):
            next(ways(derive(rule)))
    except MomentgenError as error:
        cause = str(error)
    assert "a defect of" not in cause


@given(f=functions(LEAVES, 1))
@settings(FAST, max_examples=15)
def test_a_small_function_is_derived_and_stabilised_or_refused(f: Any) -> None:
    derived_and_stabilised(f, 0.3)


@pytest.mark.slow
@given(f=functions(LEAVES + HOSTILE, 3))
@settings(FAST, max_examples=400)
def test_any_function_is_derived_and_stabilised_or_refused(f: Any) -> None:
    derived_and_stabilised(f, 10.0)


# ---------------------------------------------------------------- parameters and the rest


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(x) | st.just(oo)
ANYTHING |= st.just(sympy.nan) | st.just(sympy.I) | st.just(()) | st.just({}) | st.just((1,)) | st.binary(max_size=2)
FIELDS = ["name", "f", "parameters", "inputs", "covariance", "noise", "bernoulli", "mean", "var", "partials"]
FIELDS += ["conditional_var", "variants", "rescaled", "accuracy", "citation", "doc"]


@given(field=st.sampled_from(FIELDS), value=ANYTHING)
@settings(FAST, max_examples=200)
def test_anything_in_the_place_of_anything_is_refused_or_right(field: str, value: Any) -> None:
    with suppress(RuleError):
        Rule(**{"name": "r", "f": x, field: value})


@given(field=st.sampled_from(["default", "low", "high", "doc", "name"]), value=ANYTHING)
@FAST
def test_anything_in_a_parameter_is_refused_or_right(field: str, value: Any) -> None:
    parameter = Parameter(**{"name": "k", "default": 1.0, field: value})
    with suppress(RuleError):
        Rule("r", f=x, parameters=(parameter,))


@given(field=st.sampled_from(["ulp", "mean_abs", "var_abs", "moments"]), value=ANYTHING)
@FAST
def test_anything_in_an_accuracy_is_refused_or_right(field: str, value: Any) -> None:
    for given_ in (Accuracy(**{field: value}), Accuracy(ulp={"exact": value})):
        with suppress(RuleError):
            Rule("r", f=x, accuracy=given_)
