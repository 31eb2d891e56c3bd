"""Random programs over every primitive, and inputs that hit the corners of float32.

A NaN's payload is not specified, so its bits must not reach a number: a value
is bit cast only behind ``x == x ? x : constant``.
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from momentgen.compiler.ir.op import Op, Type
from momentgen.compiler.ir.passes import optimise
from momentgen.compiler.ir.program import Builder, Program

# fmt: off
_CORNERS = [
    0.0, 1.0, 0.5, 2.0, 3.0, 1.5, 0.1, 1.0 / 3.0, 1e-3, 1e3, 1e10, 1e-10, 1e19, 1e-19, 2.0**24, 2.0**-24, 2.0**23 + 1.0,
    2.0**-126, 2.0**-149, 2.0**-127, 2.0**-126 - 2.0**-149, 2.0**-75, 2.0**64, 2.0**127, (2.0 - 2.0**-23) * 2.0**127,
    1.0 + 2.0**-23, 1.0 - 2.0**-24, float("inf"),
]
# fmt: on
CORNERS = [float(np.float32(value)) for value in _CORNERS]
INTEGERS = [0, 1, -1, 2, 7, 23, 127, 0x7FFFFFFF, -(2**31), 0x7F800000, 0x007FFFFF, 0x3F800000, -0x10000]

_F32_OPS = [
    Op.ADD,
    Op.SUB,
    Op.MUL,
    Op.DIV,
    Op.SQRT,
    Op.FMA,
    Op.FMA,
    Op.NEG,
    Op.ABS,
    Op.SELECT,
    Op.SELECT,
    Op.I32_AS_F32,
]
_OTHER_OPS = [Op.LT, Op.LE, Op.EQ, Op.AND, Op.OR, Op.NOT, Op.F32_AS_I32, Op.SELECT]
_OTHER_OPS += [Op.IADD, Op.ISUB, Op.ISHL, Op.ISHR, Op.IAND, Op.IOR]


def random_program(rng: random.Random, name: str = "program", operations: int = 40) -> Program:
    """A program with two inputs, one parameter and three outputs, over all primitives."""
    b = Builder(name, inputs=("x", "y"), params=("p",))
    x, y, p = b.input("x"), b.input("y"), b.param("p")
    floats = [x, y, p]
    for _ in range(6):
        value = float(np.float32(rng.choice(CORNERS) if rng.random() < 0.6 else rng.uniform(-20.0, 20.0)))
        floats.append(b.f32(value if rng.random() < 0.5 else -value))
    if rng.random() < 0.3:
        floats.append(b.f32(float("nan")))
    integers = [b.i32(rng.choice(INTEGERS) if rng.random() < 0.7 else rng.getrandbits(32)) for _ in range(3)]
    bools = [b.lt(x, y), b.le(p, x), b.eq(x, y)]

    def pick(values: list[int]) -> int:
        # Mostly recent values, so that the program is deep.
        return rng.choice(values[-8:] if rng.random() < 0.7 else values)

    def value_of(op: Op, kind: Type) -> int:
        if op in (Op.LT, Op.LE, Op.EQ, Op.ADD, Op.SUB, Op.MUL, Op.DIV):
            return b.emit(op, pick(floats), pick(floats))
        if op is Op.FMA:
            return b.fma(pick(floats), pick(floats), pick(floats))
        if op in (Op.SQRT, Op.NEG, Op.ABS):
            return b.emit(op, pick(floats))
        if op in (Op.AND, Op.OR):
            return b.emit(op, pick(bools), pick(bools))
        if op is Op.NOT:
            return b.invert(pick(bools))
        if op is Op.SELECT:
            pool = floats if kind is Type.F32 else integers
            return b.select(pick(bools), pick(pool), pick(pool))
        if op is Op.I32_AS_F32:
            return b.as_f32(pick(integers))
        if op is Op.F32_AS_I32:
            value = pick(floats)
            return b.as_i32(b.select(b.eq(value, value), value, b.f32(1.0)))
        if op in (Op.ISHL, Op.ISHR):
            return b.emit(op, pick(integers), b.i32(rng.randrange(32)))
        return b.emit(op, pick(integers), pick(integers))

    for _ in range(operations):
        if rng.random() < 0.65:
            floats.append(value_of(rng.choice(_F32_OPS), Type.F32))
            continue
        index = value_of(rng.choice(_OTHER_OPS), Type.I32)
        {Type.F32: floats, Type.I32: integers, Type.BOOL: bools}[b.instructions[index].type].append(index)
    b.comment(floats[-1], "the last value")
    outputs = [floats[-1], floats[-2], b.select(bools[-1], b.as_f32(integers[-1]), floats[-3])]
    for number, index in enumerate(outputs):
        b.output(f"o{number}", index)
    return b.build()


def sums(count: int, results: int = 2, seed: int = 0, name: str = "many") -> Program:
    """Sums over terms that are polynomials, some results of each; the sums take them in one after the other."""
    rng = random.Random(seed)
    b = Builder(name, inputs=("x", "y"), params=("p",))
    x, y = b.input("x"), b.input("y")
    totals = [b.f32(0.5)] * results
    for _ in range(count):
        width = b.f32(float(np.float32(rng.uniform(1.0, 5.0))))
        t = b.div(x, b.sqrt(b.add(b.mul(y, y), width)))
        u = b.fma(t, b.fma(t, b.fma(t, b.f32(0.25), b.f32(-0.5)), b.f32(0.125)), b.f32(1.5))
        values = [u, b.mul(u, t)]
        for _ in range(results - 2):
            values.append(b.fma(values[-1], t, values[-2]))
        for k, value in enumerate(values):
            totals[k] = b.fma(value, b.f32(float(np.float32(rng.uniform(-1, 1)))), totals[k])
    for k, total in enumerate(totals):
        b.output(f"s{k}", total)
    return b.build()


def for_backends(seeds: int = 16) -> list[Program]:
    """What every backend must compute: random programs, and sums of polynomials."""
    every = [random_program(random.Random(seed), f"program{seed}", 60) for seed in range(seeds)]
    every = [program if seed < seeds // 2 else optimise(program) for seed, program in enumerate(every)]
    return every + [sums(3 + seed, 3, seed, f"sums{seed}") for seed in range(0, seeds, 3)]


def programs(operations: int = 40) -> st.SearchStrategy[Program]:
    """Random programs; see :func:`random_program`."""
    randoms = st.randoms(use_true_random=False)
    return st.builds(lambda rng: random_program(rng, operations=operations), randoms)


def adversarial_inputs(n: int, seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Two arrays of ``n``: all pairs of corners and NaN, then random bits, moderate numbers, and equal pairs."""
    rng = np.random.default_rng(seed)
    corners = np.array([*CORNERS, float("nan")], np.float32)
    corners = np.concatenate([corners, -corners])
    x, y = (grid.ravel() for grid in np.meshgrid(corners, corners))
    rest = max(n - x.size, 0)
    bits = rng.integers(0, 2**32, (2, rest), dtype=np.uint32).view(np.float32)
    moderate = (rng.standard_normal((2, rest)) * 10.0 ** rng.integers(-3, 4, (2, rest))).astype(np.float32)
    mixed = np.where(rng.random(rest) < 0.4, bits, moderate)
    mixed[1] = np.where(rng.random(rest) < 0.1, mixed[0], mixed[1])
    return {"x": np.concatenate([x, mixed[0]])[:n].copy(), "y": np.concatenate([y, mixed[1]])[:n].copy()}


def different_bits(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    """Where two float32 arrays differ in bits, NaN payloads exempt."""
    return np.flatnonzero((a.view(np.int32) != b.view(np.int32)) & ~(np.isnan(a) & np.isnan(b)))
