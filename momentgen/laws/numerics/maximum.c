// The maximum over windows of independent normal values, and its gradients.  maximum.py puts before this text
// REAL, integers as wide (WORD, SIGNED), MANTISSA, BIAS and MAGIC of REAL's bits, and the constants of the integral,
// which maximum_integral.py computes with torch and explains.
//
// LANES windows go through each loop together.  Nothing but +, -, *, /, square roots, selects and operations on bits
// stands in the loops, so that compilers make vectors of them.

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

enum { LANES = 16 };
#define LANE_LOOP _Pragma("omp simd") for (int l = 0; l < LANES; ++l)
#define INLINE static inline __attribute__((always_inline))
#define R(x) ((REAL)(x))
#define FMA(x, y, z) _Generic((REAL)0, float : __builtin_fmaf, double : __builtin_fma)(x, y, z)
#define SQRT(x) _Generic((REAL)0, float : __builtin_sqrtf, double : __builtin_sqrt)(x)

typedef REAL lanes[LANES];

INLINE WORD as_bits(REAL x)
{
    const union { REAL x; WORD bits; } both = {.x = x};
    return both.bits;
}

INLINE REAL as_real(WORD bits)
{
    const union { WORD bits; REAL x; } both = {.bits = bits};
    return both.x;
}

INLINE REAL larger(REAL a, REAL b) { return a < b ? b : a; }
INLINE REAL smaller(REAL a, REAL b) { return b < a ? b : a; }

// e^x for |x| < 80; beside rounding its error is 5e-9 of it
INLINE REAL exponential(REAL x)
{
    const REAL shifted = FMA(x, R(1.4426950408889634), R(MAGIC)), n = shifted - R(MAGIC);
    const REAL r = FMA(n, R(2.1219444005469058e-4), FMA(n, R(-0.693359375), x));
    REAL p = R(1.0 / 5040);
    p = FMA(p, r, R(1.0 / 720));
    p = FMA(p, r, R(1.0 / 120));
    p = FMA(p, r, R(1.0 / 24));
    p = FMA(p, r, R(1.0 / 6));
    p = FMA(p, r, R(0.5));
    p = FMA(p, r, R(1));
    p = FMA(p, r, R(1));
    return p * as_real((as_bits(shifted) + BIAS) << MANTISSA);
}

// log x for normal x; beside rounding its error is 1e-9
INLINE REAL logarithm(REAL x)
{
    const WORD half = as_bits(R(0.70710678118654752)), bits = as_bits(x) - half;
    const REAL n = (REAL)((SIGNED)bits >> MANTISSA), f = as_real((bits & (((WORD)1 << MANTISSA) - 1)) + half);
    const REAL s = (f - R(1)) / (f + R(1)), square = s * s;
    REAL p = R(2.0 / 9);
    p = FMA(p, square, R(2.0 / 7));
    p = FMA(p, square, R(2.0 / 5));
    p = FMA(p, square, R(2.0 / 3));
    p = FMA(p, square, R(2));
    return FMA(n, R(0.69314718055994531), p * s);
}

INLINE REAL area_sinh(REAL x)  // x >= 0
{
    return logarithm(x + SQRT(FMA(x, x, R(1))));
}

#define FAR R(12)  // standard deviations; beyond, the normal tail Q is 2e-33 and counts as that

// Q(x) e^(x^2/2) at u = 1/(1 + x/4), x from 0 to FAR: a minimax polynomial, its error 7.5e-9 of it
INLINE REAL tail_ratio(REAL u)
{
    REAL p = R(0.03610955442737755);
    p = FMA(p, u, R(-0.207965856845331));
    p = FMA(p, u, R(0.4228867604361566));
    p = FMA(p, u, R(-0.37098816844585014));
    p = FMA(p, u, R(0.3360866038325067));
    p = FMA(p, u, R(-0.0376391987833083));
    p = FMA(p, u, R(0.12767009008162566));
    p = FMA(p, u, R(0.09347371352601347));
    p = FMA(p, u, R(0.10039715070755512));
    return FMA(p, u, R(-3.065266891444374e-05));
}

