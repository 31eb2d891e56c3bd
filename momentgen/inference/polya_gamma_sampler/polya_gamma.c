// Draws from PG(b, z).  Blocks of elements go through loops that compilers vectorise; what is rejected makes up the next,
// shorter list.  Only +, -, *, / and square roots of float64 are used, so that any compiler
// gives the same bits.
//
// PG(1, z) is a quarter of Jacobi's variable J*(1, h), h = |z|/2.  Its density is cosh(h) exp(-h²x/2) f(x), where f has
// two alternating series (Polson, Scott and Windle, 2013, section 4; Devroye, 2009)::
//
//     f(x) = a(x) (1 - 3r + 5r³ - 7r⁶ + ...),   a(x) = √(2/π) x^(-3/2) exp(-1/2x)  and r = exp(-4/x),  or
//                                               a(x) = (π/2) exp(-π²x/8)           and r = exp(-π²x).
//
// Both hold for all x.  By Jacobi's triple product the bracket is Π (1 - rᵏ)³, so that each a(x) lies above f.  Devroye
// accepts a draw from the first up to x = 0.64 and from the second beyond, with the bracket as the probability.  There r
// is at most exp(-6.25): the first term left out, 9r¹⁰, is below 1e-26, and four terms are the bracket in float64.
// No series loop is needed.  Two envelopes, by h, are accepted with probability 0.858 or more:
//
// * **h < 0.9**, two pieces.  Beyond x = 0.64 the exponential (π/2) exp(-Kx), K = π²/8 + h²/2, of mass π/(2K) exp(-0.64K).
//   Up to it, x = 1/n² turns the first form into 2√(2/π) exp(-n²/2) dn on n ≥ 1.25.
//   This lies below 2√(2/π) exp(α²/2 - αn), of mass 2√(2/π) exp(α²/2 - 1.25α)/α; the best α solves α² - 1.25α = 1.
//   The probability to accept is exp(-(n - α)²/2 - h²x/2) times the bracket.
//   A rejected draw begins anew with the choice of the piece.
//   The masses are those of the envelope, so that no integral of the inverse Gaussian is needed.
// * **h ≥ 0.9**, one piece.  cosh(h) exp(-h²x/2) times the first a(x) is 1 + exp(-2h) times the inverse Gaussian density
//   of mean 1/h and shape 1, for all x.
//   Proposals from it (Michael, Schucany and Haas, 1976) are accepted with probability f(x)/a(x).
//   That is the bracket up to 0.64, and (π/2)^(3/2) x^(3/2) exp(1/2x - π²x/8) times the other bracket beyond.
//   On average it is 1/(1 + exp(-2h)).  Nothing over- or underflows at any h.
//   For |z| ≥ 40 all proposals except one in exp(|z|) are accepted.
//   The draw is then IG(2/|z|, 1)/4 up to a total variation distance of exp(-|z|) ≤ 4.3e-18.
//
// Random numbers come from Philox 4x32-10, a function of a key and a counter (Salmon et al., 2011).  The key is 64 bits of
// the caller's generator.  The counter has the element's number, the number of the draw among its b, and the attempt.  So
// the draws do not depend on threads or strides.
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 512 };

static const double PI_SQUARED = 0x1.3bd3cc9be45dep+3;

// The envelopes, as described above.
static const double SPLIT = 0x1.47ae147ae147bp-1;      // 0.64
static const double EDGE = 0x1.4000000000000p+0;       // 1.25, the root of 1/0.64
static const double RATE = 0x1.cde32c6628741p+0;       // alpha = (1.25 + sqrt(1.25^2 + 4))/2
static const double LEFT_MASS = 0x1.e37d425decce5p-2;  // 2 sqrt(2/pi) exp(alpha^2/2 - 1.25 alpha)/alpha
static const double RIGHT_MASS = 0x1.921fb54442d18p+0; // pi/2
static const double SWITCH = 0x1.ccccccccccccdp-1;     // 0.9
static const double BEYOND = 0x1.f7fccdff344acp+0;     // (pi/2)^(3/2)

static inline double as_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t as_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Uniform on {2^-52, 2 * 2^-52, ..., 1}.
static inline double uniform(uint64_t bits) { return 2.0 - as_double(bits >> 12 | 0x3ff0000000000000u); }

