"""Float32 instructions run as they stand, by a small interpreter in compiled C: for programs that run a few times each.

Ablation tries hundreds of programs that differ in some values, and a program that is measured for its certificate may
be the first of ten.  Compiling each takes longer than running it, and NumPy has no fused multiply-add.  Here each
instruction is a row of four numbers, and its operation is done for a block of elements at a time.

:func:`evaluate` does it in NumPy, bit for bit what the emitted code computes.  Tests compare every renderer and the
interpreter with it, and it stands in for both where there is no compiler.  It works on blocks that stay in cache, and
holds a value only as long as another needs it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from momentgen.compiler.ir.op import LEAVES, Op
from momentgen.compiler.ir.program import Builder, Instruction, Program
from momentgen.compiler.toolchain.arrays import F32
from momentgen.compiler.toolchain.c_libraries import called, library
from momentgen.errors import InputError
from momentgen.native.c_compiler import find_compiler

_AT_ONCE = 8192
_DTYPE = {Op.CONST_F32: np.float32, Op.CONST_I32: np.int32}


def evaluate(program: Program, inputs: Mapping[str, F32], params: Mapping[str, float] | None = None) -> dict[str, F32]:
    """Evaluate ``program`` once for each element, in IEEE binary32 with gradual underflow.

    Args:
        program: a verified program.
        inputs: a float32 array for each input, all of one shape.
        params: a number for each scalar parameter; rounded to float32.

    Returns:
        A float32 array of that shape for each output, in the program's order.

    Raises:
        InputError: if inputs or parameters are missing, or of the wrong type or shape.

    >>> from momentgen.compiler.ir.program import Builder
    >>> b = Builder("relu", inputs=("x",))
    >>> x, zero = b.input("x"), b.f32(0.0)
    >>> b.output("y", b.select(b.lt(x, zero), zero, x))
    >>> evaluate(b.build(), {"x": np.float32([-1.0, 2.0])})["y"]
    array([0., 2.], dtype=float32)
    """
    arrays, shape = _check_inputs(program, inputs)
    flat = {name: np.ascontiguousarray(array).reshape(-1) for name, array in zip(program.inputs, arrays, strict=True)}
    size = int(np.prod(shape, dtype=np.int64))
    results = {name: np.empty(size, np.float32) for name, _ in program.outputs}
    live = program.live()
    last = {a: index for index in live for a in program.instructions[index].args}
    kept = {index for _, index in program.outputs}
    ended = {index: [a for a in {*program.instructions[index].args} - kept if last[a] == index] for index in live}
    leaves = [(index, program.instructions[index]) for index in live if not program.instructions[index].args]
    known = {index: _leaf(program, ins, params or {}) for index, ins in leaves}
    with np.errstate(all="ignore"):
        for start in range(0, size, _AT_ONCE):
            block = slice(start, start + _AT_ONCE)
            values: dict[int, npt.NDArray[np.generic]] = {}
            for index in live:
                ins = program.instructions[index]
                if ins.args:
                    values[index] = ins.op.numpy(*(values[a] for a in ins.args))
                else:
                    values[index] = flat[str(ins.name)][block] if ins.op is Op.INPUT else known[index]
                for a in ended[index]:
                    del values[a]
            for name, index in program.outputs:
                results[name][block] = values[index]
    return {name: array.reshape(shape) for name, array in results.items()}


def _leaf(program: Program, ins: Instruction, params: Mapping[str, float]) -> npt.NDArray[np.generic]:
    """A constant or a parameter, as an array of one element; of an input nothing."""
    if ins.op is Op.PARAM:
        if ins.name not in params:
            raise InputError(f"program {program.name}: expected parameters {program.params}, got {tuple(params)}")
        return np.array([params[str(ins.name)]], np.float64).astype(np.float32)
    return np.array([ins.bits or 0], np.uint32).view(_DTYPE.get(ins.op, np.float32))


def _check_inputs(program: Program, inputs: Mapping[str, F32]) -> tuple[list[F32], tuple[int, ...]]:
    """The inputs in the program's order and their common shape."""
    if set(inputs) != set(program.inputs):
        raise InputError(f"program {program.name}: expected inputs {program.inputs}, got {tuple(inputs)}")
    arrays = [np.asarray(inputs[name]) for name in program.inputs]
    for name, array in zip(program.inputs, arrays, strict=True):
        if array.dtype != np.float32:
            raise InputError(f"program {program.name}: expected input {name} in float32, got {array.dtype}")
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise InputError(f"program {program.name}: expected inputs of one shape, got {[a.shape for a in arrays]}")
    return arrays, shapes.pop() if shapes else ()


