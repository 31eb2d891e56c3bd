"""Functions of noisy values: what they share, what they are made of, and published uncertainties."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from laws.small_networks import Of
from torch import Tensor, nn
from torch.distributions import Normal, Uniform

import momentgen
import momentgen.generated
from momentgen import convert, noisy, propagate
from momentgen.errors import InputError, UnsupportedError
from momentgen.laws import activation, listening

#: noisy values that functions do not use, with which draws answer in the place of cubature
UNUSED = 5


def ratio(V: Any, I: Any, unused: Any = None) -> Any:  # noqa: E741 - as in the formula
    return V / I


def exact_ratio(V: float, u: float, I: float, v: float) -> tuple[float, float]:  # noqa: E741
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    values = (V + u * nodes[:, None]) / (I + v * nodes)
    mean = float(weights @ values @ weights)
    return mean, math.sqrt(float(weights @ (values - mean) ** 2 @ weights))


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (100,)])
def test_a_ratio_has_the_moments_of_quadrature(shape: tuple[int, ...], dtype: torch.dtype, draws: bool) -> None:
    V, I = (torch.full(shape, value, dtype=dtype) for value in (5.0, 0.02))  # noqa: E741
    unused = noisy(torch.ones(*shape, UNUSED, dtype=dtype), std=0.1) if draws else None
    out = propagate(ratio, noisy(V, std=0.05), noisy(I, std=1e-3), unused)
    mean, std = exact_ratio(5.0, 0.05, 0.02, 1e-3)
    assert out.mean.shape == shape
    assert out.mean.dtype == dtype
    assert float((out.std / std - 1).square().mean().sqrt()) < (0.01 if draws else 1e-4)
    for away, error in () if shape != (100,) else ((out.std - std, out.std_error), (out.mean - mean, out.mean_error)):
        assert float((away.abs() <= 3 * error + 1e-6 * std).float().mean()) >= 0.9


V_H2 = (5.007, 4.994, 5.005, 4.990, 4.999)
I_H2 = (19.663e-3, 19.639e-3, 19.640e-3, 19.685e-3, 19.678e-3)
PHI_H2 = (1.0456, 1.0438, 1.0468, 1.0428, 1.0433)


@pytest.mark.parametrize("batch", [None, 1, 100])
@pytest.mark.parametrize("draws", [False, True])
def test_gum_h2_has_its_published_values(batch: int | None, draws: bool) -> None:
    """Resistance, reactance and impedance of five simultaneous readings; GUM, table H.4."""
    readings = np.array([V_H2, I_H2, PHI_H2])
    known = readings.mean(1).tolist()
    means = tuple(mean if batch is None else torch.full((batch,), mean, dtype=torch.float64) for mean in known)
    V, I, phi = noisy(means, cov=np.cov(readings) / readings.shape[1])  # noqa: E741
    size = () if batch is None else (batch,)
    unused = noisy(torch.ones(*size, UNUSED, dtype=torch.float64), std=0.1) if draws else None
    found = propagate(
        lambda V, J, phi, unused: (V / J * torch.cos(phi), V / J * torch.sin(phi), V / J), V, I, phi, unused
    )
    for out, mean, std in zip(found, (127.732, 219.847, 254.260), (0.071, 0.295, 0.236), strict=True):
        assert out.mean.shape == size
        torch.testing.assert_close(out.mean, torch.full_like(out.mean, mean), rtol=0, atol=1e-3)
        torch.testing.assert_close(out.std, torch.full_like(out.std, std), rtol=0, atol=6e-4)


def _two(batch: int | None) -> tuple[Any, Any, Any]:
    size = () if batch is None else (batch,)
    return noisy(torch.full(size, 3.0), std=0.3), noisy(torch.full(size, 2.0), std=0.4), size


#: arguments of a and b, whose variances are .09 and .16; a function; the variance of its result
SHARED: dict[str, tuple[Callable[[Any, Any], tuple[Any, ...]], Callable[..., Any], float]] = {
    "a less itself and a number": (lambda a, b: (a, a + 1), lambda x, y: x - y, 0.0),
    "a multiple": (lambda a, b: (3 * a - 1,), lambda x: x, 9 * 0.09),
    "a fraction, negated": (lambda a, b: (-(2 - a) / 2,), lambda x: x, 0.09 / 4),
    "sum and difference": (lambda a, b: (a + b, a - b), lambda x, y: x + y, 4 * 0.09),
    "products of sums": (lambda a, b: (a + b, b), lambda x, y: (x - y) * 2, 4 * 0.09),
    "a in a container": (lambda a, b: ({"a": [a + b]}, b), lambda d, y: d["a"][0] - y, 0.09),
    "certain tensors": (lambda a, b: (a * torch.tensor(2.0) + torch.tensor(1.0), a), lambda x, y: x - y, 0.09),
    "arrays of NumPy": (lambda a, b: (np.float32(2) * a, a), lambda x, y: x - y, 0.09),
    "both twice": (lambda a, b: (a - b - a + b, a), lambda x, y: x + y, 0.09),
}

#: those whose arguments share no noise in the end
APART = ("both twice",)


@pytest.mark.parametrize("method", [None, "ap2"])
@pytest.mark.parametrize("batch", [None, 1, 100])
@pytest.mark.parametrize("case", SHARED)
def test_arguments_share_the_noise_of_which_they_are_made(case: str, batch: int | None, method: Any) -> None:
    arguments, function, var = SHARED[case]
    a, b, size = _two(batch)
    given = arguments(a, b)
    with listening() as notes:
        out = propagate(function, *given, method=method)
    assert out.mean.shape == size
    if method == "ap2" and len(given) > 1 and case not in APART:
        assert any("several values share" in text for text in notes)
        return
    torch.testing.assert_close(out.var, torch.full(size, var), rtol=1e-4, atol=1e-6)


def test_draws_and_plain_monte_carlo_know_what_arguments_share() -> None:
    a = noisy(torch.zeros(20_000), std=0.3)
    drawn = propagate(lambda x, y: x - y, 2 * a, a, method="sample").mean
    assert float(drawn.std()) == pytest.approx(0.3, rel=0.03)
    net = nn.Linear(2, 1, bias=False).eval()
    nn.init.constant_(net.weight, 1.0)
    x = noisy(torch.zeros(3, 2), std=0.3) + noisy(torch.zeros(2), std=0.4, shared=True)
    found = momentgen.monte_carlo(net, x, 20_000, seed=0).output.var.float()
    torch.testing.assert_close(found, torch.full((3, 1), 2 * 0.09 + 4 * 0.16), rtol=0.05, atol=0)


@pytest.mark.parametrize("batch", [2, 100])
@pytest.mark.parametrize("kind", ["std", "var", "distribution", "cov"])
def test_noise_in_common_does_not_average_out_and_is_the_same_for_each_example(kind: str, batch: int) -> None:
    common: Any = {
        "std": lambda: noisy(0.0, std=0.4, shared=True),
        "var": lambda: noisy(torch.zeros(batch), var=0.16, shared=True),
        "distribution": lambda: noisy(torch.zeros(batch), Uniform(-(0.48**0.5), 0.48**0.5), shared=True),
        "cov": lambda: noisy(torch.zeros(batch), cov=[[0.16]], shared=True),
    }[kind]()
    x = noisy(torch.linspace(10, 20, batch), std=0.3) + common
    torch.testing.assert_close(x.var, torch.full((batch,), 0.25))
    torch.testing.assert_close(propagate(lambda x: 2 * x, x).var, torch.full((batch,), 4 * 0.25), rtol=1e-4, atol=0)
    mean = propagate(lambda x: x.mean(), x)
    torch.testing.assert_close(mean.var, torch.tensor(0.16 + 0.09 / batch), rtol=1e-4, atol=0)
    apart = propagate(lambda x: x[1:] - x[:-1], x)
    torch.testing.assert_close(apart.var, torch.full((batch - 1,), 2 * 0.09), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch", [2, 100])
def test_each_example_of_noise_in_common_has_its_interval_and_what_joins_them_is_refused(batch: int) -> None:
    x = noisy(torch.full((batch,), 10.0), std=0.3) + noisy(0.0, std=0.4, shared=True)
    out = propagate(lambda x: x + 1, x)
    lower, upper, *_ = out.interval(0.95)
    torch.testing.assert_close(upper - lower, torch.full((batch,), 2 * 1.96 * 0.5), rtol=0.02, atol=0)
    for joined in (
        lambda: out.probability(lambda y: (y > 11).all()),
        lambda: out.sample(9),
        lambda: out.distribution(),
    ):
        with pytest.raises(InputError, match="got some that share noise"):
            joined()
    assert float(out[0].probability(lambda y: y > 11).value) == pytest.approx(0.5, abs=0.02)
    both = propagate(lambda x: x + 1, noisy(torch.full((1, batch), 10.0), std=0.4, cov=None))
    assert both.sample(9).shape == (9, 1, batch)


def test_noise_in_common_may_differ_in_size_from_example_to_example() -> None:
    readings = torch.tensor([10.0, 20.0, 40.0])
    x = noisy(readings, std=0.01 * readings, shared=True)
    torch.testing.assert_close(propagate(lambda x: x / x.sum(), x).std, torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(propagate(lambda x: x.sum(), x).std, torch.tensor(0.7), rtol=1e-4, atol=0)


def test_a_scalar_argument_is_noise_in_common_and_the_covariance_of_the_examples_is_known() -> None:
    x, scale = noisy(torch.tensor([1.0, 2.0]), std=0.1), noisy(3.0, std=0.2)
    out = propagate(lambda x, s: x * s, x, scale)
    exact = torch.tensor([[0.09 + 0.04 + 4e-4, 0.08], [0.08, 0.09 + 0.16 + 4e-4]])
    torch.testing.assert_close(out.covariance, exact, rtol=1e-3, atol=0)


def test_a_list_of_distributions_has_one_for_each_value() -> None:
    x = noisy([[1.0, 2.0], [3.0, 4.0]], [Uniform(-1.0, 1.0), Normal(0.5, 0.5)])
    torch.testing.assert_close(x.mean, torch.tensor([[1.0, 2.5], [3.0, 4.5]], dtype=torch.float64))
    out = propagate(lambda x: x.sum(-1), x)
    torch.testing.assert_close(out.std, torch.full((2,), (1 / 3 + 0.25) ** 0.5, dtype=torch.float64), rtol=1e-3, atol=0)
    flat = propagate(lambda x: (x[:, 0] - 1).abs().clamp(max=1.0), x)
    assert float(flat.mean[0]) == pytest.approx(0.5, abs=5 * float(flat.mean_error[0]))


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (1.0, torch.float64), (2, torch.float64), ([1.0, 2.0], torch.float64), ([1, 2], torch.float64),
        (np.float32(1.5), torch.float64), (np.array([1.0, 2.0]), torch.float64),
        (np.array([1.0, 2.0], np.float32), torch.float32), (np.arange(2), torch.float64),
        (pd.Series([1.0, 2.0]), torch.float64), (pd.DataFrame({"a": [1.0], "b": [2.0]}), torch.float64),
        (xr.DataArray([1.0, 2.0]), torch.float64), (torch.ones(2), torch.float32),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_means_may_be_numbers_and_arrays_and_keep_their_digits(given: Any, dtype: torch.dtype) -> None:
    x = noisy(given, std=0.1)
    assert x.mean.dtype == x.var.dtype == dtype
    assert x.mean.tolist() == np.asarray(given).tolist()
    assert noisy(given, std=np.full(np.shape(given), 0.1)).std.dtype == dtype
    assert propagate(lambda x: x + 1, x).mean.dtype == dtype


class Scale:
    """A callable object, and a bound method."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return self.factor * x

    def scaled(self, x: Any, plus: float = 0.0) -> Any:
        return self.factor * x + plus


