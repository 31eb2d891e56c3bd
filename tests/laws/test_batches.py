"""Outputs of one value an example, batches that are squeezed away, and inputs without a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from laws.small_networks import Of
from torch import nn

import momentgen
from momentgen import Moments

METHODS = ("ap1", "ap2", "sample", "local", None)
#: methods that know the variance, exactly of what is linear
KNOWING = ("ap2", None)


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


def test_the_default_runs_it_with_a_batch_of_one_too() -> None:
    net, x = regressor(), given(1, 3)
    found = momentgen.convert(net)(x)
    assert found.mean.shape == ()
    torch.testing.assert_close(found.var, x.var[0] @ net.linear.weight[0].square())


@pytest.mark.parametrize("method", METHODS)
def test_a_vector_without_a_batch_is_one_example(method: Any) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).eval(), given(3)
    found = momentgen.convert(net, method)(x)
    assert found.mean.shape == (2,)
    if method is None:
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
        if method == "ap2":
            torch.testing.assert_close(found, expected)
        elif method is None:
            rare = 1e-4 * expected.std  # a kink four standard deviations away is met by no row
            assert ((found.mean - expected.mean).abs() < 4 * found.mean_error + rare).all()
            assert ((found.std - expected.std).abs() < 4 * found.std_error + rare).all()
