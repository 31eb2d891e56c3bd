"""Derivatives of every kind and order, against autograd of the formula itself in float64."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, vjp, vmap

from momentgen import Moments
from momentgen.generated import square
from momentgen.runtime import autograd

# A fallback of torch's ("no batching rule", "no autograd kernel") must not pass unseen.
pytestmark = pytest.mark.filterwarnings("error::UserWarning")


def truth(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    return mean**2 + var, 2 * var**2 + 4 * mean**2 * var


def inputs(size: int = 5, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.randn(size, dtype=dtype), torch.rand(size, dtype=dtype) + 0.1


def of_var(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda mean, var: tuple(function(mean, var))[1].sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_native_gradients(dtype: torch.dtype) -> None:
    mean, var = (t.to(dtype) for t in inputs(2000))
    weights = torch.rand(2000).to(dtype), torch.rand(2000).to(dtype)
    results = []
    for function, m, v in ((square, mean, var), (truth, mean.double(), var.double())):
        m, v = m.detach().requires_grad_(), v.detach().requires_grad_()
        out = tuple(function(m, v))
        torch.autograd.backward(out, [w.to(out[0].dtype) for w in weights])
        results.append((m.grad, v.grad))
    for got, want in zip(*results, strict=True):
        assert got.dtype is dtype
        torch.testing.assert_close(got.double(), want, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_gradient_on_one_side_only(wanted: tuple[bool, bool]) -> None:
    mean, var = inputs()
    mean.requires_grad_(wanted[0])
    var.requires_grad_(wanted[1])
    out = square(mean, var)
    out.mean.sum().backward()  # the gradient of the variance never comes
    assert (mean.grad is not None, var.grad is not None) == wanted
    if wanted[0]:
        torch.testing.assert_close(mean.grad, 2 * mean.detach())
    else:
        torch.testing.assert_close(var.grad, torch.ones_like(var))


def test_nothing_is_recorded_where_no_gradient_is_asked_for() -> None:
    mean, var = inputs()
    assert not square(mean, var).mean.requires_grad
    mean.requires_grad_()
    with torch.no_grad():
        assert not square(mean, var).mean.requires_grad
    with torch.inference_mode():
        assert square(mean, var).mean.is_inference()
    assert square(mean, var).var.requires_grad


@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_composition_of_forward_and_reverse_mode(order: int) -> None:
    mean, var = inputs(3)
    for modes in itertools.product((jacfwd, jacrev), repeat=order):
        for arguments in itertools.product((0, 1), repeat=order):
            got, want = of_var(square), of_var(truth)
            for mode, argument in zip(modes, arguments, strict=True):
                got, want = mode(got, argnums=argument), mode(want, argnums=argument)
            torch.testing.assert_close(got(mean, var), want(mean.double(), var.double()).float(), rtol=1e-5, atol=1e-5)


def test_vjp_takes_and_gives_moments() -> None:
    mean, var = inputs()
    _, pull = vjp(square, mean, var)
    torch.testing.assert_close(pull(Moments(torch.ones(5), torch.zeros(5))), (2 * mean, torch.ones(5)))


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (1, 0), (-1, None)])
def test_vmap_over_any_dimension(in_dims: tuple[int | None, int | None]) -> None:
    batch = [torch.rand(4, 3) if dim == 0 else torch.rand(3) if dim is None else torch.rand(3, 4) for dim in in_dims]
    torch.testing.assert_close(tuple(vmap(square, in_dims)(*batch)), vmap(truth, in_dims)(*batch))


def test_vmap_nests_and_composes() -> None:
    mean, var = torch.rand(3, 5, 2), torch.rand(3, 5)
    nested = vmap(vmap(square, in_dims=(1, None)), in_dims=(0, 0))(mean, var)
    torch.testing.assert_close(tuple(nested), vmap(vmap(truth, in_dims=(1, None)), in_dims=(0, 0))(mean, var))
    per_sample = vmap(grad(of_var(square)))(var, var)
    torch.testing.assert_close(per_sample, 8 * var * var)


def test_values_that_only_vmap_wraps_go_to_the_operator_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within a derivative by something else; a derivative by them takes the function."""
    taken: list[str] = []
    own: Any = autograd._Transformable.apply

    def counted(call: Any, *args: Any) -> Any:
        taken.append(call.which)
        return own(call, *args)

    monkeypatch.setattr(autograd._Transformable, "apply", counted)
    mean, var = torch.rand(3, 5), torch.rand(3, 5)
    out = vmap(square, in_dims=(0, None))(mean, var[0])
    torch.testing.assert_close(tuple(out), truth(mean, var[0].expand(3, 5)))
    scaled = vjp(lambda scale: scale * vmap(square)(mean, var).mean, torch.ones(3, 5))[0]
    torch.testing.assert_close(scaled, truth(mean, var)[0])
    assert taken == []
    torch.testing.assert_close(vmap(grad(of_var(square)))(mean[:, 0], var[:, 0]), 8 * mean[:, 0] * var[:, 0])
    assert taken
