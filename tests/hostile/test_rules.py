"""Functions and parameters of rules that nobody should write: each is refused with its cause, or can be compiled.

None may raise a foreign error, or an internal one, and none may warn.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import sympy
from hostile.refusals import FAST, refusing_warnings
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Abs, Eq, Expr, Float, Heaviside, Integer, Max, Min, Piecewise, Rational, cos, exp, log, oo, sign, sin

from momentgen.compiler.derive import derive
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.pipeline import compile_rule
from momentgen.compiler.strategies import ways
from momentgen.errors import BuildError, MomentgenError, RuleError
from momentgen.rule import Accuracy, Parameter, Phi, Rule, S, phi, x
from momentgen.rule.checks import MOST_PARAMETERS

# ---------------------------------------------------------------- functions

#: function -> what the refusal must say
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "constant": (lambda: Integer(3), "f must depend on x"),
    "0*x": (lambda: 0 * x, "f must depend on x"),
    "I*x": (lambda: sympy.I * x, "f must be real and written without I"),
    "exp(I*x)": (lambda: exp(sympy.I * x), "f must be real and written without I"),
    "oo*Max(x, 0)": (lambda: oo * Max(x, 0), "f must be finite, but has oo"),
    "x*10**50": (lambda: x * 10**50, r"f has the number 1\.0e\+50; in float32"),
    "x*10**-50": (lambda: x / Integer(10) ** 50, r"f has the number 1\.0e-50; in float32"),
    "x**60": (lambda: x**60, "f has a power of 60; the highest that can be compiled is 16"),
    "x**10**9": (lambda: x ** (10**9), "f has a power of 1000000000"),
    "nested powers": (lambda: ((x + 1) ** 6 + 1) ** 6, "f has a power of 36"),
    "a million digits": (lambda: x * 10 ** (10**5), "f has a number of more than 4096 bits"),
    "a thousand digits": (lambda: exp(x * Integer(10) ** 1000), r"f has the number 1\.0e\+1000; in"),
    "a small float": (lambda: x * Float("1e-300"), r"f has the number 1\.0e-300; in"),
    "zoo": (lambda: x * sympy.zoo, "f is undefined"),
    "nan": (lambda: x + sympy.nan, "f is undefined"),
    "a root of -1": (lambda: x * Integer(-1) ** Rational(1, 3), "f must be real, but has"),
    "acos(2)": (lambda: x * sympy.acos(2), "f must be real, but has"),
    "sin(oo)": (lambda: x * sin(oo), "f has a AccumulationBounds"),
    "derivative": (lambda: sympy.Derivative(Abs(x), x), "f has a Derivative"),
    "integral": (lambda: sympy.Integral(x, (x, 0, 1)), "f has a Integral"),
    "matrix": (lambda: sympy.MatrixSymbol("A", 1, 1), "f has a MatrixSymbol"),
    "comparison": (lambda: x > 0, "f must be a sympy expression"),
    "text": (lambda: "x", "f must be a sympy expression"),
    "number": (lambda: 3.0, "f must be a sympy expression"),
    "unknown function": (lambda: sympy.Function("g")(x), "unknown function g"),
    "many terms": (lambda: sympy.Add(*[sin(x)] * 3000, evaluate=False), "f has more than 5000 operations"),
    "many branches": (lambda: doubled(x, 60), "f has more than 5000|nested more than 100"),
    "deep": (lambda: nested(x, 120), "f is nested more than 100 operations deep"),
}


def nested(f: Expr, times: int) -> Expr:
    for _ in range(times):
        f = sin(f, evaluate=False)
    return f


def doubled(f: Expr, times: int) -> Expr:
    for _ in range(times):
        f = sympy.Mul(sin(f, evaluate=False), cos(f, evaluate=False), evaluate=False)
    return f


@pytest.mark.parametrize("what", REFUSED)
def test_a_function_that_is_none_is_refused_when_the_rule_is_made(what: str) -> None:
    make, cause = REFUSED[what]
    with pytest.raises(RuleError, match=cause):
        Rule("r", f=make())


@pytest.mark.parametrize(
    ("f", "cause"),
    [
        (sin(x) ** 2 + cos(x) ** 2, "f is constant"),
        (sign(x) ** 2, "f is constant"),
        (Piecewise((x, Eq(x, 0)), (1, True)), "f is constant"),
        (sympy.tanh(x) ** 2 + 1 / sympy.cosh(x) ** 2, "f is constant"),
        (Abs(x) / x, "f has no value at x = 0"),
        (sympy.sqrt(x), "expected f to be real"),
        (log(x), "expected f to be real"),
        (1 / x, "f has a pole at x = 0"),
        (exp(x**2), "the moment diverges"),
        (sympy.floor(x), "it has infinitely many jumps; write finitely many"),
        (sympy.Mod(x, 1), "it has infinitely many jumps"),
        (sympy.Add(*(Heaviside(x - k) for k in range(500))), "expected at most 100 breakpoints, got more"),
        (Piecewise((x, x < 0), (x**2, x > 1)), "no branch holds for 0 < x < 1; give f a value there"),
        (Piecewise((x, x > 0)), "no branch holds for x < 0"),
        (Max(sin(x), 0), "infinitely many breakpoints"),
    ],
    ids=str,
)
def test_a_function_without_moments_to_compile_is_refused_in_derive_or_stabilise(f: Expr, cause: str) -> None:
    with refusing_warnings(), pytest.raises(BuildError, match=cause):
        next(ways(derive(Rule("r", f=f))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "at_zero"),
    [(Heaviside(x, 0), 0.0), (sign(x), 0.0), (Heaviside(x), 0.5), (Piecewise((1, x > 0), (0, True)), 0.0)],
    ids=str,
)
def test_a_step_builds_with_its_own_value_at_the_jump(f: Expr, at_zero: float) -> None:
    accuracy = Accuracy(ulp={"exact": 8.0})
    with refusing_warnings():
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
    with refusing_warnings(), suppress(RuleError):
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
        with within(seconds), refusing_warnings():
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


def test_more_parameters_than_can_be_certified_are_refused_with_the_limit() -> None:
    parameters = tuple(Parameter(f"k{i}", default=1.0, low=0.0, high=1.0) for i in range(300))
    f = sympy.Add(*(p.symbol for p in parameters)) * x
    with pytest.raises(RuleError, match=f"expected at most {MOST_PARAMETERS} parameters, got 300"):
        Rule("r", f=f, parameters=parameters)


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(x) | st.just(oo)
ANYTHING |= st.just(sympy.nan) | st.just(sympy.I) | st.just(()) | st.just({}) | st.just((1,)) | st.binary(max_size=2)
FIELDS = ["name", "f", "parameters", "inputs", "covariance", "noise", "bernoulli", "mean", "var", "partials"]
FIELDS += ["conditional_var", "variants", "rescaled", "accuracy", "citation", "doc"]


@given(field=st.sampled_from(FIELDS), value=ANYTHING)
@settings(FAST, max_examples=200)
def test_anything_in_the_place_of_anything_is_refused_or_right(field: str, value: Any) -> None:
    try:
        Rule(**{"name": "r", "f": x, field: value})
    except RuleError:
        return


@given(field=st.sampled_from(["default", "low", "high", "doc", "name"]), value=ANYTHING)
@FAST
def test_anything_in_a_parameter_is_refused_or_right(field: str, value: Any) -> None:
    parameter = Parameter(**{"name": "k", "default": 1.0, field: value})
    try:
        Rule("r", f=x, parameters=(parameter,))
    except RuleError:
        return


@given(field=st.sampled_from(["ulp", "mean_abs", "var_abs", "moments"]), value=ANYTHING)
@FAST
def test_anything_in_an_accuracy_is_refused_or_right(field: str, value: Any) -> None:
    for given_ in (Accuracy(**{field: value}), Accuracy(ulp={"exact": value})):
        try:
            Rule("r", f=x, accuracy=given_)
        except RuleError:
            continue
