"""C kernels, called through ctypes on raw addresses."""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
from collections.abc import Callable
from typing import Any

import torch

from momentgen.errors import MomentgenError
from momentgen.native.includes import whole
from momentgen.runtime.kernel_cache import compile_and_load
from momentgen.runtime.toolchain import Unavailable, torch_openmp

__all__ = ["NativeKernels"]

#: generated kernels use one thread up to this many elements.
_SERIAL = 8192


class NativeKernels:
    """The compiled C functions of one variant.

    Attributes:
        forward: ``(n, *input addresses, params, *output addresses) -> None``; ``n`` is an ``int64_t``.
        backward: the same, with the gradients of the outputs after the inputs.

    Args:
        package: the generated package that holds ``VARIANT.c`` and ``VARIANT_float64.c``.
        name: the rule.
        variant: the variant.
        inputs: number of tensors the rule takes: a mean and a variance for each random input, perhaps a covariance.
        outputs: number of tensors it returns.
        double: whether the functions are to take float64 instead of float32.

    Raises:
        Unavailable: if this machine cannot compile C, or the package was built before there was C in float64.
        MomentgenError: if the source is missing or lacks a function, so that the package is damaged.
    """

    forward: Callable[..., None]
    backward: Callable[..., None]

    def __init__(
        self, package: str, name: str, variant: str, inputs: int, outputs: int = 2, *, double: bool = False
    ) -> None:
        file = f"{variant}_float64" if double else variant
        resource = importlib.resources.files(package).joinpath(f"{file}.c")
        if double and not resource.is_file():
            raise Unavailable(f"{package} has no {file}.c; build it again with this version of momentgen")
        try:
            source = whole(resource.read_text(encoding="utf-8"))
        except OSError as error:
            raise MomentgenError(f"{name}: the C source of variant {variant} does not read: {error}") from error
        stem = f"{name}_{file}"
        library = compile_and_load(stem, source)
        set_threads = _thread_setter(library)
        for which, pointers in (("forward", inputs + 1 + outputs), ("backward", inputs + outputs + 1 + inputs)):
            symbol = f"{stem}_{which}"
            try:
                function = library[symbol]
            except AttributeError:
                raise MomentgenError(f"{name}: {resource} defines no function {symbol}") from None
            function.argtypes = [ctypes.c_int64] + [ctypes.c_void_p] * pointers
            function.restype = None
            setattr(self, which, _threaded(function, set_threads) if set_threads else function)


@functools.lru_cache(maxsize=256)
def parameter_block(scalars: tuple[float, ...], double: bool = False) -> ctypes.Array[Any]:
    """The ``params`` argument of a C kernel."""
    return ((ctypes.c_double if double else ctypes.c_float) * len(scalars))(*scalars)


def _thread_setter(library: ctypes.CDLL) -> Callable[[int], object] | None:
    """None where torch's own OpenMP runs the kernels, and so ``torch.set_num_threads`` holds already."""
    try:
        mine = library["omp_set_num_threads"]
    except AttributeError:
        return None  # compiled without OpenMP
    if shared := torch_openmp():
        theirs = ctypes.CDLL(shared)["omp_set_num_threads"]
        if ctypes.cast(mine, ctypes.c_void_p).value == ctypes.cast(theirs, ctypes.c_void_p).value:
            return None
    mine.argtypes, mine.restype = [ctypes.c_int], None
    return mine


def _threaded(function: Callable[..., None], set_threads: Callable[[int], object]) -> Callable[..., None]:
    def call(n: int, *addresses: object) -> None:
        if n > _SERIAL:
            set_threads(torch.get_num_threads())
        function(n, *addresses)

    return call
