"""Text of generated code: its statements, and the module of an op."""

from __future__ import annotations

import ast
import json
import random
import re
from typing import Any

import numpy as np
import pytest
import sympy
from compiler.program_strategies import random_program
from hypothesis import given
from hypothesis import strategies as st
from real_rules import NAMES, op_of, rules, source_of

from momentgen.compiler.certify.evidence import program_digest
from momentgen.compiler.emit._body import Statement, plain_body, statements
from momentgen.compiler.emit._text import LINE_LENGTH, Header, json_text, short_decimal, table_lines, whole_numbers
from momentgen.compiler.emit.c import render_c
from momentgen.compiler.emit.module import render_module
from momentgen.compiler.ir.op import Op
from momentgen.compiler.ir.passes import optimise
from momentgen.compiler.ir.program import Builder, Program
from momentgen.rule import Parameter, Rule, x

# Text that renderers share: what is written in another form reads back as the same.
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=15)


@given(_VALUES)
def test_json_in_wide_lines_is_the_same_json(value: Any) -> None:
    assert json.loads(json_text(value)) == value


def test_json_of_many_numbers_has_lines_that_are_full_and_not_too_long() -> None:
    lines = json_text({"numbers": [k / 7 for k in range(400)]}).splitlines()
    assert max(map(len, lines)) <= LINE_LENGTH
    assert len(lines) < 90


@given(st.lists(st.lists(st.floats(-1e6, 1e6).map(lambda c: round(c, 8)), min_size=1), min_size=1))
def test_whole_numbers_times_their_unit_are_the_decimal_fractions(rows: list[list[float]]) -> None:
    whole, unit = whole_numbers(rows)
    for row, made in zip(rows, whole, strict=True):
        assert np.allclose(np.array(made, float) * unit, row, rtol=2.0**-51, atol=0)
        assert unit == 1.0 or all(abs(number) < 2**53 for number in made)


def test_numbers_of_too_many_digits_stay_as_they_are() -> None:
    assert whole_numbers([[1 / 3, 1e10]]) == ([[1 / 3, 1e10]], 1.0)


@given(st.lists(st.integers().map(str), min_size=1, max_size=200))
def test_lines_of_a_table_are_its_numbers_with_commas(values: list[str]) -> None:
    lines = table_lines(values)
    assert "".join(line.strip() for line in lines) == ",".join(values)
    assert all(len(line) <= LINE_LENGTH or line.count(",") <= 1 for line in lines)


# Statements: what is written in place keeps the order of operations, and what others see has a name.
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
    return statements(plain_body(program), lambda step: _FORM[step.op], literals)


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


# What a compiler needs apart has a line of its own.
HEADER = Header("many", "test")


def test_arms_of_selects_and_selects_have_names_of_their_own() -> None:
    # gcc makes branches of what stands in an arm, and the loop scalar
    b = Builder("chosen", inputs=("x", "y"))
    x, y = b.input("x"), b.input("y")
    low = b.select(b.lt(x, y), b.mul(x, y), b.fma(x, y, b.f32(1.0)))
    b.output("z", b.mul(b.select(b.lt(low, x), b.sqrt(low), b.f32(0.0)), y))
    source = render_c([b.build()], HEADER)
    assert len(re.findall(r"\bt\d+ = \S+ \? [\w.]+ : [\w.]+[,;]", source)) == source.count("?") == 2


# The generated ``__init__.py``: the op with the parameters and variants of its rule.
@pytest.mark.parametrize("name", NAMES)
def test_op_has_the_parameters_variants_and_words_of_the_rule(name: str) -> None:
    rule, op = rules()[name], op_of(name)
    assert op.name == name
    assert set(op.variants) == {"exact", *rule.variants, *rule.accuracy.ulp}
    assert op.default == op.variants[0] == "exact"
    assert rule.doc in str(op.__doc__)
    for own, made in zip(rule.parameters, op.parameters, strict=True):
        assert (made.name, made.default, made.low, made.high) == (own.name, own.default, own.low, own.high)
    assert rule.digest in source_of(name, "__init__", ".py")


def test_quotes_infinite_ranges_and_missing_defaults_survive() -> None:
    scale = Parameter("scale", default=2.0, low=0.0, high=float("inf"), doc='a "quoted" \\ word')
    rule = Rule("scaled", f=scale.symbol * sympy.Abs(x), parameters=(scale,), doc="Says 'x' — and \"y\".")
    source = render_module(rule, ("exact",), header_digest="d" * 64)
    tree = ast.parse(source)
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Op")
    keywords = {k.arg: k.value for k in call.keywords}
    assert ast.literal_eval(keywords["doc"]) == rule.doc
    assert ast.literal_eval(keywords["variants"]) == ("exact",)
    (parameter,) = keywords["parameters"].elts  # type: ignore[attr-defined]
    made = {k.arg: eval(ast.unparse(k.value)) for k in parameter.keywords}
    assert made == {"default": 2.0, "low": 0.0, "high": float("inf"), "doc": scale.doc}


def test_a_rule_without_words_gets_some_and_no_parameters_are_a_tuple() -> None:
    rule = Rule("bare", f=sympy.Abs(x))
    source = render_module(rule, ("exact", "tight"), header_digest="0")
    assert '"""Moments of bare."""' in source
    assert "parameters=()," in source
    assert "import Op\n" in source
