// What generated C in float64 is made of beside its own functions: operations, polynomials, the exponential, functions
// of blocks over arrays, and polynomials of two values by tables of coefficients.
//
// Generated files name this one, and momentgen puts its text there.  A change of what a macro or a function means needs
// another name of the file: packages that were built before go on to name this one.

#ifndef MOMENTGEN_FLOAT64
#define MOMENTGEN_FLOAT64
#include <float.h>
#include <stdint.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD < 0 || FLT_EVAL_METHOD > 1
#error "momentgen needs IEEE binary64: no -ffast-math, no excess precision"
#endif

#define LANES 32
#define FMA __builtin_fma
#define SQRT __builtin_sqrt
#define ABS __builtin_fabs
typedef double REAL;
#include "momentgen/native/both.h"

// exp(x) within one unit in the last place, 0 below 1e-307 (arithmetic on subnormal numbers is slow): 2^n times a
// polynomial, n by the magic number that rounds to integers
INLINE double exp64(double x)
{
    const double held = x > 710.0 ? 710.0 : x;
    const union { double f; uint64_t u; } sum = {.f = FMA(held, 0x1.71547652b82fep0, 0x1.8p52)};
    const double n = sum.f - 0x1.8p52;
    const double r = FMA(n, -0x1.abc9e3b39803fp-56, FMA(n, -0x1.62e42fefa39efp-1, held));
    const double p = FMA(POLY10(r, 0x1.1f730349868cep-29, 0x1.af4de97ca4194p-26, 2.75572736431103e-07,
        0x1.71de0231960ebp-19, 0x1.a01a01a6d889cp-16, 0x1.a01a01abe7fe1p-13, 0.0013888888888883748,
        0.008333333333326136, 0.04166666666666667, 0.1666666666666667, 0.5) * r, r, r);
    const union { uint64_t u; double f; } half = {.u = (sum.u << 52) + 0x3fe0000000000000u};
    const double value = FMA(p, half.f, half.f) * 2.0;  // half of 2^n is normal
    return x < -708.0 ? 0.0 : value;
}

