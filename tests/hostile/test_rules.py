"""Rules that nobody should write: each is refused with its cause, or compiles to code that can be imported.

No name, text, parameter or function may raise a foreign error, or an internal one, and none may warn.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import signal
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
from hostile.refusals import FAST, refusing_warnings
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Abs, Eq, Expr, Float, Heaviside, Integer, Max, Min, Piecewise, Rational, cos, exp, log, oo, sign, sin

from momentgen.compiler.derive import derive
from momentgen.compiler.emit import Header
from momentgen.compiler.emit.module import render_module
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.pipeline import compile_rule
from momentgen.compiler.reduction import compile_reduction
from momentgen.compiler.strategies import ways
from momentgen.errors import BuildError, MomentgenError, RuleError
from momentgen.rule import (
    Accuracy,
    Formula,
    Noise,
    Parameter,
    Phi,
    Reduction,
    Rule,
    S,
    Score,
    mu,
    phi,
    v,
    x,
)
from momentgen.rule.checks import MOST_PARAMETERS
from momentgen.rule.files import load_rule_sources
from momentgen.rule.symbols import mu1

ROOT = Path(__file__).parents[2]
WIDE = settings(FAST, max_examples=2000)

# ---------------------------------------------------------------- names

NAMES = ["größe", "x²", "", " ", "a b", "a-b", "1st", "_", "__init__", "lambda", "None", "a\0b", "a\n", "\ud800", "ﬁ"]
NAMES += [
    "con",
    "NUL",
    "com1",
    "manifest",
    "n" * 65,
    "n" * 10_000,
    'a"b',
    "a'",
    "a\\",
    "*/",
    "../a",
    "a/b",
    "a.py",
    "日本",
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_files_or_c_cannot_have_is_refused(name: str) -> None:
    for make in (
        lambda: Rule(name, f=x),
        lambda: Rule("r", f=x, variants={name: Formula(mu, v)}),
        lambda: Rule("r", f=x * Parameter(name, default=1).symbol, parameters=(Parameter(name, default=1),)),
        lambda: Rule("r", f=x * Noise(name, Integer(0), Integer(1)).symbol, noise=Noise(name, Integer(0), Integer(1))),
        lambda: Reduction(name, {"a": Score(mu1)}),
        lambda: Reduction("r", {name: Score(mu1)}),
    ):
        with pytest.raises(RuleError, match="a rule's name must"):
            make()


@pytest.mark.parametrize("name", ["abs", "print", "float", "Op", "Parameter", "torch", "int", "match", "n" * 64, "A"])
def test_other_names_make_modules_that_can_be_imported(name: str) -> None:
    assert imported(Rule(name, f=x)).kwargs["name"] == name


def test_names_that_differ_by_case_alone_are_refused_since_their_files_may_be_one(tmp_path: Path) -> None:
    variants = {"Pea": Formula(mu, v), "pea": Formula(mu, v)}
    with pytest.raises(RuleError, match="'Pea' and 'pea' differ by case only"):
        Rule("r", f=x, variants=variants)
    with pytest.raises(RuleError, match="'exact' and 'Exact' differ by case only"):
        Rule("r", f=x, variants={"Exact": Formula(mu, v)})
    (tmp_path / "relu.py").touch()
    (tmp_path / "Relu.py").touch()
    if len(list(tmp_path.iterdir())) == 1:
        pytest.skip("a file system where case does not count")
    with pytest.raises(RuleError, match="'Relu' and 'relu' differ by case only"):
        load_rule_sources(tmp_path)


def parameter_names() -> Iterator[str]:
    """What generated functions with parameters call things by, the parameters left out; keywords; builtins; C."""
    for rule in ("leaky_relu", "bernoulli_noise", "softplus"):
        tree = ast.parse((ROOT / "generated" / rule / "exact_torch.py").read_text(encoding="utf-8"))
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.args.kwonlyargs]
        assert functions
        for function in functions:
            own = {arg.arg for arg in function.args.kwonlyargs}
            yield from (node.id for node in ast.walk(function) if isinstance(node, ast.Name) and node.id not in own)
            yield from (arg.arg for arg in function.args.args)
    yield from keyword.kwlist
    yield from (name for name in dir(builtins) if not name.startswith("_"))
    yield from (
        "double",
        "restrict",
        "int",
        "exp",
        "sqrt",
        "fmaf",
        "p_hi",
        "p_lo",
        "t0",
        "c17",
        "self",
        "variant",
        "mean",
        "mu",
    )
    yield from ("x", "a", "m", "Phi", "params", "n", "i", "out_mean", "grad_var", "mean_ptr", "BLOCK", "FMA", "arb")


def test_a_parameter_cannot_have_a_name_that_generated_code_or_formulas_use() -> None:
    for name in sorted(set(parameter_names()) - {"fmaf"}):
        with pytest.raises(RuleError):
            Rule("r", f=x, parameters=(Parameter(name, default=1.0),))


@given(name=st.text(max_size=8) | st.text("aZ_09é", max_size=5) | st.none() | st.integers())
@FAST
def test_any_name_is_ascii_or_refused(name: Any) -> None:
    parameter = Parameter("k" if name is None else name, default=1.0)
    for make in (lambda: Rule(name, f=x), lambda: Rule("r", f=x, parameters=(parameter,))):
        try:
            rule = make()
        except RuleError:
            continue
        assert rule.name.isidentifier()
        assert rule.name.isascii()
        imported(rule)


# ---------------------------------------------------------------- texts

TEXTS = [
    '"""',
    '""""',
    '\\"""',
    "\\",
    'ends with "',
    "'''",
    "*/ int x;",
    "// \\",
    "??/",
    "{}",
    "{call}",
    "%s",
    "\\N{x}",
    "\\x",
]
TEXTS += [
    "two\nlines",
    "a\ttab",
    "\u2028\u2029\xa0",
    "#!",
    "-*- coding: utf-16 -*-",
    "x" * 4000,
    "日本 Größe 🙂",
    "<b>&amp;",
]
REFUSED_TEXTS = ["\0", "a\x07", "\x1b[31m", "\r", "\ud800", "\u202e", "x" * 4001, 3, None, b"bytes"]


