"""The graph of real operations: equal nodes are one, identities are exact, and both evaluations mean the same."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from momentgen.compiler.ir.graph import (
    Graph,
    Patch,
    Real,
    equal,
    exp_factor,
    exp_mantissa,
    horner,
    madd,
    select,
    sqrt,
    square_difference,
)
from momentgen.compiler.ir.surface import surface_of
from momentgen.compiler.ir.values import evaluate_float64, evaluate_mpmath, outputs_float64

NUMBERS = st.integers(-64, 64).map(lambda n: n / 8)


def graph() -> Graph:
    return Graph(inputs=("x", "y"), params=("p",))


def value(g: Graph, real: Real, **point: float) -> float:
    g.output("out", real)
    return float(evaluate_mpmath(g, {"x": 0.0, "y": 0.0, "p": 0.0, **point})["out"])


def test_equal_nodes_are_one_node_and_operands_of_sums_and_products_commute() -> None:
    g = graph()
    x, y = g.input("x"), g.input("y")
    assert (x + y) == (y + x)
    assert (x * y) == (y * x)
    assert madd(x, y, x) == madd(y, x, x)
    assert (x - y) != (y - x)
    assert g.const(0.1) == g.const(0.1)


def test_identities_leave_no_operation_behind() -> None:
    g = graph()
    x, zero, one = g.input("x"), g.const(0), g.const(1)
    assert (x + zero) == x == (x - zero)
    assert (x * one) == x
    assert (x * zero) == zero
    assert -(0 - x) == x
    assert (x * -1) == (-x) == (zero - x)
    assert madd(x, one, zero) == x
    assert select(x < zero, x, x) == x
    assert (x + -x) == (x - x)


@given(a=NUMBERS, b=NUMBERS, c=NUMBERS, x=NUMBERS, y=NUMBERS)
def test_constructors_mean_what_they_say_whatever_is_simplified(
    a: float, b: float, c: float, x: float, y: float
) -> None:
    g = graph()
    leaves = {"a": a, "b": b, "c": c}
    ia, ib, ic = (g.const(leaf) for leaf in leaves.values())
    ix, iy = g.input("x"), g.input("y")
    cases = {
        madd(ia, ix, iy): a * x + y,
        madd(ia, ib, ic): a * b + c,
        -ix + ia: a - x,
        ia * ix - -iy: a * x + y,
        ix - ib * iy: x - b * y,
        horner(ix, [a, b, c]): a + b * x + c * x * x,
        square_difference(ix, iy, ia, ib): x * x - (a + b) * y,
        select((ix < iy) & ~equal(ix, ia), ix, iy): x if x < y and x != a else y,
        select((ix <= ia) | (iy < ix), ia, ib): a if x <= a or y < x else b,
    }
    for real, want in cases.items():
        assert value(g, real, x=x, y=y) == want


def test_constants_keep_sixty_digits() -> None:
    with mpmath.workdps(60):
        third = mpmath.mpf(1) / 3
    g = graph()
    with mpmath.workdps(60):
        assert g.const(third).constant == third
        assert (g.const(third) * g.const(3)).constant == 1


def test_only_what_an_output_needs_is_live_and_in_order() -> None:
    g = graph()
    x, y = g.input("x"), g.input("y")
    sqrt(y)
    used = 1 / x
    g.output("out", used)
    assert g.live() == [x.index, used.index]


def test_float64_values_are_those_of_the_meaning_over_arrays() -> None:
    g = graph()
    x, y, p = g.input("x"), g.input("y"), g.param("p")
    e = exp_mantissa(-x) * exp_factor(-x, 0, 2)
    total = 1 / sqrt(y) * abs(x - p) + e
    g.output("out", select(x < y, total, -total))
    rng = np.random.default_rng(0)
    xs, ys = rng.normal(0, 2, 50), rng.uniform(0.1, 4, 50)
    values = evaluate_float64(g, {"x": xs, "y": ys, "p": 0.3})[g.outputs["out"]]
    for got, a, b in zip(values, xs, ys, strict=True):
        assert got == pytest.approx(float(evaluate_mpmath(g, {"x": a, "y": b, "p": 0.3})["out"]), rel=1e-14)


def test_outputs_of_cells_are_those_of_all_patches_to_the_bit() -> None:
    g = graph()
    x, y = g.input("x"), g.input("y")
    patches = [Patch(((1.5, k, 0.25), (0.5 * k,)), (1.0 + k, 0.125), (2.0, -0.5)) for k in range(3)]
    cell = select(x < 0, 0, select(x < 1, 1, 2))
    for name, real in zip(("value", "by_y", "by_z"), surface_of(x, y, patches, True, cell), strict=True):
        g.output(name, real * g.param("p") + 1)
    draw = np.random.default_rng(0)
    at = {"x": draw.normal(0, 2, 40_000), "y": draw.normal(0, 2, 40_000), "p": 0.7}
    at["x"][7] = np.nan
    found, every = outputs_float64(g, at), evaluate_float64(g, at)
    for name, index in g.outputs.items():
        assert np.array_equal(found[name], every[index], equal_nan=True), name
    assert len(g.steps()) < len(g.live())


def test_a_polynomial_in_one_of_its_two_values_is_copied_with_what_finds_the_other() -> None:
    g, copy = Graph(("mean", "var")), Graph(("mean", "var"))
    value, _, _ = surface_of(g.input("mean"), g.input("var") + 1, [Patch(((1.0, 2.0),))], slopes=False)
    g.output("mean", value)
    new = copy.taken(g)[value.index]
    copy.output("mean", new)
    assert copy.nodes[copy.surfaces[new.index].z] == g.nodes[g.surfaces[value.index].z]
    at = {"mean": np.array([0.5]), "var": np.array([3.0])}
    assert outputs_float64(copy, at)["mean"] == outputs_float64(g, at)["mean"] == 2.0
