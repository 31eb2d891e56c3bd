/* Every float32 mean through a variant's element functions, against piecewise polynomials.

exhaust.py puts the variant's C before this file, and these names:
CHUNK, DEGREE, EDGE_COUNT, EDGE_LIST, FORWARD, BACKWARD, and of the parameters PARAMETERS (declarations) and ARGUMENTS. */
#include <string.h>

#define OUTPUTS 6
#define BLOCK 1024
static const float edges[EDGE_COUNT] = {EDGE_LIST};

static inline double as_double(uint64_t u)
{
    const union { uint64_t u; double d; } both = {.u = u};
    return both.d;
}

static inline uint64_t double_bits(double x)
{
    const union { double d; uint64_t u; } both = {.d = x};
    return both.u;
}

/* The outputs of `count` means that start at `first` and lie `stride` apart, as bit patterns. */
__attribute__((noinline, flatten)) static void forward(int count, const float *restrict mean, float var,
    const float *restrict params, float *restrict out_mean, float *restrict out_var)
{
    PARAMETERS
#pragma omp simd
    for (int i = 0; i < count; ++i)
        FORWARD(mean[i], var, ARGUMENTS &out_mean[i], &out_var[i]);
}

/* Inlined together, the two seeds share all but their last operations. */
__attribute__((noinline, flatten)) static void backward(int count, const float *restrict mean, float var,
    const float *restrict params, float *restrict a, float *restrict b, float *restrict c, float *restrict d)
{
    PARAMETERS
#pragma omp simd
    for (int i = 0; i < count; ++i) {
        BACKWARD(mean[i], var, 1.0f, 0.0f, ARGUMENTS &a[i], &b[i]);
        BACKWARD(mean[i], var, 0.0f, 1.0f, ARGUMENTS &c[i], &d[i]);
    }
}

static void outputs_of(uint32_t first, uint32_t stride, int count, float var, const float *params,
                       float *mean, float (*out)[BLOCK])
{
    for (int i = 0; i < count; ++i)
        mean[i] = as_float(first + stride * (uint32_t)i);
    forward(count, mean, var, params, out[0], out[1]);
    backward(count, mean, var, params, out[2], out[3], out[4], out[5]);
}

static int first_in(uint32_t chunk, uint32_t stride, uint32_t *first)
{
    const uint64_t begin = (uint64_t)chunk * CHUNK, at = (begin + stride - 1) / stride * stride;
    *first = (uint32_t)at;
    return at < begin + CHUNK ? (int)((begin + CHUNK - 1 - at) / stride) + 1 : 0;
}

void sweep(int64_t chunks, const uint32_t *chunk, uint32_t stride, float var, const float *params,
           const int32_t *piece, const double *middle, const double *inverse, const double *coefficients,
           float *worst, uint32_t *where, double *below, int64_t *above, int64_t *normal)
{
#pragma omp parallel for schedule(dynamic, 2)
    for (int64_t c = 0; c < chunks; ++c) {
        float mean[BLOCK], out[OUTPUTS][BLOCK], error[BLOCK];
        uint32_t first;
        const int total = first_in(chunk[c], stride, &first);
        const int64_t p = piece[chunk[c]];
        const double m = middle[p], h = inverse[p];
        for (int done = 0; done < total; done += BLOCK) {
            const int count = total - done < BLOCK ? total - done : BLOCK;
            const uint32_t start = first + stride * (uint32_t)done;
            outputs_of(start, stride, count, var, params, mean, out);
            for (int k = 0; k < OUTPUTS; ++k) {
                const double *poly = coefficients + (p * OUTPUTS + k) * (DEGREE + 1);
                float largest = 0.0f;
                double small = 0.0;
                int counted = 0;
#pragma omp simd reduction(max : largest, small) reduction(+ : counted)
                for (int i = 0; i < count; ++i) {
                    const double z = (__builtin_fabs((double)mean[i]) - m) * h;
                    double r = poly[DEGREE];
                    for (int d = DEGREE - 1; d >= 0; --d)
                        r = __builtin_fma(r, z, poly[d]);
                    const double size = __builtin_fabs(r);
                    /* A hair below a power of two counts as that power: the reference is off by as much. */
                    const int64_t raw = (int64_t)(double_bits(size * (1.0 + 0x1p-50)) >> 52);
                    const int64_t exponent = raw < 897 ? 897 : raw;
                    double gap = __builtin_fabs((double)out[k][i] - r);
                    gap = gap <= 0x1p200 ? gap : __builtin_inf(); /* also a NaN */
                    const int in_range = (size >= 0x1p-126) & (size <= 0x1.fffffep127);
                    const float e = in_range ? (float)(gap * as_double((uint64_t)(2069 - exponent) << 52)) : 0.0f;
                    const double s = size < 0x1p-126 ? gap : 0.0;
                    error[i] = e;
                    counted += in_range;
                    largest = e > largest ? e : largest;
                    small = s > small ? s : small;
                }
                const int64_t at = c * OUTPUTS + k;
                normal[at] += counted;
                below[at] = small > below[at] ? small : below[at];
                if (largest > edges[0])
                    for (int j = 0; j < EDGE_COUNT; ++j) {
                        int over = 0;
#pragma omp simd reduction(+ : over)
                        for (int i = 0; i < count; ++i)
                            over += error[i] > edges[j];
                        above[at * EDGE_COUNT + j] += over;
                        if (over == 0)
                            break;
                    }
                if (largest > worst[at]) {
                    int i = 0;
                    while (error[i] < largest)
                        ++i;
                    worst[at] = largest;
                    where[at] = start + stride * (uint32_t)i;
                }
            }
        }
    }
}

/* How many NaN means give a number in some output; `seen` counts the NaN means. */
int64_t numbers_from_nan(int64_t chunks, const uint32_t *chunk, uint32_t stride, float var, const float *params,
                         int64_t *seen)
{
    int64_t numbers = 0, nans = 0;
#pragma omp parallel for reduction(+ : numbers, nans)
    for (int64_t c = 0; c < chunks; ++c) {
        float mean[BLOCK], out[OUTPUTS][BLOCK];
        uint32_t first;
        const int total = first_in(chunk[c], stride, &first);
        for (int done = 0; done < total; done += BLOCK) {
            const int count = total - done < BLOCK ? total - done : BLOCK;
            outputs_of(first + stride * (uint32_t)done, stride, count, var, params, mean, out);
            for (int i = 0; i < count; ++i) {
                if (mean[i] == mean[i])
                    continue;
                ++nans;
                int number = 0;
                for (int k = 0; k < OUTPUTS; ++k)
                    number |= out[k][i] == out[k][i];
                numbers += number;
            }
        }
    }
    *seen = nans;
    return numbers;
}
