// square, variant linearised, in float64: written by hand for the tests.
#include <math.h>
#include <stdint.h>

void square_linearised_float64_forward(int64_t n, const double *restrict mean_, const double *restrict var_, const double *restrict params, double *restrict out_mean, double *restrict out_var)
{
    (void)params;
#pragma omp parallel for simd if(parallel : n > 8192)
    for (int64_t i = 0; i < n; ++i) {
        const double mean = mean_[i];
        const double var = var_[i];
        const double nan = var < 0.0 ? NAN : 0.0;
        out_mean[i] = mean * mean + nan;
        out_var[i] = 4.0 * mean * mean * var + nan;
    }
}

void square_linearised_float64_backward(int64_t n, const double *restrict mean_, const double *restrict var_, const double *restrict grad_mean_, const double *restrict grad_var_, const double *restrict params, double *restrict out_grad_mean, double *restrict out_grad_var)
{
    (void)params;
#pragma omp parallel for simd if(parallel : n > 8192)
    for (int64_t i = 0; i < n; ++i) {
        const double mean = mean_[i];
        const double var = var_[i];
        const double grad_mean = grad_mean_[i];
        const double grad_var = grad_var_[i];
        const double nan = var < 0.0 ? NAN : 0.0;
        out_grad_mean[i] = 2.0 * mean * grad_mean + 8.0 * mean * var * grad_var + nan;
        out_grad_var[i] = 4.0 * mean * mean * grad_var + nan;
    }
}