typedef struct {
    REAL gauss, ratio, tail;  // of |z|: e^(-z^2/2), tail_ratio, Q
} normal;

INLINE normal normal_at(REAL z)
{
    const REAL size = smaller(z < 0 ? -z : z, FAR);
    const REAL ratio = tail_ratio(R(1) / FMA(size, R(0.25), R(1))), gauss = exponential(R(-0.5) * size * size);
    return (normal){gauss, ratio, gauss * ratio};
}

typedef struct {
    int64_t rows, windows, n, size, nodes, threads;
    double reach_square;                     // see Rule.reach_square in maximum_integral.py
    const int64_t *table;                    // windows x n: which of a row's values each window has; -1 is none
    const REAL *places, *weights;            // nodes and weights on [0, 1]
    const REAL *mean, *var;                  // rows x size
    const REAL *grad_of_mean, *grad_of_var;  // rows x windows; of gradients alone
    REAL *out_mean, *out_var;                // rows x windows; gradients, rows x size, are added to them
} maximum_problem;

// The integrals of LANES windows, each in units of its largest standard deviation, from its largest mean on.
typedef struct {
    lanes origin, unit, lo, centre, b, first, growth;
    lanes outcome;  // 1; 0 where no element is possible, NaN where one has no mean or variance
    int random;     // whether there is something to integrate
} block;

// Arrays of n x LANES: what belongs to each element of each window.
typedef struct {
    REAL *start, *inverse;  // (lo - m)/s and 1/s; FAR and 0 of a certain one
    REAL *lowest;           // 1 where m - BELOW s is lo, else 0
    REAL *hazard, *mean_0, *mean_1, *var_0, *var_1;  // of gradients alone
} elements;

enum { FORWARD_ARRAYS = 3, BACKWARD_ARRAYS = 8 };

static void gather(const maximum_problem *p, REAL *restrict m, REAL *restrict v, int64_t from, int64_t count)
{
    for (int64_t l = 0; l < LANES; ++l) {
        const int64_t window = from + (l < count ? l : count - 1), row = window / p->windows;
        const int64_t *table = p->table + window % p->windows * p->n;
        const REAL *mean = p->mean + row * p->size, *var = p->var + row * p->size;
        for (int64_t i = 0; i < p->n; ++i) {
            m[i * LANES + l] = table[i] < 0 ? -R(INFINITY) : mean[table[i]];
            v[i * LANES + l] = table[i] < 0 ? R(0) : var[table[i]];
        }
    }
}

static void spread_nodes(block *at, int64_t n, const lanes width, const lanes sharpest, const lanes moved)
{
    const REAL crowded = n > MANY ? R(CROWDED_OF_MANY) : R(CROWDED), middle = n > MANY ? R(CENTRE_OF_MANY) : R(CENTRE);
    LANE_LOOP
    {
        const REAL least = larger(crowded * sharpest[l], width[l] * R(1.0 / RATIO));
        const REAL b = width[l] > 0 ? smaller(least, R(4) * width[l]) : R(1), inverse = R(1) / b;
        const REAL centre = smaller(larger(FMA(middle, sharpest[l], -moved[l]), R(0)), width[l]);
        const REAL first = -area_sinh(centre * inverse);
        at->b[l] = b;
        at->centre[l] = centre;
        at->first[l] = first;
        at->growth[l] = area_sinh((width[l] - centre) * inverse) - first;
    }
}

// A node, measured from lo, and its weight
INLINE void node(const block *at, REAL place, REAL weight, lanes t, lanes w)
{
    LANE_LOOP
    {
        const REAL grown = exponential(FMA(at->growth[l], place, at->first[l])), shrunk = R(1) / grown;
        t[l] = FMA(R(0.5) * at->b[l], grown - shrunk, at->centre[l]);
        w[l] = R(0.5) * weight * at->growth[l] * at->b[l] * (grown + shrunk);
    }
}

