"""Outputs of one value an example, batches that are squeezed away, and inputs without a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from laws.small_networks import Of
from torch import nn

import momentgen
from momentgen import Moments
from momentgen.errors import InputError

METHODS = ("ap1", "ap2", "adjoint", "covariance", "sample", "local", None)
#: methods that know the variance, exactly of what is linear
KNOWING = ("ap2", "adjoint", "covariance", None)
#: and of a function of each value
ANALYTIC = ("ap2", "adjoint", "covariance")


def regressor(*dims: int) -> nn.Module:
    torch.manual_seed(0)
    return Of(lambda net, x: net.linear(x).squeeze(*dims), linear=nn.Linear(3, 1)).eval()


def given(*shape: int) -> Moments:
    torch.manual_seed(1)
    return Moments(torch.randn(shape), torch.rand(shape))


@pytest.mark.parametrize("dims", [(-1,), (1,), ()])
@pytest.mark.parametrize("method", METHODS)
def test_a_regressor_of_one_value_an_example(method: Any, dims: tuple[int, ...]) -> None:
    net, x = regressor(*dims), given(4, 3)
    found = momentgen.convert(net, method)(x)
    assert found.mean.shape == found.var.shape == (4,)
    if method in KNOWING:
        torch.testing.assert_close(found.mean, net(x.mean))
        torch.testing.assert_close(found.var, x.var @ net.linear.weight[0].square())
        if method != "ap2":
            torch.testing.assert_close(found.covariance, found.var[:, None, None])


@pytest.mark.parametrize("method", ["adjoint", "covariance"])
def test_squeezing_the_batch_of_one_away_is_refused_with_what_to_do(method: Any) -> None:
    with pytest.raises(InputError, match=r"got shape \(\) for a batch of one; .*squeeze\(-1\)"):
        momentgen.convert(regressor(), method)(given(1, 3))


def test_the_default_runs_it_with_a_batch_of_one_too() -> None:
    net, x = regressor(), given(1, 3)
    found = momentgen.convert(net)(x)
    assert found.mean.shape == ()
    torch.testing.assert_close(found.var, x.var[0] @ net.linear.weight[0].square())


def test_a_sum_over_the_batch_is_not_taken_for_one_value_an_example() -> None:
    for method in ("adjoint", "covariance"):
        with pytest.raises(InputError, match="expected outputs with the batch in dimension 0"):
            momentgen.convert(Of(lambda x: x.sum()), method)(given(4, 3))


@pytest.mark.parametrize("method", METHODS)
def test_a_vector_without_a_batch_is_one_example(method: Any) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).eval(), given(3)
    found = momentgen.convert(net, method)(x)
    assert found.mean.shape == (2,)
    if method in ("adjoint", "covariance", None):
        weight = net[1].weight @ net[0].weight
        torch.testing.assert_close(found.mean, net(x.mean))
        torch.testing.assert_close(found.covariance, (weight * x.var) @ weight.T)
        torch.testing.assert_close(found.var, found.covariance.diagonal())


@pytest.mark.parametrize("method", METHODS)
def test_vectors_and_numbers_through_functions_of_each_value(method: Any) -> None:
    for x in (given(2), given(1), given()):
        found = momentgen.convert(nn.ReLU().eval(), method)(x)
        assert found.mean.shape == found.var.shape == x.mean.shape
        expected = momentgen.nn.functional.relu(x)
        if method in ANALYTIC:
            torch.testing.assert_close(found, expected)
        elif method is None:
            rare = 1e-4 * expected.std  # a kink four standard deviations away is met by no row
            assert ((found.mean - expected.mean).abs() < 4 * found.mean_error + rare).all()
            assert ((found.std - expected.std).abs() < 4 * found.std_error + rare).all()


@pytest.mark.parametrize("method", ["adjoint", "covariance"])
def test_values_of_a_vector_that_interact_are_one_example(method: Any) -> None:
    x = given(3)
    found = momentgen.convert(Of(lambda x, y: x - y.mean()).eval(), method)(x, x)
    centring = torch.eye(3) - torch.ones(3, 3) / 3
    torch.testing.assert_close(found.covariance, centring @ x.var.diag() @ centring.T)


@pytest.mark.parametrize("method", ["adjoint", "covariance"])
def test_an_output_that_is_1_whatever_the_vector_is_no_batch_of_numbers(method: Any) -> None:
    def sign(x: Any) -> Any:
        length = x[None] @ x[:, None]
        return length / length.norm(dim=-1, keepdim=True)

    assert momentgen.convert(Of(sign).eval(), method)(given(2)).mean.shape == (1, 1)


@pytest.mark.parametrize("method", ["adjoint", "covariance"])
def test_a_vector_of_examples_is_a_batch(method: Any) -> None:
    torch.manual_seed(0)
    net = Of(lambda net, x: net.linear(x[:, None]), linear=nn.Linear(1, 2)).eval()
    x = given(200)  # as one example it would have 400 outputs
    found = momentgen.convert(net, method)(x)
    assert found.covariance.shape == (200, 2, 2)
    torch.testing.assert_close(found.var, x.var[:, None] * net.linear.weight[:, 0].square())


def test_output_covariance_of_one_example() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(3, 2).eval(), given(3)
    found = momentgen.output_covariance(net, x, outputs=[1])
    assert found.mean.shape == (1,)
    torch.testing.assert_close(found.covariance, (net.weight[1:] * x.var) @ net.weight[1:].T)


@pytest.mark.parametrize("method", ["adjoint", "covariance"])
def test_under_vmap_what_is_left_of_a_batch_is_one_example(method: Any) -> None:
    net, x = nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1)).eval(), given(4, 3)
    network = momentgen.convert(net, method)
    found = torch.vmap(lambda mean, var: tuple(network(Moments(mean, var))))(*x)
    expected = network(x)
    torch.testing.assert_close(found[0], expected.mean)
    torch.testing.assert_close(found[1], expected.var)
