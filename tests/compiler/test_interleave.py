"""The order of the emitted C: the same bits, operands first, long chains early, few values alive."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.program_strategies import adversarial_inputs, different_bits, programs
from hypothesis import given

from momentgen.compiler.evaluate import evaluate
from momentgen.compiler.interleave import interleave
from momentgen.compiler.passes import optimise
from momentgen.compiler.program import Builder, Op, Program

INPUTS = adversarial_inputs(3000)


@given(programs())
def test_the_order_changes_no_bit_and_no_operation(program: Program) -> None:
    program = optimise(program)
    ordered = interleave(program)
    assert ordered.count() == program.count()
    expected, got = (evaluate(p, INPUTS, {"p": 0.75}) for p in (program, ordered))
    for name, values in expected.items():
        assert different_bits(values, got[name]).size == 0


@given(programs())
def test_the_order_depends_on_nothing_but_the_program(program: Program) -> None:
    assert interleave(program) == interleave(program)


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
    assert min(_distances(interleave(program))) >= 4


def test_more_chains_than_registers_do_not_all_begin_at_once() -> None:
    ordered = interleave(_chains(100, 3))
    last = {a: index for index, ins in enumerate(ordered.instructions) for a in ins.args}
    alive, most = set[int](), 0
    for index, ins in enumerate(ordered.instructions):
        if ins.op in (Op.MUL, Op.ADD):
            alive.add(index)
        alive = {a for a in alive if last.get(a, index) > index}
        most = max(most, len(alive))
    assert most <= 40  # of 100
