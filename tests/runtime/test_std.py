"""Standard deviations are differentiable where the variance is 0, in every way that torch differentiates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from momentgen import Moments
from momentgen.generated import gelu, silu, tanh
from momentgen.runtime import Op

VAR = torch.tensor([0.0, 4.0, 0.25])
SLOPES = torch.tensor([0.0, 0.25, 1.0])
BENDS = torch.tensor([0.0, -1 / 32, -2.0])


def std(var: Tensor) -> Tensor:
    return Moments(torch.zeros_like(var), var).std


def _autograd(var: Tensor) -> Tensor:
    leaf = var.clone().requires_grad_()
    return torch.autograd.grad(std(leaf).sum(), leaf)[0]


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "autograd": _autograd,
    "func.grad": torch.func.grad(lambda var: std(var).sum()),
    "vmap of grad": torch.vmap(torch.func.grad(std)),
    "jacrev": lambda var: torch.func.jacrev(std)(var).diagonal(),
    "jacfwd": lambda var: torch.func.jacfwd(std)(var).diagonal(),
    "jvp": lambda var: torch.func.jvp(std, (var,), (torch.ones_like(var),))[1],
}


@pytest.mark.parametrize("way", WAYS)
def test_the_derivative_is_0_at_variance_0_and_the_root_s_elsewhere(way: str) -> None:
    torch.testing.assert_close(WAYS[way](VAR), SLOPES)


def test_so_is_the_second_derivative_by_double_backward() -> None:
    leaf = VAR.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(std(leaf).sum(), leaf, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(slopes.sum(), leaf)[0], BENDS)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "autograd"])
def test_so_is_the_second_derivative_by_forward_mode_over_each(way: str) -> None:
    torch.testing.assert_close(torch.func.jvp(WAYS[way], (VAR,), (torch.ones(3),))[1], BENDS)


def test_it_compiles_with_its_gradient() -> None:
    compiled = torch.compile(std, fullgraph=True, backend="aot_eager")
    leaf = VAR.clone().requires_grad_()
    out = compiled(leaf)
    out.sum().backward()
    assert out.tolist() == [0, 2, 0.5]
    torch.testing.assert_close(leaf.grad, SLOPES)


@given(st.floats(0, width=32, allow_infinity=False, allow_nan=False))
def test_gradients_are_finite_at_every_variance_and_the_value_is_the_root(var: float) -> None:
    v = torch.tensor([var])
    assert std(v).item() == v.sqrt().item()
    assert _autograd(v).isfinite().all()


@pytest.mark.parametrize(("op", "mean", "var"), [(tanh, 5.0, 0.01), (silu, -10.0, 0.04), (gelu, -5.0, 0.25)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_variance_that_underflows_in_an_op_leaves_finite_gradients(
    op: Op, mean: float, var: float, dtype: torch.dtype
) -> None:
    leaves = [torch.tensor([value], dtype=dtype, requires_grad=True) for value in (mean, var)]
    gradients = torch.autograd.grad(op(*leaves).std.sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
