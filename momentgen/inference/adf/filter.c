// Assumed density filtering through a ReLU network, datum by datum: momentgen/inference/adf/native.py puts before this
// text the definitions of REAL, REAL_MAX, RELU_FORWARD and RELU_BACKWARD, and the generated moments of ReLU.
//
// A layer's weights lie input by input, (inputs + 1) x outputs, the bias last, so that loops run over the outputs.
// network.py explains the forward pass.

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

enum { GAMMA_NOISE, KNOWN_NOISE, PROBIT, SAMPLED_SOFTMAX, SOFTMAX_BOUND };
enum { PBP, EBP };

typedef struct {
    int64_t replicates, data, layers, rule, evidence, samples;
    int64_t weights;       // of one replicate
    int64_t threads;       // at most so many run replicates
    int64_t x_stride;      // from one replicate's features to the next one's; 0 where all share them
    const int64_t *sizes;  // layers + 1 widths, without the bias
    REAL *mean, *var;      // replicates x weights
    double *noise;         // replicates x 2: shape and rate of the noise precision's gamma law
    const REAL *x;         // replicates x data x sizes[0]
    const REAL *y;         // replicates x data x outputs; of labels, one number each
    const REAL *draws;     // replicates x data x samples x outputs, standard normal
    double *log_z;         // replicates x data, written
    int64_t *skipped;      // replicates x 2: weights, noise; added to
} adf_problem;

// ---------------------------------------------------------------- log Z and its derivatives

// phi(h)/Phi(h) and log Phi(h)
static double inverse_mills(double h, double *log_cdf)
{
    const double log_pdf = -0.5 * h * h - 0.91893853320467274178;
    if (h > -10.0) {
        const double cdf = 0.5 * erfc(-h * 0.70710678118654752440);
        *log_cdf = h > 5.0 ? log1p(-0.5 * erfc(h * 0.70710678118654752440)) : log(cdf);
        return exp(log_pdf) / cdf;
    }
    double t = -h, ratio = t;  // Laplace's continued fraction
    for (int k = 40; k > 0; --k) ratio = t + k / ratio;
    *log_cdf = log_pdf - log(ratio);
    return ratio;
}

static double gaussian(int64_t n, const REAL *mean, const REAL *var, const REAL *y, double noise)
{
    double sum = 0;
    for (int64_t k = 0; k < n; ++k) {
        const double v = var[k] + noise, e = y[k] - (double)mean[k];
        sum -= 0.5 * (log(v) + e * e / v);
    }
    return sum - 0.91893853320467274178 * n;
}

// The gamma law with the moments of the tilted one; 0 where there is none.
static int match_gamma(double *law, double z, double z1, double z2)
{
    const double a = law[0], b = law[1], grow = expm1(z2 - z1 - (z1 - z));
    const double shape = 1.0 / (grow + (1.0 + grow) / a);
    const double rate = b / (exp(z2 - z1) * (a + 1.0) - exp(z1 - z) * a);
    if (!(shape > 1.0 && rate > 0.0 && isfinite(shape) && isfinite(rate))) return 0;
    law[0] = shape;
    law[1] = rate;
    return 1;
}

