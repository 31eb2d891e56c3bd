// product, variant exact, in float64: written by hand for the tests.
#include <math.h>
#include <stdint.h>

void product_exact_float64_forward(int64_t n, const double *restrict mean1_, const double *restrict var1_, const double *restrict mean2_, const double *restrict var2_, const double *restrict params, double *restrict out_mean, double *restrict out_var)
{
    (void)params;
#pragma omp parallel for simd if(parallel : n > 8192)
    for (int64_t i = 0; i < n; ++i) {
        const double mean1 = mean1_[i];
        const double var1 = var1_[i];
        const double mean2 = mean2_[i];
        const double var2 = var2_[i];
        const double nan = var1 < 0.0 || var2 < 0.0 ? NAN : 0.0;
        out_mean[i] = mean1 * mean2 + nan;
        out_var[i] = mean1 * mean1 * var2 + mean2 * mean2 * var1 + var1 * var2 + nan;
    }
}

void product_exact_float64_backward(int64_t n, const double *restrict mean1_, const double *restrict var1_, const double *restrict mean2_, const double *restrict var2_, const double *restrict grad_mean_, const double *restrict grad_var_, const double *restrict params, double *restrict out_grad_mean1, double *restrict out_grad_var1, double *restrict out_grad_mean2, double *restrict out_grad_var2)
{
    (void)params;
#pragma omp parallel for simd if(parallel : n > 8192)
    for (int64_t i = 0; i < n; ++i) {
        const double mean1 = mean1_[i];
        const double var1 = var1_[i];
        const double mean2 = mean2_[i];
        const double var2 = var2_[i];
        const double grad_mean = grad_mean_[i];
        const double grad_var = grad_var_[i];
        const double nan = var1 < 0.0 || var2 < 0.0 ? NAN : 0.0;
        out_grad_mean1[i] = mean2 * grad_mean + 2.0 * mean1 * var2 * grad_var + nan;
        out_grad_var1[i] = (mean2 * mean2 + var2) * grad_var + nan;
        out_grad_mean2[i] = mean1 * grad_mean + 2.0 * mean2 * var1 * grad_var + nan;
        out_grad_var2[i] = (mean1 * mean1 + var1) * grad_var + nan;
    }
}
