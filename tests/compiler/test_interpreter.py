"""The interpreter in C: the bits of the NumPy evaluation, operation by operation, whatever is asked of it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from compiler.program_strategies import adversarial_inputs, different_bits, random_program
from hypothesis import given, settings
from hypothesis import strategies as st

from momentgen.compiler.ir import interpreter
from momentgen.compiler.ir.interpreter import Interpreter, evaluate
from momentgen.compiler.ir.program import Builder, Program


def written(program: Program) -> Builder:
    """A builder that has written what the program consists of."""
    builder = Builder(program.name, program.inputs, program.params)
    for index, ins in enumerate(program.instructions):
        assert builder.emit(ins.op, *ins.args, bits=ins.bits, name=ins.name) == index
    return builder


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 1300))
def test_random_programs_give_the_bits_of_the_numpy_evaluation(seed: int, points: int) -> None:
    rng = random.Random(seed)
    program = random_program(rng)
    inputs = adversarial_inputs(points, seed)
    params = {name: float(np.float32(rng.uniform(-3, 3))) for name in program.params}
    run = Interpreter(written(program))
    got = run.values(run.points(inputs, params), dict(program.outputs))
    want = evaluate(program, inputs, params)
    for name in want:
        assert different_bits(got[name], want[name]).size == 0


def test_the_builder_may_go_on_writing() -> None:
    b = Builder("f", inputs=("x",))
    run = Interpreter(b)
    points = run.points({"x": np.arange(1000, dtype=np.float32)}, {})
    value = b.input("x")
    for power in range(2000):
        value = b.add(value, b.f32(1.0))
        if power % 500 == 0:
            assert np.array_equal(run.values(points, {"y": value})["y"], np.arange(1000) + power + 1)


def test_leaves_are_values_too() -> None:
    b = Builder("f", inputs=("x",), params=("p",))
    run = Interpreter(b)
    wanted = {"x": b.input("x"), "p": b.param("p"), "c": b.f32(-0.0)}
    got = run.values(run.points({"x": np.float32([1.0, np.nan])}, {"p": 0.1}), wanted)
    assert different_bits(got["x"], np.float32([1.0, np.nan])).size == 0
    assert different_bits(got["p"], np.float32([0.1, 0.1])).size == 0
    assert different_bits(got["c"], np.float32([-0.0, -0.0])).size == 0


def test_without_a_compiler_numpy_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    program = random_program(random.Random(5))
    inputs = adversarial_inputs(700, 5)
    params = dict.fromkeys(program.params, 0.7)
    run = Interpreter(written(program))
    points = run.points(inputs, params)
    native = run.values(points, dict(program.outputs))
    monkeypatch.setattr(interpreter, "find_compiler", lambda: None)
    for name, values in run.values(points, dict(program.outputs)).items():
        assert different_bits(values, native[name]).size == 0
