// Draws of a tridiagonal posterior, and their derivatives: momentgen/inference/tridiagonal/native.py puts the typedef of
// REAL before this text.  What is computed is what gradients.py computes with torch, where the formulas are explained.

#include <math.h>
#include <stdint.h>

enum { HEAD = 1450 };  // elements after which d is its limit, for every rho that is admitted

// The Cholesky factor of the correlation and its derivative in rho; the last elements stand for all further ones.
typedef struct {
    int64_t head;
    REAL own[HEAD], below[HEAD], own_slope[HEAD], below_slope[HEAD];
} factor;

static void fill(factor *f, int64_t count, double rho)
{
    const double root = 2.0 * sqrt((0.5 - rho) * (0.5 + rho)), limit = (1.0 + root) / 2.0;
    const double x = rho * rho / (limit * limit), root_slope = -4.0 * rho / root;
    const double x_slope = -0.5 * root_slope / (limit * limit);
    double before = 1.0;  // x^k
    int64_t k = 0;
    while (k < count && k < HEAD) {
        const double power = before * x, rest = 1.0 - power;
        const double own = sqrt(limit + power * root / rest);
        const double power_slope = (double)(k + 1) * before * x_slope;
        const double d_slope = (root_slope * power + root * power_slope / rest) / rest + 0.5 * root_slope;
        const double own_slope = d_slope / (2.0 * own), below = rho / own;
        f->own[k] = (REAL)own;
        f->below[k] = (REAL)below;
        f->own_slope[k] = (REAL)own_slope;
        f->below_slope[k] = (REAL)((1.0 - own_slope * below) / own);
        before = power;
        ++k;
        if (before * (double)(k + 1) < 0x1p-60) break;
    }
    f->head = k;
}

static inline REAL magnitude(REAL mean)
{
    const REAL size = mean < 0 ? -mean : mean;
    return size < (REAL)1e-6 ? (REAL)1e-6 : size;
}

// out = mean + tau |mean| e, e the correlated noise; noise and out are n x count
void draw(int64_t n, int64_t count, double tau, double rho, const REAL *mean, const REAL *noise, REAL *restrict out)
{
    factor f;
    fill(&f, count, rho);
    const REAL own = f.own[f.head - 1], below = f.below[f.head - 1], scale = (REAL)tau;
    for (int64_t row = 0; row < n; ++row, noise += count, out += count) {
        out[0] = mean[0] + scale * magnitude(mean[0]) * (f.own[0] * noise[0]);
        for (int64_t k = 1; k < f.head; ++k)
            out[k] = mean[k] + scale * magnitude(mean[k]) * (f.own[k] * noise[k] + f.below[k - 1] * noise[k - 1]);
#pragma omp simd
        for (int64_t k = f.head; k < count; ++k)
            out[k] = mean[k] + scale * magnitude(mean[k]) * (own * noise[k] + below * noise[k - 1]);
    }
}

// Of the inner product of grad and the draws, its derivatives in mean (added to of_mean), tau and rho (written).
void draw_slopes(int64_t n, int64_t count, double tau, double rho, const REAL *mean, const REAL *noise,
                 const REAL *grad, REAL *restrict of_mean, double *of_tau_rho)
{
    factor f;
    fill(&f, count, rho);
    const REAL own = f.own[f.head - 1], below = f.below[f.head - 1], scale = (REAL)tau;
    const REAL own_slope = f.own_slope[f.head - 1], below_slope = f.below_slope[f.head - 1];
    double of_tau = 0, of_rho = 0;
    for (int64_t row = 0; row < n; ++row, noise += count, grad += count) {
        for (int64_t k = 0; k < f.head; ++k) {
            const REAL last = k ? noise[k - 1] : 0, before = k ? f.below[k - 1] : 0;
            const REAL before_slope = k ? f.below_slope[k - 1] : 0;
            const REAL e = f.own[k] * noise[k] + before * last, m = mean[k], g = grad[k] * magnitude(m);
            const REAL sign = m > (REAL)1e-6 ? 1 : m < (REAL)-1e-6 ? -1 : 0;
            of_tau += (double)(g * e);
            of_rho += (double)(g * (f.own_slope[k] * noise[k] + before_slope * last));
            of_mean[k] += grad[k] + grad[k] * (scale * sign) * e;
        }
#pragma omp simd reduction(+ : of_tau, of_rho)
        for (int64_t k = f.head; k < count; ++k) {
            const REAL e = own * noise[k] + below * noise[k - 1], m = mean[k], g = grad[k] * magnitude(m);
            const REAL sign = m > (REAL)1e-6 ? (REAL)1 : m < (REAL)-1e-6 ? (REAL)-1 : (REAL)0;
            of_tau += (double)(g * e);
            of_rho += (double)(g * (own_slope * noise[k] + below_slope * noise[k - 1]));
            of_mean[k] += grad[k] + grad[k] * (scale * sign) * e;
        }
    }
    of_tau_rho[0] = of_tau;
    of_tau_rho[1] = of_rho * tau;
}
