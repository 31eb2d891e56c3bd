// square, variant exact: written by hand for the tests.
#include <math.h>
#include <stdint.h>

void square_exact_forward(int64_t n, const float *restrict mean_, const float *restrict var_, const float *restrict params, float *restrict out_mean, float *restrict out_var)
{
    (void)params;
#pragma omp parallel for simd if(parallel : n > 8192)
    for (int64_t i = 0; i < n; ++i) {
        const float mean = mean_[i];
        const float var = var_[i];
        const float nan = var < 0.0f ? NAN : 0.0f;
        out_mean[i] = mean * mean + var + nan;
        out_var[i] = 2.0f * var * var + 4.0f * mean * mean * var + nan;
    }
}

void square_exact_backward(int64_t n, const float *restrict mean_, const float *restrict var_, const float *restrict grad_mean_, const float *restrict grad_var_, const float *restrict params, float *restrict out_grad_mean, float *restrict out_grad_var)
{
    (void)params;
#pragma omp parallel for simd if(parallel : n > 8192)
    for (int64_t i = 0; i < n; ++i) {
        const float mean = mean_[i];
        const float var = var_[i];
        const float grad_mean = grad_mean_[i];
        const float grad_var = grad_var_[i];
        const float nan = var < 0.0f ? NAN : 0.0f;
        out_grad_mean[i] = 2.0f * mean * grad_mean + 8.0f * mean * var * grad_var + nan;
        out_grad_var[i] = grad_mean + (4.0f * var + 4.0f * mean * mean) * grad_var + nan;
    }
}