// d: derivative by the mean, e: by the variance (PBP) or twice by the mean (EBP).  Where Z is exact, the second
// derivative by the mean is 2 e - d^2 for the e of PBP.
//
// Of sampled classes, with samples f_s, log Z is about L = log mean_s p(y | f_s), with weights
// w_s = p(y | f_s) / sum_t p(y | f_t).  The derivative by the mean is that of L.  By Price's theorem the one by the
// variance is 1/2 sum_s d2L/df_s2 = 1/2 sum_s (w_s p''/p - w_s^2 (p'/p)^2).  Its expectation is the derivative of E L.
// The last term vanishes with many samples, and stops few samples from widening the weights.
//
// The bound of classes is log Z >= m_y - log sum_k exp(m_k + v_k/2).
static double evidence(const adf_problem *p, int64_t n, const REAL *mean, const REAL *var, const REAL *y, double *noise,
                       const REAL *draws, double *scratch, REAL *d, REAL *e, int64_t *skipped)
{
    const int ebp = p->rule == EBP;
    if (p->evidence == GAMMA_NOISE || p->evidence == KNOWN_NOISE) {
        const double a = noise[0], b = noise[1], expected = b / (a - 1.0);
        const double z = gaussian(n, mean, var, y, expected);
        for (int64_t k = 0; k < n; ++k) {
            const double v = var[k] + expected, off = (y[k] - (double)mean[k]) / v;
            d[k] = (REAL)off;
            e[k] = (REAL)(ebp ? -1.0 / v : 0.5 * (off * off - 1.0 / v));
        }
        if (p->evidence == GAMMA_NOISE)
            *skipped += !match_gamma(noise, z, gaussian(n, mean, var, y, b / a),
                                     gaussian(n, mean, var, y, b / (a + 1.0)));
        return z;
    }
    if (p->evidence == PROBIT) {
        const double total = 1.0 + var[0], root = sqrt(total), h = y[0] * mean[0] / root;
        double log_z;
        const double r = inverse_mills(h, &log_z);
        d[0] = (REAL)(y[0] * r / root);
        e[0] = (REAL)(ebp ? -r * (r + h) / total : -0.5 * h * r / total);
        return log_z;
    }
    const int64_t label = (int64_t)y[0];
    if (p->evidence == SOFTMAX_BOUND) {
        double largest = -INFINITY, sum = 0;
        for (int64_t k = 0; k < n; ++k) largest = fmax(largest, mean[k] + 0.5 * var[k]);
        for (int64_t k = 0; k < n; ++k) sum += scratch[k] = exp(mean[k] + 0.5 * var[k] - largest);
        for (int64_t k = 0; k < n; ++k) {
            const double probability = scratch[k] / sum;
            d[k] = (REAL)((k == label) - probability);
            e[k] = (REAL)(ebp ? -probability * (1.0 - probability) : -0.5 * probability);
        }
        return mean[label] - largest - log(sum);
    }
    // scratch: samples x n probabilities, then a log weight for each sample
    double *const log_weight = scratch + p->samples * n, peak = -INFINITY, total = 0;
    for (int64_t s = 0; s < p->samples; ++s) {
        double *const at = scratch + s * n, largest = -INFINITY, sum = 0;
        for (int64_t k = 0; k < n; ++k) {
            at[k] = mean[k] + sqrt((double)var[k]) * draws[s * n + k];
            largest = fmax(largest, at[k]);
        }
        const double own = at[label];
        for (int64_t k = 0; k < n; ++k) sum += at[k] = exp(at[k] - largest);
        for (int64_t k = 0; k < n; ++k) at[k] /= sum;
        log_weight[s] = own - largest - log(sum);
        peak = fmax(peak, log_weight[s]);
    }
    for (int64_t s = 0; s < p->samples; ++s) total += log_weight[s] = exp(log_weight[s] - peak);
    for (int64_t k = 0; k < n; ++k) {
        double first = 0, second = 0, squares = 0;
        for (int64_t s = 0; s < p->samples; ++s) {
            const double probability = scratch[s * n + k], off = (k == label) - probability;
            const double weight = log_weight[s] / total;
            first += weight * off;
            second += weight * (off * off - probability * (1.0 - probability));
            squares += weight * weight * off * off;
        }
        d[k] = (REAL)first;
        e[k] = (REAL)(ebp ? second - first * first : 0.5 * (second - squares));
    }
    return peak + log(total / p->samples);
}

// ---------------------------------------------------------------- one layer

// mean and variance of z W / sqrt(inputs + 1)
static void forward(int64_t inputs, int64_t outputs, const REAL *restrict m, const REAL *restrict v,
                    const REAL *restrict z, const REAL *restrict zv, REAL *restrict mean, REAL *restrict var)
{
    for (int64_t j = 0; j < outputs; ++j) mean[j] = var[j] = 0;
    for (int64_t i = 0; i <= inputs; ++i) {
        const REAL value = z[i], spread = zv[i], square = value * value + spread;
        if (square == 0) continue;
        const REAL *restrict mi = m + i * outputs, *restrict vi = v + i * outputs;
#pragma omp simd
        for (int64_t j = 0; j < outputs; ++j) {
            mean[j] += mi[j] * value;
            var[j] += vi[j] * square + mi[j] * mi[j] * spread;
        }
    }
    const double scale = 1.0 / sqrt((double)(inputs + 1));
    for (int64_t j = 0; j < outputs; ++j) {
        mean[j] *= (REAL)scale;
        var[j] *= (REAL)(scale * scale);
    }
}

