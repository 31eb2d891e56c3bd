"""Budgets of variance, whose shares are known in closed form or published."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.distributions as td
from torch import Tensor, nn

from momentgen import Moments, budget, noisy


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
