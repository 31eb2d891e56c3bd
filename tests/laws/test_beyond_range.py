"""Values so small or large that float32 does not hold their variances: σ is right, or there is an error."""

import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from torch import Tensor, nn
from torch.distributions import StudentT

import momentgen
from momentgen import noisy
from momentgen.errors import InputError
from momentgen.runtime import JointMoments, VarianceWarning

#: units in which float32 holds values, and not their squares
UNITS = [1e-24, 1e-30, 1e21, 1e25]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("outputs", [2, 100])
@pytest.mark.parametrize("curved", [False, True])
def test_the_default_has_the_sigma_of_other_units(unit: float, outputs: int, curved: bool) -> None:
    layer, x = nn.Linear(3, outputs), noisy(torch.randn(4, 3), std=0.1)
    line = (lambda x: torch.tanh(layer(x))) if curved else (lambda x: layer(x))
    expected = momentgen.convert(Of(line).eval())(x)
    found = momentgen.convert(Of(lambda x: line(x) * unit).eval())(x)
    torch.testing.assert_close(found.std / unit, expected.std, rtol=1e-4, atol=0)
    torch.testing.assert_close(found.std_error / unit, expected.std_error, rtol=1e-2, atol=1e-5)  # of rounding alone
    assert found.rows == expected.rows


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "x",
    [*(noisy(torch.zeros(4, count), std=1.0) for count in (1, 2, 3)), noisy(torch.zeros(4, 1), StudentT(5.0))],
    ids=["1", "2", "3", "Student"],
)
def test_kinks_of_few_values_have_the_sigma_and_the_errors_of_other_units(x: Any, unit: float) -> None:
    expected = momentgen.convert(Of(lambda x: (x + x.abs()).sum(-1)).eval())(x)
    found = momentgen.convert(Of(lambda x: (x * unit + (x * unit).abs()).sum(-1)).eval())(x)
    assert found.rows == expected.rows
    for name in ("std", "std_error", "mean_error"):
        torch.testing.assert_close(getattr(found, name) / unit, getattr(expected, name), rtol=1e-2, atol=0)


@pytest.mark.parametrize("unit", UNITS)
def test_reading_a_variance_that_is_0_or_infinite_warns_where_sigma_is_neither(unit: float) -> None:
    found = momentgen.convert(Of(lambda x: x * unit).eval())(noisy(torch.randn(4, 3), std=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bool(((found.std > 0) & found.std.isfinite()).all())
    for read in (lambda x: x.var, tuple, lambda x: [*x]):
        with pytest.warns(VarianceWarning, match=r"read \.std, or compute in float64"):
            read(found)


def test_reading_variances_that_the_dtype_holds_does_not_warn() -> None:
    certain = momentgen.convert(Of(lambda x: torch.cat([x, 0 * x], 1)).eval())(noisy(torch.randn(4, 3), std=0.1))
    double = momentgen.convert(Of(lambda x: x * 1e25).eval())(noisy(torch.randn(4, 3).double(), std=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for found in (certain, double):
            mean, var = found
            assert torch.equal(var, found.var)
            assert torch.equal(mean, found.mean)


def test_sigma_by_the_factor_has_the_gradients_of_sigma_by_the_variance() -> None:
    factor = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)

    def std(factor: Tensor, unit: float) -> Tensor:
        scaled = factor * unit
        return JointMoments.of(torch.zeros(2, 3).double(), scaled.square().sum(1), scaled).std / unit

    expected, found = (torch.autograd.grad(std(factor, unit).square().sum(), factor)[0] for unit in (1.0, 1e-180))
    torch.testing.assert_close(found, expected)
    nothing = torch.zeros(2, 4, 3, requires_grad=True)
    JointMoments.of(torch.zeros(2, 3), nothing.square().sum(1), nothing).std.sum().backward()
    assert torch.equal(nothing.grad, torch.zeros_like(nothing))


@pytest.mark.parametrize("std", [0.0, 1e-18, 1e18])
def test_noise_whose_variance_the_dtype_holds_has_its_sigma(std: float) -> None:
    torch.testing.assert_close(noisy(torch.zeros(2), std=std).std, torch.full((2,), std), rtol=1e-4, atol=0)


@pytest.mark.parametrize("var", [1e-50, 1e-44, 1e39])
def test_moments_of_float64_hold_a_variance_beyond_float32(var: float) -> None:
    assert float(momentgen.Moments(torch.zeros(2).double(), var).var[0]) == var


#: networks whose ap2 variances float32 does not hold on the way, and the function to blame
LOST: dict[str, tuple[Any, str]] = {
    "small": (lambda x: x * 1e-24, "mul"),
    "large": (lambda x: x * 1e25, "mul"),
    "small within": (lambda x: torch.relu(x * 1e-25) * 1e25, "mul"),
    "large within": (lambda x: torch.relu(x * 1e25) * 1e-25, "mul"),
    "quotient": (lambda x: x / 1e25, "div"),
    "linear": (lambda x: F.linear(x, torch.full((2, 3), 1e-25, dtype=x.dtype)), "linear"),
    "one column": (lambda x: torch.cat([x, x * 1e-25], 1), "mul"),
    "in place": (lambda x: x.clone().mul_(1e-25), "mul"),
    "a square": (lambda x: (x * 1e-6) ** 2 * 1e-10, "mul"),
    "no digits": (lambda x: x * 1e-21, "mul"),
}


@pytest.mark.parametrize("name", LOST)
def test_deterministic_methods_name_the_function_whose_variance_is_lost(name: str, method: Any) -> None:
    line, function = LOST[name]
    network = momentgen.convert(Of(line).eval(), method)
    with pytest.raises(InputError, match=rf"^{function}, in .*test_beyond_range\.py:\d+: torch\.float32 does not hold"):
        network(noisy(torch.randn(4, 3), std=0.1))
    found = network(noisy(torch.randn(4, 3).double(), std=0.1))
    assert bool(((found.std > 0) & found.std.isfinite()).any())


#: networks with outputs that are certain, or as good as, in float64 too
CERTAIN: dict[str, Any] = {
    "times 0": lambda x: x * 0,
    "less itself": lambda x: x - x,
    "constant": lambda x: torch.ones(len(x), 3, dtype=x.dtype),
    "seldom on": lambda x: torch.relu(x - 10),
    "infinite itself": lambda x: torch.cat([x, x * 0 + math.inf], 1),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_deterministic_methods_answer_where_a_variance_is_0_for_a_reason(name: str, method: Any) -> None:
    x = noisy(torch.randn(4, 3), std=0.1)
    found, exact = (
        momentgen.convert(Of(CERTAIN[name]).eval(), method)(value)
        for value in (x, momentgen.Moments(*map(Tensor.double, x)))
    )
    torch.testing.assert_close(found.std.double(), exact.std, rtol=1e-4, atol=1e-19, equal_nan=True)


def test_looking_for_a_lost_variance_leaves_statistics_and_generators_as_they_were() -> None:
    x = noisy(torch.randn(4, 3), std=0.1)
    plain = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.2), Of(lambda x: torch.relu(x - 50)))
    once = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.2), Of(lambda x: x))
    momentgen.convert(once, "ap2")(x)
    before = torch.get_rng_state()
    momentgen.convert(plain, "ap2")(x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(plain.state_dict(), once.state_dict(), rtol=0, atol=0)
