"""Sums over nodes: f of many kinds against adaptive quadrature in balls, in C, PyTorch and Triton."""

from __future__ import annotations

import functools
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import mpmath
import numpy as np
import pytest
import sympy as sp
import torch
from compiler.forms import by_quadrature, function, op_in
from other_processes import printed
from quadrature_truth import moments, partials
from sympy import Abs, Expr, Max, Piecewise, Rational, exp, log, sign, sin, sqrt

from momentgen.compiler.function.branches import Branches
from momentgen.compiler.function.expressions import Expressions
from momentgen.compiler.function.pieces import split
from momentgen.compiler.ir.graph import Graph, Loop
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.pipeline import compile_rule
from momentgen.compiler.strategies.quadrature.search import features
from momentgen.errors import BuildError
from momentgen.rule import Accuracy, Parameter, Phi, Rule, S, phi, x

RELATIVE = Accuracy(relative=True)
#: slow tails beside a kink, a root at one, a jump
FUNCTIONS = {
    "symmetric_log": sign(x) * log(1 + Abs(x)),
    "root_unit": sqrt(Max(x, 0)),
    "cliff": Piecewise((exp(-x), x > 0), (0, True)),
}
CALL = Max(exp(x) - 1, 0)
POINTS = [(0.0, 1.0), (2.0, 0.01), (-3.0, 4.0), (0.3, 1e-4), (40.0, 100.0)]


@pytest.fixture(scope="module")
def op_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[object, dict[str, object]]]:
    folder = tmp_path_factory.mktemp("quadrature")
    functions = FUNCTIONS | {"rate": x / (1 - exp(-x)), "call": CALL}

    @functools.cache
    def build(name: str) -> tuple[object, dict[str, object]]:
        compiled = compile_rule(Rule(name, f=functions[name], accuracy=RELATIVE))
        return op_in(folder, compiled, f"q_{name}"), json.loads(compiled.files["exact.json"])

    return build