_BLOCK = 128  # elements at a time: some hundred values alive stay in the caches
_CODES: Mapping[Op, int] = {op: code for code, op in enumerate(Op)}
_SOURCE = """\
#include <math.h>
#include <stdlib.h>

#define BLOCK @BLOCK@
#define EACH(statement) { _Pragma("omp simd") for (int k = 0; k < BLOCK; k++) { statement; } } break

typedef union { float f; int32_t i; uint32_t u; } Word;
typedef struct { int32_t op, a, b, c; } Row;

static void step(int32_t op, const Word *a, const Word *b, const Word *c, Word *o)
{
    const float *fa = &a->f, *fb = &b->f, *fc = &c->f; float *f = &o->f;
    const int32_t *ia = &a->i, *ib = &b->i, *ic = &c->i; int32_t *i = &o->i;
    const uint32_t *ua = &a->u, *ub = &b->u; uint32_t *u = &o->u;
    switch (op) {
@CASES@
    }
}

/* The last of `count` rows are outputs or before them; an operand of a row is an earlier row, of a leaf what it is.
   Inputs and results hold whole blocks.  Returns 0, or 1 if there is no memory. */
int32_t run(int64_t count, const Row *rows, int64_t outputs, const int64_t *output, int64_t blocks,
            const Word *const *inputs, const Word *params, Word *const *results)
{
    int64_t *last = malloc(count * sizeof *last), *slot = malloc(count * sizeof *slot);
    int64_t *order = malloc(count * sizeof *order), *empty = malloc(count * sizeof *empty);
    int64_t steps = 0, slots = 0, free_slots = 0;
    Word *memory = NULL;
    int32_t failed = !last || !slot || !order || !empty;
    if (failed) goto end;
    for (int64_t r = 0; r < count; r++) last[r] = -1;
    for (int64_t k = 0; k < outputs; k++) last[output[k]] = count;
    for (int64_t r = count - 1; r >= 0; r--) {
        if (last[r] < 0 || rows[r].op < @LEAVES@) continue;
        order[steps++] = r;
        const int32_t operands[3] = {rows[r].a, rows[r].b, rows[r].c};
        for (int j = 0; j < 3; j++) if (operands[j] >= 0 && last[operands[j]] < 0) last[operands[j]] = r;
    }
    for (int64_t s = steps - 1; s >= 0; s--) {
        const int64_t r = order[s];
        const int32_t operands[3] = {rows[r].a, rows[r].b, rows[r].c};
        for (int j = 0; j < 3; j++) {
            const int32_t x = operands[j];
            if (x < 0 || rows[x].op < @LEAVES@ || last[x] != r) continue;
            empty[free_slots++] = slot[x];
            last[x] = -1;  /* once, also where it is an operand twice */
        }
        slot[r] = free_slots ? empty[--free_slots] : slots++;
    }
    memory = aligned_alloc(64, (slots + 3) * BLOCK * sizeof *memory);
    failed = !memory;
    if (failed) goto end;
    for (int64_t block = 0; block < blocks; block++) {
        for (int64_t s = steps - 1; s >= 0; s--) {
            const Row row = rows[order[s]];
            const int32_t operands[3] = {row.a, row.b, row.c};
            const Word *at[3] = {NULL, NULL, NULL};
            for (int j = 0; j < 3; j++) {
                if (operands[j] < 0) continue;
                const Row x = rows[operands[j]];
                if (x.op >= @LEAVES@) at[j] = memory + slot[operands[j]] * BLOCK;
                else if (x.op == @INPUT@) at[j] = inputs[x.a] + block * BLOCK;
                else {
                    Word *filled = memory + (slots + j) * BLOCK;
                    Word value; value.i = x.a;
                    if (x.op == @PARAM@) value = params[x.a];
                    for (int k = 0; k < BLOCK; k++) filled[k] = value;
                    at[j] = filled;
                }
            }
            step(row.op, at[0], at[1], at[2], memory + slot[order[s]] * BLOCK);
        }
        for (int64_t k = 0; k < outputs; k++) {
            const Row x = rows[output[k]];
            for (int j = 0; j < BLOCK; j++) {
                Word *to = results[k] + block * BLOCK + j;
                if (x.op >= @LEAVES@) *to = memory[slot[output[k]] * BLOCK + j];
                else if (x.op == @INPUT@) *to = inputs[x.a][block * BLOCK + j];
                else if (x.op == @PARAM@) *to = params[x.a];
                else to->i = x.a;
            }
        }
    }
end:
    free(last); free(slot); free(order); free(empty); free(memory);
    return failed;
}
"""


