"""The NumPy evaluation: one rounding an operation, whatever the operands."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from compiler.program_strategies import CORNERS, adversarial_inputs, different_bits, random_program
from hypothesis import example, given, settings
from hypothesis import strategies as st

from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.op import Op, fma
from momentgen.compiler.ir.program import Builder, Program
from momentgen.errors import InputError

F32 = npt.NDArray[np.float32]
M = 8392705 * 8384513  # = 2**46 + 1: a product of two 24-bit integers a hair above a power of two
BELOW = 8388607 * 8388609  # = 2**46 - 1


def number(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def rounded(exact: Fraction) -> float:
    """Nearest float32, ties to even, by integer arithmetic alone."""
    if exact == 0:
        return 0.0
    magnitude = abs(exact)
    exponent = max(magnitude.numerator.bit_length() - magnitude.denominator.bit_length() - 1, -127)
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    result = round(magnitude / unit) * unit  # round() of a Fraction takes ties to even
    value = math.inf if result >= Fraction(2) ** 128 else float(result)
    return math.copysign(value, -1.0 if exact < 0 else 1.0)


def reference_fma(a: float, b: float, c: float) -> float:
    """IEEE 754 fma of float32 numbers from exact rational arithmetic."""
    product_sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    if any(map(math.isnan, (a, b, c))) or (0.0 in (a, b) and math.inf in (abs(a), abs(b))):
        return math.nan
    if math.inf in (abs(a), abs(b)):
        return math.nan if math.isinf(c) and math.copysign(1.0, c) != product_sign else product_sign * math.inf
    if math.isinf(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact != 0:
        return rounded(exact)
    both_negative = product_sign < 0 and math.copysign(1.0, c) < 0
    return -0.0 if both_negative and (a == 0 or b == 0) and c == 0 else 0.0


any_f32 = st.one_of(
    st.integers(0, 2**32 - 1).map(number),
    st.sampled_from(CORNERS),
    st.sampled_from(CORNERS).map(lambda x: -x),
    st.floats(width=32, min_value=-4.0, max_value=4.0),
)


@settings(max_examples=400)
@given(any_f32, any_f32, any_f32)
# A product just above or below half an ulp of the addend: rounding to float64 first makes a tie of it.
@example(8392705 * 2.0**-23, 8384513 * 2.0**-47, 1.0)
@example(8388607 * 2.0**-23, 8388609 * 2.0**-47, 1.0 + 2.0**-23)
@example(-8388607 * 2.0**-23, 8388609 * 2.0**-47, 1.0 + 2.0**-23)
# The same where the result is subnormal: half the smallest subnormal number, and a hair more or less.
@example(8392705 * 2.0**-98, 8384513 * 2.0**-98, 2.0**-127)
@example(8388607 * 2.0**-98, 8388609 * 2.0**-98, 2.0**-127 + 2.0**-149)
@example(8392705 * 2.0**-98, 8384513 * 2.0**-98, 0.0)
# The midpoint between the greatest number and 2**128, and a hair less.
@example(2.0**104, 2.0**-1, (2.0 - 2.0**-23) * 2.0**127)
@example(8388607 * 2.0**57, 8388609 * 2.0**0, (2.0 - 2.0**-23) * 2.0**127)
@example(2.0**100, 2.0**100, -math.inf)
@example(-0.0, 1.0, -0.0)
@example(2.0**-149, -(2.0**-149), 0.0)
def test_fma_rounds_once(a: float, b: float, c: float) -> None:
    got = fma(np.float32(a), np.float32(b), np.float32(c))
    want = np.float32(reference_fma(a, b, c))
    assert different_bits(np.atleast_1d(got), np.atleast_1d(want)).size == 0, (a, b, c, got, want)


def test_the_near_ties_would_be_wrong_with_two_roundings() -> None:
    assert M == 2**46 + 1
    assert BELOW == 2**46 - 1
    a, b, c = 8392705 * 2.0**-98, 8384513 * 2.0**-98, 2.0**-127
    assert float(np.float32(a * b + c)) == 2.0**-127
    assert float(fma(np.float32(a), np.float32(b), np.float32(c))) == 2.0**-127 + 2.0**-149


def naive(program: Program, inputs: dict[str, F32], params: dict[str, float]) -> dict[str, F32]:
    """Each instruction into storage of its own, each as the definition of the primitives has it."""
    values: list[np.ndarray] = []
    size = len(next(iter(inputs.values())))
    with np.errstate(all="ignore"):
        for ins in program.instructions:
            x = [values[a] for a in ins.args]
            match ins.op:
                case Op.INPUT:
                    value = inputs[str(ins.name)]
                case Op.PARAM:
                    value = np.full(size, params[str(ins.name)], np.float32)
                case Op.CONST_F32 | Op.CONST_I32:
                    value = np.full(size, ins.bits, np.uint32).view(np.float32 if ins.op is Op.CONST_F32 else np.int32)
                case Op.FMA:
                    value = fma(*x)
                case Op.NEG:
                    value = np.copysign(x[0], np.where(np.signbit(x[0]), 1.0, -1.0)).astype(np.float32)
                case Op.ABS:
                    value = np.copysign(x[0], np.float32(1.0))
                case Op.SELECT:
                    value = np.where(*x)
                case Op.F32_AS_I32:
                    value = x[0].view(np.int32)
                case Op.I32_AS_F32:
                    value = x[0].view(np.float32)
                case Op.IADD | Op.ISUB | Op.ISHL | Op.ISHR | Op.IAND | Op.IOR:
                    value = np.array([_integer(ins.op, int(a), int(b)) for a, b in zip(*x, strict=True)], np.int32)
                case _:
                    names = {Op.ADD: "add", Op.SUB: "subtract", Op.MUL: "multiply", Op.DIV: "divide", Op.SQRT: "sqrt"}
                    names |= {Op.LT: "less", Op.LE: "less_equal", Op.EQ: "equal"}
                    names |= {Op.AND: "logical_and", Op.OR: "logical_or", Op.NOT: "logical_not"}
                    value = getattr(np, names[ins.op])(*x)
            values.append(value)
    return {name: values[index] for name, index in program.outputs}


def _integer(op: Op, a: int, b: int) -> int:
    results = {Op.IADD: a + b, Op.ISUB: a - b, Op.IAND: a & b, Op.IOR: a | b}
    result = a << b if op is Op.ISHL else a >> b if op is Op.ISHR else results[op]
    return (result + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("seed", range(12))
def test_values_are_those_of_the_primitives_one_by_one(seed: int) -> None:
    program = random_program(random.Random(seed), operations=70)
    inputs, params = adversarial_inputs(4500, seed), {"p": 0.7 - seed}
    got, want = evaluate(program, inputs, params), naive(program, inputs, params)
    assert list(got) == ["o0", "o1", "o2"]
    for name in want:
        assert different_bits(got[name], want[name]).size == 0


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 8193, 20000])
def test_blocks_join_without_a_seam(size: int) -> None:
    program = random_program(random.Random(3))
    inputs = adversarial_inputs(20000)
    whole = evaluate(program, inputs, {"p": 2.0})
    part = evaluate(program, {name: x[:size] for name, x in inputs.items()}, {"p": 2.0})
    for name in whole:
        assert part[name].shape == (size,)
        assert different_bits(part[name], whole[name][:size]).size == 0


def _axpy() -> Program:
    b = Builder("axpy", inputs=("x", "y"), params=("a",))
    b.output("z", b.fma(b.input("x"), b.param("a"), b.input("y")))
    b.output("a", b.param("a"))
    return b.build()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
def test_results_have_the_shape_of_the_inputs(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 2.0, np.float32)
    got = evaluate(_axpy(), {"x": x, "y": x}, {"a": 0.1})
    assert got["z"].shape == got["a"].shape == shape
    assert (got["a"] == np.float32(0.1)).all()


def test_inputs_need_not_be_contiguous() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    got = evaluate(_axpy(), {"x": x.T, "y": x.T}, {"a": 1.0})["z"]
    assert (got == 2 * x.T).all()


@pytest.mark.parametrize(
    ("inputs", "params", "message"),
    [
        ({"x": np.float32([1])}, {"a": 1.0}, "expected inputs"),
        ({"x": np.float32([1]), "y": np.float64([1])}, {"a": 1.0}, "float64"),
        ({"x": np.float32([1]), "y": np.float32([1, 2])}, {"a": 1.0}, "one shape"),
        ({"x": np.float32([1]), "y": np.float32([1])}, {}, "expected parameters"),
    ],
)
def test_wrong_arguments_are_named(inputs: dict[str, np.ndarray], params: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(_axpy(), inputs, params)