// Update the weights by the derivatives d, e in mean and variance of the outputs, and, where below is not null, give
// those in mean and variance of the inputs.  Means move by + v dlogZ/dm, variances by - v^2 ((dlogZ/dm)^2 - 2 dlogZ/dv).
static int64_t backward_pbp(int64_t inputs, int64_t outputs, REAL *restrict m, REAL *restrict v,
                            const REAL *restrict z, const REAL *restrict zv, REAL *restrict d, REAL *restrict e,
                            REAL *restrict below_mean, REAL *restrict below_var)
{
    const double scale = 1.0 / sqrt((double)(inputs + 1));
    int64_t skipped = 0;
    for (int64_t j = 0; j < outputs; ++j) {
        d[j] *= (REAL)scale;
        e[j] *= (REAL)(scale * scale);
    }
    for (int64_t i = 0; i <= inputs; ++i) {
        const REAL value = z[i], spread = zv[i], square = value * value + spread;
        if (square == 0 && !below_mean) continue;
        REAL *restrict mi = m + i * outputs, *restrict vi = v + i * outputs;
        REAL sum_m = 0, sum_v = 0, sum_s = 0, bad = 0;
#pragma omp simd reduction(+ : sum_m, sum_v, sum_s, bad)
        for (int64_t j = 0; j < outputs; ++j) {
            const REAL mean = mi[j], var = vi[j], by_var = e[j];
            const REAL dm = d[j] * value + 2 * by_var * spread * mean, dv = by_var * square;
            sum_m += mean * d[j];
            sum_v += var * by_var;
            sum_s += (mean * mean + var) * by_var;
            const REAL new_mean = mean + var * dm, new_var = var - var * var * (dm * dm - 2 * dv);
            const _Bool good = (new_var > 0) & (new_var <= REAL_MAX) & (new_mean <= REAL_MAX) & (new_mean >= -REAL_MAX);
            mi[j] = good ? new_mean : mean;
            vi[j] = good ? new_var : var;
            bad += good ? (REAL)0 : (REAL)1;
        }
        skipped += (int64_t)bad;
        if (below_mean) {
            below_mean[i] = sum_m + 2 * value * sum_v;
            below_var[i] = sum_s;
        }
    }
    return skipped;
}

// The same with the curvature e in the mean of the outputs: variances move by + v^2 d2logZ/dm2.  Where log Z is exact,
// v + v^2 d2logZ/dm2 would be the variance of PBP.  Here it is not, since derivatives pass through the means alone.  The
// variances of weights, activations and outputs are held fixed, and in the second derivative so are products of two
// different paths.  The first derivative is that of Soudry, Hubara & Meir 2014, with ReLU's slope in place of their sign
// units'.  Their real weights keep a variance of 1, and have no second derivative.
static int64_t backward_ebp(int64_t inputs, int64_t outputs, REAL *restrict m, REAL *restrict v,
                            const REAL *restrict z, REAL *restrict d, REAL *restrict e, REAL *restrict below_mean,
                            REAL *restrict below_curvature)
{
    const double scale = 1.0 / sqrt((double)(inputs + 1));
    int64_t skipped = 0;
    for (int64_t j = 0; j < outputs; ++j) {
        d[j] *= (REAL)scale;
        e[j] *= (REAL)(scale * scale);
    }
    for (int64_t i = 0; i <= inputs; ++i) {
        const REAL value = z[i];
        if (value == 0 && !below_mean) continue;
        REAL *restrict mi = m + i * outputs, *restrict vi = v + i * outputs;
        REAL sum_m = 0, sum_s = 0, bad = 0;
#pragma omp simd reduction(+ : sum_m, sum_s, bad)
        for (int64_t j = 0; j < outputs; ++j) {
            const REAL mean = mi[j], var = vi[j];
            sum_m += mean * d[j];
            sum_s += mean * mean * e[j];
            const REAL new_mean = mean + var * (d[j] * value), new_var = var + var * var * (e[j] * (value * value));
            const _Bool good = (new_var > 0) & (new_var <= REAL_MAX) & (new_mean <= REAL_MAX) & (new_mean >= -REAL_MAX);
            mi[j] = good ? new_mean : mean;
            vi[j] = good ? new_var : var;
            bad += good ? (REAL)0 : (REAL)1;
        }
        skipped += (int64_t)bad;
        if (below_mean) {
            below_mean[i] = sum_m;
            below_curvature[i] = sum_s;
        }
    }
    return skipped;
}

