"""Max pools by the method ``correlated``: what holds of them whatever the values of a window have in common."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.generated import relu


def pooled(mean: Tensor, var: Tensor) -> Moments:
    """ReLU and max pool over pairs, as a network of more outputs than ``adjoint`` is for."""
    net = nn.Sequential(nn.ReLU(), nn.MaxPool1d(2))
    with torch.no_grad():
        found = momentgen.convert(net, "correlated")(Moments(mean[None, None], var[None, None]))
    return Moments(found.mean.reshape(-1).double(), found.var.reshape(-1).double())


number = st.floats(-6, 3, width=32)
spread = st.floats(2.0**-20, 9, width=32)


@settings(deadline=None)
@given(st.lists(st.tuples(number, number, spread, spread), min_size=4, max_size=4))
def test_a_pool_of_relus_has_no_less_mean_and_second_moment_than_each_of_its_values(
    windows: list[tuple[float, float, float, float]],
) -> None:
    rows = torch.tensor(windows)
    mean, var = rows[:, :2].reshape(-1), rows[:, 2:].reshape(-1)
    found = pooled(mean, var)
    own_mean, own_var = (part.double().view(-1, 2) for part in relu(mean, var))
    least, second = own_mean.amax(1), (own_var + own_mean.square()).amax(1)
    assert (found.mean >= 0.9999 * least - 1e-30).all()
    assert (found.var + found.mean.square() >= second / 1.011 - 1e-30).all()


@pytest.mark.parametrize("far", [-3.0, -5.0])
def test_a_value_that_is_seldom_positive_beside_a_certain_negative_one_has_its_own_variance(far: float) -> None:
    """Two independent values, one negative and one that passes zero seldom: the pool is the ReLU of the second."""
    mean, var = torch.tensor([-2.0, far, -2.0, far]), torch.tensor([1e-4, 4.0, 1e-4, 4.0])
    found = pooled(mean, var)
    truth = relu(torch.tensor(far).double(), torch.tensor(4.0).double())
    torch.testing.assert_close(found.mean, truth.mean.expand(2), rtol=0.1, atol=0.0)
    torch.testing.assert_close(found.var, truth.var.expand(2), rtol=0.1, atol=0.0)