// log(x) within two units in the last place, -745 at 0 and at subnormal numbers, NaN below 0: 2^n times m, m between
// 1/sqrt(2) and sqrt(2), of whose logarithm atanh((m - 1)/(m + 1)) is half
INLINE double log64(double x)
{
    const union { double f; uint64_t u; } in = {.f = x};
    const uint64_t shifted = in.u - 0x3fe6a09e667f3bcdu;
    const union { uint64_t u; double f; } whole = {.u = (shifted >> 52) ^ 0x4330000000000800u};
    const double n = whole.f - 0x1.00000000008p52;
    const union { uint64_t u; double f; } part = {.u = (shifted & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu};
    const double f = part.f - 1.0, s = f / (part.f + 1.0), w = s * s;
    const double r = POLY10(w, 0x1.8618618618618p-5, 0x1.af286bca1af28p-5, 0x1.e1e1e1e1e1e1ep-5, 0x1.1111111111111p-4,
        0x1.3b13b13b13b14p-4, 0x1.745d1745d1746p-4, 0x1.c71c71c71c71cp-4, 0x1.2492492492492p-3, 0x1.999999999999ap-3,
        0x1.5555555555555p-2, 0.0) * 2.0;
    const double h = 0.5 * f * f;
    const double low = FMA(s, h + r, n * 0x1.abc9e3b39803fp-56);
    const double value = FMA(n, 0x1.62e42fefa39efp-1, f - (h - low));
    return x >= 0x1p-1022 ? (x > DBL_MAX ? x : value) : x >= 0.0 ? -745.0 : __builtin_nan("");
}

// a call for each element i of a block
#define LANEWISE(call) _Pragma("omp simd") for (int i = 0; i < LANES; ++i) call;

// whether all numbers of a block are 0
INLINE int all_zero(const double *x)
{
    int count = 0;
    for (int i = 0; i < LANES; ++i) count += x[i] == 0.0;
    return count == LANES;
}

INLINE void gather(const double *restrict from, const uint16_t *restrict which, int count, double *restrict to)
{
#pragma omp simd
    for (int i = 0; i < count; ++i) to[i] = from[which[i]];
}

// a function of blocks within a cell over arrays: elements are put in order by their cells' numbers, which a function
// of blocks finds, and back again; a block may end with elements of the next cell, whose own results come later
#define CHUNK 4096
#define TURNS 8  // counts of a cell: one alone would wait for itself
INLINE void over_cells(void (*block)(const double *const *, const double *, double *const *, int),
    void (*number)(const double *const *, const double *, double *const *), int cells, int64_t n,
    const double *const *in, int inputs, const double *params, double *const *out, int outputs)
{
#pragma omp parallel for if(n > 8192)
    for (int64_t at = 0; at < n; at += CHUNK) {
        const int count = n - at < CHUNK ? (int)(n - at) : CHUNK;
        const double *from[inputs];
        double *to[outputs], sorted[inputs][CHUNK + LANES], results[outputs][CHUNK + LANES];
        int next[TURNS][cells], ends[cells], places = 0;
        uint16_t cell[CHUNK], place[CHUNK], order[CHUNK];  // where an element goes, and which one is there
        for (int begin = 0; begin < count; begin += LANES) {
            const int whole = count - begin >= LANES;
            for (int k = 0; k < inputs; ++k) {
                from[k] = whole ? in[k] + at + begin : sorted[k];
                for (int i = 0; i < LANES && !whole; ++i)
                    sorted[k][i] = in[k][at + (begin + i < count ? begin + i : count - 1)];
            }
            if (cells > 1) number(from, params, (double *const[]){results[0]});
            for (int i = 0; i < LANES; ++i) cell[begin + i] = cells > 1 ? (uint16_t)results[0][i] : 0;
        }
        const int whole_turns = count - count % TURNS;
        for (int c = 0; c < cells; ++c)
            for (int r = 0; r < TURNS; ++r) next[r][c] = 0;
        for (int i = 0; i < whole_turns; i += TURNS)
            for (int r = 0; r < TURNS; ++r) ++next[r][cell[i + r]];
        for (int i = whole_turns; i < count; ++i) ++next[0][cell[i]];
        for (int c = 0; c < cells; ++c) {
            for (int r = 0; r < TURNS; ++r) {
                const int many = next[r][c];
                next[r][c] = places;
                places += many;
            }
            ends[c] = places;
        }
        for (int i = 0; i < whole_turns; i += TURNS)
            for (int r = 0; r < TURNS; ++r) order[place[i + r] = (uint16_t)next[r][cell[i + r]]++] = (uint16_t)(i + r);
        for (int i = whole_turns; i < count; ++i) order[place[i] = (uint16_t)next[0][cell[i]]++] = (uint16_t)i;
        for (int k = 0; k < inputs; ++k) {
            gather(in[k] + at, order, count, sorted[k]);
            for (int i = 0; i < LANES; ++i) sorted[k][count + i] = sorted[k][count - 1];
        }
        for (int c = 0, begin = 0; c < cells; begin = ends[c++])
            for (; begin < ends[c]; begin += LANES) {
                for (int k = 0; k < inputs; ++k) from[k] = sorted[k] + begin;
                for (int k = 0; k < outputs; ++k) to[k] = results[k] + begin;
                for (int i = 0; i < LANES; i += 8) {  // to have what is read and written next
                    for (int k = 0; k < inputs; ++k) __builtin_prefetch(in[k] + at + CHUNK + begin + i);
                    for (int k = 0; k < outputs; ++k) __builtin_prefetch(out[k] + at + begin + i, 1);
                }
                block(from, params, to, c);
            }
        for (int k = 0; k < outputs; ++k) gather(results[k], place, count, out[k] + at);
    }
}

// a function of blocks over arrays of float32, rounded once: beyond its range to the largest number
#define AT_ONCE 1024
INLINE void over_floats(void (*block)(const double *const *, const double *, double *const *, int), int64_t n,
    const float *const *in, int inputs, const double *params, float *const *out, int outputs)
{
#pragma omp parallel for if(n > AT_ONCE)
    for (int64_t at = 0; at < n; at += LANES) {
        const int count = n - at < LANES ? (int)(n - at) : LANES;
        double given[inputs][LANES], results[outputs][LANES], *to[outputs];
        const double *from[inputs];
        for (int k = 0; k < inputs; ++k) {
            for (int i = 0; i < LANES; ++i) given[k][i] = in[k][at + (i < count ? i : count - 1)];
            from[k] = given[k];
        }
        for (int k = 0; k < outputs; ++k) to[k] = results[k];
        block(from, params, to, 0);
        for (int k = 0; k < outputs; ++k)
            for (int i = 0; i < count; ++i) {
                const double value = results[k][i];
                out[k][at + i] = (float)(value > FLT_MAX ? FLT_MAX : value < -FLT_MAX ? -FLT_MAX : value);
            }
    }
}

// lanes whose sums stand in registers
#ifdef __AVX512F__
#define WIDE 32
#else
#define WIDE 16
#endif
#define EACH _Pragma("omp simd") for (int i = 0; i < WIDE; ++i)

// a polynomial in a table: where its coefficients begin, and their counts; how many of these; its unit; what y and z
// are scaled by, and what is added to them
typedef struct {
    int first, counts, pairs;
    double unit, y_scale, y_shift, z_scale, z_shift;
} Patch;

// sum of z^j p_j(y), times unit: pairs of p_j, from the highest j on, whose coefficients, two at least, take turns,
// from high to low
INLINE void surface(const double *c, const uint8_t *counts, const Patch *of, const double *restrict y,
    const double *restrict z, double *restrict value)
{
    for (int at = 0; at < LANES; at += WIDE) {
        const double *next = c + of->first;
        const uint8_t *terms = counts + of->counts;
        double x[WIDE], w[WIDE], sum[WIDE], p[WIDE], q[WIDE];
        EACH x[i] = FMA(y[at + i], of->y_scale, of->y_shift);
        EACH w[i] = FMA(z[at + i], of->z_scale, of->z_shift), sum[i] = 0.0;
        for (int pair = 0; pair < of->pairs; ++pair) {
            const double highest_p = next[0], highest_q = next[1];
            EACH p[i] = FMA(highest_p, x[i], next[2]), q[i] = FMA(highest_q, x[i], next[3]);
            next += 4;
            for (int k = 2; k < terms[pair]; ++k, next += 2) {
                EACH p[i] = FMA(p[i], x[i], next[0]);
                EACH q[i] = FMA(q[i], x[i], next[1]);
            }
            EACH sum[i] = FMA(FMA(sum[i], w[i], p[i]), w[i], q[i]);
        }
        EACH value[at + i] = sum[i] * of->unit;
    }
}

// the same, and its derivatives
INLINE void surface_slopes(const double *c, const uint8_t *counts, const Patch *of, const double *restrict y,
    const double *restrict z, double *restrict value, double *restrict by_y, double *restrict by_z)
{
    const double unit_y = of->unit * of->y_scale, unit_z = of->unit * of->z_scale;
    for (int at = 0; at < LANES; at += WIDE) {
        const double *next = c + of->first;
        const uint8_t *terms = counts + of->counts;
        double x[WIDE], w[WIDE], sum[WIDE], sum_y[WIDE], sum_z[WIDE], p[WIDE], q[WIDE], slope_p[WIDE], slope_q[WIDE];
        EACH x[i] = FMA(y[at + i], of->y_scale, of->y_shift);
        EACH w[i] = FMA(z[at + i], of->z_scale, of->z_shift), sum[i] = 0.0, sum_y[i] = 0.0, sum_z[i] = 0.0;
        for (int pair = 0; pair < of->pairs; ++pair) {
            const double highest_p = next[0], highest_q = next[1];
            EACH p[i] = FMA(highest_p, x[i], next[2]), q[i] = FMA(highest_q, x[i], next[3]);
            EACH slope_p[i] = highest_p, slope_q[i] = highest_q;
            next += 4;
            for (int k = 2; k < terms[pair]; ++k, next += 2) {
                EACH slope_p[i] = FMA(slope_p[i], x[i], p[i]);
                EACH slope_q[i] = FMA(slope_q[i], x[i], q[i]);
                EACH p[i] = FMA(p[i], x[i], next[0]);
                EACH q[i] = FMA(q[i], x[i], next[1]);
            }
            EACH sum_z[i] = FMA(sum_z[i], w[i], sum[i]);
            EACH sum[i] = FMA(sum[i], w[i], p[i]);
            EACH sum_z[i] = FMA(sum_z[i], w[i], sum[i]);
            EACH sum[i] = FMA(sum[i], w[i], q[i]);
            EACH sum_y[i] = FMA(FMA(sum_y[i], w[i], slope_p[i]), w[i], slope_q[i]);
        }
        EACH value[at + i] = sum[i] * of->unit, by_y[at + i] = sum_y[i] * unit_y, by_z[at + i] = sum_z[i] * unit_z;
    }
}
#endif
