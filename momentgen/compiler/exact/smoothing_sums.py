r"""Sums over nodes of values times the normal density and its derivatives: by C where there is a compiler, or by NumPy.

    S_j(u, sigma) = d^j/du^j Σ_k w_k φ((u - u_k)/sigma)/sigma,     j = 0..3,

for two sets of values w at once, which share all but a multiplication.
"""

from __future__ import annotations

import math

import numpy as np

from momentgen.compiler.toolchain.arrays import F64
from momentgen.compiler.toolchain.c_libraries import called, library
from momentgen.native.c_compiler import find_compiler

ORDERS = 4
_LANES = 16  # nodes at a time; sums are taken lane by lane, so that their bits do not depend on the vectors
_FAR = 38.6  # exp(-z²/2) is 0 beyond
_CHUNK = 1 << 17  # numbers at a time in NumPy, so that they stay in the cache

_SOURCE = (
    f"#define LANES {_LANES}\n#define FAR {_FAR}\n"
    """
static int64_t first_above(const double *nodes, int64_t count, double limit)
{
    int64_t low = 0, high = count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (nodes[middle] < limit) low = middle + 1; else high = middle;
    }
    return low;
}

/* sums: (2, 4, n).  The nodes ascend; they and their values are filled up by LANES more, of value 0. */
void density_sums(int64_t n, const double *u, const double *sigma, int64_t count, const double *nodes,
                  const double *values, double *sums)
{
    const unsigned int before = subnormal_numbers_are_0();
    const double *first = values, *second = values + count + LANES;
    for (int64_t i = 0; i < n; ++i) {
        const double at = u[i], s = sigma[i];
        const int64_t low = first_above(nodes, count, at - FAR * s), high = first_above(nodes, count, at + FAR * s);
        double a0[LANES] = {0}, a1[LANES] = {0}, a2[LANES] = {0}, a3[LANES] = {0};
        double b0[LANES] = {0}, b1[LANES] = {0}, b2[LANES] = {0}, b3[LANES] = {0};
        for (int64_t k = low; k < high; k += LANES) {
            for (int l = 0; l < LANES; ++l) {
                const double z = (at - nodes[k + l]) / s;
                const double p0 = exponential(-z * z / 2.0);
                const double p1 = -z * p0, p2 = -z * p1 - p0, p3 = -z * p2 - 2.0 * p1;
                const double a = first[k + l], b = second[k + l];
                a0[l] += a * p0; a1[l] += a * p1; a2[l] += a * p2; a3[l] += a * p3;
                b0[l] += b * p0; b1[l] += b * p1; b2[l] += b * p2; b3[l] += b * p3;
            }
        }
        const double *all[8] = {a0, a1, a2, a3, b0, b1, b2, b3};
        for (int j = 0; j < 8; ++j) {
            double part[LANES];
            for (int l = 0; l < LANES; ++l) part[l] = all[j][l];
            for (int width = LANES / 2; width; width /= 2)
                for (int l = 0; l < width; ++l) part[l] += part[l + width];
            sums[j * n + i] = part[0];
        }
    }
    as_before(before);
}
"""
)


def density_sums(u: F64, sigma: F64, nodes: F64, values: F64) -> F64:
    """S_j for both sets of values: shape (2, 4, n).

    Args:
        u, sigma: shape (n,).
        nodes: shape (m,), ascending.
        values: shape (2, m).
    """
    used = (values != 0).any(axis=0)
    nodes, values = nodes[used], values[:, used]
    sums = np.empty((2, ORDERS, u.size))
    (_in_numpy if find_compiler() is None else _in_c)(u, sigma, nodes, values, sums)
    return sums / (math.sqrt(2 * math.pi) * sigma ** np.arange(1, ORDERS + 1)[:, None])


def _in_c(u: F64, sigma: F64, nodes: F64, values: F64, sums: F64) -> None:
    filled = np.append(nodes, np.full(_LANES, nodes[-1] if nodes.size else 0.0))
    padded = np.concatenate([values, np.zeros((2, _LANES))], axis=1)
    u, sigma = np.ascontiguousarray(u), np.ascontiguousarray(sigma)
    called(library(_SOURCE).density_sums, u.size, u, sigma, nodes.size, filled, padded, sums)


def _in_numpy(u: F64, sigma: F64, nodes: F64, values: F64, sums: F64) -> None:
    rows = max(_CHUNK // max(nodes.size, 1), 1)
    for start in range(0, u.size, rows):
        part = slice(start, start + rows)
        z = (nodes - u[part][:, None]) / sigma[part][:, None]
        term, before = np.exp(-z * z / 2), np.zeros_like(z)
        for j in range(ORDERS):
            sums[:, j, part] = np.einsum("ik,mk->mi", term, values)
            before *= -j
            before += z * term
            term, before = before, term
