"""The program: straight-line SSA over correctly rounded primitives, in float32 or in float64.

This is the compiler's lowest level.  ``lower`` writes it, ``passes`` tidy those
of float32, ``evaluate`` runs these in NumPy, and the renderers in ``emit`` turn
all into C, those of float32 into Triton and those of float64 into PyTorch.
Because every primitive of float32 is correctly rounded (or exact), every
renderer gives the same bits.

A value's type is that of the program's real numbers, ``f32`` or ``f64``, or
``i32`` or ``bool``.  Its name is its index in :attr:`Program.instructions`; an
instruction refers only to earlier ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from momentgen.compiler.ir.graph import reached
from momentgen.compiler.ir.op import CONSTANTS, REALS, Op, Type

#: type -> how its bits and its numbers are packed
_PACKED = {Type.F32: ("<I", "<f"), Type.F64: ("<Q", "<d"), Type.I32: ("<I", "<i")}
#: primitives of one type of real numbers alone
_ALONE = {Op.EXP: Type.F64, Op.LOG: Type.F64, Op.ROUND: Type.F64, Op.F32_AS_I32: Type.F32}


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


def number_of(bits: int, kind: Type) -> float | int:
    """The number that a constant's bits stand for.

    >>> number_of(0x3FC00000, Type.F32), number_of(0x3FF8000000000000, Type.F64), number_of(2**32 - 1, Type.I32)
    (1.5, 1.5, -1)
    """
    of_bits, of_number = _PACKED[kind]
    number: float | int = struct.unpack(of_number, struct.pack(of_bits, bits))[0]
    return number


@dataclass(frozen=True)
class Instruction:
    """One primitive: its operator, its operands (indices), and what a leaf carries."""

    op: Op
    args: tuple[int, ...] = ()
    type: Type = Type.F32
    bits: int | None = None  # of a constant, 0 <= bits < 2**32, or 2**64
    name: str | None = None  # of an input or parameter

    @property
    def value(self) -> float | int:
        """The number a constant stands for."""
        if self.bits is None:
            raise ProgramError(f"{self.op.value} is not a constant")
        return number_of(self.bits, self.type)


@dataclass(frozen=True)
class Program:
    """A kernel body: one call per element.

    Attributes:
        name: what the emitted function is called.
        inputs: names of the tensor inputs, in the order of the signature.
        params: names of the scalar parameters, in order.
        instructions: the SSA values, in order.
        outputs: (name, index) pairs, in the order of the signature; all real numbers.
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
        return reached((index for _, index in self.outputs), lambda index: self.instructions[index].args)

    @property
    def real(self) -> Type:
        """Type of its real numbers."""
        return Type.F64 if any(ins.type is Type.F64 for ins in self.instructions) else Type.F32

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
                raise _wrong(program, index, f"expected (bool, T, T) with T a number, got {got}")
            result = got[1]
        else:
            want, result = ins.op.operands, ins.op.result
            if Type.F64 in got or (ins.type is Type.F64 and not got):
                want, result = tuple(map(_doubled, want)), _doubled(result)
            if got != want or _ALONE.get(ins.op, want and want[0]) is not (want and want[0]):
                raise _wrong(program, index, f"expected operands {want}, got {got}")
        if ins.type is not result:
            raise _wrong(program, index, f"expected type {result}, got {ins.type}")
        width = 64 if ins.op is Op.CONST_F64 else 32
        if ins.op in CONSTANTS and not (ins.bits is not None and 0 <= ins.bits < 2**width):
            raise _wrong(program, index, f"a constant needs {width} bits, got {ins.bits!r}")
        if ins.op in (Op.ISHL, Op.ISHR):
            count = program.instructions[ins.args[1]]
            if count.op is not Op.CONST_I32 or not 0 <= int(count.value) <= 31:
                raise _wrong(program, index, "a shift count must be a constant from 0 to 31")
        known = {Op.INPUT: program.inputs, Op.PARAM: program.params}.get(ins.op)
        if known is not None and ins.name not in known:
            raise _wrong(program, index, f"unknown {ins.op.value} {ins.name!r}, expected one of {known}")
        types.append(result)
    for name, index in program.outputs:
        if not 0 <= index < len(types) or types[index] not in REALS:
            raise ProgramError(f"{program.name}: output {name} must be a real number, got %{index}")


def _doubled(kind: Type) -> Type:
    return Type.F64 if kind is Type.F32 else kind


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

    Methods return the index of the value.  Constants of float32 are given as
    numbers that it represents exactly.

    Args:
        name, inputs, params: of the program.
        real: type of its inputs and parameters.

    >>> b = Builder("half", inputs=("x",))
    >>> b.output("y", b.mul(b.input("x"), b.f32(0.5)))
    >>> b.build().count()
    {'mul': 1}
    """

    def __init__(self, name: str, inputs: Iterable[str], params: Iterable[str] = (), *, real: Type = Type.F32) -> None:
        self.name, self.inputs, self.params, self.real = name, tuple(inputs), tuple(params), real
        self._instructions: list[Instruction] = []
        self._seen: dict[tuple[object, ...], int] = {}
        self._outputs: list[tuple[str, int]] = []
        self._comments: dict[int, str] = {}

    def emit(self, op: Op, *args: int, bits: int | None = None, name: str | None = None) -> int:
        """Append one instruction, or return the equal one that is there already."""
        if op.commutes:
            args = (*sorted(args[:2]), *args[2:])
        kind = self._instructions[args[1]].type if op is Op.SELECT else op.result
        if self.real is Type.F64 and kind is Type.F32 and op is not Op.CONST_F32:
            kind = Type.F64
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

    def input(self, name: str) -> int:
        return self.emit(Op.INPUT, name=name)

    def param(self, name: str) -> int:
        return self.emit(Op.PARAM, name=name)

    def f32(self, value: float) -> int:
        return self.emit(Op.CONST_F32, bits=f32_bits(value))

    def f64(self, value: float) -> int:
        (bits,) = struct.unpack("<Q", struct.pack("<d", value))
        return self.emit(Op.CONST_F64, bits=bits)

    def i32(self, value: int) -> int:
        return self.emit(Op.CONST_I32, bits=value & 0xFFFFFFFF)

    add, sub, mul, div = map(_primitive, (Op.ADD, Op.SUB, Op.MUL, Op.DIV))
    sqrt, fma, neg, abs = map(_primitive, (Op.SQRT, Op.FMA, Op.NEG, Op.ABS))
    exp, round = map(_primitive, (Op.EXP, Op.ROUND))
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
            self.name, self.inputs, self.params, tuple(self._instructions), tuple(self._outputs), dict(self._comments)
        )
        verify(program)
        return program
