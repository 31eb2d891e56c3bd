"""Calls that are seldom made: of numbers, of vectors without a batch, of flags of autograd."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of

import momentgen
from momentgen import Moments, noisy


def _found(function: Callable[[Any], Any], x: Any, method: Any) -> Moments:
    found = momentgen.convert(Of(function).eval(), method)(x)
    assert isinstance(found, Moments)
    return found


@pytest.mark.filterwarnings("ignore:Tensor.T is deprecated")
@pytest.mark.parametrize("method", ["ap2", "ap1", None])
@pytest.mark.parametrize(
    ("function", "var"),
    [(lambda x: x.mean(-1, keepdim=True), 0.09), (lambda x: x - x.mean(-1), 0.0), (lambda x: x.T, 0.09)],
)
def test_a_number_is_averaged_and_transposed_as_torch_does(
    function: Callable[[Any], Any], var: float, method: Any
) -> None:
    found = _found(function, noisy(torch.tensor(0.3), std=0.3), method)
    assert found.mean.shape == ()
    torch.testing.assert_close(found.var, torch.tensor(0.0 if method == "ap1" else var))


@pytest.mark.parametrize(
    ("function", "power"),
    [
        (lambda x: x.square().exp().reciprocal(), 1.0),
        (lambda x: (x**2).exp().rsqrt(), 0.5),
        (lambda x: (-x * x).exp().sqrt(), 0.5),
        (lambda x: torch.exp(x * x) ** -1, 1.0),
        (lambda x: 1 / torch.exp(x * x), 1.0),
        (lambda x: torch.div(1, (x * x).exp()), 1.0),
    ],
)
def test_roots_and_reciprocals_of_an_exponential_are_functions_of_its_argument(
    function: Callable[[Any], Any], power: float, method: Any
) -> None:
    """Each is exp(-c x²), of which the moments for normal x are known; exp(x²) itself has none, and overflows."""
    mean = torch.tensor([[-1.0, 0.0, 0.5, 2.0]], requires_grad=True)
    found = _found(function, Moments(mean, torch.ones(1, 4)), method)

    def moment(c: float) -> torch.Tensor:
        return (1 + 2 * c) ** -0.5 * torch.exp(-c * mean.square() / (1 + 2 * c))

    first, second = moment(power), moment(2 * power)
    torch.testing.assert_close(found.mean, first, rtol=1e-3, atol=0)
    torch.testing.assert_close(found.var, second - first.square(), rtol=5e-3, atol=0)
    for own, expected in ((found.mean, first), (found.var, second - first.square())):
        slopes = (torch.autograd.grad(value.sum(), mean, retain_graph=True)[0] for value in (own, expected))
        torch.testing.assert_close(*slopes, rtol=1e-2, atol=1e-5)


_OF_A_NUMBER: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: torch.softmax(x, 0),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "softmin": lambda x: torch.nn.functional.softmin(x, 0),
    "var": lambda x: x.var(0, correction=0),
    "std_mean": lambda x: torch.std_mean(x, 0, correction=0)[1],
    "normalize": lambda x: torch.nn.functional.normalize(x + 9, dim=0),
    "var, its dimension kept": lambda x: x.var(-1, correction=0, keepdim=True),
}


@pytest.mark.parametrize("name", _OF_A_NUMBER)
def test_a_number_has_one_dimension_of_one_value_as_in_torch(name: str, method: Any) -> None:
    """Each function here gives a constant, or its argument."""
    function, x = _OF_A_NUMBER[name], noisy(torch.tensor([0.3, -0.4]), std=0.2)
    found = _found(
        lambda v: torch.stack([function(one) for one in v[:, 0]]), Moments(x.mean[:, None], x.var[:, None]), method
    )
    plain = torch.stack([function(one) for one in x.mean])
    torch.testing.assert_close(found.mean.flatten(), plain)
    expected = 0.2 if name == "std_mean" else 0.0
    torch.testing.assert_close(found.std.flatten(), torch.full((2,), expected), rtol=1e-5, atol=1e-5)


def test_the_inner_product_of_numbers_is_their_product(method: Any) -> None:
    found = _found(
        lambda x: torch.stack([torch.inner(one, one) for one in x[:, 0]]), noisy(torch.zeros(2, 1), std=1.0), method
    )
    torch.testing.assert_close((found.mean, found.var), (torch.ones(2), torch.full((2,), 2.0)), rtol=1e-4, atol=0)


def test_one_class_that_is_not_masked_is_certain(method: Any) -> None:
    x = noisy(torch.tensor([[0.3, -0.4]]), std=0.2)
    mask = torch.tensor([False, True])
    for function, value in ((torch.softmax, 1.0), (torch.log_softmax, 0.0)):
        found = _found(lambda v, f=function: f(v.masked_fill(mask, -torch.inf), -1)[:, :1], x, method)
        torch.testing.assert_close((found.mean, found.std), (torch.tensor([[value]]), torch.zeros(1, 1)))


def test_a_softmax_of_masked_logits_is_that_of_the_others(method: Any) -> None:
    x, mask = noisy(torch.tensor([[0.3, -0.4, 1.0]]), std=0.2), torch.tensor([False, True, False])
    found = _found(lambda v: v.masked_fill(mask, -torch.inf).softmax(-1)[:, ::2], x, method)
    others = _found(lambda v: v.softmax(-1), Moments(x.mean[:, ::2], x.var[:, ::2]), method)
    torch.testing.assert_close((found.mean, found.std), (others.mean, others.std), rtol=1e-3, atol=0)


@pytest.mark.parametrize("function", [torch.std_mean, torch.var_mean])
def test_a_mean_beside_an_undefined_deviation_keeps_its_own_sigma(function: Any, method: Any) -> None:
    x = noisy(torch.tensor([[0.3], [-0.4]]), std=0.2)
    found = _found(lambda v: function(v, 1)[1], x, method)  # of one value the other result is NaN, in plain torch too
    torch.testing.assert_close((found.mean, found.std), (x.mean[:, 0], x.std[:, 0]))
    assert _found(lambda v: function(v, 1)[0], x, method).mean.isnan().all()


#: functions of two values, of which the first may be one value in all places
_OF_TWO: list[Callable[[Any, Any], Any]] = [
    lambda one, x: one * x,
    lambda one, x: one + x.sin(),
    lambda one, x: one / (x.square() + 1),
    lambda one, x: one**2 + x,
    lambda one, x: one.clamp(-0.1, 0.3) + x,
    lambda one, x: F.silu(one) * x,
    torch.maximum,
]


def _expanded(function: Callable[[Any, Any], Any]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """The function of a value whose places share memory, and of its copy."""
    return (lambda x: function(x[:, :1].expand_as(x), x), lambda x: function(x[:, :1].expand_as(x).clone(), x))


@pytest.mark.parametrize("method", ["ap2", None])
@pytest.mark.parametrize(
    ("written", "same"),
    [
        *map(_expanded, _OF_TWO),
        (lambda x: torch.maximum(x, torch.zeros(3)), torch.relu),
        (lambda x: x.clone().requires_grad_().tanh(), torch.tanh),
        (lambda x: torch.zeros(len(x), 3, 3).baddbmm(batch1=x[:, :, None], batch2=x[:, None], beta=0.5),
            lambda x: torch.zeros(len(x), 3, 3).baddbmm(x[:, :, None], x[:, None], beta=0.5)),
        (lambda x: torch.addmm(input=torch.ones(3), mat1=x, mat2=torch.ones(3, 3), alpha=2),
            lambda x: torch.addmm(torch.ones(3), x, torch.ones(3, 3), alpha=2)),
        (lambda x: torch.lerp(x, end=torch.ones(3), weight=0.3), lambda x: torch.lerp(x, torch.ones(3), 0.3)),
        (lambda x: torch.addcmul(x, tensor1=x, tensor2=x, value=2), lambda x: torch.addcmul(x, x, x, value=2)),
        (lambda x: torch.linalg.vecdot(x=x, y=x), lambda x: torch.linalg.vecdot(x, x)),
        (lambda x: torch.cat(tensors=(x, 2 * x), dim=-1), lambda x: torch.cat((x, 2 * x), -1)),
        (lambda x: F.scaled_dot_product_attention(query=x[:, None], key=x[:, None], value=x[:, None]),
            lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])),
        (lambda x: (x + 0).fill_(value=0.3), lambda x: (x + 0).fill_(0.3)),
        (lambda x: (x + 0).copy_(other=2 * x), lambda x: 2 * x),
    ],
)  # fmt: skip
def test_other_ways_to_write_a_call_have_the_same_moments(written: Any, same: Any, method: Any) -> None:
    """Operands by name, values whose places share memory, certain values of fewer dimensions, flags of autograd."""
    x = noisy(torch.tensor([[0.3, -0.2, 0.9]]), std=0.3)
    torch.testing.assert_close(tuple(_found(written, x, method)), tuple(_found(same, x, method)))


@pytest.mark.parametrize(
    ("function", "same"),
    [
        (lambda x: x / x.clone(), lambda x: x * 0 + 1),
        (lambda x: (x * x + 2 * x) / x, lambda x: x + 2),
        (lambda x: torch.lerp(torch.ones(3), x, x), lambda x: (x - 0.5).square() + 0.75),
        (lambda x: torch.lerp(x, torch.ones(3), x), lambda x: 1 - (x - 1).square()),
    ],
)
def test_functions_of_one_value_share_it(function: Any, same: Any, method: Any) -> None:
    x = noisy(torch.tensor([[0.3, -0.2, 2.9]]), std=0.3)
    found, expected = _found(function, x, method), _found(same, x, method)
    torch.testing.assert_close((found.mean, found.var), (expected.mean, expected.var), rtol=1e-4, atol=1e-5)


DOUBLE = torch.float64


@pytest.mark.parametrize("method", ["ap2", None])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.maximum(x, torch.zeros(4, dtype=DOUBLE)),
        lambda x: torch.minimum(torch.zeros(4, dtype=DOUBLE), x),
        lambda x: torch.maximum(x[:, :2], x[:, 2:].double()),
        lambda x: x * torch.tensor(2.0, dtype=DOUBLE),
        lambda x: x.double() ** 2,
        lambda x: torch.tanh(F.linear(x.relu().double(), torch.ones(5, 4, dtype=DOUBLE))).float().exp(),
        lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=DOUBLE),
        lambda x: torch.softmax(x, 1, dtype=DOUBLE),
    ],
)
def test_a_network_may_go_on_in_another_dtype(function: Callable[[Any], Any], method: Any) -> None:
    x = noisy(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), std=0.3)
    found, wide = _found(function, x, method), _found(function, Moments(x.mean.double(), x.var.double()), method)
    assert found.mean.dtype is found.var.dtype is function(x.mean).dtype
    rtol = 1e-4 if method == "ap2" else 0.2  # other draws
    torch.testing.assert_close(found.mean.double(), wide.mean.double(), rtol=rtol, atol=rtol * float(wide.std.max()))
    torch.testing.assert_close(found.std.double(), wide.std.double(), rtol=rtol, atol=rtol * float(wide.std.max()))
