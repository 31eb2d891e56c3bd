"""Large float64 graphs by the machine in C: NumPy's values, whatever is asked of it."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from momentgen.compiler.ir import lanes
from momentgen.compiler.ir.graph import (
    Graph,
    equal,
    exp_factor,
    exp_mantissa,
    first_word,
    half_square,
    horner,
    madd,
    over_one_plus,
    second_word,
    select,
    shifted_product,
    sqrt,
    square_difference,
    times_exp_mantissa,
)
from momentgen.compiler.ir.lanes import LANES, outputs_over
from momentgen.compiler.ir.values import outputs_float64
from momentgen.native.c_compiler import find_compiler

F64 = npt.NDArray[np.float64]
compiled = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_FEW_NODES", 0)
    monkeypatch.setattr(lanes, "_FEW_POINTS", 0)


def random_graph(rng: random.Random, count: int) -> Graph:
    """All kinds of nodes over two inputs and a parameter; values stay of moderate size."""
    g = Graph(("x", "y"), ("p",))
    reals = [g.input("x"), g.input("y"), g.param("p"), g.const(rng.uniform(-2, 2)), g.const(0.5)]
    conditions = [reals[0] < reals[1], reals[2] <= reals[3]]

    def real() -> int:
        return rng.choice(reals[-12:] + reals[:5])

    def positive() -> int:
        a = real()
        return a * a + 0.25

    def bounded() -> int:
        return real() / positive()

    makers = [
        lambda: real() + real(),
        lambda: real() - real(),
        lambda: bounded() * real(),
        lambda: madd(bounded(), bounded(), real()),
        lambda: square_difference(bounded(), bounded(), bounded(), bounded()),
        lambda: 1 / positive(),
        lambda: real() / positive(),
        lambda: half_square(bounded()),
        lambda: first_word(real()),
        lambda: second_word(real()),
        lambda: shifted_product(bounded(), real(), real(), real()),
        lambda: over_one_plus(real(), positive()),
        lambda: sqrt(positive()),
        lambda: -real(),
        lambda: abs(real()),
        lambda: round(real()),
        lambda: exp_mantissa(half_square(bounded())),
        lambda: times_exp_mantissa(real(), half_square(bounded())),
        lambda: exp_factor(real(), 0, 2),
        lambda: select(rng.choice(conditions), real(), real()),
    ]
    choices = [
        lambda: real() < real(),
        lambda: real() <= real(),
        lambda: equal(real(), real()),
        lambda: rng.choice(conditions) & rng.choice(conditions),
        lambda: rng.choice(conditions) | rng.choice(conditions),
        lambda: ~rng.choice(conditions),
    ]
    for _ in range(count):
        reals.append(rng.choice(makers)())
        conditions.append(rng.choice(choices)())
    for place, index in enumerate(rng.choices(reals, k=4)):
        g.output(f"z{place}", index)
    g.output("constant", reals[4])
    return g


@compiled
@pytest.mark.usefixtures("_always")
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 3 * LANES))
def test_random_graphs_give_numpys_values(seed: int, points: int) -> None:
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    g = random_graph(rng, 60)
    at = {"x": draw.normal(0, 2, points), "y": draw.normal(0, 2, points), "p": 0.7}
    got, want = outputs_over(g, at), outputs_float64(g, at)
    for name, values in want.items():
        assert got[name].shape == (points,)
        # Of exponentials the last bit differs; where it decides a comparison or a rounding, so do few points.
        near = np.isclose(got[name], values, rtol=1e-11, atol=1e-11, equal_nan=True)
        assert near.mean() > 0.97, name


@compiled
@pytest.mark.usefixtures("_always")
def test_without_exponentials_bits_are_numpys() -> None:
    g = Graph(("x", "y"), ("p",))
    x, y, p = g.input("x"), g.input("y"), g.param("p")
    value = madd(x, y, p) / sqrt(x * x + 1)
    g.output("z", horner(value, [1, -0.3, 0.7, 1 / 3]) - 1 / p)
    draw = np.random.default_rng(1)
    at = {"x": draw.normal(0, 9, 1000), "y": draw.normal(0, 9, 1000), "p": 0.3}
    assert outputs_over(g, at)["z"].tobytes() == outputs_float64(g, at)["z"].tobytes()


@compiled
@pytest.mark.usefixtures("_always")
def test_what_is_no_number_or_not_finite_passes_as_in_numpy() -> None:
    g = Graph(("x",))
    x = g.input("x")
    g.output("exp", exp_mantissa(x))
    g.output("round", round(x))
    g.output("recip", 1 / x)
    at = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 709.5, 710.5, -800.0, 2.5, 2.0**51 + 1, 1e300])
    got, want = outputs_over(g, {"x": at}), outputs_float64(g, {"x": at})
    for name, values in want.items():
        assert np.allclose(got[name], values, rtol=1e-14, atol=0, equal_nan=True), name


@compiled
@pytest.mark.usefixtures("_always")
def test_subnormal_numbers_are_0_within_and_numbers_again_after() -> None:
    g = Graph(("x",))
    g.output("y", g.input("x") * 0.5)
    tiny = np.full(LANES + 1, 2.0**-1030)
    assert (outputs_over(g, {"x": tiny})["y"] == 0).all()
    assert (tiny * 0.5 == 2.0**-1031).all()


def test_without_a_compiler_it_is_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "find_compiler", lambda: None)
    g = random_graph(random.Random(3), 400)
    draw = np.random.default_rng(3)
    at = {"x": draw.normal(0, 2, 2000), "y": draw.normal(0, 2, 2000), "p": 0.7}
    got, want = outputs_over(g, at), outputs_float64(g, at)
    assert all(np.array_equal(got[name], values, equal_nan=True) for name, values in want.items())
