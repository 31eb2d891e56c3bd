"""Graphs of real operations: what they mean, and every way to lower them with some nodes as double-floats."""

from __future__ import annotations

import random

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
    half_square,
    horner,
    madd,
    over_one_plus,
    select,
    sqrt,
    square_difference,
    times_exp_mantissa,
)
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.surface import surface_of
from momentgen.compiler.ir.values import evaluate_float64, evaluate_mpmath, outputs_float64
from momentgen.compiler.lower.ablate import choose
from momentgen.compiler.lower.trials import Calibration, Trials
from momentgen.compiler.lower.words import lower
from momentgen.compiler.measure.ulp import ulp_error

# The graph of real operations: equal nodes are one, identities are exact, and both evaluations mean the same.
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
    g = graph()
    with mpmath.workdps(60):
        third = mpmath.mpf(1) / 3
        assert g.const(third).constant == third
        assert (g.const(third) * g.const(3)).constant == 1


def test_only_what_an_output_needs_is_live_and_in_order() -> None:
    g = graph()
    x, y = g.input("x"), g.input("y")
    sqrt(y)
    used = 1 / x
    g.output("out", used)
    assert g.live() == [x.index, used.index]


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


# Trials: however one is come to, it is what lowering from scratch gives.
def bell() -> Graph:
    """Outputs that share an exponential: every kind of node that has a way of its own to be carried."""
    g = Graph(inputs=("x", "y"), params=("p",))
    x, y, p = g.input("x"), g.input("y"), g.param("p")
    root = sqrt(madd(y, y, 1))
    t = (x - p) / root
    e = half_square(t)
    phi = times_exp_mantissa(1 / root, e) * (exp_factor(e, 0, 2) * exp_factor(e, 1, 2))
    series = horner(abs(t), [1, "0.3", "-0.07", "0.011"])
    left = x < p
    g.output("one", select(left, phi * series, 1 - phi * series))
    g.output("two", over_one_plus(t + -phi, t * t))
    g.output("three", root - y)
    return g


def test_float64_values_are_those_of_the_meaning() -> None:
    g, rng = bell(), np.random.default_rng(0)
    at = {"x": rng.normal(0, 2, 50), "y": rng.uniform(0, 3, 50), "p": np.full(50, 0.3)}
    values = evaluate_float64(g, at)
    for place in range(50):
        for name, exact in evaluate_mpmath(g, {key: float(array[place]) for key, array in at.items()}).items():
            assert values[g.outputs[name]][place] == pytest.approx(float(exact), rel=1e-13, abs=1e-14), name


def test_a_trial_is_the_program_lowered_from_scratch() -> None:
    graph, rng = bell(), random.Random(3)
    numbers = np.random.default_rng(0)
    inputs = {
        name: numbers.uniform(low, high, 1500).astype(np.float32) for name, low, high in (("x", -4, 4), ("y", 0, 3))
    }
    params = {"p_hi": 0.25, "p_lo": 1e-9}
    seen: dict[str, np.ndarray] = {}

    def errors(output: str, computed: np.ndarray) -> np.ndarray:
        seen[output] = computed.copy()
        return np.abs(computed.astype(np.float64))

    orders = {i: rng.choice([0, 0, 1]) for i in graph.live()}
    trials = Trials(graph, "f", orders, [Calibration(inputs, params, {}, errors)])
    live, double = graph.live(), frozenset[int]()
    for _ in range(60):
        toggled = rng.sample(live, rng.choice([1, 1, 2, 10]))
        double = frozenset(double.symmetric_difference(toggled))
        seen.clear()
        trial = trials.measure(double)
        program = lower(graph, "f", double, orders)
        want = evaluate(program, inputs, params)
        assert trial.operations == program.operations
        for name, values in want.items():
            assert trial.error[name] == float(np.abs(values.astype(np.float64)).max())
            if name in seen:
                assert np.array_equal(seen[name], values, equal_nan=True)
    assert trials.tried == 60


# Measured ablation: it finds the nodes that must be double-floats, and only those.
def cancelling() -> tuple[Graph, int, int]:
    """(1 + x)·y - y, whose sum must keep what rounding loses; and beside it a product that need not."""
    g = Graph(inputs=("x", "y"))
    x, y = g.input("x"), g.input("y")
    total = x + 1
    harmless = x * x * y
    g.output("difference", total * y - y)
    g.output("harmless", harmless)
    return g, total.index, harmless.index


