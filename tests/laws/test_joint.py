"""Calls that share their noise and random weights: covariance across calls, and rollouts."""

from typing import Any

import pytest
import torch
from laws.small_networks import Of
from torch import Tensor, nn

import momentgen
from momentgen import Moments, convert, joint, noisy, propagate
from momentgen.inference import MeanField, randomise

#: standard deviation of a random weight about 1
STD = 0.07


def network() -> Any:
    torch.manual_seed(0)
    return convert(nn.Linear(2, 2).eval())


def random_factor() -> Any:
    plain = nn.Linear(1, 1, bias=False).eval()
    nn.init.constant_(plain.weight, 1.0)
    return randomise(plain, MeanField(std=STD))


def power(steps: int) -> tuple[float, float]:
    """Mean and standard deviation of a normal value about 1 to that power, by quadrature."""
    import numpy as np

    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    values, weights = (1 + STD * nodes) ** steps, weights / weights.sum()
    mean = float(weights @ values)
    return mean, float(weights @ (values - mean) ** 2) ** 0.5


def rolled(net: Any, y: Any) -> Any:
    for _ in range(5):
        y = net(y)
    return y


@pytest.mark.parametrize("batch", [1, 100])
def test_results_of_joint_calls_share_the_noise_of_their_arguments(batch: int) -> None:
    net, x = network(), noisy(torch.ones(batch, 2), std=0.5)
    with joint():
        one, other = net(x), net(x + 1)
        apart = propagate(lambda a, b: b - a, one, other)
    torch.testing.assert_close(apart.std, torch.zeros(batch, 2), rtol=0, atol=1e-5)
    both = propagate(lambda a, b: torch.cat([a, b], -1), 2 * one, other)
    torch.testing.assert_close(both.covariance[:, :2, 2:], 2 * one.covariance, rtol=1e-4, atol=1e-5)


def test_results_of_separate_calls_count_as_independent() -> None:
    net, x = network(), noisy(torch.ones(1, 2), std=0.5)
    one, other = net(x), net(x)
    with momentgen.laws.listening() as notes:
        apart = propagate(lambda a, b: b - a, one, other)
    torch.testing.assert_close(apart.var, 2 * one.var, rtol=1e-3, atol=0)
    assert any("count as independent" in text for text in notes)


def test_a_result_beside_the_noise_that_made_it_is_noted_and_one_by_itself_is_not() -> None:
    x, k = noisy(0.5, std=0.3), noisy(0.5, std=0.05)
    once = propagate(lambda x, k: x * k, x, k)
    with momentgen.laws.listening() as notes:
        propagate(lambda y, k: y * k, once, k)
    assert any("is also in another argument" in text for text in notes)
    with momentgen.laws.listening() as notes:
        propagate(lambda y, k: y * k, once, noisy(0.5, std=0.05))
        with momentgen.joint():
            propagate(lambda y, k: y * k, propagate(lambda x, k: x * k, x, k), k)
    assert not any("is also in another argument" in text for text in notes)


def test_a_rollout_of_a_random_weight_has_the_moments_of_its_power() -> None:
    net, start = random_factor(), torch.ones(1, 1)
    mean, std = power(5)
    with joint():
        stepped = rolled(net, start)
    for out in (stepped, propagate(lambda y: rolled(net, y), start)):
        assert float(out.std) == pytest.approx(std, abs=4 * float(out.std_error) + 1e-3)
        assert float(out.mean) == pytest.approx(mean, abs=4 * float(out.mean_error) + 1e-3)
    apart = rolled(net, start)
    assert float(apart.std) == pytest.approx(((1 + STD**2) ** 5 - 1) ** 0.5, rel=0.1)


def test_a_random_weight_is_one_value_in_a_function_by_draws() -> None:
    net = random_factor()
    out = propagate(lambda y: net(y) - net(y), torch.ones(4, 1), method="sample")
    assert torch.equal(out.mean, torch.zeros(4, 1))


def test_dropout_is_drawn_anew_in_each_call_and_once_for_each_result() -> None:
    net, x = convert(nn.Dropout(0.5), "controlled"), torch.ones(1, 1)
    with joint():
        one, other = net(x), net(x)
        assert float(propagate(lambda a, b: a - b, one, one, method="controlled").std) == 0
        assert float(propagate(lambda a, b: a - b, one, other, method="controlled").std) > 1


def test_results_in_containers_and_of_several_outputs_are_shared() -> None:
    def two(x: Tensor) -> dict[str, Tensor]:
        return {"sum": x.sum(-1), "first": x[..., 0]}

    x = noisy(torch.ones(3, 2), std=0.5)
    with joint():
        out = propagate(two, x)
        rest = propagate(lambda d, x: d["sum"] - d["first"] - x[..., 1], out, x)
    torch.testing.assert_close(rest.std, torch.zeros(3), rtol=0, atol=1e-6)


# Outputs of one value an example, batches that are squeezed away, and inputs without a batch.
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
