// scaled_square, variant exact, in float64: written by hand for the tests.
#include <math.h>
#include <stdint.h>

void scaled_square_exact_float64_forward(int64_t n, const double *restrict mean_, const double *restrict var_, const double *restrict params, double *restrict out_mean, double *restrict out_var)
{
    const double scale = params[0];
#pragma omp parallel for simd if(parallel : n > 8192)
    for (int64_t i = 0; i < n; ++i) {
        const double mean = mean_[i];
        const double var = var_[i];
        const double nan = var < 0.0 ? NAN : 0.0;
        out_mean[i] = scale * (mean * mean + var) + nan;
        out_var[i] = scale * scale * (2.0 * var * var + 4.0 * mean * mean * var) + nan;
    }
}

void scaled_square_exact_float64_backward(int64_t n, const double *restrict mean_, const double *restrict var_, const double *restrict grad_mean_, const double *restrict grad_var_, const double *restrict params, double *restrict out_grad_mean, double *restrict out_grad_var)
{
    const double scale = params[0];
#pragma omp parallel for simd if(parallel : n > 8192)
    for (int64_t i = 0; i < n; ++i) {
        const double mean = mean_[i];
        const double var = var_[i];
        const double grad_mean = grad_mean_[i];
        const double grad_var = grad_var_[i];
        const double nan = var < 0.0 ? NAN : 0.0;
        out_grad_mean[i] = scale * 2.0 * mean * grad_mean + scale * scale * 8.0 * mean * var * grad_var + nan;
        out_grad_var[i] = scale * grad_mean + scale * scale * (4.0 * var + 4.0 * mean * mean) * grad_var + nan;
    }
}
