"""Third cumulants of dropped values, and functions of values that are skewed by them, against all their outcomes."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.generated import relu
from momentgen.laws.correlated import Correlated
from momentgen.laws.numerics.skewness import after_dropout, mixture, two_normals

DROP = 0.2


def number(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@given(number(-2, 2), number(-2, 2), number(0.05, 0.95), number(0.05, 0.95))
def test_the_third_cumulant_after_dropout_is_that_of_all_outcomes(
    one: float, two: float, chance: float, p: float
) -> None:
    values, weights = (torch.tensor(pair, dtype=torch.float64) for pair in ([one, two], [chance, 1 - chance]))
    mean = (weights * values).sum()
    var, third = ((weights * (values - mean) ** k).sum() for k in (2, 3))
    dropped = torch.cat([values / (1 - p), torch.zeros(1).double()])
    chances = torch.cat([weights * (1 - p), scalar(p)[None]])
    truth = (chances * (dropped - (chances * dropped).sum()) ** 3).sum()
    torch.testing.assert_close(after_dropout(mean, var, third, p), truth, rtol=1e-9, atol=1e-9)


@given(number(-3, 3), number(0.01, 9), number(-1.5, 1.5))
def test_two_normals_have_the_mean_the_variance_and_the_third_cumulant(
    mean: float, var: float, skewness: float
) -> None:
    third = skewness * var**1.5
    rare, common = two_normals(scalar(mean), scalar(var), scalar(third))
    found = mixture(rare, common)
    assert float(rare[1]) == float(common[1]) > 0
    torch.testing.assert_close(found[0], scalar(mean), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[1], scalar(var), rtol=1e-9, atol=1e-9)
    of_mixture = 0.15 * (rare[0] - mean) ** 3 + 0.85 * (common[0] - mean) ** 3  # both are of one variance
    torch.testing.assert_close(of_mixture, scalar(third), rtol=1e-6, atol=1e-5 * var**1.5)


def test_a_value_without_skewness_is_normal_to_the_bit() -> None:
    mean, var = torch.randn(50), torch.rand(50)
    for third in (torch.zeros(50), torch.full((50,), 1e-7) * var**1.5):
        for found in two_normals(mean, var, third):
            assert torch.equal(found[0], mean)
            assert torch.equal(found[1], var)


@pytest.mark.parametrize("third", [float("inf"), float("nan"), 0.0])
def test_a_certain_value_or_a_third_cumulant_beyond_range_gives_no_nan(third: float) -> None:
    for var in (0.0, 1.0):
        rare, common = two_normals(torch.zeros(1), torch.full((1,), var), torch.full((1,), third))
        assert all(part.isfinite().all() for part in (*rare, *common))


def test_gradients_of_the_mixture_are_those_of_finite_differences() -> None:
    at = [torch.tensor(values, dtype=torch.float64, requires_grad=True) for values in ([-1.0, 0.5], [1.0, 2.0])]
    third = torch.tensor([0.3, -0.8], dtype=torch.float64, requires_grad=True)

    def function(mean: Tensor, var: Tensor, third: Tensor) -> tuple[Tensor, Tensor]:
        return mixture(*[tuple(relu(*one)) for one in two_normals(mean, var, third)])  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(function, (*at, third))


def dropped_sums(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Every value of ``weight @ dropout(x)``, and how likely it is."""
    kept = torch.tensor(list(itertools.product([0.0, 1.0], repeat=len(x))), dtype=torch.float64)
    chance = (1 - DROP) ** kept.sum(1) * DROP ** (len(x) - kept.sum(1))
    return (kept * x / (1 - DROP)) @ weight.T, chance


def test_relu_of_a_sum_of_dropped_values_is_nearer_to_all_outcomes_than_of_a_normal_one() -> None:
    torch.manual_seed(0)
    x = torch.rand(14) + 0.2
    linear = nn.Linear(14, 300)
    sums, chance = dropped_sums(linear.weight.detach().double(), x.double())
    mean, var = chance @ sums, chance @ (sums - chance @ sums) ** 2
    with torch.no_grad():
        # Units 1 to 2 deviations below zero, where what passes is the tail.
        linear.bias.copy_(-mean - var.sqrt() * (1 + torch.rand(300)))
    passed = (sums + linear.bias.double()).clamp_min(0)
    truth = chance @ (passed - chance @ passed) ** 2

    net = nn.Sequential(nn.Dropout(DROP), linear, nn.ReLU(), nn.Identity())
    with torch.no_grad():
        found = momentgen.convert(net, "correlated")(Moments(x[None], torch.zeros(1, 14)))
    _, normal = relu(mean + linear.bias.double(), var)

    def error(var: Tensor) -> Tensor:
        return (var.double().reshape(-1) / truth).log() / 2  # of σ

    by_third, by_normal = error(found.var), error(normal)
    assert by_third.square().mean().sqrt() < 0.5 * by_normal.square().mean().sqrt()


def test_third_cumulants_pass_convolutions_norms_pools_and_scaling() -> None:
    """Whatever stands between dropout and ReLU, as long as it is affine, a unit's third cumulant is exact."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)
    norm.running_mean.normal_()  # type: ignore[union-attr]
    norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    seen: list[Tensor | None] = []

    class Between(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if isinstance(x, Correlated):
                seen.append(x._joint.third)
            return x

    net = nn.Sequential(conv, norm, nn.Flatten(), Between()).eval()
    drop = nn.Sequential(nn.Dropout(DROP), net, nn.Linear(48, 10))
    drop[0].train()
    x = torch.rand(1, 2, 4, 4)
    momentgen.convert(drop, "correlated")(Moments(x, torch.zeros_like(x)))
    # The network is affine: a column of its matrix for each pixel.
    flat = torch.eye(32).reshape(32, 2, 4, 4)
    with torch.no_grad():
        matrix = nn.Sequential(conv, norm, nn.Flatten())(flat) - nn.Sequential(conv, norm, nn.Flatten())(flat[:1] * 0)
    own = after_dropout(x.flatten(), torch.zeros(32), 0.0, DROP)
    (third,) = seen
    assert third is not None
    torch.testing.assert_close(third.reshape(-1), own @ matrix**3, rtol=1e-4, atol=1e-6)