// -log(v) for a normal v in (0, 1]: v = 2^k m with m in [2/3, 4/3), log m = 2 artanh((m - 1)/(m + 1)) by its series.
static inline double minus_log(double v) {
    uint64_t bits = as_bits(v) + (0x3ff0000000000000u - 0x3fe5555555555555u);
    double k = as_double(bits >> 52 | 0x4330000000000000u) - (0x1p52 + 1023.0);
    double m = as_double((bits & 0x000fffffffffffffu) + 0x3fe5555555555555u);
    double s = (m - 1.0) / (m + 1.0), q = s * s;
    double p = 1.0 / 25.0;
    p = p * q + 1.0 / 23.0;
    p = p * q + 1.0 / 21.0;
    p = p * q + 1.0 / 19.0;
    p = p * q + 1.0 / 17.0;
    p = p * q + 1.0 / 15.0;
    p = p * q + 1.0 / 13.0;
    p = p * q + 1.0 / 11.0;
    p = p * q + 1.0 / 9.0;
    p = p * q + 1.0 / 7.0;
    p = p * q + 1.0 / 5.0;
    p = p * q + 1.0 / 3.0;
    // ln 2 in two words; the first times k is exact.
    return -k * 0x1.62e42feep-1 - (2.0 * s + (k * 0x1.a39ef35793c76p-33 + 2.0 * s * (q * p)));
}

// exp(-y) for y >= 0; 0 beyond 700.
static inline double exp_minus(double y) {
    double x = -y, shifted = x * 0x1.71547652b82fep+0 + 0x1.8p52;
    double k = shifted - 0x1.8p52;
    double r = x - k * 0x1.62e42feep-1 - k * 0x1.a39ef35793c76p-33;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    double e = 1.0 + (r + r * r * p);
    return y > 700.0 ? 0.0 : as_double(as_bits(e) + (as_bits(shifted) << 52));
}

// sin(x) for x in [0, pi/2], by its series.
static inline double sine(double x) {
    double q = x * x;
    double p = -1.0 / 25852016738884976640000.0;
    p = p * q + 1.0 / 51090942171709440000.0;
    p = p * q - 1.0 / 121645100408832000.0;
    p = p * q + 1.0 / 355687428096000.0;
    p = p * q - 1.0 / 1307674368000.0;
    p = p * q + 1.0 / 6227020800.0;
    p = p * q - 1.0 / 39916800.0;
    p = p * q + 1.0 / 362880.0;
    p = p * q - 1.0 / 5040.0;
    p = p * q + 1.0 / 120.0;
    p = p * q - 1.0 / 6.0;
    return x + x * (q * p);
}

// 1 - 3r + 5r^3 - 7r^6
static inline double bracket(double r) {
    double cube = r * r * r;
    return 1.0 - (3.0 * r - cube * (5.0 - 7.0 * cube));
}

// Philox 4x32-10: two numbers of 64 bits for each element of a list.
static void philox(int m, const int32_t *list, int64_t first, uint32_t draw, uint32_t attempt, uint64_t key,
                   uint64_t *restrict left, uint64_t *restrict right) {
    for (int j = 0; j < m; j++) {
        uint64_t index = (uint64_t)first + (uint32_t)list[j];
        uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = draw, c3 = attempt;
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int round = 0; round < 10; round++) {
            uint64_t a = (uint64_t)c0 * 0xd2511f53u, b = (uint64_t)c2 * 0xcd9e8d57u;
            c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
            c1 = (uint32_t)b;
            c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
            c3 = (uint32_t)a;
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        left[j] = (uint64_t)c1 << 32 | c0;
        right[j] = (uint64_t)c3 << 32 | c2;
    }
}

// Adds what was accepted; what was not makes up the new list.
static int collect(int m, int32_t *list, const double *x, const double *accept, double *total) {
    int rejected = 0;
    for (int j = 0; j < m; j++) {
        int32_t i = list[j];
        int ok = accept[j] >= 0.0;
        total[i] += ok ? x[j] : 0.0;
        list[rejected] = i;
        rejected += !ok;
    }
    return rejected;
}

