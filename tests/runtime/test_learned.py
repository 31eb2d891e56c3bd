"""Parameters that are tensors: values, gradients against finite differences, and a network that learns one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws.small_networks import Of

import momentgen
import momentgen.generated as ops
from momentgen.errors import InputError
from momentgen.laws import activation
from momentgen.runtime import Op, rescaled

CASES = [
    (ops.celu, {"alpha": 0.7}),
    (ops.elu, {"alpha": 0.7}),
    (ops.leaky_relu, {"negative_slope": 0.3}),
    (ops.softplus, {"beta": 1.7}),
    (ops.softshrink, {"lambd": 0.4}),
    (ops.hardshrink, {"lambd": 0.4}),
    (ops.hardtanh, {"min_val": -0.8, "max_val": 1.3}),
    (ops.threshold, {"value": -1.5}),
]
NAMES = [op.name for op, _ in CASES]


def _inputs(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    mean = 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return mean.to(dtype), torch.rand(shape, generator=generator, dtype=torch.float64).add(0.05).to(dtype)


@pytest.mark.parametrize(("op", "params"), CASES, ids=NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_tensor_gives_what_the_number_gives(op: Op, params: dict[str, float], dtype: torch.dtype) -> None:
    mean, var = _inputs(40, dtype=dtype)
    close = {torch.float64: 1e-7, torch.float32: 2e-5, torch.bfloat16: 1e-2}[dtype]
    found, want = op(mean, var, **{n: torch.tensor(w) for n, w in params.items()}), op(mean, var, **params)
    assert found.mean.dtype is dtype
    torch.testing.assert_close(found.mean, want.mean, rtol=close, atol=close)
    torch.testing.assert_close(found.var, want.var, rtol=close, atol=close)


@pytest.mark.parametrize(("op", "params"), CASES, ids=NAMES)
def test_gradients_in_parameters_are_finite_differences_of_the_numbers(op: Op, params: dict[str, float]) -> None:
    mean, var = _inputs(12)
    for name, value in params.items():
        learned = torch.full((12,), value, dtype=torch.float64, requires_grad=True)
        found = tuple(op(mean, var, **{**params, name: learned}))
        for which in (0, 1):
            (slope,) = torch.autograd.grad(found[which].sum(), learned, retain_graph=True)
            step = 2e-4
            at = [tuple(op(mean, var, **{**params, name: value + k * step}))[which] for k in (-2, -1, 1, 2)]
            want = (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * step)
            torch.testing.assert_close(slope, want, rtol=1e-6, atol=1e-6)


def _learned_mean(op: Callable[..., Any], mean: torch.Tensor, var: torch.Tensor, name: str) -> Callable[..., Any]:
    return lambda value, m, v: tuple(op(m, v, **{name: value}))


@pytest.mark.parametrize("name", ["softplus", "elu"])
def test_gradients_of_every_order_are_those_of_gradcheck(name: str) -> None:
    op, mean, var = getattr(ops, name), *_inputs(2)
    value = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    inputs = (value, mean.requires_grad_(), var.requires_grad_())
    function = _learned_mean(op, mean, var, op.parameters[0].name)
    assert torch.autograd.gradcheck(function, inputs, atol=1e-6, rtol=1e-5)
    assert torch.autograd.gradgradcheck(function, inputs, atol=1e-5, rtol=1e-4)


def test_the_kernels_of_all_backends_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    from momentgen.runtime.kernel import Kernel

    mean, var = _inputs(8)

    def slopes() -> list[torch.Tensor]:
        alpha = torch.full((8,), 0.6, dtype=torch.float64, requires_grad=True)
        return [
            torch.autograd.grad(value.sum(), alpha, retain_graph=True)[0] for value in ops.celu(mean, var, alpha=alpha)
        ]

    native = slopes()
    monkeypatch.setattr(Kernel, "run", Kernel.run_reference)
    for one, other in zip(native, slopes(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_slopes_of_either_sign_are_those_of_prelu() -> None:
    mean, var = _inputs(5, 3)
    slope = torch.tensor([-0.4, 0.3, 1.7], dtype=torch.float64)
    found = ops.leaky_relu(mean, var, negative_slope=slope)
    up, down = ops.relu(mean, var), ops.relu(-mean, var)
    torch.testing.assert_close(found.mean, up.mean - slope * down.mean, rtol=1e-9, atol=1e-9)
    want = up.var + slope**2 * down.var + 2 * slope * up.mean * down.mean
    torch.testing.assert_close(found.var, want, rtol=1e-8, atol=1e-9)


def test_an_op_in_units_that_are_learned_has_the_moments_of_sampling() -> None:
    mean, var = _inputs(4)
    swish = rescaled(ops.silu, width=lambda beta: 1 / beta, scale=lambda beta: 1 / beta)
    dyt = rescaled(ops.tanh, width=lambda a, g, b: 1 / a, scale=lambda a, g, b: g, offset=lambda a, g, b: b)
    z = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(200_001) + 0.5) / 200_001).double()
    x = mean + var.sqrt() * z[:, None]
    beta, a, g, b = (torch.tensor(w, dtype=torch.float64) for w in (1.6, 0.5, -1.2, 0.3))
    pairs = (
        (swish(mean, var, beta=beta), x * torch.sigmoid(beta * x)),
        (dyt(mean, var, a=a, g=g, b=b), g * torch.tanh(a * x) + b),
    )
    for found, values in pairs:
        torch.testing.assert_close(found.mean, values.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.var, values.var(0), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_a_tensor_is_refused() -> None:
    mean, var = _inputs(4, 3)
    with pytest.raises(InputError, match="can be learned"):
        ops.threshold(mean, var, threshold=torch.tensor(0.2))
    with pytest.raises(InputError, match=r"broadcasts to that of the mean, \(4, 3\), got \(4,\)"):
        ops.elu(mean, var, alpha=torch.ones(4))
    with pytest.raises(InputError, match=r"must be in \[0.0625, 16\], got -1.0"):
        ops.celu(mean, var, alpha=torch.tensor(-1.0))
    with pytest.raises(InputError, match="expected centre, width, scale or offset"):
        rescaled(ops.silu, height=lambda a: a)
    with pytest.raises(InputError, match="expected the parameters beta"):
        rescaled(ops.silu, width=lambda beta: 1 / beta)(mean, var)


def test_the_parameter_of_a_networks_activation_has_a_gradient_and_sigma_is_that_of_sampling() -> None:
    torch.manual_seed(0)
    swish_op = rescaled(ops.silu, width=lambda beta: 1 / beta, scale=lambda beta: 1 / beta)

    @activation(swish_op, "beta")
    def swish(x: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(beta * x)

    parts = {"first": torch.nn.Linear(3, 16), "second": torch.nn.Linear(16, 1)}
    beta, x = torch.nn.Parameter(torch.linspace(0.5, 2.0, 16)), torch.randn(64, 3)
    plain = Of(lambda net, x: net.second(swish(net.first(x), net.beta)), **parts, beta=beta)
    given = momentgen.Moments(x, torch.full_like(x, 0.01))
    by_moments = torch.autograd.grad(momentgen.convert(plain, "ap2")(given).mean.square().sum(), beta)[0]
    drawn = torch.stack([plain(x + 0.1 * torch.randn_like(x)) for _ in range(1000)])
    by_draws = torch.autograd.grad(drawn.mean(0).square().sum(), beta)[0]
    torch.testing.assert_close(by_moments, by_draws, rtol=0.05, atol=0.02 * float(by_draws.abs().max()))
    with torch.no_grad():
        found = momentgen.convert(plain, "controlled")(given)
    assert 0.9 < float((found.var.sqrt() / drawn.detach().std(0)).median()) < 1.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_at_variance_0_the_gradient_in_the_variance_is_that_of_the_number(dtype: torch.dtype) -> None:
    mean = torch.tensor([-1.5, -0.4, 0.7], dtype=dtype)
    slopes = []
    for slope in (0.3, torch.tensor(0.3, dtype=dtype)):
        var = torch.zeros(3, dtype=dtype, requires_grad=True)
        slopes.append(torch.autograd.grad(ops.leaky_relu(mean, var, negative_slope=slope).var.sum(), var)[0])
    torch.testing.assert_close(slopes[1], slopes[0])
    assert slopes[0].tolist() == pytest.approx([0.09, 0.09, 1.0], rel=1e-5)
