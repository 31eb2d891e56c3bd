// scaled_square, variant exact: written by hand for the tests.
#include <math.h>
#include <stdint.h>

void scaled_square_exact_forward(int64_t n, const float *restrict mean_, const float *restrict var_, const float *restrict params, float *restrict out_mean, float *restrict out_var)
{
    const float scale_hi = params[0];
    const float scale_lo = params[1];
    const float squared_scale = params[2];
#pragma omp parallel for simd if(parallel : n > 8192)
    for (int64_t i = 0; i < n; ++i) {
        const float mean = mean_[i];
        const float var = var_[i];
        const float nan = var < 0.0f ? NAN : 0.0f;
        out_mean[i] = (scale_hi + scale_lo) * (mean * mean + var) + nan;
        out_var[i] = squared_scale * (2.0f * var * var + 4.0f * mean * mean * var) + nan;
    }
}

void scaled_square_exact_backward(int64_t n, const float *restrict mean_, const float *restrict var_, const float *restrict grad_mean_, const float *restrict grad_var_, const float *restrict params, float *restrict out_grad_mean, float *restrict out_grad_var)
{
    const float scale_hi = params[0];
    const float scale_lo = params[1];
    const float squared_scale = params[2];
#pragma omp parallel for simd if(parallel : n > 8192)
    for (int64_t i = 0; i < n; ++i) {
        const float mean = mean_[i];
        const float var = var_[i];
        const float grad_mean = grad_mean_[i];
        const float grad_var = grad_var_[i];
        const float nan = var < 0.0f ? NAN : 0.0f;
        out_grad_mean[i] = (scale_hi + scale_lo) * 2.0f * mean * grad_mean + squared_scale * 8.0f * mean * var * grad_var + nan;
        out_grad_var[i] = (scale_hi + scale_lo) * grad_mean + squared_scale * (4.0f * var + 4.0f * mean * mean) * grad_var + nan;
    }
}
