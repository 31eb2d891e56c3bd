"""Running generated C from Python: for measuring, and for comparing bits.

The runtime has its own cached build; this one compiles into a temporary directory that lives as long as the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from momentgen.compiler.toolchain.arrays import F32
from momentgen.compiler.toolchain.c_libraries import compiled
from momentgen.errors import BuildError, InputError


class NativeKernel:
    """One exported kernel of a generated C file, callable on NumPy arrays.

    Args:
        c_source: what :func:`momentgen.compiler.emit.render_c` wrote.
        symbol: name of the kernel.
        n_inputs: number of input arrays; likewise ``n_params`` and ``n_outputs``.
        flags: compiler flags; by default those that the compiler accepts.
        compiler: its command; by default that of the machine.

    Raises:
        CompilerError: if there is no compiler, or it fails.
        BuildError: if the source exports no such symbol.

    >>> from momentgen.compiler.emit import Header, render_c
    >>> from momentgen.compiler.ir.program import Builder
    >>> b = Builder("twice", inputs=("x",))
    >>> b.output("y", b.add(b.input("x"), b.input("x")))
    >>> source = render_c([b.build()], Header("twice", "exact"))
    >>> NativeKernel(source, "twice", 1, 0, 1)(np.float32([1.5]))
    (array([3.], dtype=float32),)
    """

    def __init__(
        self,
        c_source: str,
        symbol: str,
        n_inputs: int,
        n_params: int,
        n_outputs: int,
        flags: Sequence[str] | None = None,
        compiler: tuple[str, ...] | None = None,
    ) -> None:
        self.symbol, self._counts, self._outputs = symbol, (n_inputs, n_params), n_outputs
        library = compiled(c_source, flags, compiler)
        try:
            self._function = library[symbol]
        except AttributeError as error:
            raise BuildError(symbol, "emit", f"expected the C file to export {symbol}: {error}") from error
        self._function.argtypes = [ctypes.c_int64] + [ctypes.c_void_p] * (n_inputs + 1 + n_outputs)
        self._function.restype = None

    def __call__(self, *inputs: F32, params: Sequence[float] = ()) -> tuple[F32, ...]:
        """A float32 array an output, in the program's order.

        Args:
            inputs: contiguous float32 arrays of one shape.
            params: one number a parameter, in the program's order; rounded to float32.

        Raises:
            InputError: if there is another number of them, or an array has another shape, dtype or layout.
        """
        shape = inputs[0].shape if inputs else ()
        fits = all(array.dtype == np.float32 and array.shape == shape and array.flags.c_contiguous for array in inputs)
        if (len(inputs), len(params)) != self._counts or not fits:
            got = f"{[(str(array.dtype), array.shape) for array in inputs]} and {len(params)} parameters"
            wanted = "{} contiguous float32 arrays of one shape and {} parameters".format(*self._counts)
            raise InputError(f"{self.symbol}: expected {wanted}, got {got}")
        outputs = tuple(np.empty(shape, np.float32) for _ in range(self._outputs))
        scalars = np.asarray(params, np.float64).astype(np.float32)
        self._function(outputs[0].size, *(array.ctypes.data for array in (*inputs, scalars, *outputs)))
        return outputs