def _closure(factor: float) -> Callable[[Any], Any]:
    return lambda x: factor * x


@pytest.mark.parametrize(
    "function",
    [
        _closure(2.0), Scale(2.0), Scale(2.0).scaled, functools.partial(torch.mul, torch.tensor(2.0)),
        functools.partial(Scale(2.0).scaled, plus=1.0),
    ],
)  # fmt: skip
def test_any_callable_of_tensors_is_a_network(function: Callable[[Any], Any]) -> None:
    network = convert(function)
    assert not network.training
    torch.testing.assert_close(network(noisy(torch.zeros(2), std=0.1)).std, torch.full((2,), 0.2))


def test_a_function_trains_where_the_modules_that_it_holds_do_and_shares_their_parameters() -> None:
    net = nn.Linear(2, 1)
    of_net = convert(lambda x: net(x).exp())
    assert of_net.training
    assert not convert(lambda x: net(x)).eval().training
    assert {id(parameter) for parameter in of_net.parameters()} == {id(parameter) for parameter in net.parameters()}
    assert not convert(net.eval().forward).training
    of_net(noisy(torch.zeros(1, 2), std=0.1)).var.sum().backward()
    assert net.weight.grad is not None


def test_modules_that_a_function_holds_begin_every_draw_from_the_same_state() -> None:
    norm = nn.BatchNorm1d(2).train()
    with listening():
        propagate(lambda x: norm(x), noisy(torch.randn(4, 2), std=0.1), method="controlled")
    assert norm.num_batches_tracked == 1