// 1 - F at t above lo
INLINE void above(const elements *of, int64_t n, const lanes t, lanes out)
{
    LANE_LOOP out[l] = 0;
    for (int64_t i = 0; i < n; ++i) {
        const REAL *start = of->start + i * LANES, *inverse = of->inverse + i * LANES;
        LANE_LOOP
        {
            const REAL z = FMA(t[l], inverse[l], start[l]), tail = normal_at(z).tail;
            const REAL q = z < 0 ? R(1) - tail : tail;
            out[l] = FMA(-out[l], q, out[l] + q);
        }
    }
}

// Moves lo up to where F is not negligible; returns by how much.
static void scout(block *at, const elements *of, int64_t n, lanes moved)
{
    for (int k = 1; k <= SCOUTS; ++k) {
        lanes t, w, f;
        node(at, R(k) / R(SCOUTS + 2), R(0), t, w);
        above(of, n, t, f);
        LANE_LOOP moved[l] = f[l] > R(1.0 - NEGLIGIBLE) ? larger(moved[l], t[l]) : moved[l];
    }
    for (int64_t i = 0; i < n; ++i) {
        REAL *start = of->start + i * LANES, *inverse = of->inverse + i * LANES;
        LANE_LOOP start[l] = FMA(moved[l], inverse[l], start[l]);
    }
    LANE_LOOP at->lo[l] += moved[l];
}

static void prepare(const maximum_problem *p, block *at, const elements *of, int64_t from, int64_t count)
{
    const int64_t n = p->n;
    const REAL reach_square = R(p->reach_square);
    lanes largest, nearest, width, sharpest, moved;
    gather(p, of->start, of->inverse, from, count);
    LANE_LOOP
    {
        at->origin[l] = at->lo[l] = -R(INFINITY);
        nearest[l] = sharpest[l] = R(INFINITY);
        largest[l] = width[l] = moved[l] = at->outcome[l] = 0;
    }
    for (int64_t i = 0; i < n; ++i) {
        const REAL *m = of->start + i * LANES, *v = of->inverse + i * LANES;
        LANE_LOOP
        {
            const int valid = (m[l] < R(INFINITY)) & (v[l] >= 0) & (v[l] < R(INFINITY));
            at->outcome[l] += valid ? R(0) : R(NAN);
            at->origin[l] = larger(at->origin[l], m[l]);
            largest[l] = larger(largest[l], m[l] > -R(INFINITY) ? v[l] : R(0));
        }
    }
    LANE_LOOP
    {
        const int some = at->origin[l] > -R(INFINITY);
        at->outcome[l] += some ? R(1) : R(0);
        at->origin[l] = some ? at->origin[l] : R(0);
        at->unit[l] = largest[l] > 0 ? SQRT(largest[l]) : R(1);
    }
    for (int64_t i = 0; i < n; ++i) {
        REAL *start = of->start + i * LANES, *inverse = of->inverse + i * LANES, *low = of->lowest + i * LANES;
        LANE_LOOP
        {
            const REAL m = (start[l] - at->origin[l]) / at->unit[l], v = inverse[l] / at->unit[l] / at->unit[l];
            const int random = (m > -R(INFINITY)) & (v > R(CERTAIN));
            const REAL s = random ? SQRT(v) : R(0);
            start[l] = m;
            inverse[l] = random ? R(1) / s : R(0);
            low[l] = FMA(-R(BELOW), s, m);
            at->lo[l] = larger(at->lo[l], low[l]);
        }
    }
    for (int64_t i = 0; i < n; ++i) {
        REAL *start = of->start + i * LANES, *inverse = of->inverse + i * LANES, *low = of->lowest + i * LANES;
        LANE_LOOP
        {
            const REAL z = (at->lo[l] - start[l]) * inverse[l];
            inverse[l] = z < R(BEYOND) ? inverse[l] : R(0);  // else it counts as certain: products with 0 stay finite
            start[l] = inverse[l] > 0 ? z : FAR;
            nearest[l] = inverse[l] > 0 ? smaller(nearest[l], larger(start[l], R(0))) : nearest[l];
            low[l] = low[l] == at->lo[l] ? R(1) : R(0);
        }
    }
    for (int64_t i = 0; i < n; ++i) {
        const REAL *start = of->start + i * LANES, *inverse = of->inverse + i * LANES;
        LANE_LOOP
        {
            const REAL z = start[l], high = larger(z, R(0)), square = high * high;
            const int matters = (inverse[l] > 0) & (square < FMA(nearest[l], nearest[l], reach_square));
            const REAL s = R(1) / (matters ? inverse[l] : R(1));
            const REAL reach = s * (SQRT(square + reach_square) - z);
            width[l] = matters ? larger(width[l], reach) : width[l];
            sharpest[l] = matters ? smaller(sharpest[l], s) : sharpest[l];
        }
    }
    at->random = 0;
    for (int l = 0; l < LANES; ++l) at->random |= width[l] > 0;
    if (!at->random) return;
    spread_nodes(at, n, width, sharpest, moved);
    if (n <= MANY) return;
    scout(at, of, n, moved);
    LANE_LOOP width[l] -= moved[l];
    spread_nodes(at, n, width, sharpest, moved);
}

