// product, variant exact: written by hand for the tests.
#include <math.h>
#include <stdint.h>

void product_exact_forward(int64_t n, const float *restrict mean1_, const float *restrict var1_, const float *restrict mean2_, const float *restrict var2_, const float *restrict params, float *restrict out_mean, float *restrict out_var)
{
    (void)params;
#pragma omp parallel for simd if(parallel : n > 8192)
    for (int64_t i = 0; i < n; ++i) {
        const float mean1 = mean1_[i];
        const float var1 = var1_[i];
        const float mean2 = mean2_[i];
        const float var2 = var2_[i];
        const float nan = var1 < 0.0f || var2 < 0.0f ? NAN : 0.0f;
        out_mean[i] = mean1 * mean2 + nan;
        out_var[i] = mean1 * mean1 * var2 + mean2 * mean2 * var1 + var1 * var2 + nan;
    }
}

void product_exact_backward(int64_t n, const float *restrict mean1_, const float *restrict var1_, const float *restrict mean2_, const float *restrict var2_, const float *restrict grad_mean_, const float *restrict grad_var_, const float *restrict params, float *restrict out_grad_mean1, float *restrict out_grad_var1, float *restrict out_grad_mean2, float *restrict out_grad_var2)
{
    (void)params;
#pragma omp parallel for simd if(parallel : n > 8192)
    for (int64_t i = 0; i < n; ++i) {
        const float mean1 = mean1_[i];
        const float var1 = var1_[i];
        const float mean2 = mean2_[i];
        const float var2 = var2_[i];
        const float grad_mean = grad_mean_[i];
        const float grad_var = grad_var_[i];
        const float nan = var1 < 0.0f || var2 < 0.0f ? NAN : 0.0f;
        out_grad_mean1[i] = mean2 * grad_mean + 2.0f * mean1 * var2 * grad_var + nan;
        out_grad_var1[i] = (mean2 * mean2 + var2) * grad_var + nan;
        out_grad_mean2[i] = mean1 * grad_mean + 2.0f * mean2 * var1 * grad_var + nan;
        out_grad_var2[i] = (mean1 * mean1 + var1) * grad_var + nan;
    }
}
