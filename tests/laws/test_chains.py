"""Functions of one value, met twice or one after another, by every analytic method against draws of the network."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from sampling import sampled
from torch import nn

import momentgen
import momentgen.generated
from momentgen import Moments, noisy
from momentgen.laws import diagonal, listening, point


def _row(*means: float, std: float = 1.0) -> Moments:
    return noisy(torch.tensor([means], dtype=torch.float64), std=std)


#: at mean 0, where slopes are 0, and beside it
AT_ZERO, BESIDE = _row(0.0, 0.0, 0.0), _row(0.3, -0.5, 1.0, std=0.7)
MASK = torch.tensor([True, False, True])

#: functions of each value alone: met twice, one after another, through views, with poles, kinks and jumps
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "x**4": lambda x: x**4,
    "x x x": lambda x: x * x * x,
    "a polynomial": lambda x: 1 - x + 0.5 * x**2 - x**3 / 6,
    "cosh": torch.cosh,
    "erfc": torch.erfc,
    "asinh": torch.asinh,
    "x tanh(x)": lambda x: x * torch.tanh(x),
    "x tanh(x) by a tensor": lambda x: x * torch.tanh(x * torch.tensor(0.5)),
    "x per channel": lambda x: x * torch.sigmoid(x * torch.linspace(0.5, 1.5, 3).double()),
    "x cos(x)": lambda x: x * torch.cos(x),
    "sin(x) x": lambda x: x.sin() * x,
    "x + sin(x) by alpha": lambda x: torch.add(x, torch.sin(x), alpha=0.5),
    "sin(x) sin(x)": lambda x: torch.sin(x) * torch.sin(x),
    "sin(x) squared by itself": lambda x: (lambda s: s * s)(torch.sin(x)),
    "sin(x) exp(-x x/2)": lambda x: torch.sin(x) * torch.exp(-x * x / 2),
    "sigmoid(x) (1 - sigmoid(x))": lambda x: x.sigmoid() * (1 - x.sigmoid()),
    "gelu(x) - x": lambda x: F.gelu(x) - x,
    "sigmoid(x) + relu(x)": lambda x: torch.sigmoid(x) + F.relu(x),
    "x + relu(x)": lambda x: x + torch.relu(x),
    "x relu(x)": lambda x: x * F.relu(x),
    "max(x, 0.1 x)": lambda x: torch.maximum(x, 0.1 * x),
    "max(x, 0.1 x), by max": lambda x: torch.max(0.1 * x, x),
    "min(2 x + 1, 3)": lambda x: torch.minimum(2 * x + 1, 0 * x + 3),
    "fmin(x, x)": lambda x: torch.fmin(x, x),
    # views
    "through a view": lambda x: x.view(-1, 3) * x.sigmoid().view(-1, 3),
    "through views of its own": lambda x: x.view(-1, 3) * torch.sigmoid(x.view(-1, 3)),
    "through a transpose": lambda x: (x[..., None].transpose(1, 2) * torch.cos(x[..., None]).transpose(1, 2))[:, 0],
    "through a flatten": lambda x: torch.sin(x.reshape(-1, 3)).flatten(1) + x.reshape(-1, 3).flatten(1),
    "through a view and a factor": lambda x: (F.relu(x).unsqueeze(-1) * 2).sigmoid()[..., 0],
    "sliced alike": lambda x: x[:, 1:] * torch.sigmoid(x)[:, 1:],
    "through a chunk": lambda x: x.chunk(3, 1)[2] * x.tanh().chunk(3, 1)[2],
    # one after another
    "a function of a pending value": lambda x: torch.relu(x * torch.sigmoid(x)),
    "exp(-x**2/2)": lambda x: torch.exp(-(x**2) / 2),
    "exp(-x*x)": lambda x: torch.exp(-x * x),
    "relu(x)**2": lambda x: F.relu(x) ** 2,
    "relu of relu": lambda x: F.relu(F.relu(x) - 0.5),
    "exp(-|x|)": lambda x: torch.exp(-x.abs()),
    "sigmoid by hand": lambda x: 1 / (1 + torch.exp(-x)),
    "softplus by hand": lambda x: torch.log(1 + torch.exp(x)),
    "a root that is defined": lambda x: torch.sqrt(x * x + 1),
    "a quotient that is defined": lambda x: x * (1 + x * x).rsqrt() + (x.abs() + 0.5).reciprocal(),
    "asin of less than 1": lambda x: torch.asin(0.6 * torch.tanh(x)),
    "chosen by a mask": lambda x: torch.where(MASK, torch.tanh(x), torch.sin(x)).exp(),
    "filled by a mask": lambda x: x.tanh().masked_fill(MASK, 0.3) ** 2 + x,
    "kinks and second derivatives": lambda x: F.relu(F.hardsigmoid(x) * 2 - 1),
    "in place": lambda x: F.relu(x).pow_(2).tanh_(),
    # poles, kinks and jumps
    "1/tanh(x) - 1/x": lambda x: 1 / torch.tanh(x) - 1 / x,
    "(1 - exp(-x))/x": lambda x: (1 - torch.exp(-x)) / x,
    "x/sinh(x)": lambda x: x / torch.sinh(x),
    "tanh(1/x)": lambda x: torch.tanh(1 / x),
    "a root of a square": lambda x: torch.sqrt(x * x),
    "a power of a square": lambda x: (x * x + 1) ** 0.7,
    "a kink beside a product": lambda x: x + F.relu(x - 1) * x,
    "a kink of a bend": lambda x: F.relu(F.silu(x) + 0.2),
    "several kinks": lambda x: F.hardtanh(x) * F.relu6(x + 1) - (x - 0.5).abs(),
    "a jump": lambda x: F.hardshrink(torch.tanh(x)),
    "kinks at tensors": lambda x: F.relu(x - x.new_tensor([0.0, 0.5, -0.2])) * x + x,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_one_value_has_the_moments_of_an_integral(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    z = torch.linspace(-12, 12, 60_000, dtype=torch.float64)[:, None]
    weights = torch.softmax(-z * z / 2, 0)
    for mean, std, off in ((0.0, 1.0, 5e-4), (0.0, 0.01, 5e-4), (0.4, 3.0, 5e-4), (-1.3, 0.3, 5e-4), (-2.0, 3.0, 1e-3)):
        values = function((mean + std * z).repeat(1, 3))
        first = (weights * values).sum(0)
        sigma = (weights * (values - first).square()).sum(0).sqrt()
        found = function(diagonal(*(part.to(dtype) for part in _row(mean, mean, mean, std=std)))).moments()
        assert ((found.mean[0] - first).abs() <= off * sigma + 1e-6 * first.abs()).all()
        torch.testing.assert_close(found.std[0].double(), sigma, rtol=1e-3, atol=3e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_points_is_torchs_own_bit_for_bit(name: str) -> None:
    x = BESIDE.mean
    with torch.no_grad():
        assert torch.equal(FUNCTIONS[name](point(x.clone())).value, FUNCTIONS[name](x.clone()))


#: functions of several values, or that are no function of one value for laws
SEVERAL: dict[str, tuple[Callable[[Any], Any], Moments]] = {
    "einsum": (lambda x: torch.einsum("...i,...i->...", x, x), AT_ZERO),
    "var by hand": (lambda x: ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1), BESIDE),
    "var by hand, a sum": (lambda x: (x - x.mean(-1, keepdim=True)).square().sum(-1, keepdim=True), AT_ZERO),
    "after it was read": (lambda x: torch.cos(F.relu(x) * x + 1).sum(-1), BESIDE),
    "after a linear map": (lambda x: torch.tanh(F.relu(x @ torch.eye(3).double() + 0.1)).sum(-1), BESIDE),
    "x / (1 + x x)": (lambda x: x / (1 + x * x), BESIDE),
    "prelu": (lambda x: F.relu(F.prelu(x, torch.tensor([0.25]).double()) + 0.3), BESIDE),
}


def assert_within_5_percent(function: Callable[[Any], Any], x: Moments, method: str) -> None:
    with torch.no_grad():
        drawn, _ = sampled(function, [x], batched=False, n=200_000)
        out = momentgen.convert(Of(function), method)(x)
    assert ((out.mean - drawn.mean).abs() <= 0.05 * drawn.std).all()
    assert ((out.std - drawn.std).abs() <= 0.05 * drawn.std).all()


@pytest.mark.parametrize("name", SEVERAL)
def test_a_function_of_several_values_is_within_5_percent(name: str, method: str) -> None:
    assert_within_5_percent(*SEVERAL[name], method)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x.mT,
        lambda x: x.mT @ x,
        lambda x: torch.dot(x[0, 0], x[0, 0]),
        lambda x: x[0, 0].inner(x[0, 0]),
        lambda x: x.unsqueeze(-2) @ x.unsqueeze(-1),
        lambda x: torch.outer(x[0, 0], x[0, 0]),
        lambda x: torch.einsum("bij,bkj->bik", x, x),
    ],
    ids=["gram", "gram of columns", "dot", "inner", "row by column", "outer", "gram by einsum"],
)
def test_a_product_of_a_value_with_itself_is_that_of_draws(function: Callable[[Any], Any], method: str) -> None:
    assert_within_5_percent(function, noisy(torch.zeros(1, 2, 3, dtype=torch.float64), std=1.0), method)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.tanh(x) @ torch.tanh(x).mT,
        lambda x: x.unsqueeze(-1) * x.unsqueeze(-2),
        lambda x: x + x.mT,
        lambda x: torch.maximum(x.mT, -x),
        lambda x: x * x.sum(-1, keepdim=True),
    ],
    ids=["gram of a function", "outer", "transpose added", "maximum", "a sum of several"],
)
def test_values_that_meet_themselves_elsewhere_are_noted_as_independent_with_their_line(
    function: Callable[[Any], Any], method: str
) -> None:
    with listening() as notes:
        momentgen.convert(Of(function), method)(noisy(torch.zeros(1, 2, 2, dtype=torch.float64), std=1.0))
    line = function.__code__.co_firstlineno
    assert any("are taken as independent" in note and f"test_chains.py:{line}" in note for note in notes)


def test_halves_of_a_value_are_independent_without_a_note() -> None:
    with listening() as notes:
        halves = torch.nn.Linear(4, 4).double()(diagonal(*_row(0.3, -0.5, 1.0, 0.2))).chunk(2, -1)
        out = (halves[0] * torch.sigmoid(halves[1])).moments()
    first, second = halves[0].moments(), torch.sigmoid(halves[1]).moments()
    torch.testing.assert_close(out.mean, first.mean * second.mean)
    assert not notes


def test_the_largest_of_one_number_is_that_number(method: str) -> None:
    x = Moments(torch.tensor(0.3), torch.tensor(0.2))
    out = momentgen.convert(Of(lambda x: x.amax()), method)(x)
    torch.testing.assert_close(out, x)


def test_a_padded_pool_is_the_largest_of_each_window(method: str) -> None:
    x, scale = noisy(torch.linspace(-1, 1, 14).double().view(1, 2, 7).sin(), std=0.4), torch.arange(1, 5)
    windows = [slice(max(k - 1, 0), k + 2) for k in range(0, 7, 2)]
    pooled = Of(lambda x: (F.max_pool1d(x, 3, 2, 1) * scale).sum(-1))
    by_hand = Of(lambda x: (torch.stack([x[..., window].amax(-1) for window in windows], -1) * scale).sum(-1))
    found, want = (momentgen.convert(net, method)(x) for net in (pooled, by_hand))
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_chain_of_one_number_has_its_dtype_or_float32_for_half(method: str, dtype: torch.dtype) -> None:
    x = Moments(torch.tensor(0.3, dtype=dtype), torch.tensor(0.2, dtype=dtype))
    out = momentgen.convert(Of(lambda x: torch.sin(0.6 * torch.tanh(x))), method)(x)
    assert out.mean.dtype is out.var.dtype is (torch.float32 if dtype is torch.float16 else dtype)


def test_relu_squared_written_by_hand_calls_its_op() -> None:
    with listening() as notes:
        found = (F.relu(diagonal(*_row(-0.7, std=0.8))) ** 2).moments()
    wanted = momentgen.generated.relu_squared(*_row(-0.7, std=0.8))
    torch.testing.assert_close(found, wanted)
    assert not notes


def test_derivatives_follow_kinks_and_jumps() -> None:
    mean = torch.linspace(-1, 1, 9, dtype=torch.float64, requires_grad=True)
    out = F.hardshrink(torch.tanh(diagonal(mean, torch.full_like(mean, 0.49)))).moments().mean
    (found,) = torch.autograd.grad(out.sum(), mean)
    z = torch.linspace(-12, 12, 400_001, dtype=torch.float64)
    values = F.hardshrink(torch.tanh(mean.detach()[:, None] + 0.7 * z))
    wanted = (values * z) @ torch.softmax(-z * z / 2, 0) / 0.7  # by Stein's lemma, which takes no slope
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "function", [torch.asinh, lambda x: x * x.tanh(), lambda x: 1 / (x + 5), lambda x: (x + 5).rsqrt(), lambda x: x**3]
)
def test_a_variance_of_nan_makes_no_certain_value(function: Callable[[Any], Any]) -> None:
    mean, var = torch.tensor([0.3, 0.5]), torch.tensor([math.nan, 0.1])
    found = function(diagonal(mean, var)).moments()
    assert found.var.isnan().tolist() == [True, False]
    assert found.mean.isnan().tolist() == [True, False]


@pytest.mark.parametrize("power", [3, 8, 23])
def test_whole_powers_are_exact(power: int) -> None:
    def moment(order: int) -> float:
        """E (0.7 + 0.5 z)^order."""
        even = range(0, order + 1, 2)
        return sum(math.comb(order, k) * 0.7 ** (order - k) * 0.5**k * math.prod(range(1, k, 2)) for k in even)

    for scale in (1.0, 3.0):
        found = ((diagonal(*_row(0.7, std=0.5)) ** power) / scale).moments()  # type: ignore[operator]
        mean = moment(power) / scale
        assert found.mean.item() == pytest.approx(mean, rel=1e-10)
        assert found.var.item() == pytest.approx(moment(2 * power) / scale**2 - mean**2, rel=1e-10)


def test_a_function_alone_keeps_its_op() -> None:
    with listening() as notes:
        momentgen.convert(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.GELU()), "ap2")(
            noisy(torch.zeros(2, 3), std=1.0)
        )
    assert not notes


def test_what_was_read_and_then_overwritten_does_not_change_a_chain() -> None:
    x = diagonal(*_row(0.5, -0.5))
    y = F.relu(x)
    z = torch.tanh(y)
    wanted = torch.tanh(F.relu(diagonal(*_row(0.5, -0.5)))).moments()
    y.zero_()
    assert torch.equal(z.moments().mean, wanted.mean)


def test_a_chain_in_place_leaves_what_it_does_not_see(method: str) -> None:
    def function(x: Any) -> Any:
        y = F.relu(x)
        z = y.roll(1, -1)
        z.tanh_()
        y.mul_(y)
        return torch.cat([y + 0.3 * (y - y), z], -1)

    assert_within_5_percent(function, BESIDE, method)


def test_a_root_is_no_part_of_an_integral_that_its_argument_does_not_reach(method: str) -> None:
    with listening() as notes:
        out = momentgen.convert(Of(lambda x: (lambda r: r**4 - r**2)(x.norm(dim=-1))), method)(BESIDE)
    assert out.mean.isfinite().all()
    assert out.var.isfinite().all()
    assert notes


@pytest.mark.parametrize("function", [lambda x: torch.tanh(F.relu(x)) * x, lambda x: torch.exp(-(x**2))])
def test_a_chain_compiles_to_the_same_moments(function: Callable[[Any], Any]) -> None:
    net = momentgen.convert(Of(function), "ap2")
    torch._dynamo.reset()
    found, wanted = torch.compile(net, fullgraph=True, backend="eager")(BESIDE), net(BESIDE)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: -(torch.sqrt(F.softplus(x) + 0.5) ** 2) / 2,
        lambda x: torch.sqrt(x * x + 0.5).square(),
        lambda x: (torch.cos(x).square() * x.new_tensor([0.5])) ** 3,
    ],
    ids=["a root of a chain, squared", "a root of a square, squared", "a factor made like the value"],
)
def test_a_chain_goes_through_roots_and_constants_that_are_made_like_its_value(method: str, function: Any) -> None:
    x = _row(-0.54, 0.2, std=0.3)
    out = momentgen.convert(Of(function), method)(x)
    generator = torch.Generator().manual_seed(0)
    drawn = function(x.mean + x.std * torch.randn(200_000, 2, generator=generator, dtype=torch.float64))
    assert ((out.mean[0] - drawn.mean(0)).abs() < 0.02 * drawn.std(0)).all()
    torch.testing.assert_close(out.std[0], drawn.std(0), rtol=0.02, atol=0)
