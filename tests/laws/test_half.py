"""Networks of float16 and bfloat16, and values so small or large that float32 does not hold their variances."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from torch import Tensor, nn
from torch.distributions import StudentT
from torch.utils.checkpoint import checkpoint
from torch_networks import NETWORKS

import momentgen
from momentgen import Moments, noisy
from momentgen.errors import InputError
from momentgen.inference import MeanField, randomise
from momentgen.runtime import JointMoments, VarianceWarning

HALVES = [torch.float16, torch.bfloat16]


@pytest.fixture(params=HALVES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


def net_of(line: Callable[[Any, Any], Any]) -> nn.Module:
    """A network of one line, with layers."""
    layers = {"first": nn.Linear(4, 6), "last": nn.Linear(6, 2), "embedding": nn.Embedding(5, 6)}
    return Of(line, **layers, norm=nn.LayerNorm(6), drop=nn.Dropout(0.3))


def pair(plain: nn.Module, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """The network in half precision, and in float32 with the same parameters."""
    narrow = copy.deepcopy(plain).to(dtype)
    return narrow, copy.deepcopy(narrow).float()


def given(shape: tuple[int, ...], dtype: torch.dtype, std: float = 0.1) -> tuple[Moments, Moments]:
    x = noisy(torch.randn(shape).to(dtype), std=std)
    return x, Moments(x.mean.float(), x.var.float())


def assert_rounded(found: Moments, expected: Moments, dtype: torch.dtype) -> None:
    """What was found is what is expected, in float32 and within the rounding of ``dtype``."""
    assert found.mean.dtype is found.var.dtype is torch.float32
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.mean.float(), expected.mean, rtol=eps, atol=eps * float(expected.mean.abs().max()))
    torch.testing.assert_close(found.var.float(), expected.var, rtol=4 * eps, atol=torch.finfo(dtype).smallest_normal)


_NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: net_of(lambda net, x: net.last(net.norm(F.gelu(net.first(x))))), (5, 4)),
    **{name: NETWORKS[name] for name in ("cnn", "encoder layer", "vit")},
    "max pool": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), (2, 1, 6, 6)),
    "gates": (lambda: net_of(lambda net, x: torch.sigmoid(net.first(x)) * torch.tanh(net.first(x)) / 2 - 1), (3, 4)),
    "a tensor of its dtype": (
        lambda: net_of(lambda net, x: net.first(x) @ torch.ones(6, 2, dtype=x.dtype) + net.last.bias), (3, 4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n == "vit" else []) for n in _NETWORKS])
def test_moments_are_those_of_the_network_in_float32(name: str, method: Any, dtype: torch.dtype) -> None:
    make, shape = _NETWORKS[name]
    narrow, wide = pair(make().eval(), dtype)
    x, same = given(shape, dtype)
    with torch.no_grad():
        found, expected = momentgen.convert(narrow, method)(x), momentgen.convert(wide, method)(same)
    assert_rounded(found, expected, dtype)


@pytest.mark.parametrize("method", ["ap2", "controlled", "ap1", "sample"])
def test_outputs_have_the_dtypes_of_the_plain_network_but_moments_of_half_precision_are_float32(
    method: Any, dtype: torch.dtype
) -> None:
    seen: list[torch.dtype] = []

    def line(net: Any, x: Any) -> Any:
        seen.append(x.dtype)
        logits = net.last(net.first(x)).float()
        kept = x.half().to(torch.bfloat16)
        return {
            "logits": logits,
            "loss": torch.softmax(logits, -1) * 2,
            "log": F.log_softmax(net.first(x), -1, dtype=torch.float32),
            "own": net.first(x) * torch.ones((), dtype=torch.float32),
            "kept": kept,
            "the same": kept,
            "double": kept.double(),
            "promoted": net.first(x) + torch.ones(6),
            "like": logits.type_as(x),
            "certain": net.last.bias.expand(len(x), 2),
        }

    narrow, _ = pair(net_of(line).eval(), dtype)
    x, _ = given((3, 4), dtype)
    plain = narrow(x.mean)
    found = momentgen.convert(narrow, method)(x)
    assert seen[1] is (torch.float32 if method == "ap2" else dtype)
    expected = {name: out.dtype for name, out in plain.items()}
    if method not in ("ap1", "sample"):
        expected = {name: torch.float32 if kind in HALVES else kind for name, kind in expected.items()}
    assert {name: out.mean.dtype for name, out in found.items()} == expected
    assert {name: out.var.dtype for name, out in found.items()} == expected
    if method == "ap2":
        assert found["logits"].var.min() > 0
        torch.testing.assert_close(found["double"].var, x.var.double(), rtol=1e-6, atol=0)


def test_a_summary_leaves_the_layers_of_the_network_in_their_dtype(dtype: torch.dtype) -> None:
    narrow = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).to(dtype)
    assert len(momentgen.summary(narrow, given((2, 4), dtype)[0]).rows) == 3


def test_a_network_of_tokens_with_dropout_has_the_moments_of_float32(method: Any, dtype: torch.dtype) -> None:
    narrow, wide = pair(net_of(lambda net, x: net.last(net.norm(net.drop(net.embedding(x))))).train(), dtype)
    tokens = torch.tensor([[0, 1], [2, 4]])
    found, expected = (momentgen.convert(network, method)(tokens) for network in (narrow, wide))
    assert expected.var.min() > 0
    assert_rounded(found, expected, dtype)


def test_random_parameters_have_the_moments_of_float32(method: Any, dtype: torch.dtype) -> None:
    narrow, wide = pair(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), dtype)
    x, same = given((3, 4), dtype)
    found, expected = (
        momentgen.convert(randomise(network, MeanField(std=0.05)), method)(value)
        for network, value in ((narrow, x), (wide, same))
    )
    assert found.mean.dtype is torch.float32
    torch.testing.assert_close(found.var.float(), expected.var, rtol=0.02, atol=0)


def test_a_training_step_has_the_gradients_and_statistics_of_float32(dtype: torch.dtype) -> None:
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten())
    narrow, wide = pair(plain, dtype)
    x, same = given((4, 1, 5, 5), dtype)
    for network, value in ((narrow, x), (wide, same)):
        out = momentgen.convert(network.train(), "ap2")(value)
        (out.mean.square() + out.var).sum().backward()
    eps = torch.finfo(dtype).eps
    for (name, buffer), other in zip(narrow.named_buffers(), wide.buffers(), strict=True):
        assert buffer.dtype is (dtype if "num" not in name else torch.int64)
        torch.testing.assert_close(buffer.float(), other.float(), rtol=2 * eps, atol=2 * eps)
    assert not torch.equal(narrow[1].running_mean, torch.zeros(3, dtype=dtype))
    scale = max(float(other.grad.abs().max()) for other in wide.parameters())  # type: ignore[union-attr]
    for own, other in zip(narrow.parameters(), wide.parameters(), strict=True):
        assert own.grad is not None
        assert own.grad.dtype is dtype
        torch.testing.assert_close(own.grad.float(), other.grad, rtol=8 * eps, atol=8 * eps * scale)


def test_covariances_of_outputs_and_correlated_inputs_are_those_of_float32(dtype: torch.dtype) -> None:
    narrow, wide = pair(net_of(lambda net, x: net.last(torch.relu(net.first(x)))), dtype)
    mean, cov = torch.randn(3, 4).to(dtype), (torch.eye(4) / 4 + 0.25).to(dtype)
    x, same = noisy(mean, cov=cov), noisy(mean.float(), cov=cov.float())
    found, expected = momentgen.convert(narrow.eval())(x), momentgen.convert(wide.eval())(same)
    assert found.mean.dtype is found.factor.dtype is torch.float32
    allowed = 16 * torch.finfo(dtype).eps * float(expected.var.max())
    torch.testing.assert_close(found.covariance.float(), expected.covariance, rtol=0, atol=allowed)


@pytest.mark.parametrize("name", ["ap2", "controlled"])
def test_a_variance_beyond_the_range_of_float16_is_that_of_float32(name: Any) -> None:
    x = noisy(torch.zeros(2, 4, dtype=torch.float16), std=0.5)
    found = momentgen.convert(Of(lambda x: torch.cat([x * 1000, x / 1000], -1)).eval(), name)(x)
    torch.testing.assert_close(found.std[0], torch.tensor([500.0] * 4 + [5e-4] * 4), rtol=2e-3, atol=0)


def test_the_stated_error_of_a_mean_far_from_0_is_not_that_of_rounding(dtype: torch.dtype) -> None:
    layer = nn.Linear(64, 50).to(dtype)
    with torch.no_grad():
        layer.bias += 10
    x = noisy(torch.randn(8, 64).to(dtype), std=0.5)
    with torch.no_grad():
        found = momentgen.convert(layer.eval(), max_rows=64)(x)
    exact = nn.functional.linear(x.mean.double(), layer.weight.double(), layer.bias.double())
    covered = ((found.mean - exact).abs() < 2 * found.mean_error).double().mean()
    assert covered > 0.9


def test_draws_and_writes_of_half_precision_have_the_moments_of_float32(dtype: torch.dtype) -> None:
    def line(net: Any, x: Any) -> Any:
        y = torch.zeros_like(x)
        y[:, :2] = x[:, 1:3]
        y += F.dropout(net.first.weight[0], 0.3, True)
        y.mul_(2)
        return y + 0.1 * torch.randn(4, dtype=x.dtype)

    narrow, wide = pair(net_of(line).eval(), dtype)
    x, same = given((3, 4), dtype)
    assert_rounded(momentgen.convert(narrow, "ap2")(x), momentgen.convert(wide, "ap2")(same), dtype)


def test_compiled_code_has_the_moments_of_eager_code(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    plain = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).to(dtype)
    again = copy.deepcopy(plain)
    x, _ = given((3, 4), dtype)
    network, fast = momentgen.convert(plain, "ap2"), momentgen.convert(again, "ap2")
    found = torch.compile(fast, backend="eager", fullgraph=True)(x)
    assert_rounded(found, network(x), dtype)
    torch.testing.assert_close(again.state_dict(), plain.state_dict())


def test_nothing_is_left_behind_by_an_error() -> None:
    def line(net: Any, x: Any) -> Tensor:
        raise ValueError("the network's own")

    x, _ = given((3, 4), torch.float16)
    with pytest.raises(ValueError, match="the network's own"):
        momentgen.convert(net_of(line).half(), "ap2")(x)
    wide, same = net_of(lambda net, x: net.first(x)), noisy(torch.zeros(2, 4), std=0.1)
    assert momentgen.convert(wide, "ap2")(same).mean.dtype is torch.float32


def test_a_checkpoint_in_half_precision_has_the_gradients_of_the_network(dtype: torch.dtype) -> None:
    def line(net: Any, x: Any) -> Any:
        block = lambda x: torch.relu(net.first(x)) + net.last.weight[0]  # noqa: E731
        return net.last(checkpoint(block, x, use_reentrant=False) if net.checkpointed else block(x))

    net, _ = pair(net_of(line), dtype)
    x, _ = given((3, 4), dtype)
    found = []
    for net.checkpointed in (True, False):
        momentgen.convert(net, "ap2")(x).var.sum().backward()
        found.append([parameter.grad for parameter in (*net.first.parameters(), *net.last.parameters())])
        net.zero_grad()
    torch.testing.assert_close(*found)


def test_a_float32_network_may_compute_in_half_precision_inside(method: Any, dtype: torch.dtype) -> None:
    net = net_of(lambda net, x: net.last(torch.relu(net.first(x.to(dtype))).float()))
    net.first.to(dtype)
    wide = copy.deepcopy(net).float()
    wide.function = lambda net, x: net.last(torch.relu(net.first(x)))
    x, _ = given((3, 4), torch.float32, std=1e-3)
    found, expected = momentgen.convert(net, method)(x), momentgen.convert(wide, method)(x)
    torch.testing.assert_close(found, expected)


# Values so small or large that float32 does not hold their variances: σ is right, or there is an error.
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
    with pytest.raises(InputError, match=rf"^{function}, in .*test_half\.py:\d+: torch\.float32 does not hold"):
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