def test_gradients_reach_means_scales_and_shared_standard_deviations() -> None:
    mean, std = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor(0.4, requires_grad=True)
    x = noisy(mean, std=0.3) + noisy(torch.zeros(2), std=std, shared=True)
    out = propagate(lambda x: x.square().sum(), x)
    (slope,) = torch.autograd.grad(out.mean, mean, retain_graph=True)
    torch.testing.assert_close(slope, 2 * mean.detach(), rtol=0.05, atol=0.05)
    (slope,) = torch.autograd.grad(out.mean, std)
    assert float(slope) == pytest.approx(2 * 2 * 0.4, rel=0.3)


def test_options_are_those_of_convert() -> None:
    x = noisy(torch.zeros(6), std=0.5)
    first, again, other = (propagate(lambda x: x.exp().sum(), x, seed=seed, max_rows=32) for seed in (1, 1, 2))
    assert torch.equal(first.mean, again.mean)
    assert not torch.equal(first.mean, other.mean)
    assert first.rows == 32
    assert isinstance(propagate(lambda x: x.relu(), x, method="ap2").mean, Tensor)


# Functions that users make known: the decorator, and what is refused.
@activation(momentgen.generated.silu)
def own(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@activation(momentgen.generated.leaky_relu, "negative_slope")
def relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """A name that torch has too."""
    return torch.where(x > 0, x, slope * x)


@activation(momentgen.generated.bernoulli_noise)  # draws, and is not compared with its op
def drawn(x: Tensor) -> Tensor:
    return torch.bernoulli(torch.sigmoid(x))


def net_of(function: Callable[[Tensor], Tensor]) -> nn.Module:
    torch.manual_seed(0)
    first, last = nn.Linear(6, 12), nn.Linear(12, 3)
    return nn.Sequential(first, Of(function), last).eval()


def x() -> momentgen.Moments:
    return momentgen.noisy(torch.linspace(-2, 2, 24).view(4, 6), std=0.7)


@pytest.mark.parametrize(
    ("function", "same"),
    [(own, nn.functional.silu), (lambda x: relu(x, 0.2), lambda x: nn.functional.leaky_relu(x, 0.2))],
)
def test_a_function_made_known_has_the_moments_of_its_op(function: Any, same: Any, method: str) -> None:
    found = momentgen.convert(net_of(function), method)(x())
    expected = momentgen.convert(net_of(same), method)(x())
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.std, expected.std, rtol=2e-3, atol=0)


