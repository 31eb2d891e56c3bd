"""Calls that share their noise and random weights, and budgets of variance."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as td
from laws.small_networks import Of
from torch import Tensor, nn

import momentgen
from momentgen import Moments, budget, convert, joint, noisy, propagate
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


# Budgets of variance, whose shares are known in closed form or published.
def close(found: Tensor, error: Tensor, expected: list[float], most: float) -> None:
    """Shares are within three stated errors, which are small."""
    truth = torch.tensor(expected, dtype=torch.float64)
    assert bool((error < most).all()), error
    assert bool(((found - truth).abs() < 3 * error + 2e-3).all()), (found, error)


def ishigami(x: Tensor) -> Tensor:
    a, b, c = x.unbind(-1)
    return a.sin() + 7 * b.sin().square() + 0.1 * c.pow(4) * a.sin()


def uniform(count: int, mean: float, reach: float) -> Moments:
    return noisy(torch.full((count,), mean, dtype=torch.float64), td.Uniform(-reach, reach))


#: the function of Sobol: what its values are worth, and what each contributes
_WORTH = torch.tensor([0.0, 1.0, 4.5, 9.0], dtype=torch.float64)
_OWN = 1 / (3 * (1 + _WORTH).square())
_WHOLE = (1 + _OWN).prod() - 1
#: function, its inputs, first-order and total shares, and the largest error that may be stated
SHARES: dict[str, tuple[Callable[..., Tensor], tuple[Moments, ...], list[float], list[float], float]] = {
    "additive": (
        lambda x: x[0] + 0.5 * x[1].square() + x[2].pow(3) / 4,
        (noisy(torch.zeros(3, dtype=torch.float64), std=1.0),),
        *[[share / (1 + 0.5 + 15 / 16) for share in (1.0, 0.5, 15 / 16)]] * 2,
        0.06,
    ),
    "Ishigami": (ishigami, (uniform(3, 0.0, math.pi),), [0.3139, 0.4424, 0.0], [0.5576, 0.4424, 0.2437], 0.05),
    "g function of Sobol": (
        lambda x: ((((4 * x - 2).abs()) + _WORTH) / (1 + _WORTH)).prod(-1),
        (uniform(4, 0.5, 0.5),),
        (_OWN / _WHOLE).tolist(),
        (_OWN * (1 + _WHOLE) / (1 + _OWN) / _WHOLE).tolist(),
        0.06,
    ),
    "a product": (
        lambda a, b: a * b, (noisy(1.0, std=0.5), noisy(2.0, std=1.0)), [1 / 2.25] * 2, [1.25 / 2.25] * 2, 0.05
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARES)
def test_shares_are_those_that_are_known_or_published(name: str) -> None:
    function, inputs, first, total, most = SHARES[name]
    found = budget(function, *inputs)
    close(found.first, found.first_error, first, most)
    close(found.total, found.total_error, total, most)
    if name == "a product":
        assert abs(float(found.nonlinear) - 0.25 / 2.25) < 0.03


def test_correlated_inputs_have_the_covariance_decomposition() -> None:
    covariance = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    found = budget(lambda x: x[0] + 2 * x[1], noisy(torch.zeros(2, dtype=torch.float64), cov=covariance))
    torch.testing.assert_close(found.first, torch.tensor([2.0, 5.0], dtype=torch.float64) / 7)
    assert found.dependent
    assert found.total is None
    assert "correlated" in found.table()


def test_channels_and_blocks_of_a_network_agree_with_brute_force() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 16, 2)).eval()
    x = torch.randn(2, 3, 6, 6)
    found = budget(net, noisy(x, std=0.3), groups="channel")
    assert found.names == ["input[0]", "input[1]", "input[2]"]
    with torch.no_grad():
        draws = [x + 0.3 * torch.randn(20_000, 2, 3, 6, 6) for _ in range(2)]
        var = net(draws[0].flatten(0, 1)).unflatten(0, (-1, 2)).var(0)
        for channel in range(3):
            mixed = draws[1].clone()
            mixed[:, :, channel] = draws[0][:, :, channel]
            one, other = (net(part.flatten(0, 1)).unflatten(0, (-1, 2)) for part in (draws[0], mixed))
            first = ((one - one.mean(0)) * (other - other.mean(0))).mean(0) / var
            off = (found.first[channel] - first).abs()
            assert bool((off < 3 * found.first_error[channel] + 0.03).all())
    blocks = (torch.arange(6)[:, None] // 3 * 2 + torch.arange(6) // 3).expand(3, 6, 6)
    linear = budget(net, noisy(x, std=0.3), groups=blocks, draws=0)
    assert linear.first.shape == (4, 2, 2)
    torch.testing.assert_close(linear.first.sum(0), 1 - linear.nonlinear)


def test_what_a_network_draws_has_a_share_of_its_own() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1, bias=False))
    nn.init.ones_(net[1].weight)
    net.eval()
    net[0].train()
    found = budget(net, noisy(torch.ones(1, 4, dtype=torch.float32), std=0.5))
    assert 0.4 < float(found.own) < 0.9
    assert "(the network)" in found.table()


def test_linear_functions_have_their_exact_shares_and_signs_in_rows_tables_and_frames() -> None:
    found = budget(lambda a, b: 3 * a - b, noisy(1.0, std=1.0), noisy(1.0, std=4.0))
    assert found.names == ["a", "b"]
    torch.testing.assert_close(found.first, torch.tensor([0.36, 0.64], dtype=torch.float64))
    torch.testing.assert_close(found.slope, torch.tensor([3.0, -1.0], dtype=torch.float64))
    assert abs(float(found.nonlinear)) < 1e-9
    assert "64.0" in found.table()
    pandas = pytest.importorskip("pandas")
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.index) == ["b", "a"]
    assert abs(frame.loc["b", "first"] - 0.64) < 1e-6


def test_pictures_show_each_group() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    found = budget(lambda x: x.sum(), noisy(torch.zeros(4), std=1.0))
    assert [bar.get_width() for bar in found.plot().patches] == pytest.approx([25] * 4)
    assert found.plot(image=(2, 2)).images[0].get_array().shape == (2, 2)


def test_noise_that_arguments_share_has_a_row_of_its_own_that_names_them() -> None:
    caliper = noisy(0.0, std=0.3)
    found = budget(lambda m, d, h: m + d + h, noisy(1.0, std=1.0), noisy(2.0, std=0.2) + caliper, caliper)
    assert found.names == ["m", "d", "common to d, h"]
    torch.testing.assert_close(found.first, torch.tensor([1.0, 0.04, 0.36]).double() / 1.4, rtol=1e-5, atol=0)
