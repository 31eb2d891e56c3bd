"""Programs of float32 operations: passes, the order of values, and the interpreter in C, which keep every bit."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import refused
from compiler.program_strategies import adversarial_inputs, different_bits, programs, random_program, sums
from hypothesis import given, settings
from hypothesis import strategies as st
from other_processes import script

from momentgen.compiler.ir import interpreter
from momentgen.compiler.ir.interpreter import Interpreter, evaluate
from momentgen.compiler.ir.op import Op
from momentgen.compiler.ir.passes import eliminate_dead, fold_constants, optimise, simplify
from momentgen.compiler.ir.program import Builder, Program, ProgramError
from momentgen.compiler.ir.schedule import interleave, most_alive, reorder, schedule
from momentgen.compiler.toolchain.c_libraries import compiled
from momentgen.errors import InputError
from momentgen.native.c_compiler import CompilerError, find_compiler

# Passes change how a program is written, and no bit of what it computes.
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
    for order in (schedule, interleave):
        assert order(best).count() == best.count()
        assert order(best) == order(best)


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


# The order of a program's values: the same bits, few values alive, or long chains early.
def test_an_order_that_puts_a_value_after_its_use_is_refused() -> None:
    program = _chains(1, 2)
    with pytest.raises(ProgramError, match="not defined before its use"):
        reorder(program, list(reversed(range(len(program.instructions)))))


def _shared(terms: int) -> Program:
    """Two sums over the same products, as a mean and a variance are over the same atoms."""
    b = Builder("shared", inputs=("x",))
    x = b.input("x")
    products = [x, *(b.mul(b.add(x, b.f32(float(k + 1))), b.f32(0.5)) for k in range(terms))]
    mean = var = products[0]
    for product in products[1:]:
        mean, var = b.add(mean, product), b.fma(product, product, var)
    b.output("mean", mean)
    b.output("var", var)
    return b.build()


def test_what_two_outputs_share_is_not_kept_until_the_second() -> None:
    assert most_alive(schedule(_shared(60))) <= 25


def _chains(count: int, length: int) -> Program:
    """Independent chains of multiplications, written one after the other, and the sum of their ends."""
    b = Builder("chains", inputs=tuple(f"x{k}" for k in range(count)))
    ends = []
    for k in range(count):
        x = value = b.input(f"x{k}")
        for _ in range(length):
            value = b.mul(value, x)
        ends.append(value)
    total = ends[0]
    for end in ends[1:]:
        total = b.add(total, end)
    b.output("sum", total)
    return b.build()


def _distances(program: Program) -> Sequence[int]:
    """How many arithmetic operations a multiplication comes after the one that it waits for."""
    arithmetic = [i for i, ins in enumerate(program.instructions) if ins.op in (Op.MUL, Op.ADD)]
    place = {index: number for number, index in enumerate(arithmetic)}
    found = []
    for index in arithmetic:
        ins = program.instructions[index]
        if ins.op is Op.MUL:
            found += [place[index] - place[a] for a in ins.args if a in place]
    return found


def test_independent_chains_are_woven_together() -> None:
    program = _chains(6, 12)
    assert set(_distances(program)) == {1}  # as written: each waits for the one right before
    assert statistics.median(_distances(interleave(program))) >= 4


def test_more_chains_than_registers_do_not_all_begin_at_once() -> None:
    ordered = interleave(_chains(100, 3))
    assert most_alive(ordered) <= 40  # of 100


# The interpreter in C: the bits of the NumPy evaluation, operation by operation, whatever is asked of it.
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


@pytest.mark.parametrize("program", [random_program(random.Random(5)), sums(6)], ids=lambda program: program.name)
def test_without_a_compiler_numpy_gives_the_same(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = adversarial_inputs(700, 5)
    params = dict.fromkeys(program.params, 0.7)
    run = Interpreter(written(program))
    points = run.points(inputs, params)
    native = run.values(points, dict(program.outputs))
    monkeypatch.setattr(interpreter, "find_compiler", lambda: None)
    for name, values in run.values(points, dict(program.outputs)).items():
        assert different_bits(values, native[name]).size == 0


# The compiler is the one that the user chose, as the runtime's.
def test_the_build_compiles_by_the_compiler_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = script(tmp_path / "mycc", f'echo "$@" >> {tmp_path}/calls; exec cc "$@"')
    monkeypatch.setenv("CC", f"{chosen} -pipe")
    assert find_compiler() == (str(chosen), "-pipe")
    assert compiled(f"int chosen(void) {{ return {len(str(tmp_path))}; }}")["chosen"]() == len(str(tmp_path))
    assert "-pipe" in (tmp_path / "calls").read_text()


def test_a_compiler_that_is_not_there_stops_the_build_instead_of_serving_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    b = Builder("f", inputs=("x",))
    run = Interpreter(b)
    with pytest.raises(CompilerError, match=r"\$CC is '/nowhere/cc', and no such compiler is found"):
        run.values(run.points({"x": [1.0]}, {}), {"y": b.add(b.input("x"), b.input("x"))})


# What the NumPy evaluation takes: inputs of any shape and layout, all that the program names.
def _axpy() -> Program:
    b = Builder("axpy", inputs=("x", "y"), params=("a",))
    b.output("z", b.fma(b.input("x"), b.param("a"), b.input("y")))
    b.output("a", b.param("a"))
    return b.build()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
def test_results_have_the_shape_of_the_inputs_whatever_their_layout(shape: tuple[int, ...]) -> None:
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape).T
    got = evaluate(_axpy(), {"x": x, "y": x}, {"a": 0.5})
    assert got["z"].shape == got["a"].shape == x.shape
    assert (got["z"] == 1.5 * x).all()
    assert (got["a"] == 0.5).all()


ONE, TWO = np.ones(1, np.float32), np.ones(2, np.float32)


@refused.rows(
    [
        ("expected inputs", lambda: evaluate(_axpy(), {"x": ONE}, {"a": 1.0})),
        ("float64", lambda: evaluate(_axpy(), {"x": ONE, "y": np.ones(1)}, {"a": 1.0})),  # type: ignore[dict-item]
        ("one shape", lambda: evaluate(_axpy(), {"x": ONE, "y": TWO}, {"a": 1.0})),
        ("expected parameters", lambda: evaluate(_axpy(), {"x": ONE, "y": ONE}, {})),
    ]
)
def test_wrong_arguments_are_named(said: str, call: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=said):
        call()
