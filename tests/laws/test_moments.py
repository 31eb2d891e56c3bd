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
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.errors import InputError
from momentgen.laws import listening
from momentgen.runtime import JointMoments


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


# Inputs with a covariance, by every method; class posteriors of dense outputs; summaries of plain networks.
DRAWS = 20_000


def covariance(*shape: int) -> Tensor:
    torch.manual_seed(2)
    half = torch.randn(*shape, shape[-1])
    return half @ half.mT


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2).eval()


@pytest.mark.parametrize("shape", [(3,), (4, 3)])
@pytest.mark.parametrize("method", ["ap1", "ap2", None])
def test_each_method_takes_the_covariance_or_says_that_it_does_not(method: Any, shape: tuple[int, ...]) -> None:
    net, mean, cov = linear(), torch.randn(4, 3), covariance(*shape)
    with listening() as notes:
        found = momentgen.convert(net, method)(momentgen.noisy(mean, cov=cov))
    torch.testing.assert_close(found.mean, net(mean))
    exact = (net.weight @ cov @ net.weight.T).expand(4, 2, 2)
    if method in ("ap1", "ap2"):
        diagonal = cov.diagonal(dim1=-2, dim2=-1) @ net.weight.square().T
        torch.testing.assert_close(found.var, 0 * found.var if method == "ap1" else diagonal.expand(4, 2))
        assert any("correlated" in note for note in notes) == (method == "ap2")
        return
    torch.testing.assert_close(found.covariance, exact, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.var, exact.diagonal(dim1=-2, dim2=-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["sample", "local", "monte_carlo"])
def test_draws_have_the_covariance(method: Any) -> None:
    net, cov = linear(), covariance(3)
    exact = (net.weight @ cov @ net.weight.T).detach()
    if method == "monte_carlo":
        x = momentgen.noisy(torch.zeros(2, 3), cov=cov)
        found = momentgen.monte_carlo(net, x, DRAWS, seed=0).output.var
        torch.testing.assert_close(found.float(), exact.diagonal().expand(2, 2), rtol=0.05, atol=0)
        return
    drawn = momentgen.convert(net, method)(momentgen.noisy(torch.zeros(DRAWS, 3), cov=cov)).mean
    torch.testing.assert_close(drawn.T.cov(), exact, rtol=0.05, atol=0.05 * float(exact.abs().max()))


def test_the_covariance_of_images_is_that_of_their_values_in_order() -> None:
    cov = covariance(8)
    x = momentgen.noisy(torch.zeros(2, 2, 2, 2), cov=cov)
    assert x.var.shape == (2, 2, 2, 2)
    torch.testing.assert_close(x.var[1].flatten(), cov.diagonal())
    torch.testing.assert_close(x.covariance[0], cov, rtol=1e-4, atol=1e-4)


def test_gradients_reach_the_covariance() -> None:
    cov = covariance(3).requires_grad_()
    net = linear()
    out = momentgen.convert(net)(momentgen.noisy(torch.zeros(1, 3), cov=cov))
    out.var[0, 0].backward()
    weight = net.weight[0].detach()
    torch.testing.assert_close(cov.grad, torch.outer(weight, weight), rtol=1e-3, atol=1e-4)


def test_class_posteriors_of_dense_outputs_average_the_softmax() -> None:
    torch.manual_seed(0)
    net = nn.Conv2d(1, 3, 3, padding=1).eval()
    x = momentgen.noisy(torch.randn(2, 1, 4, 4), std=1.0)
    found = momentgen.class_posterior(momentgen.convert(net)(x), dim=1)
    assert found.shape == (2, 3, 4, 4)
    torch.testing.assert_close(found.sum(1), torch.ones(2, 4, 4))
    drawn = x.mean + torch.randn(10_000, 2, 1, 4, 4)
    with torch.no_grad():
        truth = net(drawn.flatten(0, 1)).softmax(1).unflatten(0, (10_000, 2)).mean(0)
    torch.testing.assert_close(found, truth, rtol=0, atol=0.02)


def test_class_posteriors_of_one_example_and_of_classes_in_any_dimension() -> None:
    torch.manual_seed(0)
    factor = torch.randn(2, 5, 6)
    x = JointMoments.of(torch.randn(2, 2, 3), factor.square().sum(1).view(2, 2, 3), factor)
    by_last = momentgen.class_posterior(x)
    turned = factor.view(2, 5, 2, 3).transpose(2, 3).reshape(2, 5, 6)
    by_first = momentgen.class_posterior(JointMoments.of(x.mean.mT, x.var.mT, turned), dim=1)
    torch.testing.assert_close(by_first, by_last.mT)
    alone = momentgen.class_posterior(JointMoments.of(x.mean[0], x.var[0], factor[0]))
    torch.testing.assert_close(alone, by_last[0])


def test_a_summary_of_a_plain_network_is_that_of_the_converted_one() -> None:
    net, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), Moments(torch.randn(4, 3), torch.rand(4, 3))
    assert momentgen.summary(net, x, seed=0).rows == momentgen.summary(momentgen.convert(net), x, seed=0).rows
    assert momentgen.summary(nn.ReLU(), x).rows[0].kind == "ReLU"
    dropping = momentgen.summary(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)).train(), x.mean)
    assert dropping.rows[-1].std[2] > 0  # the network makes noise of its own
