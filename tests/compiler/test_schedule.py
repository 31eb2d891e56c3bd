"""The order of a program's values: the same bits, few values alive, or long chains early."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pytest
from compiler.program_strategies import programs
from hypothesis import given

from momentgen.compiler.ir.op import Op
from momentgen.compiler.ir.passes import optimise
from momentgen.compiler.ir.program import Builder, Program, ProgramError
from momentgen.compiler.ir.schedule import interleave, most_alive, reorder, schedule


@given(programs())
def test_an_order_changes_no_operation_and_depends_on_nothing_but_the_program(program: Program) -> None:
    program = optimise(program)
    for order in (schedule, interleave):
        assert order(program).count() == program.count()
        assert order(program) == order(program)


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