@functools.cache
def _library() -> ctypes.CDLL:
    cases = "\n".join(f"    case {_CODES[op]}: EACH({op.run});" for op in Op if op.run)
    source = _SOURCE.replace("@CASES@", cases).replace("@BLOCK@", str(_BLOCK)).replace("@LEAVES@", str(len(LEAVES)))
    source = source.replace("@INPUT@", str(_CODES[Op.INPUT])).replace("@PARAM@", str(_CODES[Op.PARAM]))
    return library(source, "-fno-strict-aliasing")


@dataclass(frozen=True, eq=False)
class Points:
    """Where to run: how many points, in how many blocks, the inputs (a row each, filled up), and the parameters."""

    size: int
    blocks: int
    inputs: F32
    params: F32


class Interpreter:
    """Values of a program at sets of points.

    Args:
        program: its instructions, inputs and parameters are meant; a builder may go on writing, and needs no outputs.

    >>> from momentgen.compiler.ir.program import Builder
    >>> b = Builder("f", inputs=("x",), params=("p",))
    >>> y = b.fma(b.input("x"), b.param("p"), b.f32(1.0))
    >>> interpreter = Interpreter(b)
    >>> points = interpreter.points({"x": np.float32([1.0, 2.0])}, {"p": 3.0})
    >>> interpreter.values(points, {"y": y})
    {'y': array([4., 7.], dtype=float32)}
    """

    def __init__(self, program: Program | Builder) -> None:
        self.program = program
        self._rows = np.empty((1024, 4), np.int32)
        self._count = 0

    def points(self, inputs: Mapping[str, F32], params: Mapping[str, float]) -> Points:
        """Points to run at: a float32 array for each input, all of one length, and a number for each parameter."""
        columns = [np.asarray(inputs[name], np.float32).ravel() for name in self.program.inputs]
        size = columns[0].size
        blocks = -(-size // _BLOCK)
        padded = np.ones((len(columns), blocks * _BLOCK), np.float32)
        padded[:, :size] = columns
        scalars = np.array([params[name] for name in self.program.params], np.float64).astype(np.float32)
        return Points(size, blocks, padded, scalars)

    def values(self, points: Points, wanted: Mapping[str, int]) -> dict[str, F32]:
        """The values ``wanted`` by index, under their names."""
        if find_compiler() is None:
            return self._in_numpy(points, wanted)
        rows = self._written()
        outputs = np.array(list(wanted.values()), np.int64)
        results = np.empty((len(outputs), points.inputs.shape[1]), np.float32)
        given, made = _addresses(points.inputs), _addresses(results)
        count = int(outputs.max()) + 1
        if called(_library().run, count, rows, len(outputs), outputs, points.blocks, given, points.params, made):
            raise MemoryError(f"{self.program.name}: no memory for the values of {count} instructions")
        return {name: results[k, : points.size] for k, name in enumerate(wanted)}

    def _in_numpy(self, points: Points, wanted: Mapping[str, int]) -> dict[str, F32]:
        of = self.program
        program = Program(of.name, of.inputs, of.params, tuple(of.instructions), tuple(wanted.items()))
        inputs = {name: column[: points.size] for name, column in zip(of.inputs, points.inputs, strict=True)}
        return evaluate(program, inputs, dict(zip(of.params, points.params.tolist(), strict=True)))

    def _written(self) -> npt.NDArray[np.int32]:
        """A row an instruction, those written since the last call added."""
        new = self.program.instructions[self._count :]
        if self._count + len(new) > len(self._rows):
            self._rows = np.resize(self._rows, (2 * (self._count + len(new)), 4))
        if new:
            self._rows[self._count : self._count + len(new)] = [self._row(ins) for ins in new]
            self._count += len(new)
        return self._rows

    def _row(self, ins: Instruction) -> tuple[int, int, int, int]:
        code = _CODES[ins.op]
        if ins.args:
            a, b, c = (*ins.args, -1, -1)[:3]
            return code, a, b, c
        if ins.bits is not None:
            return code, ins.bits - (ins.bits >> 31 << 32), -1, -1
        names = self.program.inputs if ins.op is Op.INPUT else self.program.params
        return code, names.index(str(ins.name)), -1, -1


def _addresses(arrays: F32) -> npt.NDArray[np.uintp]:
    """The address of each row."""
    return (arrays.ctypes.data + arrays.strides[0] * np.arange(len(arrays))).astype(np.uintp)
