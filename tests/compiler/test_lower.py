"""Lowering: each operation on double-floats against exact rational arithmetic, and the roundings of constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from operator import add, mul, neg, sub
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from momentgen.compiler.ir.graph import (
    Graph,
    Real,
    exp_factor,
    exp_mantissa,
    first_word,
    madd,
    second_word,
    select,
    sqrt,
    square_difference,
)
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.program import Builder
from momentgen.compiler.lower.words import Lowering, lower
from momentgen.compiler.toolchain.float32 import round_float32, split_float32

F32 = np.float32
N = 2000

#: a double-float operand is hi + lo with |lo| <= ulp(hi)/2, made by an exact sum
Pairs = tuple[np.ndarray, np.ndarray]


def pairs(seed: int, *, positive: bool = False, low: float = -8, high: float = 8) -> Pairs:
    rng = np.random.default_rng(seed)
    sign = 1.0 if positive else rng.choice([-1.0, 1.0], N)
    hi = (sign * np.exp2(rng.uniform(low, high, N))).astype(F32)
    lo = (hi * rng.uniform(-1, 1, N) * 2.0**-25).astype(F32)
    return hi, lo


def as_fractions(p: Pairs) -> list[Fraction]:
    return [Fraction(float(h)) + Fraction(float(low)) for h, low in zip(*p, strict=True)]


def run(write: Callable[..., Real], operands: list[Pairs], *, wide: bool = True, order: int = 0) -> list[Fraction]:
    """hi + lo of the operation on double-float operands."""
    names = [f"{letter}{part}" for letter in "xyz"[: len(operands)] for part in ("h", "l")]
    g = Graph(inputs=names)
    sums = [g.input(names[2 * i]) + g.input(names[2 * i + 1]) for i in range(len(operands))]
    result = write(*sums)
    g.output("out", result)
    double = set(range(len(g.nodes))) if wide else {s.index for s in sums}
    # ``hi`` is the larger word of every operand, in whichever order the graph keeps the two.
    orders = {s.index: 1 if s.args[0].node.payload.endswith("h") else 2 for s in sums} | {result.index: order}
    lowering = Lowering(g, Builder("operation", g.inputs), double, orders)

    lowering.run()
    value, b = lowering.carried[result.index], lowering.b
    b.output("hi", value.hi)
    b.output("lo", b.f32(0.0) if value.lo is None else value.lo)
    program = b.build()
    inputs = dict(zip(names, (w for p in operands for w in p), strict=True))
    out = evaluate(program, inputs)
    return as_fractions((out["hi"], out["lo"]))


def root(value: Fraction) -> Fraction:
    with mpmath.workdps(40):
        number = mpmath.sqrt(mpmath.mpf(value.numerator) / value.denominator)
        return Fraction(int(mpmath.nint(mpmath.ldexp(number, 110))), 2**110)


def reciprocal(a: Any) -> Any:
    return 1 / a


def size(*terms: Fraction) -> Fraction:
    return sum(map(abs, terms), Fraction(0))


def nothing(*terms: Fraction) -> Fraction:
    return Fraction(0)


def nearly(p: Pairs) -> Pairs:
    return p[0], (p[1] * F32(0.5)).astype(F32)


#: what is written, the same of fractions, what its error is relative to, its operands, and how many bits are right
OPERATIONS: Mapping[str, tuple[Callable[..., Real], Callable[..., Fraction], Callable[..., Fraction], Any, float]] = {
    "product": (mul, mul, mul, [pairs(1), pairs(2)], 44),
    "product in single words": (mul, mul, mul, [pairs(1), pairs(2)], 22.4),
    "sum of any signs": (add, add, size, [pairs(3), pairs(4)], 45),
    "difference of any signs": (sub, sub, size, [pairs(3), pairs(4)], 45),
    "difference of near equals": (sub, sub, sub, [pairs(5), nearly(pairs(5))], 22.9),
    "multiply and add": (madd, lambda a, b, c: a * b + c, lambda a, b, c: size(a * b, c),
        [pairs(8), pairs(9), pairs(10)], 44),
    "reciprocal": (reciprocal, reciprocal, reciprocal, [pairs(11)], 44),
    "root": (sqrt, root, root, [pairs(12, positive=True, low=-40, high=40)], 44),
    "opposite": (neg, neg, nothing, [pairs(13)], 0),
    "magnitude": (abs, abs, nothing, [pairs(13)], 0),
    "choice": (lambda a, b: select(a < b, a, b), min, nothing, [pairs(13), pairs(14)], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_double_floats_is_right_to_its_bits(name: str) -> None:
    write, exact, scale, operands, bits = OPERATIONS[name]
    got = run(write, operands, wide="single" not in name)
    for result, *at in zip(got, *map(as_fractions, operands), strict=True):
        assert abs(result - exact(*at)) <= abs(scale(*at)) * Fraction(2.0**-bits)


def test_ordered_sum_is_that_of_any_order_where_the_order_holds() -> None:
    x, y = pairs(6, low=0, high=8), pairs(7, low=-8, high=-1)
    plain = run(add, [x, y])
    assert run(add, [x, y], order=1) == plain
    assert run(add, [y, x], order=2) == run(add, [y, x])


def test_exponential_with_and_without_the_second_word() -> None:
    x = pairs(15, positive=True, low=-10, high=7.4)
    x = -x[0], -x[1]
    for wide, bits in ((True, -26.6), (False, -22.3)):
        got = run(exp_mantissa, [x], wide=wide)
        errors = []
        with mpmath.workdps(40):
            for r, a in zip(got, as_fractions(x), strict=True):
                exact = mpmath.mpf(a.numerator) / a.denominator
                n = mpmath.nint(exact / mpmath.ln(2))
                want = [mpmath.exp(exact) * mpmath.mpf(2) ** -(n + k) for k in (-1, 0, 1)]
                value = mpmath.mpf(r.numerator) / r.denominator
                errors.append(float(min(abs(value / w - 1) for w in want)))
        assert math.log2(max(errors)) < bits, wide


@pytest.mark.parametrize(("count", "reach"), [(2, 174.0), (4, 185.0)])
def test_factors_of_the_exponential_multiply_to_one_power_of_two_and_are_normal(count: int, reach: float) -> None:
    g = Graph(inputs=("x",))
    x = g.input("x")
    for i in range(count):
        g.output(f"f{i}", exp_factor(x, i, count))
    g.output("m", exp_mantissa(x))
    values = (-np.linspace(0, reach, 4001)).astype(F32)
    out = evaluate(lower(g, "exp", set(), {}), {"x": values})
    total = out["m"].astype(np.float64)
    for i in range(count):
        mantissa, _ = np.frexp(out[f"f{i}"])
        assert (mantissa == 0.5).all()
        assert (out[f"f{i}"] >= 2.0**-126).all()
        total = total * out[f"f{i}"]
    np.testing.assert_allclose(total, np.exp(values.astype(np.float64)), rtol=2e-7)
    assert (out["m"] > 0.7).all()
    assert (out["m"] < 1.42).all()


def test_square_difference_is_right_to_its_last_places_where_it_nearly_cancels() -> None:
    rng = np.random.default_rng(16)
    with mpmath.workdps(60):
        square = mpmath.mpf("2.9846213457782346918273645")
        words = [*split_float32(square)]
        rest = square - sum(map(mpmath.mpf, words))
        g = Graph(inputs=("x", "w"), params=("square", "rest"))
        g.output("out", square_difference(g.input("x"), g.input("w"), g.param("square"), g.param("rest")))
        program = lower(g, "gap", set(range(len(g.nodes))), {})
        params = dict(zip(("square_hi", "square_lo"), words, strict=True))
        params |= dict(zip(("rest_hi", "rest_lo"), split_float32(rest), strict=True))
        w = np.exp2(rng.uniform(-20, 20, N)).astype(F32)
        away = np.exp2(rng.uniform(-24, -2, N)) * rng.choice([-1, 1], N)
        x = (np.sqrt(float(square) * w.astype(np.float64)) * (1 + away)).astype(F32)
        got = evaluate(program, {"x": x, "w": w}, params)["out"]
        worst_error = 0.0
        for value, a, b in zip(got, x, w, strict=True):
            want = mpmath.mpf(float(a)) ** 2 - square * mpmath.mpf(float(b))
            worst_error = max(worst_error, float(abs(mpmath.mpf(float(value)) / want - 1)))
        assert worst_error <= 1.01 * 2.0**-24


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-3.4e38, max_value=3.4e38))
def test_rounding_is_to_nearest_even_and_a_pair_holds_48_bits(value: float) -> None:
    hi, lo = split_float32(value)
    assert hi == round_float32(value) == float(F32(value))
    assert float(F32(lo)) == lo
    if abs(value) > 2.0**-90:
        assert abs(Fraction(hi) + Fraction(lo) - Fraction(value)) <= abs(Fraction(value)) / 2**48


def test_rounding_is_done_once() -> None:
    # Through float64 this would become a tie and round to even, downwards.
    with mpmath.workdps(60):
        value = 1 + mpmath.mpf(2) ** -24 + mpmath.mpf(2) ** -80
        assert round_float32(value) == 1 + 2.0**-23
        assert round_float32(mpmath.mpf(2) ** -150 * 3 / 2) == 2.0**-149


@pytest.mark.parametrize("wide", [False, True])
def test_the_distance_from_a_parameter_is_exact_near_it(wide: bool) -> None:
    g = Graph(("x",), ("p",))
    p = g.param("p")
    g.output("gap", g.input("x") - first_word(p) - second_word(p))
    program = lower(g, "gap", frozenset(range(len(g.nodes))) if wide else frozenset(), {})
    hi, lo = split_float32(0.1)
    x = np.float32([hi, np.nextafter(np.float32(hi), np.float32(1)), 0.3])
    (gap,) = evaluate(program, {"x": x}, {"p_hi": hi, "p_lo": lo}).values()
    exact = x.astype(np.float64) - (float(hi) + float(lo))
    assert exact[0] == -float(lo) != 0
    np.testing.assert_allclose(gap, exact, rtol=2**-23)