// ---------------------------------------------------------------- one replicate

static int filter_one(const adf_problem *p, int64_t r)
{
    const int64_t layers = p->layers, *const sizes = p->sizes, outputs = sizes[layers];
    const int64_t columns = p->evidence == GAMMA_NOISE || p->evidence == KNOWN_NOISE ? outputs : 1;
    int64_t widest = 0, units = 0;
    for (int64_t l = 0; l <= layers; ++l) {
        units += sizes[l] + 1;
        widest = sizes[l] + 1 > widest ? sizes[l] + 1 : widest;
    }
    // z, zv: inputs of each layer with the bias; a, av: outputs of each layer; four gradients
    REAL *const room = malloc(sizeof(REAL) * (size_t)(4 * units + 6 * widest));
    double *const scratch = malloc(sizeof(double) * (size_t)((p->samples + 1) * (outputs + 1)));
    if (!room || !scratch) {
        free(room);
        free(scratch);
        return 0;
    }
    REAL *const z = room, *const zv = z + units, *const a = zv + units, *const av = a + units;
    REAL *const d = av + units, *const e = d + widest, *const below_d = e + widest, *const below_e = below_d + widest;
    REAL *const ones = below_e + widest, *const zeros = ones + widest;
    for (int64_t i = 0; i < widest; ++i) {
        ones[i] = 1;
        zeros[i] = 0;
    }
    const REAL *const x = p->x + r * p->x_stride;
    for (int64_t n = 0; n < p->data; ++n) {
        REAL *m = p->mean + r * p->weights, *v = p->var + r * p->weights;
        for (int64_t i = 0; i < sizes[0]; ++i) {
            z[i] = x[n * sizes[0] + i];
            zv[i] = 0;
        }
        int64_t at = 0;
        for (int64_t l = 0; l < layers; ++l) {
            const int64_t next = at + sizes[l] + 1;
            z[next - 1] = 1;
            zv[next - 1] = 0;
            forward(sizes[l], sizes[l + 1], m, v, z + at, zv + at, a + next, av + next);
            if (l + 1 < layers) RELU_FORWARD(sizes[l + 1], a + next, av + next, 0, z + next, zv + next);
            m += (sizes[l] + 1) * sizes[l + 1];
            v += (sizes[l] + 1) * sizes[l + 1];
            at = next;
        }
        const REAL *const draws = p->draws ? p->draws + (r * p->data + n) * p->samples * outputs : 0;
        p->log_z[r * p->data + n] =
            evidence(p, outputs, a + at, av + at, p->y + (r * p->data + n) * columns, p->noise + 2 * r, draws, scratch,
                     d, e, p->skipped + 2 * r + 1);
        for (int64_t l = layers - 1; l >= 0; --l) {
            const int64_t inputs = sizes[l], width = sizes[l + 1];
            m -= (inputs + 1) * width;
            v -= (inputs + 1) * width;
            at -= inputs + 1;
            REAL *const to_d = l ? below_d : 0;
            p->skipped[2 * r] += p->rule == PBP
                ? backward_pbp(inputs, width, m, v, z + at, zv + at, d, e, to_d, below_e)
                : backward_ebp(inputs, width, m, v, z + at, d, e, to_d, below_e);
            if (!l) break;
            if (p->rule == PBP) {
                RELU_BACKWARD(inputs, a + at, av + at, below_d, below_e, 0, d, e);
            } else {
                // Phi, and phi/(2 sigma): the derivatives of ReLU's mean
                RELU_BACKWARD(inputs, a + at, av + at, ones, zeros, 0, d, e);
                for (int64_t i = 0; i < inputs; ++i) {
                    e[i] = d[i] * d[i] * below_e[i] + 2 * e[i] * below_d[i];
                    d[i] *= below_d[i];
                }
            }
        }
    }
    free(room);
    free(scratch);
    return 1;
}

// 1, or 0 where memory ran out.
int64_t adf_filter(const adf_problem *problem)
{
    int64_t good = 1;
#pragma omp parallel for num_threads(problem->threads) reduction(& : good) if(problem->threads > 1)
    for (int64_t r = 0; r < problem->replicates; ++r) good &= filter_one(problem, r);
    return good;
}