@pytest.mark.parametrize("name", FUNCTIONS)
def test_outputs_and_partials_are_those_of_quadrature_relative_to_sigma(
    name: str, op_of: Callable[..., object]
) -> None:
    op, certificate = op_of(name)
    assert certificate["method"]["way"] == "quadrature"
    assert all(bound["tolerance"] <= 1 for bound in certificate["bounds"].values())
    truth = [(moments(FUNCTIONS[name], m, v, digits=15), partials(FUNCTIONS[name], m, v, digits=15)) for m, v in POINTS]
    for dtype, close in ((torch.float32, 1e-5), (torch.float64, 1e-7)):
        mean, var = (torch.tensor(column, dtype=dtype, requires_grad=True) for column in zip(*POINTS, strict=True))
        outputs = tuple(op(mean, var))
        slopes = [torch.autograd.grad(out.sum(), (mean, var), retain_graph=True) for out in outputs]
        for k, ((m, v), ((want, spread), of)) in enumerate(zip(POINTS, truth, strict=True)):
            s_y = float(mpmath.sqrt(spread))
            assert abs(outputs[0][k].item() - float(want)) <= close * (abs(float(want)) + s_y)
            assert outputs[1][k].item() == pytest.approx(float(spread), rel=2 * close)
            bounds = (s_y / v**0.5, s_y / v, None, None)
            for number, (partial, bound) in enumerate(zip(of.values(), bounds, strict=True)):
                got = float(slopes[number // 2][number % 2][k])
                limit = 10 * close * (bound or max(abs(float(partial)), s_y**2 / v))
                assert abs(got - float(partial)) <= limit, (list(of)[number], m, v)


def test_beyond_the_stated_domain_all_is_nan_and_at_no_variance_f_itself(op_of: Callable[..., object]) -> None:
    op, certificate = op_of("symmetric_log")
    assert certificate["domain"]["nan"] == "|mean| > 10000 or var > 1e+06"
    mean, var = torch.tensor([1.5e4, 0.0, 1.5, 0.0]), torch.tensor([1.0, 2e6, 0.0, 0.0])
    found = torch.stack(op(mean, var))
    assert found[:, :2].isnan().all()
    torch.testing.assert_close(found[:, 2], torch.tensor([np.log(2.5), 0.0], dtype=torch.float32))
    assert found[:, 3].tolist() == [0.0, 0.0]


def test_an_f_written_as_0_over_0_has_its_limit_there(op_of: Callable[..., object]) -> None:
    op, _ = op_of("rate")  # x/2 and an even function
    mean, var = torch.zeros(4, dtype=torch.float64, requires_grad=True), torch.tensor([0.0, 1e-12, 1.0, 100.0]).double()
    outputs = tuple(op(mean, var))
    (slope,) = torch.autograd.grad(outputs[0].sum(), mean)
    assert outputs[0][0].item() == pytest.approx(1, rel=1e-12)
    torch.testing.assert_close(slope, torch.full_like(slope, 0.5), rtol=1e-7, atol=1e-7)


def test_what_grows_like_exp_holds_up_to_where_its_moments_leave_float64(op_of: Callable[..., object]) -> None:
    op, certificate = op_of("call")
    assert certificate["domain"]["nan"] == "|mean| > 100 or var > 100"
    points = [(-99.0, 99.0), (-20.0, 90.0), (-1.0, 0.25), (0.125, 1e-4), (2.0, 4.0), (30.0, 99.0), (99.0, 2.0)]
    points.append((99.0, 99.0))
    want = [by_quadrature(CALL, float(np.float32(m)), float(np.float32(v))) for m, v in points]
    most = float(np.finfo(np.float32).max)
    for dtype, close, largest in ((torch.float64, 1e-8, np.inf), (torch.float32, 1e-4, most)):
        mean, var = (torch.tensor(c, dtype=torch.float32).to(dtype).requires_grad_() for c in zip(*points, strict=True))
        outputs = dict(zip(("mean", "var"), op(mean, var), strict=True))
        found = dict(outputs)
        for name, values in outputs.items():
            slopes = torch.autograd.grad(values.sum(), (mean, var), retain_graph=True)
            found |= dict(zip((f"d{name}_dmu", f"d{name}_dvar"), slopes, strict=True))
        for k, row in enumerate(want):
            s_y, s = float(mpmath.sqrt(row["var"])), points[k][1] ** 0.5
            size = {"mean": s_y, "dmean_dmu": s_y / s, "dmean_dvar": s_y / s**2}
            size |= {"var": s_y**2, "dvar_dmu": s_y**2 / s, "dvar_dvar": s_y**2 / s**2}
            for name, exact in row.items():
                got, expected = found[name][k].item(), min(float(exact), largest)
                assert abs(got - expected) <= close * (abs(float(exact)) + size[name]), (name, points[k])
    beyond = torch.stack(op(torch.tensor([101.0, 0.0]), torch.tensor([1.0, 101.0])))
    assert beyond.isnan().all()


def test_growth_is_where_a_side_leaves_float64_and_how_fast() -> None:
    assert Branches("f", split(Max(exp(3 * x), -exp(-x)) * x)).growth.rates == pytest.approx((0, 3), abs=0.05)
    tame = Branches("f", split(x**3 * Abs(x))).growth
    assert tame.rates == (0.0, 0.0)
    assert tame.ends == (-1e6, 1e6)


def test_a_rule_s_domain_limits_the_search() -> None:
    domain = {"var": 50.0, "mean": 20.0}
    compiled = compile_rule(Rule("cliff", f=FUNCTIONS["cliff"], accuracy=RELATIVE, domain=domain))
    assert json.loads(compiled.files["exact.json"])["domain"]["nan"] == "|mean| > 20 or var > 50"


def test_a_refusal_says_in_a_sentence_which_output_misses_where_and_what_to_try() -> None:
    steep = Piecewise((exp(200 * x), x < 5), (0, True))
    with pytest.raises(BuildError) as refused:
        compile_rule(Rule("steep", f=steep))
    said = str(refused.value)
    assert re.search(
        r"expected an error of at most 0.5 tolerance, got inf for var at mean = \S+, var = \S+; state a", said
    )
    assert "{" not in said
    assert "\n" not in said


def test_triton_in_its_interpreter_has_the_bits_of_c(op_of: Callable[..., object]) -> None:
    pytest.importorskip("triton")
    op_of("cliff")
    packages = Path(importlib.import_module("q_cliff").__file__ or "").parents[1]
    code = f"""
import sys
sys.path.insert(0, {str(packages)!r})
import torch
from q_cliff import cliff as op
torch.manual_seed(0)
m, v, g, h = torch.randn(9) * 3, torch.rand(9) * 4, torch.randn(9), torch.randn(9)
for which, tensors in (("forward", (m, v)), ("backward", (m, v, g, h))):
    for a, b in zip(op.kernel(which, backend="triton")(*tensors), op.kernel(which, backend="c")(*tensors)):
        assert torch.equal(a, b), (a, b)
print("all agree")
"""
    assert printed(code, TRITON_INTERPRET="1") == "all agree\n"


def test_parameters_called_as_generated_code_calls_its_own_give_the_same_bits(tmp_path: Path) -> None:
    found, methods = [], []
    for number, names in enumerate((("alpha", "beta"), ("v", "torch"))):
        given = [Parameter(name, default=1, low=0.5, high=2) for name in names]
        half, most = (p.symbol for p in given)
        f = most * Max(x, 0) / (half + Max(x, 0))
        compiled = compile_rule(Rule("named", f=f, parameters=tuple(given), accuracy=RELATIVE))
        methods.append(json.loads(compiled.files["exact.json"])["method"])
        op = op_in(tmp_path, compiled, f"named_{number}")
        mean, var = torch.tensor([-1.0, 0.25, 3.0]), torch.tensor([0.5, 1.0, 4.0])
        values = dict(zip(names, (0.75, 1.5), strict=True))
        results = [*op(mean, var, **values), *op(mean.double(), var.double(), **values)]
        reference = op.kernel("backward", backend="torch")
        results += reference(mean.double(), var.double(), mean.double(), var.double(), **values)
        found.append([values.tolist() for values in results])
    assert found[0] == found[1]
    assert methods[0]["way"] == "quadrature"
    assert {setting["alpha"] for setting in methods[0]["settings"]} >= {1.0, 0.5, 2.0}  # scale and kinks move


@pytest.mark.parametrize(
    "f",
    [log(1 + exp(x)), S(x) * log(S(x)), phi(x) / Phi(x), sin(3 * x), sp.atan(x), sp.tanh(50 * x), log(sp.cosh(x)),
     sp.asinh(exp(x) / 2), exp(1 / (1 + x**2)) - 1, (1 + x**2) ** Rational(-5, 7), sp.erfc(x), sp.asin(x / 2000)],
    ids=str,
)  # fmt: skip
def test_an_expression_has_its_digits_wherever_x_is(f: Expr) -> None:
    points = np.concatenate([-np.logspace(-6, 3, 40), np.logspace(-6, 3, 40)])
    graph = Graph(("x",))
    graph.output("f", Expressions(graph, {x: graph.input("x")}, "f").node(f))
    got = outputs_float64(graph, {"x": points})["f"]
    call = function(f, [x])
    with mpmath.workdps(40):
        want = np.array([float(call(mpmath.mpf(float(at)))) for at in points])
    size = np.abs(want).max(initial=0, where=np.abs(points) < 5)
    assert (np.abs(got - want) <= 4e-13 * np.abs(want) + 4e-16 * size * (1 + np.abs(points))).all()


def test_sums_over_rows_and_a_table_are_plain_sums() -> None:
    body = Graph(("a", "u", "w"))
    body.output("t", body.input("a") * body.input("u") * body.input("w"))
    graph = Graph(("x", "y"))
    loop = Loop(body, ("a",), ("u",), ("w",), ((1.0,), (2.0,), (4.0,)))
    one, two = graph.input("x"), graph.input("y")
    graph.output("s", graph.sums(loop, [one], [[two], [two * 10]])["t"])
    found = outputs_float64(graph, {"x": np.array([1.0, 3.0]), "y": np.array([2.0, 5.0])})["s"]
    assert found.tolist() == [7 * 11 * 2.0, 7 * 11 * 15.0]


def test_features_are_where_f_bends_and_grow_with_the_distance() -> None:
    f = Branches("f", split(1 / (1 + 100 * (x - 2) ** 2)))
    found, most = features([f.resolution], f.kinks, 4.0)
    assert most == np.inf
    assert any(abs(one.at - 2) < 0.2 and one.length < 0.2 for one in found)