def made(op: Any) -> Callable[[Tensor], Tensor]:
    @activation(op)
    def inner(x: Tensor) -> Tensor:
        raise NotImplementedError

    return inner


def test_functions_that_are_made_in_one_place_have_the_moments_of_their_own_ops() -> None:
    first, second = made(momentgen.generated.silu), made(momentgen.generated.tanh)
    for function, op in ((first, momentgen.generated.silu), (second, momentgen.generated.tanh)):
        found = momentgen.convert(Of(function), "ap2")(x())
        assert torch.equal(found.mean, op(x().mean, x().var).mean)


@activation(momentgen.generated.leaky_relu, "negative_slope")
def steep(x: Tensor, slope: float = 0.3, offset: float = 0.0) -> Tensor:
    return torch.where(x > 0, x, slope * x) + offset


@pytest.mark.parametrize(
    ("call", "slope"), [(steep, 0.3), (lambda x: steep(x, slope=0.4), 0.4), (lambda x: steep(x, 0.5), 0.5)]
)
def test_parameters_are_those_of_the_function_by_place_by_name_and_by_default(
    call: Callable[[Tensor], Tensor], slope: float
) -> None:
    found = momentgen.convert(Of(call), "ap2")(x())
    expected = momentgen.generated.leaky_relu(x().mean, x().var, negative_slope=slope)
    torch.testing.assert_close(found, expected)


def test_an_argument_that_the_op_does_not_know_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"leaky_relu was made known without a parameter for 1\.0"):
        momentgen.convert(Of(lambda x: steep(x, 0.3, 1.0)), "ap2")(x())


def test_a_function_made_known_computes_as_before_on_tensors() -> None:
    value = torch.linspace(-3, 3, 7)
    assert torch.equal(own(value), value * torch.sigmoid(value))
    assert own.__name__ == "own"


def test_a_function_of_a_name_that_torch_has_leaves_torchs_alone() -> None:
    net = momentgen.convert(nn.Sequential(nn.ReLU()), "ap2")
    assert torch.equal(net(x()).mean, momentgen.generated.relu(x().mean, x().var).mean)
