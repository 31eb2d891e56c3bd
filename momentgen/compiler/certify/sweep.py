"""Every float32 mean through the emitted C, against a reference fast enough for 2^32 of them.

At a fixed variance and parameter setting the six outputs are functions of the mean alone.  On each of some 1,600
pieces of the float32 line the *reference* is a polynomial through rigorous values (Chebyshev nodes, degree 11), so
it costs a dozen float64 operations an output; the pieces follow the bits of the mean, so that 2^15 means in a row
share one.  The reference is a screen: :mod:`momentgen.compiler.exhaust` measures its error, and measures again, by
balls, the worst inputs it points to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev

from momentgen.compiler.certify.points import seed_of
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.measure.ulp import EDGES, is_normal, unit
from momentgen.compiler.toolchain.arrays import F32, F64
from momentgen.compiler.toolchain.c_libraries import called, compiled
from momentgen.native.includes import whole

NAMES = (*OUTPUTS, *PARTIALS)
#: inputs are taken by 2^15 consecutive bit patterns, of which there are 2^17
CHUNK, CHUNKS = 1 << 15, 1 << 17
_DEGREE = 11
_WIDEST = 5  # from 2^5 on every density is far below float32, and outputs are polynomials
_SAMPLE = 20_000  # means at which the reference is compared with balls
_SHARE = 4  # pieces are 2^-4 wide or narrower between 2^-4 and 2^5, and binades elsewhere


class Reference:
    """The six outputs at one variance of 1 and one setting, as piecewise polynomials in the mean.

    Args:
        stable: the variant, for its exact values.
        setting: parameter name -> value.

    Attributes:
        piece: which polynomial serves each chunk of bit patterns, -1 where the mean is infinite or NaN.
        middle, inverse: a piece is |z| <= 1 with z = (|mean| - middle)·inverse.
        coefficients: by piece, output and power of z.
        error: the largest error found, in ulp, over ``points`` finite means, half of them in the bulk.
    """

    def __init__(self, stable: Stable, setting: Mapping[str, float]) -> None:
        self.piece = np.full(CHUNKS, -1, np.int32)
        middles: list[float] = []
        halves: list[float] = []
        signs: list[float] = []
        for sign in (0, 1):
            for field in range(255):  # the biased exponent
                # |mean| < 2^-126 is one piece; its chunks are those with field 0
                low, size = (0.0, 2.0**-126) if field == 0 else (2.0 ** (field - 127), 2.0 ** (field - 127))
                exponent = field - 127
                parts = 1 << min(max(exponent + _SHARE, 0), 8) if exponent < _WIDEST else 1
                for part in range(parts):
                    first = (sign << 16) + (field << 8) + part * (256 // parts)
                    self.piece[first : first + 256 // parts] = len(middles)
                    halves.append(size / parts / 2)
                    middles.append(low + (2 * part + 1) * halves[-1])
                    signs.append(-1.0 if sign else 1.0)
        self.middle, half = np.array(middles), np.array(halves)
        self.inverse = 1 / half
        nodes = chebyshev.chebpts1(_DEGREE + 1)
        means = np.array(signs)[:, None] * (self.middle[:, None] + half[:, None] * nodes)
        # Nodes are float64: exact values do not care, and only means that the kernels see must be float32.
        exact = stable.truth(means.ravel(), np.ones(means.size), setting)
        to_powers = _values_to_powers(nodes)
        self.coefficients = np.empty((len(middles), len(NAMES), _DEGREE + 1))
        for k, name in enumerate(NAMES):
            self.coefficients[:, k] = exact[name].reshape(means.shape) @ to_powers.T
        self.error, self.points = self._measured(stable, setting)

    def __call__(self, mean: F32) -> dict[str, F64]:
        """The outputs at finite means, in float64."""
        piece = self.piece[mean.view(np.uint32) >> 15]
        z = (np.abs(mean.astype(np.float64)) - self.middle[piece]) * self.inverse[piece]
        values = self.coefficients[piece, :, _DEGREE]
        for power in range(_DEGREE - 1, -1, -1):
            values = values * z[:, None] + self.coefficients[piece, :, power]
        return dict(zip(NAMES, values.T, strict=True))

    def _measured(self, stable: Stable, setting: Mapping[str, float]) -> tuple[float, int]:
        rng = np.random.default_rng(seed_of("reference"))
        anywhere = rng.integers(0, 1 << 32, _SAMPLE // 2, dtype=np.uint32).view(np.float32)
        mean = np.concatenate([anywhere[np.isfinite(anywhere)], rng.uniform(-20, 20, _SAMPLE // 2).astype(np.float32)])
        truth, values = stable.truth(mean, np.ones_like(mean), setting), self(mean)
        largest = 0.0
        for name, exact in truth.items():
            normal = is_normal(exact)
            errors = np.abs(values[name][normal] - exact[normal]) / unit(exact[normal])
            largest = max(largest, float(errors.max(initial=0.0)))
        return largest, mean.size


def _values_to_powers(nodes: F64) -> F64:
    """The matrix from values at Chebyshev nodes to coefficients of powers."""
    count = nodes.size
    to_chebyshev = 2 / count * chebyshev.chebvander(nodes, count - 1).T
    to_chebyshev[0] /= 2
    powers = np.zeros((count, count))
    for k in range(count):
        powers[: k + 1, k] = chebyshev.cheb2poly(np.eye(count)[k])
    return np.asarray(powers @ to_chebyshev)


@dataclass(frozen=True)
class Tally:
    """What a sweep found; rows are chunks, columns outputs.

    Attributes:
        worst: largest error in ulp where the exact value is a normal number.
        where: bits of the mean that has it.
        below: largest absolute error where the exact value is below the normal range.
        counts: inputs in each bin of the histogram over ``ulp.EDGES``, by output.
        inputs: how many means were run.
    """

    worst: F32
    where: npt.NDArray[np.uint32]
    below: F64
    counts: npt.NDArray[np.int64]
    inputs: int


_DRIVER = r"""
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
        FORWARD(mean[i], var, ARGUMENTS&out_mean[i], &out_var[i]);
}

