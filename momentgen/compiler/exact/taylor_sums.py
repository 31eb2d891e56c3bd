"""Expectations of a function and its derivatives at small sigma: a table of Taylor polynomials, summed over nodes.

The loops are in C where there is a compiler, with the bits of those in NumPy, and take a quarter of the time or less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from momentgen.compiler.toolchain.arrays import F64
from momentgen.compiler.toolchain.c_libraries import called, library
from momentgen.native.c_compiler import find_compiler

_SOURCE = """
#include <math.h>

/* sums: (n, orders).  factors: (terms, orders), with which a coefficient enters a derivative. */
void taylor_sums(int64_t n, int64_t orders, int64_t terms, const double *u, const double *sigma, int64_t count,
                 const double *nodes, const double *weights, double step, int64_t low, int64_t length,
                 const double *rows, const double *factors, double *values, double *sums)
{
    const double first = (double)low, last = (double)(low + length - 1);
    for (int64_t i = 0; i < n; ++i) {
        double *sum = sums + i * orders;
        for (int64_t k = 0; k < orders; ++k) sum[k] = 0.0;
        for (int64_t m = 0; m < count; ++m) {
            const double at = u[i] + sigma[i] * nodes[m];
            double position = rint(at / step);
            position = position < first ? first : position > last ? last : position;
            const double delta = at - position * step;
            if (fabs(delta) > step) continue; /* left of the table, where nothing is left of the function */
            const double *row = rows + ((int64_t)position - low) * (orders + terms);
            for (int64_t k = 0; k < orders; ++k) values[k] = 0.0;
            for (int64_t j = terms - 1; j >= 0; --j)
                for (int64_t k = 0; k < orders; ++k)
                    values[k] = values[k] * delta + factors[j * orders + k] * row[k + j];
            for (int64_t k = 0; k < orders; ++k) sum[k] += weights[m] * values[k];
        }
    }
}
"""


@dataclass(frozen=True, eq=False)
class TaylorTable:
    """Taylor coefficients of a function at multiples of a step; to the left of them it is 0.

    Attributes:
        step: between the points.
        low: the first point, in steps.
        rows: the coefficients, shape (points, orders + terms).
        orders: how many derivatives are asked for, the function among them.
    """

    step: float
    low: int
    rows: F64
    orders: int

    @property
    def _terms(self) -> int:
        return self.rows.shape[1] - self.orders

    def sums(self, u: F64, sigma: F64, nodes: F64, weights: F64) -> F64:
        """Σ_m w_m g^(k)(u + sigma z_m), k = 0, 1, ...: shape (orders, n).

        Args:
            u, sigma: shape (n,); not beyond the table on the right.
            nodes, weights: z and w, shape (m,).

        Raises:
            ValueError: if a point is not finite; C would read anywhere.
        """
        if not (np.isfinite(u).all() and np.isfinite(sigma).all()):
            raise ValueError("a table of Taylor polynomials: expected finite u and sigma")
        u, sigma = np.ascontiguousarray(u), np.ascontiguousarray(sigma)
        return (self._in_numpy if find_compiler() is None else self._in_c)(u, sigma, nodes, weights)

    def _in_c(self, u: F64, sigma: F64, nodes: F64, weights: F64) -> F64:
        sums, values = np.empty((u.size, self.orders)), np.empty(self.orders)
        rows, nodes, weights = (np.ascontiguousarray(array) for array in (self.rows, nodes, weights))
        factors = np.array(
            [[float(math.perm(k + j, k)) for k in range(self.orders)] for j in range(self._terms)], np.float64
        )
        sizes, table = (u.size, self.orders, self._terms), (self.step, self.low, len(rows), rows)
        rule = (nodes.size, nodes, weights)
        called(library(_SOURCE).taylor_sums, *sizes, u, sigma, *rule, *table, factors, values, sums)
        return np.ascontiguousarray(sums.T)

    def _in_numpy(self, u: F64, sigma: F64, nodes: F64, weights: F64) -> F64:
        total = np.zeros((self.orders, u.size))
        with np.errstate(over="ignore", invalid="ignore"):  # a function so steep that its derivatives leave float64
            for node, weight in zip(nodes, weights, strict=True):
                total += weight * self._derivatives(u + sigma * node)
        return total

    def _derivatives(self, u: F64) -> F64:
        """The function and its derivatives: shape (orders, n)."""
        position = np.clip(np.rint(u / self.step), self.low, self.low + len(self.rows) - 1)
        delta = u - position * self.step
        outside = np.abs(delta) > self.step
        delta = np.where(outside, 0.0, delta)
        chosen = self.rows[(position - self.low).astype(np.int64)]
        result = []
        for k in range(self.orders):
            value = np.zeros_like(u)
            for j in reversed(range(self._terms)):
                value = value * delta + math.perm(k + j, k) * chosen[:, k + j]
            result.append(np.where(outside, 0.0, value))
        return np.array(result)