static void moments(const maximum_problem *p, const elements *of, int64_t from, int64_t count)
{
    block at;
    lanes first = {0}, second = {0}, mean, var;
    prepare(p, &at, of, from, count);
    for (int64_t k = 0; at.random && k < p->nodes; ++k) {
        lanes t, w, f;
        node(&at, p->places[k], p->weights[k], t, w);
        above(of, p->n, t, f);
        LANE_LOOP
        {
            const REAL share = w[l] * f[l];
            first[l] += share;
            second[l] = FMA(share, t[l], second[l]);
        }
    }
    LANE_LOOP
    {
        const REAL rest = larger(FMA(-first[l], first[l], R(2) * second[l]), R(0));
        const REAL found = FMA(at.unit[l], at.lo[l] + first[l], at.origin[l]) * at.outcome[l];
        mean[l] = at.outcome[l] == 0 ? -R(INFINITY) : found;
        var[l] = rest * at.unit[l] * at.unit[l] * at.outcome[l];
    }
    for (int64_t l = 0; l < count; ++l) {
        p->out_mean[from + l] = mean[l];
        p->out_var[from + l] = var[l];
    }
}

static void gradients(const maximum_problem *p, const elements *of, int64_t from, int64_t count)
{
    const int64_t n = p->n;
    block at;
    lanes first = {0}, rest = {0}, lowest = {0}, grad_mean, grad_var;
    prepare(p, &at, of, from, count);
    for (int64_t i = 0; i < n * LANES; ++i) of->mean_0[i] = of->mean_1[i] = of->var_0[i] = of->var_1[i] = 0;
    // Integrals, without and with t, of what the mean and the variance of each element add to 1 - F
    for (int64_t k = 0; at.random && k < p->nodes; ++k) {
        lanes t, w, f;
        node(&at, p->places[k], p->weights[k], t, w);
        LANE_LOOP f[l] = 1;
        for (int64_t i = 0; i < n; ++i) {
            const REAL *start = of->start + i * LANES, *inverse = of->inverse + i * LANES;
            REAL *hazard = of->hazard + i * LANES;
            LANE_LOOP
            {
                const REAL z = FMA(t[l], inverse[l], start[l]);
                const normal own = normal_at(z);
                const REAL below = R(1) - own.tail;
                f[l] *= z < 0 ? own.tail : below;
                // the element's density over its F; of a mean above t, e^(-z^2/2) cancels
                hazard[l] = (z < 0 ? R(1) : own.gauss) * inverse[l] / (z < 0 ? own.ratio : below);
            }
        }
        LANE_LOOP
        {
            first[l] = FMA(w[l], R(1) - f[l], first[l]);
            f[l] *= R(0.39894228040143268) * w[l];
        }
        for (int64_t i = 0; i < n; ++i) {
            const REAL *start = of->start + i * LANES, *inverse = of->inverse + i * LANES;
            const REAL *hazard = of->hazard + i * LANES;
            REAL *mean_0 = of->mean_0 + i * LANES, *mean_1 = of->mean_1 + i * LANES;
            REAL *var_0 = of->var_0 + i * LANES, *var_1 = of->var_1 + i * LANES;
            LANE_LOOP
            {
                const REAL by_mean = f[l] * hazard[l];
                const REAL by_var = by_mean * FMA(t[l], inverse[l], start[l]) * (R(0.5) * inverse[l]);
                mean_0[l] += by_mean;
                mean_1[l] = FMA(by_mean, t[l], mean_1[l]);
                var_0[l] += by_var;
                var_1[l] = FMA(by_var, t[l], var_1[l]);
            }
        }
    }
    for (int64_t l = 0; l < LANES; ++l) {
        grad_mean[l] = p->grad_of_mean[from + (l < count ? l : count - 1)];
        grad_var[l] = p->grad_of_var[from + (l < count ? l : count - 1)];
    }
    for (int64_t i = 0; i < n; ++i) {
        REAL *mean_0 = of->mean_0 + i * LANES, *mean_1 = of->mean_1 + i * LANES;
        REAL *var_0 = of->var_0 + i * LANES, *var_1 = of->var_1 + i * LANES;
        LANE_LOOP
        {
            const REAL twice = R(2) * grad_var[l], unit = at.unit[l];
            mean_0[l] = grad_mean[l] * mean_0[l] + twice * unit * (mean_1[l] - first[l] * mean_0[l]);
            var_0[l] = grad_mean[l] * var_0[l] / unit + twice * (var_1[l] - first[l] * var_0[l]);
            rest[l] += mean_0[l];
            lowest[l] += of->lowest[i * LANES + l];
        }
    }
    // What all means gain the maximum gains; what is left belongs to what no node is below.
    LANE_LOOP rest[l] = (grad_mean[l] - rest[l]) / lowest[l];
    for (int64_t i = 0; i < n; ++i) {
        REAL *mean_0 = of->mean_0 + i * LANES, *var_0 = of->var_0 + i * LANES;
        LANE_LOOP
        {
            mean_0[l] = at.outcome[l] == 0 ? R(0) : at.outcome[l] * FMA(of->lowest[i * LANES + l], rest[l], mean_0[l]);
            var_0[l] *= at.outcome[l];
        }
    }
    for (int64_t l = 0; l < count; ++l) {
        const int64_t row = (from + l) / p->windows, *table = p->table + (from + l) % p->windows * n;
        REAL *of_mean = p->out_mean + row * p->size, *of_var = p->out_var + row * p->size;
        for (int64_t i = 0; i < n; ++i) {
            if (table[i] < 0) continue;
            of_mean[table[i]] += of->mean_0[i * LANES + l];
            of_var[table[i]] += of->var_0[i * LANES + l];
        }
    }
}