// h < SWITCH: an exponential beyond the split, one in n = 1/sqrt(x) up to it.
static void two_pieces(int m, int32_t *list, const double *h, int64_t first, uint32_t draw, uint64_t key,
                       double *total) {
    double half[BLOCK], x[BLOCK], accept[BLOCK];
    uint64_t bits[BLOCK], more[BLOCK];
    for (uint32_t attempt = 0; m > 0; attempt++) {
        for (int j = 0; j < m; j++) half[j] = h[list[j]] * h[list[j]] * 0.5;
        philox(m, list, first, draw, 2 * attempt, key, bits, more);
#pragma omp simd
        for (int j = 0; j < m; j++) {
            double e = minus_log(uniform(bits[j])), tilt = half[j], k = PI_SQUARED * 0.125 + tilt;
            double right = RIGHT_MASS / k * exp_minus(k * SPLIT);
            double u = uniform(more[j]) * (LEFT_MASS + right);
            double n = EDGE + e / RATE, off = n - RATE;
            double beyond = SPLIT + e / k, within = 1.0 / (n * n);
            int is_right = u <= right;
            u = is_right ? u / right : (u - right) / LEFT_MASS;
            x[j] = is_right ? beyond : within;
            double lost = is_right ? 0.0 : off * off * 0.5 + tilt * within;
            double r = exp_minus(is_right ? PI_SQUARED * beyond : 4.0 * (n * n));
            accept[j] = exp_minus(lost) * bracket(r) - u;
        }
        m = collect(m, list, x, accept, total);
    }
}

// h >= SWITCH: the inverse Gaussian of mean 1/h and shape 1.
static void one_piece(int m, int32_t *list, const double *h, int64_t first, uint32_t draw, uint64_t key,
                      double *total) {
    double own[BLOCK], x[BLOCK], accept[BLOCK];
    uint64_t bits[BLOCK], angles[BLOCK], roots[BLOCK], more[BLOCK];
    for (uint32_t attempt = 0; m > 0; attempt++) {
        for (int j = 0; j < m; j++) own[j] = h[list[j]];
        philox(m, list, first, draw, 2 * attempt, key, bits, angles);
        philox(m, list, first, draw, 2 * attempt + 1, key, roots, more);
#pragma omp simd
        for (int j = 0; j < m; j++) {
            // The square of a normal variable, over h.
            double s = sine((uniform(angles[j]) - 0x1p-53) * 0x1.921fb54442d18p+0);
            double c = 2.0 * minus_log(uniform(bits[j])) * (s * s) / own[j];
            // The roots of the quadratic equation are 1/(h t) and t/h.
            double t = 1.0 + (0.5 * c + sqrt(c * (1.0 + 0.25 * c)));
            double y = (uniform(roots[j]) * (1.0 + t) <= t ? 1.0 / t : t) / own[j];
            int is_right = y > SPLIT;
            double r = exp_minus(is_right ? PI_SQUARED * y : 4.0 / y);
            double other = BEYOND * (y * sqrt(y)) * exp_minus(PI_SQUARED * 0.125 * y - 0.5 / y);
            accept[j] = (is_right ? other : 1.0) * bracket(r) - uniform(more[j]);
            x[j] = y;
        }
        m = collect(m, list, x, accept, total);
    }
}

// PG(b, 2h) for a block; `counts` may be null, and then all take `draws`.
static void draw_block(int size, const double *h, const int64_t *counts, int64_t draws, int64_t first, uint64_t key,
                       double *total) {
    int32_t list[BLOCK];
    int64_t most = counts ? 0 : draws;
    for (int i = 0; i < size; i++) total[i] = 0.0;
    for (int i = 0; counts && i < size; i++) most = counts[i] > most ? counts[i] : most;
    for (int64_t draw = 0; draw < most; draw++) {
        for (int large = 0; large < 2; large++) {
            int m = 0;
            for (int i = 0; i < size; i++) {
                list[m] = i;
                m += (h[i] >= SWITCH) == large && draw < (counts ? counts[i] : draws);
            }
            (large ? one_piece : two_pieces)(m, list, h, first, (uint32_t)draw, key, total);
        }
    }
}

#define DEFINE(NAME, FLOAT)                                                                                     \
    void NAME(int64_t n, const FLOAT *z, const int64_t *counts, int64_t draws, uint64_t key, FLOAT *out,        \
              int threads) {                                                                                    \
        int64_t blocks = (n + BLOCK - 1) / BLOCK;                                                               \
        _Pragma("omp parallel for schedule(dynamic, 4) num_threads(threads) if(threads > 1 && blocks > 4)")     \
        for (int64_t block = 0; block < blocks; block++) {                                                      \
            double h[BLOCK], total[BLOCK];                                                                      \
            int64_t first = block * BLOCK;                                                                      \
            int size = n - first < BLOCK ? (int)(n - first) : BLOCK;                                            \
            for (int i = 0; i < size; i++) h[i] = fabs(0.5 * (double)z[first + i]);                             \
            draw_block(size, h, counts ? counts + first : 0, draws, first, key, total);                         \
            for (int i = 0; i < size; i++) out[first + i] = (FLOAT)(0.25 * total[i]);                           \
        }                                                                                                       \
    }

DEFINE(polya_gamma_float32, float)
DEFINE(polya_gamma_float64, double)
