"""The float32 program: straight-line SSA over correctly rounded primitives.

This is the compiler's lowest level.  ``lower`` writes it, ``passes`` tidy it,
``evaluate`` runs it in NumPy, and the renderers in ``emit`` turn it into C and
Triton.  Because every primitive is correctly rounded (or exact), every
renderer gives the same bits.

Values have one of three types: ``f32``, ``i32`` and ``bool``.  A value's name
is its index in :attr:`Program.instructions`; an instruction refers only to
earlier ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from momentgen.compiler.ir.op import CONSTANTS, LEAVES, Op, Type

__all__ = [
    "CONSTANTS",
    "LEAVES",
    "Builder",
    "Instruction",
    "Op",
    "Program",
    "ProgramError",
    "Type",
    "f32_bits",
    "verify",
]


class ProgramError(Exception):
    """A program breaks a rule of the SSA form: a defect of the compiler, not of the user."""


def f32_bits(value: float) -> int:
    """Bits of ``value`` as binary32.

    Raises:
        ProgramError: if ``value`` is not representable without rounding.

    >>> hex(f32_bits(1.0))
    '0x3f800000'
    """
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = b""
    if not packed or (value == value and struct.unpack("<f", packed)[0] != value):
        raise ProgramError(f"expected a float32 number, got {value!r}")
    return int(struct.unpack("<I", packed)[0])


@dataclass(frozen=True)
class Instruction:
    """One primitive: its operator, its operands (indices), and what a leaf carries."""

    op: Op
    args: tuple[int, ...] = ()
    type: Type = Type.F32
    bits: int | None = None  # of a constant, 0 <= bits < 2**32
    name: str | None = None  # of an input or parameter

    @property
    def value(self) -> float | int:
        """The number a constant stands for."""
        if self.bits is None:
            raise ProgramError(f"{self.op.value} is not a constant")
        raw = struct.pack("<I", self.bits)
        return struct.unpack("<f" if self.type is Type.F32 else "<i", raw)[0]


@dataclass(frozen=True)
class Program:
    """A kernel body: one call per element.

    Attributes:
        name: what the emitted function is called.
        inputs: names of the tensor inputs, in the order of the signature.
        params: names of the scalar float32 parameters, in order.
        instructions: the SSA values, in order.
        outputs: (name, index) pairs, in the order of the signature; all ``f32``.
        comments: index -> what the value is, for the reader of emitted code.
    """

    name: str
    inputs: tuple[str, ...]
    params: tuple[str, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[tuple[str, int], ...]
    comments: Mapping[int, str] = field(default_factory=dict)

    def count(self) -> dict[str, int]:
        """Operations by primitive, leaves left out; sorted by name."""
        counts: dict[str, int] = {}
        for ins in self.instructions:
            if ins.args:
                counts[ins.op.value] = counts.get(ins.op.value, 0) + 1
        return dict(sorted(counts.items()))

    def live(self) -> list[int]:
        """Indices of the values that some output depends on, in order."""
        found: set[int] = set()
        pending = [index for _, index in self.outputs]
        while pending:
            index = pending.pop()
            if index not in found:
                found.add(index)
                pending.extend(self.instructions[index].args)
        return sorted(found)

    @property
    def operations(self) -> int:
        """Number of operations, leaves left out."""
        return sum(1 for ins in self.instructions if ins.args)


def verify(program: Program) -> None:
    """Check that ``program`` is well formed; run after every pass.

    Raises:
        ProgramError: naming the instruction and what is wrong with it.
    """
    types: list[Type] = []
    result: Type
    for index, ins in enumerate(program.instructions):
        if any(not 0 <= a < index for a in ins.args):
            raise _wrong(program, index, "an operand is not defined before its use")
        got = tuple(types[a] for a in ins.args)
        if ins.op is Op.SELECT:
            if len(got) != 3 or got[0] is not Type.BOOL or got[1] is not got[2] or got[1] is got[0]:
                raise _wrong(program, index, f"expected (bool, T, T) with T f32 or i32, got {got}")
            result = got[1]
        else:
            want, result = ins.op.operands, ins.op.result
            if got != want:
                raise _wrong(program, index, f"expected operands {want}, got {got}")
        if ins.type is not result:
            raise _wrong(program, index, f"expected type {result}, got {ins.type}")
        if ins.op in CONSTANTS and not (ins.bits is not None and 0 <= ins.bits < 2**32):
            raise _wrong(program, index, f"a constant needs 32 bits, got {ins.bits!r}")
        if ins.op in (Op.ISHL, Op.ISHR):
            count = program.instructions[ins.args[1]]
            if count.op is not Op.CONST_I32 or not 0 <= int(count.value) <= 31:
                raise _wrong(program, index, "a shift count must be a constant from 0 to 31")
        known = {Op.INPUT: program.inputs, Op.PARAM: program.params}.get(ins.op)
        if known is not None and ins.name not in known:
            raise _wrong(program, index, f"unknown {ins.op.value} {ins.name!r}, expected one of {known}")
        types.append(result)
    for name, index in program.outputs:
        if not 0 <= index < len(types) or types[index] is not Type.F32:
            raise ProgramError(f"{program.name}: output {name} must be an f32 value, got %{index}")


def _wrong(program: Program, index: int, cause: str) -> ProgramError:
    ins = program.instructions[index]
    return ProgramError(f"{program.name}: %{index} = {ins.op.value}{ins.args}: {cause}")


def _primitive(op: Op) -> Callable[..., int]:
    """The method of a builder that writes one."""

    def write(self: Builder, *args: int) -> int:
        return self.emit(op, *args)

    return write


class Builder:
    """Writes a :class:`Program`, sharing equal instructions as it goes.

    Methods return the index of the value.  Constants are given as numbers that
    float32 represents exactly.

    >>> b = Builder("half", inputs=("x",))
    >>> b.output("y", b.mul(b.input("x"), b.f32(0.5)))
    >>> b.build().count()
    {'mul': 1}
    """

    def __init__(self, name: str, inputs: Iterable[str], params: Iterable[str] = ()) -> None:
        self.name, self.inputs, self.params = name, tuple(inputs), tuple(params)
        self._instructions: list[Instruction] = []
        self._seen: dict[tuple[object, ...], int] = {}
        self._outputs: list[tuple[str, int]] = []
        self._comments: dict[int, str] = {}

    def emit(self, op: Op, *args: int, bits: int | None = None, name: str | None = None) -> int:
        """Append one instruction, or return the equal one that is there already."""
        if op.commutes:
            args = (*sorted(args[:2]), *args[2:])
        kind = self._instructions[args[1]].type if op is Op.SELECT else op.result
        key = (op, args, bits, name)
        index = self._seen.get(key)
        if index is None:
            index = self._seen[key] = len(self._instructions)
            self._instructions.append(Instruction(op, args, kind, bits, name))
        return index

    @property
    def instructions(self) -> Sequence[Instruction]:
        """What is written so far."""
        return self._instructions

    def type_of(self, index: int) -> Type:
        """Type of a value already written."""
        return self._instructions[index].type

    def instruction(self, index: int) -> Instruction:
        """A value already written."""
        return self._instructions[index]

    def input(self, name: str) -> int:
        return self.emit(Op.INPUT, name=name)

    def param(self, name: str) -> int:
        return self.emit(Op.PARAM, name=name)

    def f32(self, value: float) -> int:
        return self.emit(Op.CONST_F32, bits=f32_bits(value))

    def i32(self, value: int) -> int:
        return self.emit(Op.CONST_I32, bits=value & 0xFFFFFFFF)

    add, sub, mul, div = map(_primitive, (Op.ADD, Op.SUB, Op.MUL, Op.DIV))
    sqrt, fma, neg, abs = map(_primitive, (Op.SQRT, Op.FMA, Op.NEG, Op.ABS))
    lt, le, eq = map(_primitive, (Op.LT, Op.LE, Op.EQ))
    both, either, invert = map(_primitive, (Op.AND, Op.OR, Op.NOT))
    as_i32, as_f32 = map(_primitive, (Op.F32_AS_I32, Op.I32_AS_F32))
    iadd, isub, iand, ior = map(_primitive, (Op.IADD, Op.ISUB, Op.IAND, Op.IOR))

    def select(self, condition: int, if_true: int, if_false: int) -> int:
        return if_true if if_true == if_false else self.emit(Op.SELECT, condition, if_true, if_false)

    def ishl(self, a: int, count: int) -> int:
        return self.emit(Op.ISHL, a, self.i32(count))

    def ishr(self, a: int, count: int) -> int:
        return self.emit(Op.ISHR, a, self.i32(count))

    def comment(self, index: int, text: str) -> int:
        """Say what a value is; shown once beside it in the emitted code."""
        self._comments.setdefault(index, text)
        return index

    def output(self, name: str, index: int) -> None:
        self._outputs.append((name, index))

    def build(self) -> Program:
        """The program so far, verified."""
        program = Program(
            self.name,
            self.inputs,
            self.params,
            tuple(self._instructions),
            tuple(self._outputs),
            dict(self._comments),
        )
        verify(program)
        return program