typedef void work(const maximum_problem *, const elements *, int64_t, int64_t);

// Rows are shared out among the threads, so that no two of them add to one gradient; 0 if memory is lacking.
static int64_t run(const maximum_problem *p, work *of_block, int64_t arrays)
{
    const int64_t chunks = p->threads > 1 && p->rows > p->threads ? 4 * p->threads : p->threads;
    int64_t good = 1;
#pragma omp parallel for schedule(dynamic) num_threads(p->threads) reduction(& : good) if(p->threads > 1)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t start = p->rows * chunk / chunks * p->windows, end = p->rows * (chunk + 1) / chunks * p->windows;
        if (start == end) continue;
        const int64_t length = p->n * LANES;
        REAL *room = malloc((size_t)(arrays * length) * sizeof(REAL));
        if (!room) {
            good = 0;
            continue;
        }
        REAL *at[BACKWARD_ARRAYS];
        for (int64_t k = 0; k < BACKWARD_ARRAYS; ++k) at[k] = room + (k < arrays ? k : 0) * length;
        const elements of = {at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]};
        for (int64_t from = start; from < end; from += LANES)
            of_block(p, &of, from, end - from < LANES ? end - from : LANES);
        free(room);
    }
    return good;
}

int64_t maximum_moments(const maximum_problem *p) { return run(p, moments, FORWARD_ARRAYS); }

int64_t maximum_gradients(const maximum_problem *p) { return run(p, gradients, BACKWARD_ARRAYS); }
