"""The functions that generated float64 C is made of beside its kernels: text, filled in by the renderer.

They take blocks over arrays, compute the exponential, and polynomials of two values by tables of coefficients.
"""

from __future__ import annotations

from momentgen.compiler.emit.c import PARALLEL_THRESHOLD

__all__ = ["EXP", "EXP_COEFFICIENTS", "LANES", "PRELUDE", "SURFACE", "SURFACE_SLOPES"]

#: elements of a block: a multiple of what any vector holds
LANES = 32

PRELUDE = f"""\
#include <float.h>
#include <stdint.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD < 0 || FLT_EVAL_METHOD > 1
#error "momentgen needs IEEE binary64: no -ffast-math, no excess precision"
#endif
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#define LANES {LANES}
#define FMA __builtin_fma
#define SQRT __builtin_sqrt
#define ABS __builtin_fabs
#define NEXT(c) y = FMA(y, x, c);
#define INLINE static inline __attribute__((always_inline))

// a function of blocks over arrays; the last block is filled up with the last element
INLINE void over_blocks(void (*block)(const double *const *, const double *, double *const *), int64_t n,
    const double *const *in, int inputs, const double *params, double *const *out, int outputs)
{{
#pragma omp parallel for if(n > {PARALLEL_THRESHOLD})
    for (int64_t at = 0; at < n; at += LANES) {{
        const double *from[inputs];
        double *to[outputs], copies[inputs][LANES], results[outputs][LANES];
        const int whole = n - at >= LANES;
        for (int k = 0; k < inputs; ++k) {{
            from[k] = whole ? in[k] + at : copies[k];
            for (int i = 0; i < LANES && !whole; ++i) copies[k][i] = in[k][at + i < n ? at + i : n - 1];
        }}
        for (int k = 0; k < outputs; ++k) to[k] = whole ? out[k] + at : results[k];
        block(from, params, to);
        for (int k = 0; k < outputs && !whole; ++k)
            for (int i = 0; i < n - at; ++i) out[k][at + i] = results[k][i];
    }}
}}"""

SURFACE = """\
// lanes whose sums stand in registers
#ifdef __AVX512F__
#define WIDE 32
#else
#define WIDE 16
#endif
#define EACH _Pragma("omp simd") for (int i = 0; i < WIDE; ++i)

// sum of z^j p_j(y), times unit: pairs of p_j, from the highest j on, whose coefficients take turns, from high to low
INLINE void surface(const double *c, const uint8_t *terms, int pairs, double unit, const double *restrict y,
    const double *restrict z, double *restrict value)
{
    for (int at = 0; at < LANES; at += WIDE) {
        const double *next = c;
        double x[WIDE], sum[WIDE], p[WIDE], q[WIDE];
        EACH x[i] = y[at + i], sum[i] = 0.0;
        for (int pair = 0; pair < pairs; ++pair) {
            EACH p[i] = next[0], q[i] = next[1];
            next += 2;
            for (int k = 1; k < terms[pair]; ++k, next += 2) {
                EACH p[i] = FMA(p[i], x[i], next[0]);
                EACH q[i] = FMA(q[i], x[i], next[1]);
            }
            EACH sum[i] = FMA(FMA(sum[i], z[at + i], p[i]), z[at + i], q[i]);
        }
        EACH value[at + i] = sum[i] * unit;
    }
}"""

SURFACE_SLOPES = """\
// the same, and its derivatives
INLINE void surface_slopes(const double *c, const uint8_t *terms, int pairs, double unit, const double *restrict y,
    const double *restrict z, double *restrict value, double *restrict by_y, double *restrict by_z)
{
    for (int at = 0; at < LANES; at += WIDE) {
        const double *next = c;
        double x[WIDE], sum[WIDE], sum_y[WIDE], sum_z[WIDE], p[WIDE], q[WIDE], slope_p[WIDE], slope_q[WIDE];
        EACH x[i] = y[at + i], sum[i] = 0.0, sum_y[i] = 0.0, sum_z[i] = 0.0;
        for (int pair = 0; pair < pairs; ++pair) {
            EACH p[i] = next[0], q[i] = next[1], slope_p[i] = 0.0, slope_q[i] = 0.0;
            next += 2;
            for (int k = 1; k < terms[pair]; ++k, next += 2) {
                EACH slope_p[i] = FMA(slope_p[i], x[i], p[i]);
                EACH slope_q[i] = FMA(slope_q[i], x[i], q[i]);
                EACH p[i] = FMA(p[i], x[i], next[0]);
                EACH q[i] = FMA(q[i], x[i], next[1]);
            }
            EACH sum_z[i] = FMA(sum_z[i], z[at + i], sum[i]);
            EACH sum[i] = FMA(sum[i], z[at + i], p[i]);
            EACH sum_z[i] = FMA(sum_z[i], z[at + i], sum[i]);
            EACH sum[i] = FMA(sum[i], z[at + i], q[i]);
            EACH sum_y[i] = FMA(FMA(sum_y[i], z[at + i], slope_p[i]), z[at + i], slope_q[i]);
        }
        EACH value[at + i] = sum[i] * unit, by_y[at + i] = sum_y[i] * unit, by_z[at + i] = sum_z[i] * unit;
    }
}"""

EXP = """\
// exp(x) within one unit in the last place, 0 below 1e-307 (arithmetic on subnormal numbers is slow): 2^n times a
// polynomial, n by the magic number that rounds to integers
INLINE double exp64(double x)
{
    const double held = x > 710.0 ? 710.0 : x;
    const union { double f; uint64_t u; } sum = {.f = FMA(held, 0x1.71547652b82fep0, 0x1.8p52)};
    const double n = sum.f - 0x1.8p52;
    const double r = FMA(n, -0x1.abc9e3b39803fp-56, FMA(n, -0x1.62e42fefa39efp-1, held));
    const double p = FMA(exp_rest(%s, r) * r, r, r);
    const union { uint64_t u; double f; } half = {.u = (sum.u << 52) + 0x3fe0000000000000u};
    const double value = FMA(p, half.f, half.f) * 2.0;  // half of 2^n is normal
    return x < -708.0 ? 0.0 : value;
}"""

#: (exp(r) - 1 - r)/r² for |r| <= ln(2)/2, from high to low: the polynomial through Chebyshev's nodes, off by 2^-59
EXP_COEFFICIENTS = (
    2.0914686968086876e-09,
    2.5105217004720745e-08,
    2.75572736431103e-07,
    2.7557255400206422e-06,
    2.4801587325547743e-05,
    0.00019841269874820627,
    0.0013888888888883748,
    0.008333333333326136,
    0.04166666666666667,
    0.1666666666666667,
    0.5,
)
