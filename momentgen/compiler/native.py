"""Running generated C from the compiler: for measuring and for comparing bits.

The runtime has its own cached build; this one compiles into a temporary
directory that lives as long as the process, and serves what looks at a built package, and tests.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from momentgen.compiler.toolchain.arrays import F32
from momentgen.compiler.toolchain.c_libraries import compiled
from momentgen.errors import BuildError, InputError
from momentgen.native.includes import whole


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
        self.symbol, self._counts = symbol, (n_inputs, n_params, n_outputs)
        library = compiled(whole(c_source), flags, compiler)
        try:
            self._function = library[symbol]
        except AttributeError as error:
            raise BuildError(symbol, "emit", f"expected the C file to export {symbol}: {error}") from error
        self._function.argtypes = [ctypes.c_int64] + [ctypes.c_void_p] * (n_inputs + 1 + n_outputs)
        self._function.restype = None

    def __call__(self, *inputs: F32, params: Sequence[float] = (), out: Sequence[F32] | None = None) -> tuple[F32, ...]:
        """Evaluate.

        Args:
            inputs: contiguous float32 arrays of one shape.
            params: one number a parameter, in the program's order; rounded to float32.
            out: arrays to write, contiguous float32 of that shape and apart from the inputs; made if None.

        Returns:
            One float32 array an output, in the program's order.

        Raises:
            InputError: if an array has another number, shape, dtype or layout.
        """
        n_inputs, n_params, n_outputs = self._counts
        if len(inputs) != n_inputs or len(params) != n_params:
            raise InputError(
                f"{self.symbol}: expected {n_inputs} inputs and {n_params} parameters, got {len(inputs)}, {len(params)}"
            )
        shape = inputs[0].shape if inputs else ()
        if out is None:
            out = [np.empty(shape, np.float32) for _ in range(n_outputs)]
        elif len(out) != n_outputs:
            raise InputError(f"{self.symbol}: expected {n_outputs} outputs, got {len(out)}")
        for array in (*inputs, *out):
            if array.dtype != np.float32 or array.shape != shape or not array.flags.c_contiguous:
                raise InputError(
                    f"{self.symbol}: expected contiguous float32 arrays of shape {shape}, "
                    f"got {array.dtype} of shape {array.shape}"
                )
        scalars = np.asarray(params, np.float64).astype(np.float32)
        size = inputs[0].size if inputs else 1
        pointers = [array.ctypes.data for array in (*inputs, scalars, *out)]
        self._function(size, *pointers)
        return tuple(out)
