"""The NumPy evaluation of a float32 program, bit for bit what the emitted code computes.

Tests compare every renderer and the :mod:`momentgen.compiler.ir.interpreter` with
it, and it stands in for both where there is no compiler.  It works on blocks
that stay in cache: values that depend on parameters only are computed once,
and the storage of a value is used again as soon as the value is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from momentgen.compiler.ir.op import Op, Type
from momentgen.compiler.ir.program import Instruction, Program
from momentgen.compiler.toolchain.arrays import F32, F64
from momentgen.errors import InputError

Array = npt.NDArray[np.generic]

_BLOCK = 8192
_DTYPE = {Type.F32: np.dtype(np.float32), Type.I32: np.dtype(np.int32), Type.BOOL: np.dtype(np.bool_)}
_TINY = np.float32(2.0**-126)


class _Fma:
    """fma with scratch space: the product is exact in float64, only the sum and the last conversion round.

    Two roundings differ from one only if the float64 sum falls on a midpoint of
    two float32 numbers, or if float32 rounds it below its normal range.  Those
    few elements are done again with the sum rounded to odd, after which the
    conversion is right (Boldo and Melquiond, "Emulation of FMA and correctly
    rounded sums", 2008).
    """

    def __init__(self, size: int) -> None:
        self._x, self._y = np.empty(size), np.empty(size)
        self._low = np.empty(size, np.int64)
        self._magnitude = np.empty(size, np.float32)
        self._hit, self._small = np.empty(size, np.bool_), np.empty(size, np.bool_)

    def __call__(self, a: F32, b: F32, c: F32, out: F32) -> None:
        n = out.size
        x, y, low = self._x[:n], self._y[:n], self._low[:n]
        np.copyto(x, a)
        np.copyto(y, b)
        np.multiply(x, y, out=x)
        np.copyto(y, c)
        np.add(x, y, out=y)
        # ``out`` may be the storage of an operand, so the rare elements are found before it is written.
        magnitude, hit, small = self._magnitude[:n], self._hit[:n], self._small[:n]
        np.copyto(magnitude, y, casting="same_kind")
        np.bitwise_and(y.view(np.int64), 0x1FFFFFFF, out=low)
        np.equal(low, 0x10000000, out=hit)
        absolute = low.view(np.float32)[:n]
        np.less(np.absolute(magnitude, out=absolute), _TINY, out=small)
        if small.any():
            hit |= small & (y != 0.0)
        if hit.any():
            where = np.flatnonzero(hit)
            product, total = x[where], y[where]
            addend = (c if c.size == 1 else c[where]).astype(np.float64)
            magnitude[where] = _to_odd(product, addend, total).astype(np.float32)
        np.copyto(out, magnitude)


def _to_odd(x: F64, y: F64, total: F64) -> Array:
    """x + y rounded to odd, given ``total``, the sum rounded to nearest."""
    part = total - x
    error = (x - (total - part)) + (y - part)
    bits = total.view(np.int64)
    away = (error > 0.0) == (total > 0.0)
    inexact_and_even = ((error < 0.0) | (error > 0.0)) & ((bits & 1) == 0)
    return np.where(inexact_and_even, bits + np.where(away, 1, -1), bits).view(np.float64)


def fma(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> F32:
    """a*b + c in float32, rounded once, with subnormal results and overflow right.

    Args:
        a: float32 array or scalar; ``b`` and ``c`` likewise, of shapes that broadcast together.

    Returns:
        float32 array of the common shape.

    >>> float(fma(np.float32(1 + 2**-12), np.float32(1 - 2**-12), np.float32(-1))) == -(2.0**-24)
    True
    """
    arrays = np.broadcast_arrays(*(np.asarray(v, np.float32) for v in (a, b, c)))
    out = np.empty(arrays[0].shape, np.float32)
    flat, inputs = out.reshape(-1), [np.ascontiguousarray(v).reshape(-1) for v in arrays]
    step = _Fma(min(flat.size, _BLOCK))
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            x, y, z = (v[start : start + _BLOCK] for v in inputs)
            step(x, y, z, flat[start : start + _BLOCK])
    return out


#: (kernel, storage of the operands, storage of the result)
_Step = tuple[Callable[..., object], tuple[int, ...], int]


class CompiledProgram:
    """A program made ready for many evaluations; see :func:`compile_program`.

    An instance owns scratch storage, so that it must not be called from two threads at once.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        instructions = program.instructions
        self._live = dict.fromkeys(program.live())
        self._varying = _varying(program)
        self._fma = _Fma(_BLOCK)
        self._scalar_fma = _Fma(1)
        self._types: list[np.dtype[np.generic]] = []
        self._slot: dict[int, int] = {}
        self._steps: list[_Step] = []
        last_use = {index: i for i, ins in enumerate(instructions) if i in self._live for index in ins.args}
        for _, index in program.outputs:
            last_use[index] = len(instructions)
        free: dict[Type, list[int]] = {kind: [] for kind in Type}
        for i, ins in enumerate(instructions):
            if i not in self._live:
                continue
            # Inputs and uniform values are never overwritten: they keep storage of their own.
            dead = [a for a in set(ins.args) if last_use[a] == i and self._varying[a] and instructions[a].args]
            for a in dead:
                free[instructions[a].type].append(self._slot[a])
            if self._varying[i] and ins.args and free[ins.type]:
                self._slot[i] = free[ins.type].pop()
            else:
                self._slot[i] = len(self._types)
                self._types.append(_DTYPE[ins.type])
            if self._varying[i] and ins.args:
                kernel: Callable[..., object] = self._fma if ins.op is Op.FMA else ins.op.numpy
                self._steps.append((kernel, tuple(self._slot[a] for a in ins.args), self._slot[i]))
        varying_slots = {self._slot[i] for i in self._live if self._varying[i] and instructions[i].args}
        self._buffers = {s: np.empty(_BLOCK, self._types[s]) for s in varying_slots}

    def __call__(self, inputs: Mapping[str, F32], params: Mapping[str, float]) -> dict[str, F32]:
        """Evaluate; arguments and result as in :func:`evaluate`."""
        program = self.program
        arrays, shape = _check_inputs(program, inputs)
        flat = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
        size = int(np.prod(shape, dtype=np.int64))
        results = {name: np.empty(size, np.float32) for name, _ in program.outputs}
        with np.errstate(all="ignore"):
            uniform = self._uniform(params)
            for start in range(0, size, _BLOCK):
                self._block(flat, uniform, results, slice(start, min(start + _BLOCK, size)))
        return {name: array.reshape(shape) for name, array in results.items()}

    def _uniform(self, params: Mapping[str, float]) -> dict[int, Array]:
        """Storage -> array of one element, for all that does not depend on an input."""
        instructions = self.program.instructions
        indices = [i for i in self._live if not self._varying[i]]
        known = np.array([instructions[i].bits or 0 for i in indices], np.uint32)
        of_type = {Type.F32: known.view(np.float32), Type.I32: known.view(np.int32), Type.BOOL: known.astype(np.bool_)}
        values: dict[int, Array] = {}
        for k, i in enumerate(indices):
            ins = instructions[i]
            values[self._slot[i]] = out = of_type[ins.type][k : k + 1]
            if ins.args:
                kernel: Callable[..., object] = self._scalar_fma if ins.op is Op.FMA else ins.op.numpy
                kernel(*(values[self._slot[a]] for a in ins.args), out=out)
            elif ins.op is Op.PARAM:
                out[0] = _param(self.program, ins, params)
        return values

    def _block(self, flat: list[F32], uniform: dict[int, Array], results: dict[str, F32], window: slice) -> None:
        program, n = self.program, window.stop - window.start
        values: list[Array] = [uniform.get(s, self._buffers.get(s, _EMPTY))[:n] for s in range(len(self._types))]
        for i in self._live:
            ins = program.instructions[i]
            if ins.op is Op.INPUT:
                values[self._slot[i]] = flat[program.inputs.index(str(ins.name))][window]
        for kernel, args, out in self._steps:
            kernel(*[values[a] for a in args], out=values[out])
        for name, index in program.outputs:
            results[name][window] = values[self._slot[index]]


_EMPTY: Array = np.empty(0, np.float32)


def _varying(program: Program) -> list[bool]:
    """Whether each value depends on an input, rather than on constants and parameters alone."""
    varying: list[bool] = []
    for ins in program.instructions:
        varying.append(ins.op is Op.INPUT or any(varying[a] for a in ins.args))
    return varying


def _param(program: Program, ins: Instruction, params: Mapping[str, float]) -> float:
    if ins.name is None or ins.name not in params:
        raise InputError(f"program {program.name}: expected parameters {program.params}, got {tuple(params)}")
    return params[ins.name]


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


def compile_program(program: Program) -> CompiledProgram:
    """A callable for ``program``, worth making when it is evaluated more than once.

    >>> from momentgen.compiler.ir.program import Builder
    >>> b = Builder("axpy", inputs=("x",), params=("a",))
    >>> b.output("y", b.fma(b.input("x"), b.param("a"), b.f32(1.0)))
    >>> compile_program(b.build())({"x": np.float32([1.0, 2.0])}, {"a": 3.0})
    {'y': array([4., 7.], dtype=float32)}
    """
    return CompiledProgram(program)


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
    return compile_program(program)(inputs, params or {})