def operations(graph: Graph, nodes: frozenset[int]) -> set[int]:
    """Without constants, which cost nothing."""
    return {index for index in nodes if graph.nodes[index].args}


def calibration(seed: int = 0) -> Calibration:
    rng = np.random.default_rng(seed)
    x = (np.exp2(rng.uniform(-14, -4, 500))).astype(np.float32)
    y = rng.uniform(1, 4, 500).astype(np.float32)
    wide = {"x": x.astype(np.float64), "y": y.astype(np.float64)}
    exact = {"difference": wide["x"] * wide["y"], "harmless": wide["x"] ** 2 * wide["y"]}
    return Calibration({"x": x, "y": y}, {}, {}, lambda output, computed: ulp_error(computed, exact[output]))


def test_cancellation_is_found_and_mended() -> None:
    graph, total, harmless = cancelling()
    choice = choose(graph, "f", [calibration()], goal=1.6)
    assert choice.all_single["difference"] > 1000
    assert max(choice.all_double.values()) <= 1.6
    assert max(choice.error.values()) <= 1.6
    assert total in choice.double
    assert harmless not in choice.double
    # What the error says is what the program does, at other points too.
    other = calibration(1)
    out = evaluate(lower(graph, "f", choice.double, choice.orders), other.inputs)
    assert other.errors("difference", out["difference"]).max() <= 2.0


def test_a_loose_goal_leaves_everything_single() -> None:
    graph, _, _ = cancelling()
    choice = choose(graph, "f", [calibration()], goal=1e9)
    assert not operations(graph, choice.double)
    assert choice.error == choice.all_single


def test_an_impossible_goal_gives_all_doubles_and_their_error() -> None:
    graph, total, harmless = cancelling()
    choice = choose(graph, "f", [calibration()], goal=0.01)
    assert {total, harmless} <= choice.double
    assert choice.error == choice.all_double
    assert max(choice.error.values()) > 0.01


def test_every_calibration_counts() -> None:
    graph, total, _ = cancelling()
    easy = calibration()
    large = {"x": np.float32([1.0, 2.0]), "y": np.float32([1.0, 2.0])}
    exact = {"difference": np.array([1.0, 4.0]), "harmless": np.array([1.0, 8.0])}
    harmless = Calibration(large, {}, {}, lambda output, got: ulp_error(got, exact[output]))
    assert not operations(graph, choose(graph, "f", [harmless], goal=1.6).double)
    assert total in choose(graph, "f", [harmless, easy], goal=1.6).double


def many_terms(count: int) -> tuple[Graph, set[int]]:
    """Σ (1 + c x)·y - y over many c, beside as many products that need no second word; the sums 1 + c x need one."""
    g = Graph(inputs=("x", "y"))
    x, y = g.input("x"), g.input("y")
    difference, harmless = g.const(0), y
    needed = set()
    for k in range(count):
        total = x * (1 + k / 64) + 1
        product = total * y
        needed |= {total.index, product.index}
        difference = difference + (product - y)
        harmless = abs(harmless * (1 + 2.0**-k)) * 1
    g.output("difference", difference)
    g.output("harmless", harmless)
    return g, needed


def test_a_graph_of_very_many_nodes_is_demoted_in_groups() -> None:
    count = 120
    graph, needed = many_terms(count)
    easy = calibration()
    wide = {name: values.astype(np.float64) for name, values in easy.inputs.items()}
    slopes = sum(1 + k / 64 for k in range(count))
    exact = {
        "difference": wide["x"] * wide["y"] * slopes,
        "harmless": wide["y"] * np.prod([1 + 2.0**-k for k in range(count)]),
    }
    points = Calibration(easy.inputs, {}, {}, lambda output, got: ulp_error(got, exact[output]))
    choice = choose(graph, "f", [points], goal=90.0)
    assert max(choice.error.values()) <= 90.0 < choice.all_single["difference"]
    assert choice.trials <= 150
    assert choice.double >= needed
    everything, chosen, nothing = (
        lower(graph, "f", double, choice.orders).operations for double in (range(len(graph.nodes)), choice.double, ())
    )
    assert nothing < chosen < 0.6 * everything
