"""Functions of emitted programs: the same operations, said once; what a compiler needs apart has a line of its own."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from compiler.program_strategies import adversarial_inputs, different_bits, random_program

from momentgen.compiler.emit._body import Body, Call, Polynomial, Result
from momentgen.compiler.emit._outline import outlined
from momentgen.compiler.emit._text import Header
from momentgen.compiler.emit.c import render_c
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.op import Op
from momentgen.compiler.ir.passes import optimise
from momentgen.compiler.ir.program import Builder, Program
from momentgen.compiler.native import NativeKernel
from momentgen.native.c_compiler import find_compiler

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
HEADER = Header("many", "test")


def atoms(count: int, results: int = 2, *, seed: int = 0) -> Program:
    """Sums over atoms, each of which has several results; the sums take them in one after the other."""
    rng = random.Random(seed)
    b = Builder("many", inputs=("x", "y"))
    x, y = b.input("x"), b.input("y")
    sums = [b.f32(0.5)] * results
    for _ in range(count):
        width = b.f32(float(np.float32(rng.uniform(1.0, 5.0))))
        t = b.div(x, b.sqrt(b.add(b.mul(y, y), width)))
        u = b.fma(t, b.fma(t, b.fma(t, b.f32(0.25), b.f32(-0.5)), b.f32(0.125)), b.f32(1.5))
        values = [u, b.mul(u, t)]
        for _ in range(results - 2):
            values.append(b.fma(values[-1], t, values[-2]))
        for k, value in enumerate(values):
            sums[k] = b.fma(value, b.f32(float(np.float32(rng.uniform(-1, 1)))), sums[k])
    for k, total in enumerate(sums):
        b.output(f"s{k}", total)
    return b.build()


def unfolded(body: Body, functions: dict[str, Body], given: list[str]) -> list[str]:
    """The whole expression of each output, with functions inserted."""
    texts: dict[int, str] = {}
    calls: dict[int, list[str]] = {}
    values = dict(zip(body.inputs, given, strict=True))
    for index, step in body.steps.items():
        args = [texts.get(a, "") for a in step.args]
        if step.name is not None:
            texts[index] = values[step.name]
        elif step.is_constant:
            texts[index] = str(step.bits)
        elif isinstance(step.op, Polynomial):
            x, y, *added = args
            for c in added:
                y = expression("fma", [x, y, c])
            texts[index] = y
        elif isinstance(step.op, Call):
            calls[index] = unfolded(functions[step.op.function], functions, args)
            texts[index] = calls[index][0]
        elif isinstance(step.op, Result):
            texts[index] = calls[step.args[0]][step.op.number]
        else:
            assert isinstance(step.op, Op)
            texts[index] = expression(step.op.value, args)
    return [texts[index] for index in body.outputs]


def expression(op: str, args: list[str]) -> str:
    if op in ("fma", "add", "mul"):
        args = [*sorted(args[:2]), *args[2:]]
    return f"{op}({','.join(args)})"


def plain(program: Program) -> list[str]:
    texts: list[str] = []
    for ins in program.instructions:
        args = [texts[a] for a in ins.args]
        texts.append(expression(ins.op.value, args) if args else ins.name or str(ins.bits))
    return [texts[index] for _, index in program.outputs]


@pytest.mark.parametrize("seed", range(12))
def test_functions_compute_what_the_programs_do(seed: int) -> None:
    programs = [optimise(random_program(random.Random(seed), "any", 120)), atoms(3 + seed, 2 + seed % 4, seed=seed)]
    found = outlined(programs)
    functions = {function.name: function for function in found.functions}
    for program, body in zip(programs, found.bodies, strict=True):
        assert unfolded(body, functions, list(body.inputs)) == plain(program)
        body.settle()
        assert unfolded(body, functions, list(body.inputs)) == plain(program)


def test_an_atom_is_one_call_with_its_constants() -> None:
    found = outlined([atoms(12, 4)])
    (atom,) = (function for function in found.functions if len(function.outputs) > 1)
    calls = [step for step in found.bodies[0].steps.values() if step.op == Call(atom.name, 4)]
    assert len(calls) == 12
    assert len({step.args for step in calls}) == 12
    assert any(isinstance(step.op, Polynomial) for step in atom.steps.values())


def test_functions_come_after_those_that_they_call() -> None:
    known: set[str] = set()
    for function in outlined([atoms(12, 4), atoms(9, 3, seed=1)]).functions:
        assert {step.op.function for step in function.steps.values() if isinstance(step.op, Call)} <= known
        known.add(function.name)


def test_what_is_said_once_stays_where_it_is() -> None:
    b = Builder("once", inputs=("x",))
    b.output("y", b.sqrt(b.add(b.input("x"), b.f32(1.0))))
    found = outlined([b.build()])
    assert not found.functions
    assert not any(isinstance(step.op, Call) for step in found.bodies[0].steps.values())


@needs_compiler
@pytest.mark.parametrize("count", [2, 5, 17])
def test_c_with_functions_has_the_bits_of_the_evaluation(count: int) -> None:
    program = atoms(count, 5, seed=count)
    inputs = adversarial_inputs(4000)
    got = NativeKernel(render_c([program], HEADER), "many", 2, 0, 5)(inputs["x"], inputs["y"])
    for array, expected in zip(got, evaluate(program, inputs, {}).values(), strict=True):
        assert different_bits(array, expected).size == 0


def test_arms_of_selects_and_selects_have_names_of_their_own() -> None:
    # gcc makes branches of what stands in an arm, and the loop scalar
    b = Builder("chosen", inputs=("x", "y"))
    x, y = b.input("x"), b.input("y")
    low = b.select(b.lt(x, y), b.mul(x, y), b.fma(x, y, b.f32(1.0)))
    b.output("z", b.mul(b.select(b.lt(low, x), b.sqrt(low), b.f32(0.0)), y))
    source = render_c([b.build()], HEADER)
    assert len(re.findall(r"\bt\d+ = \S+ \? [\w.]+ : [\w.]+[,;]", source)) == source.count("?") == 2
