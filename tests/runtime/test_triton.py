"""The Triton kernels through the runtime's launcher, in Triton's interpreter, which wants a process of its own."""

import pytest
from other_processes import printed

pytest.importorskip("triton")
CHECK = """
import torch
from momentgen.generated import leaky_relu, product, square

for shape in ((), (0,), (1,), (7, 3), (1500,)):
    m, v, g, h = torch.randn(shape), torch.rand(shape), torch.rand(shape), torch.rand(shape)
    for op, params in ((square, {}), (leaky_relu, {"negative_slope": 0.25})):
        for which, tensors in (("forward", (m, v)), ("backward", (m, v, g, h))):
            got = op.kernel(which, backend="triton")(*tensors, **params)
            torch.testing.assert_close(got, op.kernel(which, backend="c")(*tensors, **params), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(product.kernel(backend="triton")(m, v, g, h), tuple(product(m, v, g, h)))
m, v = torch.randn(5, 4).half().T, torch.rand(4, 5).half()
for got, want in zip(square.kernel(backend="triton")(m, v), square(m, v)):
    assert got.dtype is torch.float16 and got.stride() == want.stride()
    torch.testing.assert_close(got, want)
print("all agree")
"""


def test_launcher_and_kernels_agree_with_c() -> None:
    assert printed(CHECK, TRITON_INTERPRET="1") == "all agree\n"


def test_missing_triton_is_told_apart_from_a_damaged_package() -> None:
    code = """
import sys
from momentgen.errors import MomentgenError
from momentgen.runtime.gpu import TritonKernels
from momentgen.runtime.toolchain import Unavailable
try:
    TritonKernels("momentgen.generated.square", "square", "nothing")
except MomentgenError as error:
    print(error)
sys.modules["triton"] = None
try:
    TritonKernels("momentgen.generated.square", "square", "exact")
except Unavailable as error:
    print(error)
"""
    lines = printed(code).splitlines()
    assert "square: the Triton code of variant nothing does not load" in lines[0]
    assert "Triton does not import" in lines[1]


# Learned parameters as a GPU serves them, in Triton's interpreter, which wants a process of its own.
LEARNED = """
import torch
import momentgen.generated as ops
from momentgen.runtime import learned, rescaled
from momentgen.runtime.kernel import Kernel

swish = rescaled(ops.silu, width=lambda beta: 1 / beta, scale=lambda beta: 1 / beta)
swish.__name__, swish.certificate = "swish", ops.silu.certificate
generator = torch.Generator().manual_seed(3)
mean = 1.5 * torch.randn(9, generator=generator)
var = torch.rand(9, generator=generator) + 0.05
ROUNDED = 2.0**-22  # inputs and seeds of the kernels, in float32
NAMES = {"forward": ("mean", "var"), "backward": ("dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar")}
Kernel.run = lambda kernel, which, tensors, params: serve(kernel, which, tensors, params)
learned.kernel_dtype = lambda inputs: inputs.dtype

def by_gpu(kernel, which, tensors, params):
    runs.append((which, tensors[0].dtype))
    double = tensors[0].dtype is torch.float64
    return (kernel.run_reference if double else kernel.run_triton)(which, tensors, params)

def slopes(op, params, name, dtype):
    parameter = torch.full((9,), params[name], dtype=dtype, requires_grad=True)
    found = op(mean.to(dtype), var.to(dtype), **{**params, name: parameter})
    return [torch.autograd.grad(one.sum(), parameter, retain_graph=True)[0] for one in found]

def allowed(certificate, kernel, output, m, v, params):
    # what the certificate allows to one output of a kernel
    at = kernel.run_reference("forward", (m, v), params)
    def partial(m, v):
        one, none = torch.ones_like(m), torch.zeros_like(m)
        seeds = (one, none) if output.startswith("dmean") else (none, one)
        return kernel.run_reference("backward", (m, v, *seeds), params)[output.endswith("dvar")]
    if "ulp" in certificate.goal:
        value = partial(m, v) if output[0] == "d" else at[output == "var"]
        return certificate.goal["ulp"] * 2.0**-23 * value.abs()
    sizes = certificate.tolerance["values"]
    if output == "mean":
        return 1e-6 * at[0].abs().clamp(min=sizes.get("A", 1.0)) + 1e-9 * sizes["L"] * v.sqrt()
    if output == "var":
        return 1e-5 * (sizes["L"] ** 2 * v).clamp(max=(sizes.get("range", float("inf")) / 2) ** 2)
    means = torch.linspace(-6, 6, 121, dtype=m.dtype).expand(len(v), -1)
    values = partial(means.reshape(-1), v[:, None].expand_as(means).reshape(-1))
    return 1e-4 * values.abs().reshape(means.shape).amax(1)

def off_by(certificate, call, output):
    # the PyTorch code, one output of one call off by what is allowed to it
    def served(kernel, which, tensors, params):
        m, v, *seeds = (tensor.double() for tensor in tensors)
        found = list(kernel.run_reference(which, (m, v, *seeds), params))
        if len(runs) == call:
            error = allowed(certificate, kernel, output, m, v, params)
            if which == "forward":
                found[output == "var"] = found[output == "var"] + error
            else:
                place = output.endswith("dvar")
                found[place] = found[place] + error * seeds[output.startswith("dvar")]
        runs.append((which, m.dtype))
        return tuple(found)
    return served

cases = [(ops.celu, {"alpha": 0.7}), (ops.leaky_relu, {"negative_slope": 0.3}), (ops.softplus, {"beta": 1.7}),
         (ops.hardtanh, {"min_val": -0.8, "max_val": 1.3}), (swish, {"beta": 1.6})]
for op, params in cases:
    for name, value in params.items():
        serve, runs, step = by_gpu, [], 2e-4
        near = [torch.full((9,), value + k * step, dtype=torch.float64) for k in (-2, -1, 1, 2)]
        at = [op(mean.double(), var.double(), **{**params, name: one}) for one in near]
        wants = [(a - 8 * b + 8 * c - d) / (12 * step) for a, b, c, d in zip(*at)]
        for slope, want in zip(slopes(op, params, name, torch.float64), wants):
            torch.testing.assert_close(slope, want, rtol=1e-6, atol=1e-6)
        assert {dtype for _, dtype in runs} == {torch.float64}
        runs.clear()
        found, calls = slopes(op, params, name, torch.float32), list(runs)
        assert {dtype for _, dtype in calls} == {torch.float32} and {which for which, _ in calls} >= {"forward"}
        bounds = [ROUNDED * (1 + want.abs()) for want in wants]
        serve = off_by(op.certificate("exact"), -1, "")
        exact = slopes(op, params, name, torch.float32)
        for call, (which, _) in enumerate(calls):
            for output in NAMES[which]:
                serve, runs = off_by(op.certificate("exact"), call, output), []
                other = slopes(op, params, name, torch.float32)
                bounds = [bound + (a - b).abs() for bound, a, b in zip(bounds, exact, other)]
        for slope, want, bound in zip(found, wants, bounds):
            assert ((slope - want).abs() <= bound).all(), (op, name, (slope - want) / bound)
            assert (bound <= 1e-3 * want.abs().max().clamp(min=1)).all(), (op, name, bound)  # or it says nothing
print("all agree")
"""


def test_gradients_in_parameters_are_finite_differences_in_float64_and_certified_in_float32() -> None:
    assert printed(LEARNED, TRITON_INTERPRET="1") == "all agree\n"
