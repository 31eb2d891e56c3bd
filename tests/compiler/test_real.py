"""The graph of real operations: equal nodes are one, identities are exact, and both evaluations mean the same."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from momentgen.compiler.ir.graph import Graph, evaluate_float64, evaluate_mpmath

NUMBERS = st.integers(-64, 64).map(lambda n: n / 8)


def graph() -> Graph:
    return Graph(inputs=("x", "y"), params=("p",))


def value(g: Graph, index: int, **point: float) -> float:
    g.output("out", index)
    return float(evaluate_mpmath(g, {"x": 0.0, "y": 0.0, "p": 0.0, **point})["out"])


def test_equal_nodes_are_one_node_and_operands_of_sums_and_products_commute() -> None:
    g = graph()
    x, y = g.input("x"), g.input("y")
    assert g.add(x, y) == g.add(y, x)
    assert g.mul(x, y) == g.mul(y, x)
    assert g.madd(x, y, x) == g.madd(y, x, x)
    assert g.sub(x, y) != g.sub(y, x)
    assert g.const(0.1) == g.const(0.1)


def test_identities_leave_no_operation_behind() -> None:
    g = graph()
    x, zero, one = g.input("x"), g.const(0), g.const(1)
    assert g.add(x, zero) == x == g.sub(x, zero)
    assert g.mul(x, one) == x
    assert g.mul(x, zero) == zero
    assert g.neg(g.neg(x)) == x
    assert g.mul(x, g.const(-1)) == g.neg(x) == g.sub(zero, x)
    assert g.madd(x, one, zero) == x
    assert g.select(g.lt(x, zero), x, x) == x
    assert g.add(x, g.neg(x)) == g.sub(x, x)


@given(a=NUMBERS, b=NUMBERS, c=NUMBERS, x=NUMBERS, y=NUMBERS)
def test_constructors_mean_what_they_say_whatever_is_simplified(
    a: float, b: float, c: float, x: float, y: float
) -> None:
    g = graph()
    leaves = {"a": a, "b": b, "c": c}
    ia, ib, ic = (g.const(leaf) for leaf in leaves.values())
    ix, iy = g.input("x"), g.input("y")
    cases = {
        g.madd(ia, ix, iy): a * x + y,
        g.madd(ia, ib, ic): a * b + c,
        g.add(g.neg(ix), ia): a - x,
        g.sub(g.mul(ia, ix), g.neg(iy)): a * x + y,
        g.sub(ix, g.mul(ib, iy)): x - b * y,
        g.horner(ix, [a, b, c]): a + b * x + c * x * x,
        g.square_difference(ix, iy, ia, ib): x * x - (a + b) * y,
        g.select(g.both(g.lt(ix, iy), g.invert(g.eq(ix, ia))), ix, iy): x if x < y and x != a else y,
        g.select(g.either(g.le(ix, ia), g.lt(iy, ix)), ia, ib): a if x <= a or y < x else b,
    }
    for index, want in cases.items():
        assert value(g, index, x=x, y=y) == want


def test_constants_keep_sixty_digits() -> None:
    with mpmath.workdps(60):
        third = mpmath.mpf(1) / 3
    g = graph()
    with mpmath.workdps(60):
        assert g.value(g.const(third)) == third
        assert g.value(g.mul(g.const(third), g.const(3))) == 1


def test_only_what_an_output_needs_is_live_and_in_order() -> None:
    g = graph()
    x, y = g.input("x"), g.input("y")
    g.sqrt(y)
    used = g.recip(x)
    g.output("out", used)
    assert g.live() == [x, used]


def test_float64_values_are_those_of_the_meaning_over_arrays() -> None:
    g = graph()
    x, y, p = g.input("x"), g.input("y"), g.param("p")
    e = g.mul(g.exp_mantissa(g.neg(x)), g.exp_factor(g.neg(x), 0, 2))
    total = g.add(g.mul(g.recip(g.sqrt(y)), g.abs(g.sub(x, p))), e)
    g.output("out", g.select(g.lt(x, y), total, g.neg(total)))
    rng = np.random.default_rng(0)
    xs, ys = rng.normal(0, 2, 50), rng.uniform(0.1, 4, 50)
    values = evaluate_float64(g, {"x": xs, "y": ys, "p": 0.3})[g.outputs["out"]]
    for got, a, b in zip(values, xs, ys, strict=True):
        assert got == pytest.approx(float(evaluate_mpmath(g, {"x": a, "y": b, "p": 0.3})["out"]), rel=1e-14)
