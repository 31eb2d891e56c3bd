"""Passes change how a program is written, and no bit of what it computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from compiler.program_strategies import adversarial_inputs, different_bits, programs
from hypothesis import given, settings

from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.passes import eliminate_dead, fold_constants, optimise, simplify
from momentgen.compiler.ir.program import Builder, Program
from momentgen.compiler.ir.schedule import interleave, schedule

PASSES = [eliminate_dead, fold_constants, simplify, schedule, interleave, optimise]
INPUTS = adversarial_inputs(6000)


@pytest.mark.parametrize("tidy", PASSES)
@settings(max_examples=40, deadline=None)
@given(program=programs(operations=50))
def test_pass_keeps_every_bit(tidy: Callable[[Program], Program], program: Program) -> None:
    want, got = (evaluate(p, INPUTS, {"p": 0.3}) for p in (program, tidy(program)))
    assert list(got) == list(want)
    for name in want:
        assert different_bits(got[name], want[name]).size == 0


@settings(max_examples=30, deadline=None)
@given(program=programs(operations=50))
def test_optimising_adds_no_operation_and_leaves_nothing_to_do(program: Program) -> None:
    best = optimise(program)
    assert best.operations <= eliminate_dead(program).operations
    assert optimise(best).operations == best.operations
    assert (best.inputs, best.params) == (program.inputs, program.params)


def _count(write: Callable[[Builder, int], int]) -> dict[str, int]:
    b = Builder("f", inputs=("x", "y"), params=("p",))
    b.output("z", write(b, b.input("x")))
    return optimise(b.build()).count()


@pytest.mark.parametrize(
    ("write", "count"),
    [
        (lambda b, x: b.mul(x, b.f32(1.0)), {}),
        (lambda b, x: b.mul(x, b.f32(-1.0)), {"neg": 1}),
        (lambda b, x: b.add(x, b.f32(0.0)), {"add": 1}),  # -0 + 0 is +0
        (lambda b, x: b.sub(x, b.f32(-0.0)), {"sub": 1}),
        (lambda b, x: b.sub(x, x), {"sub": 1}),  # inf - inf is NaN
        (lambda b, x: b.mul(x, b.f32(0.0)), {"mul": 1}),
        (lambda b, x: b.eq(x, x) and b.select(b.eq(x, x), b.f32(1.0), x), {"eq": 1, "select": 1}),
        (lambda b, x: b.neg(b.neg(x)), {}),
        (lambda b, x: b.abs(b.neg(b.abs(x))), {"abs": 1}),
        (lambda b, x: b.add(b.neg(x), b.input("y")), {"sub": 1}),
        (lambda b, x: b.fma(x, b.f32(1.0), b.input("y")), {"add": 1}),
        (lambda b, x: b.fma(x, b.input("y"), b.f32(0.0)), {"fma": 1}),
        (lambda b, x: b.as_f32(b.ishr(b.as_i32(x), 0)), {"f32_as_i32": 1, "i32_as_f32": 1}),
        (lambda b, x: b.mul(x, b.fma(b.f32(1.5), b.f32(2.0), b.f32(0.5))), {"mul": 1}),
        (lambda b, x: b.add(b.mul(x, b.param("p")), b.mul(b.param("p"), x)), {"add": 1, "mul": 1}),
    ],
)  # fmt: skip
def test_identity_is_used_only_where_it_holds(write: Callable[[Builder, int], int], count: dict[str, int]) -> None:
    assert _count(write) == count


def test_constants_fold_with_the_rounding_of_float32() -> None:
    b = Builder("f", inputs=())
    b.output("third", b.div(b.f32(1.0), b.f32(3.0)))
    b.output("subnormal", b.mul(b.f32(2.0**-100), b.f32(1.5 * 2.0**-49)))
    b.output("fused", b.fma(b.f32(1.0 + 2.0**-12), b.f32(1.0 - 2.0**-12), b.f32(-1.0)))
    b.output("root", b.sqrt(b.f32(2.0)))
    program = optimise(b.build())
    assert program.operations == 0
    values = [program.instructions[index].value for _, index in program.outputs]
    assert values == [float(np.float32(1 / 3)), 2.0**-148, -(2.0**-24), float(np.float32(2**0.5))]


def test_comments_follow_their_values() -> None:
    b = Builder("f", inputs=("x",))
    x = b.input("x")
    b.comment(b.sqrt(x), "never used")
    b.output("y", b.comment(b.neg(b.mul(x, b.f32(1.0))), "the mirror image"))
    program = optimise(b.build())
    ((_, index),) = program.outputs
    assert dict(program.comments) == {index: "the mirror image"}
