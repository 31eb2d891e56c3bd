"""The NumPy evaluation of a float32 program, bit for bit what the emitted code computes.

Tests compare every renderer and the :mod:`momentgen.compiler.ir.interpreter` with
it, and it stands in for both where there is no compiler.  It works on blocks
that stay in cache, and holds a value only as long as another needs it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from momentgen.compiler.ir.op import Op
from momentgen.compiler.ir.program import Instruction, Program
from momentgen.compiler.toolchain.arrays import F32
from momentgen.errors import InputError

_BLOCK = 8192
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
        for start in range(0, size, _BLOCK):
            block = slice(start, start + _BLOCK)
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
