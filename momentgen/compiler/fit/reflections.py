"""Least squares by Householder reflections, with the same bits on every machine."""

from __future__ import annotations

import math

import numpy as np

from momentgen.compiler.toolchain.arrays import F64
from momentgen.compiler.toolchain.c_libraries import called, library
from momentgen.native.c_compiler import find_compiler

#: columns whose reflections are found before the others are reflected; columns that are reflected at a time
_PANEL, _BLOCK = 8, 32
_SOURCE = (
    f"#define PANEL {_PANEL}\n#define BLOCK {_BLOCK}\n"
    """
#include <math.h>

/* What np.sum does. */
static double sum_of(const double *a, int64_t n)
{
    if (n < 8) {
        double total = -0.0;
        for (int64_t i = 0; i < n; ++i) total += a[i];
        return total;
    }
    if (n <= 128) {
        double r[8];
        int64_t i = 8;
        for (int j = 0; j < 8; ++j) r[j] = a[j];
        for (; i + 8 <= n; i += 8)
            for (int j = 0; j < 8; ++j) r[j] += a[i + j];
        double total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
        for (; i < n; ++i) total += a[i];
        return total;
    }
    const int64_t half = n / 2 - n / 2 % 8;
    return sum_of(a, half) + sum_of(a + half, n - half);
}

typedef double vector __attribute__((vector_size(32), aligned(8), may_alias));

/* Reflect a block of columns from its row ``from`` on.  A column's products are added up from the first row to the
   last.  Sums have names, or gcc leaves them in memory. */
static void reflect_panel(int64_t rows, int64_t from, double *block, const double *mirror, double factor)
{
    vector a = {0}, b = {0};
    for (int64_t i = from; i < rows; ++i) {
        const vector *row = (const vector *)(block + i * PANEL);
        a += mirror[i] * row[0], b += mirror[i] * row[1];
    }
    for (int64_t i = from; i < rows; ++i) {
        const double share = factor * mirror[i];
        vector *row = (vector *)(block + i * PANEL);
        row[0] -= share * a, row[1] -= share * b;
    }
}

static void reflect_block(int64_t rows, int64_t from, double *block, const double *mirror, double factor)
{
    vector a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0}, g = {0}, h = {0};
    for (int64_t i = from; i < rows; ++i) {
        const double m = mirror[i];
        const vector *row = (const vector *)(block + i * BLOCK);
        a += m * row[0], b += m * row[1], c += m * row[2], d += m * row[3];
        e += m * row[4], f += m * row[5], g += m * row[6], h += m * row[7];
    }
    for (int64_t i = from; i < rows; ++i) {
        const double share = factor * mirror[i];
        vector *row = (vector *)(block + i * BLOCK);
        row[0] -= share * a, row[1] -= share * b, row[2] -= share * c, row[3] -= share * d;
        row[4] -= share * e, row[5] -= share * f, row[6] -= share * g, row[7] -= share * h;
    }
}

static void copied(int64_t rows, int64_t width, int64_t used, double *block, double *table, int64_t stride, int back)
{
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < width; ++j) {
            if (back && j < used) table[i * stride + j] = block[i * width + j];
            if (!back) block[i * width + j] = j < used ? table[i * stride + j] : 0.0;
        }
}

/* What NumPy does in _in_numpy, column by column the same operations in the same order: a few columns at a time, so
   that they stay in the processor's cache while many reflections pass over them.
   table: (rows, columns), the last columns wanted.  work: rows * (PANEL + 1 + BLOCK).  solutions: (wanted, count). */
void least_squares(int64_t rows, int64_t columns, int64_t count, double *table, double *work, double *solutions)
{
    double *mirrors = work, *squares = work + PANEL * rows, *block = squares + rows;
    for (int64_t p = 0; p < count; p += PANEL) {
        const int64_t left = rows - p, width = count - p < PANEL ? count - p : PANEL;
        double factors[PANEL];
        copied(left, PANEL, width, block, table + p * columns + p, columns, 0);
        for (int64_t c = 0; c < width; ++c) {
            double *mirror = mirrors + c * rows;
            for (int64_t i = c; i < left; ++i) mirror[i] = block[i * PANEL + c];
            for (int64_t i = c; i < left; ++i) squares[i] = mirror[i] * mirror[i];
            mirror[c] += copysign(sqrt(sum_of(squares + c, left - c)), mirror[c]);
            squares[c] = mirror[c] * mirror[c];
            const double norm = sum_of(squares + c, left - c);
            factors[c] = norm > 0.0 ? 2.0 / norm : 0.0;
            if (norm > 0.0) reflect_panel(left, c, block, mirror, factors[c]);
        }
        copied(left, PANEL, width, block, table + p * columns + p, columns, 1);
        for (int64_t j = p + width; j < columns; j += BLOCK) {
            const int64_t used = columns - j < BLOCK ? columns - j : BLOCK;
            copied(left, BLOCK, used, block, table + p * columns + j, columns, 0);
            for (int64_t c = 0; c < width; ++c)
                if (factors[c] > 0.0) reflect_block(left, c, block, mirrors + c * rows, factors[c]);
            copied(left, BLOCK, used, block, table + p * columns + j, columns, 1);
        }
    }
    for (int64_t j = count; j < columns; ++j) {
        double *solution = solutions + (j - count) * count;
        for (int64_t k = count - 1; k >= 0; --k) {
            const double *row = table + k * columns;
            solution[k] = 0.0;
            if (row[k] == 0.0) continue;
            for (int64_t i = k + 1; i < count; ++i) squares[i] = row[i] * solution[i];
            solution[k] = (row[j] - sum_of(squares + k + 1, count - k - 1)) / row[k];
        }
    }
}
"""
)


