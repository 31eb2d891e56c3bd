// What generated C in float32 is made of beside its own functions: operations, polynomials, and loops over arrays.
//
// Generated files name this one, and momentgen puts its text there.  A change of what a macro or a function means needs
// another name of the file: packages that were built before go on to name this one.

#ifndef MOMENTGEN_FLOAT32
#define MOMENTGEN_FLOAT32
#include <float.h>
#include <stdint.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "momentgen needs IEEE binary32: no -ffast-math, no excess precision"
#endif

#define FMA __builtin_fmaf
#define SQRT __builtin_sqrtf
#define ABS __builtin_fabsf
typedef float REAL;
#include "momentgen/native/both.h"

static inline uint32_t as_bits(float x)
{
    const union { float f; uint32_t u; } both = {.f = x};
    return both.u;
}

static inline float as_float(uint32_t u)
{
    const union { uint32_t u; float f; } both = {.u = u};
    return both.f;
}

// the negative of a multiply-add: gcc makes -(a b + c) an instruction for (-a) b - c, whose zero has the other sign
#define FLIP(x) as_float(as_bits(x) ^ 0x80000000u)

// EVERY which sums bits of a result in a narrow type, so that gcc takes several vectors at a time
#define EVERY_NARROW(type, result, call) \
    (void)params; \
    type narrow = 0; \
    _Pragma("omp parallel for simd if(parallel : n > 8192) reduction(^ : narrow)") for (int64_t i = 0; i < n; ++i) { \
        call; \
        narrow ^= (type)as_bits(result[i]); \
    } \
    (void)narrow;
#endif
