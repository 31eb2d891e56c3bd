# scaled_square, variant exact: written by hand for the tests.

import triton
import triton.language as tl

LANE_ELEMENTS = 2


@triton.jit
def scaled_square_exact_forward(mean, var, scale_hi, scale_lo, squared_scale):
    nan = tl.where((var < 0.0), float("nan"), 0.0)
    return (scale_hi + scale_lo) * (mean * mean + var) + nan, squared_scale * (
        2.0 * var * var + 4.0 * mean * mean * var
    ) + nan


@triton.jit
def scaled_square_exact_forward_kernel(
    mean_ptr, var_ptr, out_mean_ptr, out_var_ptr, n, scale_hi, scale_lo, squared_scale, BLOCK: tl.constexpr
):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    mean = tl.load(mean_ptr + offsets, mask=mask).to(tl.float32)
    var = tl.load(var_ptr + offsets, mask=mask).to(tl.float32)
    scale_hi = tl.full((), scale_hi, tl.float32)
    scale_lo = tl.full((), scale_lo, tl.float32)
    squared_scale = tl.full((), squared_scale, tl.float32)
    out_mean, out_var = scaled_square_exact_forward(mean, var, scale_hi, scale_lo, squared_scale)
    tl.store(out_mean_ptr + offsets, out_mean.to(out_mean_ptr.dtype.element_ty), mask=mask)
    tl.store(out_var_ptr + offsets, out_var.to(out_var_ptr.dtype.element_ty), mask=mask)


@triton.jit
def scaled_square_exact_backward(mean, var, grad_mean, grad_var, scale_hi, scale_lo, squared_scale):
    nan = tl.where((var < 0.0), float("nan"), 0.0)
    return (scale_hi + scale_lo) * 2.0 * mean * grad_mean + squared_scale * 8.0 * mean * var * grad_var + nan, (
        scale_hi + scale_lo
    ) * grad_mean + squared_scale * (4.0 * var + 4.0 * mean * mean) * grad_var + nan


@triton.jit
def scaled_square_exact_backward_kernel(
    mean_ptr,
    var_ptr,
    grad_mean_ptr,
    grad_var_ptr,
    out_grad_mean_ptr,
    out_grad_var_ptr,
    n,
    scale_hi,
    scale_lo,
    squared_scale,
    BLOCK: tl.constexpr,
):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    mean = tl.load(mean_ptr + offsets, mask=mask).to(tl.float32)
    var = tl.load(var_ptr + offsets, mask=mask).to(tl.float32)
    grad_mean = tl.load(grad_mean_ptr + offsets, mask=mask).to(tl.float32)
    grad_var = tl.load(grad_var_ptr + offsets, mask=mask).to(tl.float32)
    scale_hi = tl.full((), scale_hi, tl.float32)
    scale_lo = tl.full((), scale_lo, tl.float32)
    squared_scale = tl.full((), squared_scale, tl.float32)
    out_grad_mean, out_grad_var = scaled_square_exact_backward(
        mean, var, grad_mean, grad_var, scale_hi, scale_lo, squared_scale
    )
    tl.store(out_grad_mean_ptr + offsets, out_grad_mean.to(out_grad_mean_ptr.dtype.element_ty), mask=mask)
    tl.store(out_grad_var_ptr + offsets, out_grad_var.to(out_grad_var_ptr.dtype.element_ty), mask=mask)