def least_squares(matrix: F64, wanted: F64) -> F64:
    """The minimiser of |matrix x - wanted|, or one for each column of ``wanted``, by Householder reflections.

    Not by LAPACK: these matrices are small, and threads of BLAS that wait for one another on a busy machine made a fit
    a hundred times slower; nor do its results have the same bits on every machine.
    """
    rows, count = matrix.shape
    if rows < count:  # the C below would write beyond the table
        raise ValueError(f"least squares: expected at least as many rows as columns, got a matrix {rows} x {count}")
    table = np.concatenate([matrix, wanted.reshape(rows, -1)], axis=1, dtype=np.float64)
    solutions = (_in_numpy if find_compiler() is None else _in_c)(table, count)
    return solutions.T.reshape(count, *wanted.shape[1:])


def _in_c(table: F64, count: int) -> F64:
    """The same as :func:`_in_numpy`, to the bit."""
    rows, columns = table.shape
    table = np.ascontiguousarray(table)
    work, solutions = np.empty(rows * (_PANEL + 1 + _BLOCK)), np.empty((columns - count, count))
    called(library(_SOURCE).least_squares, rows, columns, count, table, work, solutions)
    return solutions


def _in_numpy(table: F64, count: int) -> F64:
    """Reflect ``table``, whose first ``count`` columns are the matrix, and solve: a row for each column wanted."""
    for k in range(count):
        mirror = table[k:, k].copy()
        size = math.sqrt(float(np.sum(mirror * mirror)))
        mirror[0] += math.copysign(size, mirror[0])
        norm = float(np.sum(mirror * mirror))
        if norm > 0.0:
            rest = table[k:, k:]
            rest -= 2 / norm * mirror[:, None] * np.einsum("i,ij->j", mirror, rest)
    return np.array([_substituted(table[:count, :count], column) for column in table[:count, count:].T])


def _substituted(triangle: F64, right: F64) -> F64:
    """The solution of an upper triangle's equations, 0 where it has nothing on its diagonal."""
    solution = np.zeros(len(right))
    for k in reversed(range(len(right))):
        if triangle[k, k] != 0.0:
            solution[k] = (right[k] - float(np.sum(triangle[k, k + 1 :] * solution[k + 1 :]))) / triangle[k, k]
    return solution
