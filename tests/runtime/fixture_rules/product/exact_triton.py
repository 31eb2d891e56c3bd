# product, variant exact: written by hand for the tests.

import triton
import triton.language as tl

LANE_ELEMENTS = 2


@triton.jit
def product_exact_forward(mean1, var1, mean2, var2):
    nan = tl.where((var1 < 0.0) | (var2 < 0.0), float("nan"), 0.0)
    return mean1 * mean2 + nan, mean1 * mean1 * var2 + mean2 * mean2 * var1 + var1 * var2 + nan


@triton.jit
def product_exact_forward_kernel(
    mean1_ptr, var1_ptr, mean2_ptr, var2_ptr, out_mean_ptr, out_var_ptr, n, BLOCK: tl.constexpr
):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    mean1 = tl.load(mean1_ptr + offsets, mask=mask).to(tl.float32)
    var1 = tl.load(var1_ptr + offsets, mask=mask).to(tl.float32)
    mean2 = tl.load(mean2_ptr + offsets, mask=mask).to(tl.float32)
    var2 = tl.load(var2_ptr + offsets, mask=mask).to(tl.float32)
    out_mean, out_var = product_exact_forward(mean1, var1, mean2, var2)
    tl.store(out_mean_ptr + offsets, out_mean.to(out_mean_ptr.dtype.element_ty), mask=mask)
    tl.store(out_var_ptr + offsets, out_var.to(out_var_ptr.dtype.element_ty), mask=mask)


@triton.jit
def product_exact_backward(mean1, var1, mean2, var2, grad_mean, grad_var):
    nan = tl.where((var1 < 0.0) | (var2 < 0.0), float("nan"), 0.0)
    return (
        mean2 * grad_mean + 2.0 * mean1 * var2 * grad_var + nan,
        (mean2 * mean2 + var2) * grad_var + nan,
        mean1 * grad_mean + 2.0 * mean2 * var1 * grad_var + nan,
        (mean1 * mean1 + var1) * grad_var + nan,
    )


@triton.jit
def product_exact_backward_kernel(
    mean1_ptr,
    var1_ptr,
    mean2_ptr,
    var2_ptr,
    grad_mean_ptr,
    grad_var_ptr,
    out_grad_mean1_ptr,
    out_grad_var1_ptr,
    out_grad_mean2_ptr,
    out_grad_var2_ptr,
    n,
    BLOCK: tl.constexpr,
):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    mean1 = tl.load(mean1_ptr + offsets, mask=mask).to(tl.float32)
    var1 = tl.load(var1_ptr + offsets, mask=mask).to(tl.float32)
    mean2 = tl.load(mean2_ptr + offsets, mask=mask).to(tl.float32)
    var2 = tl.load(var2_ptr + offsets, mask=mask).to(tl.float32)
    grad_mean = tl.load(grad_mean_ptr + offsets, mask=mask).to(tl.float32)
    grad_var = tl.load(grad_var_ptr + offsets, mask=mask).to(tl.float32)
    out_grad_mean1, out_grad_var1, out_grad_mean2, out_grad_var2 = product_exact_backward(
        mean1, var1, mean2, var2, grad_mean, grad_var
    )
    tl.store(out_grad_mean1_ptr + offsets, out_grad_mean1.to(out_grad_mean1_ptr.dtype.element_ty), mask=mask)
    tl.store(out_grad_var1_ptr + offsets, out_grad_var1.to(out_grad_var1_ptr.dtype.element_ty), mask=mask)
    tl.store(out_grad_mean2_ptr + offsets, out_grad_mean2.to(out_grad_mean2_ptr.dtype.element_ty), mask=mask)
    tl.store(out_grad_var2_ptr + offsets, out_grad_var2.to(out_grad_var2_ptr.dtype.element_ty), mask=mask)
