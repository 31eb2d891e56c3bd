"""Passes that tidy a float32 program without changing a bit of what it computes.

Each pass takes a program and returns a new, verified one.  Only identities
that hold for every float32 are used, signed zeros, infinities and NaN
included (a NaN's payload is not specified): x*1 is x, but x+0 is not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.op import CONSTANTS, Op
from momentgen.compiler.ir.program import Builder, Instruction, Program
from momentgen.compiler.ir.schedule import reorder, schedule

_ONE, _MINUS_ONE = 0x3F800000, 0xBF800000


def _rewrite(program: Program, rule: Callable[[Builder, Instruction, tuple[int, ...]], int | None]) -> Program:
    """Write ``program`` anew, each instruction as ``rule`` says or, where it says None, as it was.

    Equal instructions become one on the way.
    """
    builder = Builder(program.name, program.inputs, program.params)
    new: list[int] = []
    for index, ins in enumerate(program.instructions):
        args = tuple(new[a] for a in ins.args)
        chosen = rule(builder, ins, args)
        if chosen is None:
            chosen = builder.emit(ins.op, *args, bits=ins.bits, name=ins.name)
        new.append(chosen)
        comment = program.comments.get(index)
        if comment is not None:
            builder.comment(chosen, comment)
    for name, index in program.outputs:
        builder.output(name, new[index])
    return builder.build()


def eliminate_dead(program: Program) -> Program:
    """Leave out all that no output depends on.

    >>> b = Builder("f", inputs=("x",))
    >>> unused = b.sqrt(b.input("x"))
    >>> b.output("y", b.neg(b.input("x")))
    >>> eliminate_dead(b.build()).count()
    {'neg': 1}
    """
    return reorder(program, program.live())


def fold_constants(program: Program) -> Program:
    """Compute what depends on constants alone, with the same rounding as at run time.

    A bool has no constant form; one that is known disappears from the selects and connectives that use it.

    >>> b = Builder("f", inputs=("x",))
    >>> b.output("y", b.mul(b.input("x"), b.div(b.f32(1.0), b.f32(3.0))))
    >>> fold_constants(b.build()).count()
    {'mul': 1}
    """
    known_bools: dict[int, bool] = {}

    def rule(b: Builder, ins: Instruction, args: tuple[int, ...]) -> int | None:
        if ins.op is Op.SELECT and args[0] in known_bools:
            return args[1] if known_bools[args[0]] else args[2]
        if ins.op in (Op.AND, Op.OR):
            absorbing = ins.op is Op.OR
            for known, other in (args, args[::-1]):
                if known in known_bools:
                    return known if known_bools[known] is absorbing else other
        if not args:
            return None
        if ins.op is Op.NOT and args[0] in known_bools:
            index = b.emit(ins.op, *args)
            known_bools[index] = not known_bools[args[0]]
            return index
        if any(b.instructions[a].op not in CONSTANTS for a in args):
            return None
        if ins.op in (Op.LT, Op.LE, Op.EQ):
            index = b.emit(ins.op, *args)
            left, right = (b.instructions[a].value for a in args)
            known_bools[index] = {Op.LT: left < right, Op.LE: left <= right, Op.EQ: left == right}[ins.op]
            return index
        bits = _compute(ins, [b.instructions[a] for a in args])
        return b.emit(Op.CONST_F32 if ins.type.value == "f32" else Op.CONST_I32, bits=bits)

    return _rewrite(program, rule)


def _compute(ins: Instruction, operands: list[Instruction]) -> int:
    """Bits of an f32 or i32 instruction on constants, by evaluating a program of that one instruction."""
    b = Builder("constant", ())
    index = b.emit(ins.op, *(b.emit(o.op, bits=o.bits) for o in operands))
    b.output("value", index if ins.type.value == "f32" else b.as_f32(index))
    return int(evaluate(b.build(), {})["value"].view(np.uint32))


def simplify(program: Program) -> Program:
    """Apply the identities that hold bit for bit and that graphs leave: x*1, x*(-1), -(-x), |-x|, x+(-y), shifts by 0.

    >>> b = Builder("f", inputs=("x",))
    >>> b.output("y", b.neg(b.neg(b.mul(b.input("x"), b.f32(1.0)))))
    >>> eliminate_dead(simplify(b.build())).count()
    {}
    """
    return _rewrite(program, _simpler)


def _simpler(b: Builder, ins: Instruction, args: tuple[int, ...]) -> int | None:
    defs = [b.instructions[a] for a in args]
    bits = [d.bits if d.op in CONSTANTS else None for d in defs]
    match ins.op:
        case Op.MUL:
            for x, constant in ((args[0], bits[1]), (args[1], bits[0])):
                if constant == _ONE:
                    return x
                if constant == _MINUS_ONE:
                    return b.neg(x)
        case Op.ADD | Op.SUB:
            if defs[1].op is Op.NEG:  # x + (-y) is x - y, and x - (-y) is x + y
                return (b.add if ins.op is Op.SUB else b.sub)(args[0], defs[1].args[0])
            if ins.op is Op.ADD and defs[0].op is Op.NEG:
                return b.sub(args[1], defs[0].args[0])
        case Op.FMA:
            if bits[0] == _ONE or bits[1] == _ONE:
                return b.add(args[1] if bits[0] == _ONE else args[0], args[2])
        case Op.NEG if defs[0].op is Op.NEG:
            return defs[0].args[0]
        case Op.ABS if defs[0].op in (Op.NEG, Op.ABS):
            return b.abs(defs[0].args[0])
        case Op.ISUB | Op.ISHL | Op.ISHR if bits[1] == 0:
            return args[0]
    return None


def optimise(program: Program) -> Program:
    """Fold, simplify, and drop what is dead until nothing changes, then order the rest; the bits stay the same."""
    while True:
        tidied = eliminate_dead(simplify(fold_constants(program)))
        if tidied.instructions == program.instructions:
            return schedule(tidied)
        program = tidied