class _Module:
    """Stands in for ``momentgen.runtime`` while a generated ``__init__.py`` runs: keeps what it is called with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs


def executed(source: str) -> dict[str, Any]:
    """The names of a generated ``__init__.py``, run as from its file."""
    stand_in = types.ModuleType("momentgen.runtime")
    stand_in.__dict__.update(Op=_Module, Parameter=_Module, Reduction=_Module)
    before = sys.modules.get("momentgen.runtime")
    sys.modules["momentgen.runtime"] = stand_in
    try:
        names: dict[str, Any] = {"__name__": "generated.r"}
        exec(compile(source.encode(), "__init__.py", "exec"), names)
        return names
    finally:
        sys.modules.pop("momentgen.runtime")
        if before is not None:
            sys.modules["momentgen.runtime"] = before


def imported(rule: Rule) -> Any:
    """The op of a rule's generated module."""
    return executed(render_module(rule, ("exact",), header_digest="0"))[rule.name]


def check_text(text: str) -> None:
    parameter = Parameter("k", default=1.0, doc=text)
    rule = Rule("r", f=x * parameter.symbol, parameters=(parameter,), doc=text, citation=text)
    names = executed(render_module(rule, ("exact",), header_digest="0"))
    if text:
        assert names["__doc__"] == names["r"].kwargs["doc"] == text
    assert names["r"].kwargs["parameters"][0].kwargs["doc"] == text
    header = Header("r", "exact", (text, f"worst at {text}"))
    assert ast.parse(header.python().encode()).body == []
    lines = header.c().encode().split(b"\n")
    assert all(line.startswith(b"//") and not line.rstrip().endswith((b"\\", b"??/")) for line in lines)
    reduction = Reduction("r", {"a": Score(mu1, citation=text)}, doc=text, citation=text)
    files = compile_reduction(reduction).files
    if text:
        assert executed(files["__init__.py"])["__doc__"] == text
    ast.parse(files["a_torch.py"].encode())


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text[:20]))
def test_a_text_arrives_in_generated_code_as_it_was_written(text: str) -> None:
    check_text(text)


@pytest.mark.parametrize("text", REFUSED_TEXTS, ids=lambda text: ascii(text)[:20])
def test_a_text_that_source_code_cannot_hold_is_refused(text: Any) -> None:
    for make in (
        lambda: Rule("r", f=x, doc=text),
        lambda: Rule("r", f=x, citation=text),
        lambda: Rule("r", f=x, parameters=(Parameter("k", default=1.0, doc=text),)),
        lambda: Rule("r", f=x, variants={"new": Formula(mu, v, citation=text)}),
        lambda: Reduction("r", {"a": Score(mu1, citation=text)}),
        lambda: Reduction("r", {"a": Score(mu1)}, doc=text),
    ):
        with pytest.raises(RuleError, match=r"doc|citation"):
            make()


@given(text=st.text(st.characters(codec=None), max_size=40) | st.text("\"'\\\n\t*/?#{}%xN", max_size=12))
@FAST
def test_any_text_arrives_or_is_refused(text: str) -> None:
    try:
        Rule("r", f=x, doc=text)
    except RuleError:
        return
    check_text(text)


@pytest.mark.slow
def test_a_rule_of_hostile_texts_builds_and_its_files_can_be_read() -> None:
    text = 'a """ \\ */ ??/ {x} \n " \\'
    files = compile_rule(Rule("r", f=x, doc=text, citation=text)).files
    for name, source in files.items():
        if name.endswith(".py"):
            compile(source.encode(), name, "exec")
    assert executed(files["__init__.py"])["r"].kwargs["doc"] == text


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
        (sympy.floor(x), "does not know the function floor"),
        (Piecewise((x, x > 0)), "no branch holds"),
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
    oo,
    -oo,
    sympy.nan,
    sympy.zoo,
    sympy.I,
    Integer(10) ** 50,
    Rational(1, 10**50),
    Float("1e300"),
    Integer(10) ** 9,
]
ONE: list[Callable[..., Any]] = [
    exp,
    sin,
    cos,
    sympy.tanh,
    sympy.atan,
    log,
    sympy.sqrt,
    Abs,
    sign,
    Heaviside,
    Phi,
    phi,
    S,
]
ONE += [
    lambda z: Heaviside(z, 0),
    lambda z: z**2,
    lambda z: z**3,
    lambda z: 1 / z,
    lambda z: -z,
    sympy.erf,
    lambda z: z**60 if z.has(x) else z,
]
TWO: list[Callable[..., Any]] = [
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: a**b if a.has(x) or b.has(x) else a,
    Max,
    Min,
    lambda a, b: a - b,
]
TWO += [
    lambda a, b: Piecewise((a, x > 0), (b, True)),
    lambda a, b: Piecewise((a, x > b), (x, True)),
    lambda a, b: a / b,
]


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
@settings(WIDE, max_examples=400)
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
FIELDS = ["name", "f", "parameters", "inputs", "covariance", "noise", "bernoulli", "input", "mean", "var", "partials"]
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