/* Inlined together, the two seeds share all but their last operations. */
__attribute__((noinline, flatten)) static void backward(int count, const float *restrict mean, float var,
    const float *restrict params, float *restrict a, float *restrict b, float *restrict c, float *restrict d)
{
PARAMETERS
#pragma omp simd
    for (int i = 0; i < count; ++i) {
        BACKWARD(mean[i], var, 1.0f, 0.0f, ARGUMENTS&a[i], &b[i]);
        BACKWARD(mean[i], var, 0.0f, 1.0f, ARGUMENTS&c[i], &d[i]);
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
"""


class Sweep:
    """The element functions of an emitted C file, run over float32 means at variance 1.

    Args:
        source: the C file, as the build wrote it.
        name: ``RULE_VARIANT``, with which its functions begin.
        params: what its kernels take as ``params``.
        reference: exact outputs, nearly.
        stride: every how many bit patterns; 1 is all of them.

    Attributes:
        source: C file and driver; it exports the kernels as well, for who would not compile twice.

    Raises:
        BuildError: if there is no C compiler, or it fails.
    """

    def __init__(self, source: str, name: str, params: Sequence[float], reference: Reference, stride: int = 1) -> None:
        arguments = [f"p{i}" for i in range(len(params))]
        text = _DRIVER.replace("EDGE_COUNT", str(len(EDGES))).replace("EDGE_LIST", ", ".join(f"{e}f" for e in EDGES))
        text = text.replace("FORWARD", f"{name}_forward_element").replace("BACKWARD", f"{name}_backward_element")
        lines = [f"    const float {a} = params[{i}];" for i, a in enumerate(arguments)] or ["    (void)params;"]
        text = text.replace("PARAMETERS", "\n".join(lines)).replace("ARGUMENTS", "".join(f"{a}, " for a in arguments))
        text = text.replace("DEGREE", str(_DEGREE)).replace("CHUNK", str(CHUNK))
        self.source = f"{whole(source)}\n{text}"
        self._library = compiled(self.source)
        self._library.numbers_from_nan.restype = ctypes.c_int64
        self._params = np.asarray([*params, 0.0], np.float64).astype(np.float32)
        self._reference, self.stride = reference, stride

    def __call__(self, chunks: npt.NDArray[np.uint32]) -> Tally:
        """Run the means of the chunks given, all of them finite."""
        n, k = chunks.size, len(NAMES)
        worst, where = np.zeros((n, k), np.float32), np.zeros((n, k), np.uint32)
        below, above = np.zeros((n, k)), np.zeros((n, k, len(EDGES)), np.int64)
        normal = np.zeros((n, k), np.int64)
        r = self._reference
        tables = (r.piece, r.middle, r.inverse, r.coefficients, worst, where, below, above, normal)
        chunks = np.ascontiguousarray(chunks, np.uint32)
        called(self._library.sweep, n, chunks, *self._at(), *tables)
        over = above.sum(axis=0)
        counts = -np.diff(np.concatenate([normal.sum(axis=0)[:, None], over, np.zeros((k, 1), np.int64)], axis=1))
        return Tally(worst, where, below, counts, _inputs(chunks, self.stride))

    def numbers_from_nan(self) -> tuple[int, int]:
        """How many NaN means give a number in any output, and how many NaN means were run."""
        chunks = np.flatnonzero(self._reference.piece < 0).astype(np.uint32)
        seen = ctypes.c_int64(0)
        numbers = called(self._library.numbers_from_nan, chunks.size, chunks, *self._at(), ctypes.byref(seen))
        return int(numbers), seen.value

    def _at(self) -> tuple[object, ...]:
        """Stride, variance and parameters."""
        return ctypes.c_uint32(self.stride), ctypes.c_float(1.0), self._params


def _inputs(chunks: npt.NDArray[np.uint32], stride: int) -> int:
    begin = chunks.astype(np.int64) * CHUNK
    return int((-(-(begin + CHUNK) // stride) - -(-begin // stride)).sum())
