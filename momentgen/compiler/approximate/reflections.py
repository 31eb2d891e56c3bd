"""Least squares by Householder reflections, with the same bits on every machine."""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from momentgen.compiler.c_compiler import find_compiler
from momentgen.compiler.c_helpers import library

__all__ = ["least_squares"]

F64 = npt.NDArray[np.float64]
_SOURCE = """
/* What NumPy does in _in_numpy, in the same order: a column's products are added up from the first row to the last. */
void reflect(int64_t rows, int64_t columns, int64_t stride, double *restrict table, const double *restrict mirror,
             double factor, double *restrict products)
{
    for (int64_t j = 0; j < columns; ++j) products[j] = 0.0;
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) {
        const double *restrict a = table + i * stride, *restrict b = a + stride;
        const double *restrict c = b + stride, *restrict d = c + stride;
        for (int64_t j = 0; j < columns; ++j) {
            double sum = products[j] + mirror[i] * a[j];
            sum += mirror[i + 1] * b[j];
            sum += mirror[i + 2] * c[j];
            products[j] = sum + mirror[i + 3] * d[j];
        }
    }
    for (; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) products[j] += mirror[i] * table[i * stride + j];
    for (i = 0; i < rows; ++i) {
        const double share = factor * mirror[i];
        for (int64_t j = 0; j < columns; ++j) table[i * stride + j] -= share * products[j];
    }
}
"""


def least_squares(matrix: F64, wanted: F64) -> F64:
    """The minimiser of |matrix x - wanted|, or one for each column of ``wanted``, by Householder reflections.

    Not by LAPACK: these matrices are small, and threads of BLAS that wait for one another on a busy machine made a fit
    a hundred times slower; nor do its results have the same bits on every machine.
    """
    table = np.concatenate([matrix, wanted.reshape(len(matrix), -1)], axis=1, dtype=np.float64)
    count = matrix.shape[1]
    reflect = _in_numpy if find_compiler() is None else _in_c
    for k in range(count):
        mirror = table[k:, k].copy()
        size = math.sqrt(float(np.sum(mirror * mirror)))
        mirror[0] += math.copysign(size, mirror[0])
        norm = float(np.sum(mirror * mirror))
        if norm > 0.0:
            reflect(table, k, mirror, 2 / norm)
    solutions = [_substituted(table[:count, :count], column) for column in table[:count, count:].T]
    return np.array(solutions).T.reshape(count, *wanted.shape[1:])


def _substituted(triangle: F64, right: F64) -> F64:
    """The solution of an upper triangle's equations, 0 where it has nothing on its diagonal."""
    solution = np.zeros(len(right))
    for k in reversed(range(len(right))):
        if triangle[k, k] != 0.0:
            solution[k] = (right[k] - float(np.sum(triangle[k, k + 1 :] * solution[k + 1 :]))) / triangle[k, k]
    return solution


def _in_numpy(table: F64, k: int, mirror: F64, factor: float) -> None:
    """Reflect the rows and columns of ``table`` from the k-th on."""
    rest = table[k:, k:]
    rest -= factor * mirror[:, None] * np.einsum("i,ij->j", mirror, rest)


def _in_c(table: F64, k: int, mirror: F64, factor: float) -> None:
    """The same, to the bit."""
    rows, columns = table.shape
    products = np.empty(columns - k)
    start = table.ctypes.data + (k * columns + k) * table.itemsize
    _reflect()(rows - k, columns - k, columns, start, mirror.ctypes.data, factor, products.ctypes.data)


@cache
def _reflect() -> Any:
    function = library(_SOURCE).reflect
    size, place = ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [size, size, size, place, place, ctypes.c_double, place]
    function.restype = None
    return function
