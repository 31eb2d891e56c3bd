"""The pair of tensors that enters and leaves networks."""

from __future__ import annotations

import copy
import io
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils._pytree as pytree

from momentgen import Moments, convert, noisy
from momentgen.errors import InputError


@pytest.mark.parametrize("var", [0.01, 1, torch.tensor(0.25)])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_a_single_variance_is_that_of_every_value(var: Any, shape: tuple[int, ...]) -> None:
    x = Moments(torch.zeros(shape), var)
    assert x.var.shape == shape
    assert x.var.dtype == torch.float32
    torch.testing.assert_close(x.var, torch.full(shape, float(var)))


def test_a_single_variance_has_the_dtype_of_the_mean() -> None:
    assert Moments(torch.zeros(2, dtype=torch.float64), 0.1).var.dtype == torch.float64
    assert Moments(torch.zeros(2, dtype=torch.bfloat16), 0.1).var.dtype == torch.bfloat16


def test_a_gradient_flows_to_a_single_variance() -> None:
    var = torch.tensor(0.5, requires_grad=True)
    Moments(torch.zeros(3), var).var.sum().backward()
    assert var.grad == 3


def test_anything_may_stand_in_the_places_of_the_tensors() -> None:
    assert Moments(0, None) == (0, None)
    mean = torch.zeros(2)
    assert Moments(mean, None).var is None
    assert Moments(mean=mean, var=mean).mean is mean
    assert Moments(1, 2)._replace(var=3) == (1, 3)
    assert Moments._make([1, 2]) == (1, 2)


def test_pytrees_take_it_apart_and_put_it_together() -> None:
    x = Moments(torch.ones(2), torch.ones(2))
    leaves, form = pytree.tree_flatten({"x": x})
    assert len(leaves) == 2
    assert type(pytree.tree_unflatten(leaves, form)["x"]) is Moments
    assert pytree.tree_map(lambda part: part.shape, x) == Moments(torch.Size([2]), torch.Size([2]))
    assert pytree.treespec_loads(pytree.treespec_dumps(form)) == form


def test_vmap_maps_over_it_and_completes_a_variance_within() -> None:
    x = torch.randn(3, 2)
    out = torch.vmap(lambda mean: Moments(mean, 0.5))(x)
    assert type(out) is Moments
    torch.testing.assert_close(out.var, torch.full((3, 2), 0.5))
    twice = torch.vmap(lambda m: Moments(2 * m.mean, m.var), in_dims=(Moments(0, None),))(
        Moments(x, torch.tensor([1.0, 2]))
    )
    torch.testing.assert_close(twice.var, torch.tensor([1.0, 2]).expand(3, 2))


def test_compiled_code_completes_a_variance() -> None:
    for var in (0.5, torch.tensor(0.5)):
        made = torch.compile(lambda x, v: Moments(x, v), backend="eager", fullgraph=True)(torch.zeros(2, 3), var)
        assert type(made) is Moments
        torch.testing.assert_close(made.var, torch.full((2, 3), 0.5))


_NOT_LINEAR: list[Callable[[Any, Any], Any]] = [
    operator.matmul, operator.pow, operator.floordiv, operator.mod, operator.and_, operator.or_, operator.xor,
]  # fmt: skip
_COMPARE: list[Callable[[Any, Any], Any]] = [operator.lt, operator.le, operator.gt, operator.ge]
_ONE: list[Callable[[Any], Any]] = [
    abs, operator.invert, float, int, bool, complex, round, operator.index, np.asarray, np.sin
]  # fmt: skip


@pytest.mark.parametrize("other", [2.0, torch.ones(2), Moments(torch.ones(2), torch.ones(2)), (1, 2)])
@pytest.mark.parametrize("operation", [*_NOT_LINEAR, *_COMPARE])
def test_operators_that_are_not_linear_say_what_to_use(operation: Callable[[Any, Any], Any], other: Any) -> None:
    x = Moments(torch.zeros(2), torch.ones(2))
    for pair in ((x, other), (other, x)):
        with pytest.raises(InputError, match=r"momentgen\.propagate\(lambda"):
            operation(*pair)


@pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_two_results_cannot_be_combined_as_nothing_says_what_they_share(operation: Callable[..., Any]) -> None:
    x = Moments(torch.zeros(2), torch.ones(2))
    with pytest.raises(InputError, match=r"in one function, momentgen\.propagate\(lambda a, b: a . b, x, y\)"):
        operation(x, x)


@pytest.mark.parametrize("operation", _ONE)
def test_conversions_say_what_to_use(operation: Callable[[Any], Any]) -> None:
    with pytest.raises(InputError, match="momentgen"):
        operation(Moments(torch.zeros(1), torch.ones(1)))


def test_it_can_be_hashed_and_compared_for_equality() -> None:
    x = Moments(torch.zeros(2), torch.ones(2))
    assert x == Moments(x.mean, x.var)
    assert x != (x.mean,)
    assert hash(x) == hash(Moments(x.mean, x.var))


def test_a_standard_deviation_has_the_shape_of_the_mean_and_the_dtype_of_the_variance() -> None:
    std = Moments(torch.zeros(2, 3), torch.tensor([1.0, 4, 0], dtype=torch.bfloat16)).std
    assert std.tolist() == [[1, 2, 0]] * 2
    assert std.dtype == torch.bfloat16
    assert Moments(torch.zeros(2), torch.tensor([-1.0, float("nan")])).std.isnan().all()


def test_it_survives_saving_and_copying() -> None:
    x = Moments(torch.randn(2, 3), 0.25)
    buffer = io.BytesIO()
    torch.save({"x": x}, buffer)
    buffer.seek(0)
    for again in (torch.load(buffer, weights_only=True)["x"], pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert type(again) is Moments
        assert again.mean is not x.mean
        torch.testing.assert_close(tuple(again), tuple(x))


def test_joint_moments_made_anew_without_their_covariance_say_so() -> None:
    x = noisy(torch.zeros(2, 2), cov=torch.eye(2))
    lost = pytree.tree_map(torch.clone, x)
    assert torch.equal(lost.mean, x.mean)
    with pytest.raises(InputError, match="made of mean and variance alone"):
        convert(torch.nn.Linear(2, 1).eval())(lost)
