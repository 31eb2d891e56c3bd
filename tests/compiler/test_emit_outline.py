"""Functions of emitted programs: the same operations, said once; what a compiler needs apart has a line of its own."""

from __future__ import annotations

import re

from compiler.program_strategies import atoms

from momentgen.compiler.emit._body import Call, Polynomial
from momentgen.compiler.emit._outline import outlined
from momentgen.compiler.emit._text import Header
from momentgen.compiler.emit.c import render_c
from momentgen.compiler.ir.program import Builder

HEADER = Header("many", "test")


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


def test_arms_of_selects_and_selects_have_names_of_their_own() -> None:
    # gcc makes branches of what stands in an arm, and the loop scalar
    b = Builder("chosen", inputs=("x", "y"))
    x, y = b.input("x"), b.input("y")
    low = b.select(b.lt(x, y), b.mul(x, y), b.fma(x, y, b.f32(1.0)))
    b.output("z", b.mul(b.select(b.lt(low, x), b.sqrt(low), b.f32(0.0)), y))
    source = render_c([b.build()], HEADER)
    assert len(re.findall(r"\bt\d+ = \S+ \? [\w.]+ : [\w.]+[,;]", source)) == source.count("?") == 2
