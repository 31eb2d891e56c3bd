// What generated C in float32 and in float64 has in common; the headers of both include it.

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

// gcc leaves a long function called once outside of the loop, which then stays scalar: 30 times slower for ELU
#define INLINE static inline __attribute__((always_inline))

// what a function reads, and what it writes
typedef const REAL *restrict in_ptr;
typedef REAL *restrict out_ptr;

// a call for each element i, by several threads in vector lanes
#define EVERY(call) \
    (void)params; \
    _Pragma("omp parallel for simd if(parallel : n > 8192)") for (int64_t i = 0; i < n; ++i) call;

// multiply-adds by x, from y on
#define POLY1(x, y, c) FMA(x, y, c)
#define POLY2(x, y, c, ...) POLY1(x, FMA(x, y, c), __VA_ARGS__)
#define POLY3(x, y, c, ...) POLY2(x, FMA(x, y, c), __VA_ARGS__)
#define POLY4(x, y, c, ...) POLY3(x, FMA(x, y, c), __VA_ARGS__)
#define POLY5(x, y, c, ...) POLY4(x, FMA(x, y, c), __VA_ARGS__)
#define POLY6(x, y, c, ...) POLY5(x, FMA(x, y, c), __VA_ARGS__)
#define POLY7(x, y, c, ...) POLY6(x, FMA(x, y, c), __VA_ARGS__)
#define POLY8(x, y, c, ...) POLY7(x, FMA(x, y, c), __VA_ARGS__)
#define POLY9(x, y, c, ...) POLY8(x, FMA(x, y, c), __VA_ARGS__)
#define POLY10(x, y, c, ...) POLY9(x, FMA(x, y, c), __VA_ARGS__)
#define POLY11(x, y, c, ...) POLY10(x, FMA(x, y, c), __VA_ARGS__)
#define POLY12(x, y, c, ...) POLY11(x, FMA(x, y, c), __VA_ARGS__)
#define POLY13(x, y, c, ...) POLY12(x, FMA(x, y, c), __VA_ARGS__)
#define POLY14(x, y, c, ...) POLY13(x, FMA(x, y, c), __VA_ARGS__)
#define POLY15(x, y, c, ...) POLY14(x, FMA(x, y, c), __VA_ARGS__)
#define POLY16(x, y, c, ...) POLY15(x, FMA(x, y, c), __VA_ARGS__)
#define POLY17(x, y, c, ...) POLY16(x, FMA(x, y, c), __VA_ARGS__)
#define POLY18(x, y, c, ...) POLY17(x, FMA(x, y, c), __VA_ARGS__)
#define POLY19(x, y, c, ...) POLY18(x, FMA(x, y, c), __VA_ARGS__)
#define POLY20(x, y, c, ...) POLY19(x, FMA(x, y, c), __VA_ARGS__)
#define POLY21(x, y, c, ...) POLY20(x, FMA(x, y, c), __VA_ARGS__)
#define POLY22(x, y, c, ...) POLY21(x, FMA(x, y, c), __VA_ARGS__)
#define POLY23(x, y, c, ...) POLY22(x, FMA(x, y, c), __VA_ARGS__)
#define POLY24(x, y, c, ...) POLY23(x, FMA(x, y, c), __VA_ARGS__)
#define POLY25(x, y, c, ...) POLY24(x, FMA(x, y, c), __VA_ARGS__)
#define POLY26(x, y, c, ...) POLY25(x, FMA(x, y, c), __VA_ARGS__)
#define POLY27(x, y, c, ...) POLY26(x, FMA(x, y, c), __VA_ARGS__)
#define POLY28(x, y, c, ...) POLY27(x, FMA(x, y, c), __VA_ARGS__)
#define POLY29(x, y, c, ...) POLY28(x, FMA(x, y, c), __VA_ARGS__)
#define POLY30(x, y, c, ...) POLY29(x, FMA(x, y, c), __VA_ARGS__)
#define POLY31(x, y, c, ...) POLY30(x, FMA(x, y, c), __VA_ARGS__)
#define POLY32(x, y, c, ...) POLY31(x, FMA(x, y, c), __VA_ARGS__)
#define POLY33(x, y, c, ...) POLY32(x, FMA(x, y, c), __VA_ARGS__)
#define POLY34(x, y, c, ...) POLY33(x, FMA(x, y, c), __VA_ARGS__)
#define POLY35(x, y, c, ...) POLY34(x, FMA(x, y, c), __VA_ARGS__)
#define POLY36(x, y, c, ...) POLY35(x, FMA(x, y, c), __VA_ARGS__)
#define POLY37(x, y, c, ...) POLY36(x, FMA(x, y, c), __VA_ARGS__)
#define POLY38(x, y, c, ...) POLY37(x, FMA(x, y, c), __VA_ARGS__)
#define POLY39(x, y, c, ...) POLY38(x, FMA(x, y, c), __VA_ARGS__)
#define POLY40(x, y, c, ...) POLY39(x, FMA(x, y, c), __VA_ARGS__)
