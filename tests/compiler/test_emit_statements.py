"""Statements: what is written in place keeps the order of operations, and what others see has a name."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from compiler.program_strategies import random_program

from momentgen.compiler.certify.evidence import program_digest
from momentgen.compiler.emit._body import Statement, body_of, statements
from momentgen.compiler.emit._text import short_decimal
from momentgen.compiler.ir.op import Op
from momentgen.compiler.ir.passes import optimise
from momentgen.compiler.ir.program import Builder, Program

#: each operation is a call, so that a text says what is computed when
_FORM = {
    op: f"{op.value}(" + ", ".join(["{}"] * count) + ")"
    for count, ops in {
        1: (Op.SQRT, Op.NEG, Op.ABS, Op.NOT, Op.F32_AS_I32, Op.I32_AS_F32),
        2: (
            *(Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.LT, Op.LE, Op.EQ, Op.AND, Op.OR),
            *(Op.IADD, Op.ISUB, Op.ISHL, Op.ISHR, Op.IAND, Op.IOR),
        ),
        3: (Op.FMA, Op.SELECT),
    }.items()
    for op in ops
}


def _lines(program: Program) -> tuple[list[Statement], list[str]]:
    literals = {i: "1" for i, ins in enumerate(program.instructions) if ins.op in (Op.CONST_F32, Op.CONST_I32)}
    return statements(body_of(program), lambda step: _FORM[step.op] if isinstance(step.op, Op) else "", literals)


@pytest.mark.parametrize("seed", range(20))
def test_operations_come_in_the_order_of_the_program(seed: int) -> None:
    program = optimise(random_program(random.Random(seed), "any", 60))
    written = [op for line in _lines(program)[0] for op in _in_order_of_evaluation(line.expression)]
    live = set()
    pending = [index for _, index in program.outputs]
    while pending:
        if (index := pending.pop()) not in live:
            live.add(index)
            pending.extend(program.instructions[index].args)
    assert written == [program.instructions[i].op.value for i in sorted(live) if program.instructions[i].args]


def _in_order_of_evaluation(expression: str) -> list[str]:
    """The calls of an expression, innermost and leftmost first."""
    found: list[str] = []
    stack: list[str] = []
    for name, bracket in re.findall(r"(\w+)?([(),])", expression):
        if bracket == "(":
            stack.append(name)
        elif bracket == ")":
            found.append(stack.pop())
    return found


def test_what_is_used_once_stands_in_its_place_only_where_its_turn_comes() -> None:
    b = Builder("turns", inputs=("x", "y"))
    x, y = b.input("x"), b.input("y")
    early, late = b.sqrt(x), b.abs(y)
    b.output("kept", b.sub(late, early))  # early is computed first, and would be second here
    chain = b.fma(x, b.fma(x, b.fma(x, b.f32(2.0), b.f32(3.0)), b.f32(5.0)), b.f32(7.0))
    b.output("polynomial", chain)
    lines, _ = _lines(b.build())
    assert [line.expression for line in lines] == [
        "sqrt(x)",
        "sub(abs(y), t0)",
        "fma(x, fma(x, fma(x, 1, 1), 1), 1)",
    ]


def test_values_with_a_comment_and_outputs_have_a_name() -> None:
    b = Builder("noted", inputs=("x",))
    root = b.comment(b.sqrt(b.input("x")), "a root")
    b.output("y", b.mul(root, b.f32(3.0)))
    lines, outputs = _lines(b.build())
    assert [line.expression for line in lines] == ["sqrt(x)", "mul(t0, 1)"]
    assert outputs == ["t1"]


def test_expressions_do_not_grow_deeper_than_parsers_read() -> None:
    b = Builder("deep", inputs=("x",))
    x = total = b.input("x")
    for k in range(1000):
        total = b.fma(total, x, b.f32(float(k + 2)))
    b.output("y", total)
    lines, _ = _lines(b.build())
    depths = [max(_depths(line.expression)) for line in lines]
    assert 20 < max(depths) < 50
    assert sum(line.expression.count("fma(") for line in lines) == 1000


def _depths(text: str) -> list[int]:
    depth, found = 0, [0]
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        found.append(depth)
    return found


def test_digest_says_what_is_computed_not_how_it_is_written() -> None:
    def program(comment: bool, factor: float) -> Program:
        b = Builder("any", inputs=("x", "y"))
        product = b.mul(b.input("x"), b.f32(factor))
        if comment:
            b.comment(product, "has a line of its own")
        b.output("z", b.select(b.lt(b.sub(product, b.input("y")), b.f32(-0.125)), b.neg(product), b.f32(2.0**-30)))
        return b.build()

    assert program_digest([program(True, 3.0)]) == program_digest([program(False, 3.0)])
    assert program_digest([program(True, 3.0)]) != program_digest([program(True, 3.5)])


def test_short_decimals_are_the_number_again() -> None:
    for value in (1e-4, 0.1, 1 / 3, 1e9, 16777216.0, 2.0**-126, 3.4028234663852886e38):
        single = float(np.float32(value))
        text = short_decimal(single)
        assert text is not None
        assert float(np.float32(float(text))) == single
        assert 2.0**-126 <= float(text) <= 3.4028234663852886e38  # or Triton would compute in float64
