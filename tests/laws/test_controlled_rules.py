"""The method ``controlled``: derivatives of functions, against their Jacobians, and what works in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from torch import Tensor, nn

import momentgen
from momentgen import noisy


def _attended(**settings: Any) -> Callable[[Tensor], Tensor]:
    def attended(x: Tensor) -> Tensor:
        q, k, v = x.view(-1, 2, 3, 4).unbind(2)  # x of 24: two positions, three parts of four channels
        return F.scaled_dot_product_attention(2 * q, k, v, **settings)

    return attended


WEIGHT, KERNEL = torch.linspace(0.5, 2, 6, dtype=torch.float64), torch.linspace(-1, 1, 54, dtype=torch.float64)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: F.softmax(3 * x.view(-1, 4, 6), 1),
    "log softmax": lambda x: torch.log_softmax(3 * x, -1),
    "layer norm": lambda x: F.layer_norm(x.view(-1, 4, 6), (6,), WEIGHT, WEIGHT, 1e-3),
    "layer norm of two dimensions": lambda x: F.layer_norm(x.view(-1, 4, 6), (4, 6)),
    "group norm": lambda x: F.group_norm(x.view(-1, 6, 2, 2), 3, WEIGHT, WEIGHT, 1e-3),
    "max pool": lambda x: F.max_pool2d(x.view(-1, 1, 4, 6), 2),
    "max pool of windows that overlap": lambda x: F.max_pool2d(x.view(-1, 1, 4, 6), (3, 2), (2, 1), 1, (1, 2)),
    "max pool in one dimension": lambda x: F.max_pool1d(x.view(-1, 2, 12), 3, 2),
    "products": lambda x: x.view(-1, 4, 6) @ x.view(-1, 6, 4) * x[:, :16].view(-1, 4, 4),
    "choices": lambda x: torch.where(x > 0.3, x.flip(1), 2 * x).maximum(x.roll(1, 1)).masked_fill(x < -1, 0.5),
    "without a rule": lambda x: F.normalize(x.view(-1, 4, 6), dim=-1).amax(1),
    "attention": _attended(),
    "attention, causal": _attended(is_causal=True, scale=0.7),
    "attention, masked": _attended(attn_mask=torch.tensor([[True, False], [True, True]])),
    "attention, biased": _attended(attn_mask=torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)),
    "attention by certain weights": lambda x: F.scaled_dot_product_attention(WEIGHT.view(1, 1, 6),
        WEIGHT.view(1, 1, 6).expand(len(x), 4, 6) * torch.arange(4.0).double()[:, None], x.view(-1, 4, 6)),
    "convolution of few channels": lambda x: F.conv2d(x.view(-1, 1, 4, 6), KERNEL.view(6, 1, 3, 3), stride=(2, 1),
        padding=1, dilation=(1, 2)),
}  # fmt: skip
#: whose stated error counts that all of 16 rows may miss a kink
KINKED = ("max pool", "max pool of windows that overlap", "max pool in one dimension", "choices", "without a rule")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_little_noise_a_function_is_its_jacobian_and_nothing_is_left_to_draws(name: str) -> None:
    torch.manual_seed(0)
    function, x = FUNCTIONS[name], torch.randn(3, 24, dtype=torch.float64)
    jacobian = torch.stack([torch.func.jacrev(lambda one: function(one[None]).flatten())(one) for one in x])
    expected = jacobian.square().sum(-1).sqrt() * 1e-5
    net = momentgen.convert(Of(lambda x: function(x).flatten(1)[:, :30]), "controlled", max_rows=16)
    found = net(noisy(x, std=1e-5))
    torch.testing.assert_close(found.std, expected[:, :30], rtol=2e-3, atol=1e-12)
    assert (found.std_error <= (1.001 / 16 if name in KINKED else 2e-3) * found.std + 1e-12).all()


@pytest.mark.parametrize("name", ["softmax", "layer norm", "products", "choices", "attention"])
def test_what_rows_say_of_a_derivative_is_differentiated_too(name: str) -> None:
    torch.manual_seed(0)
    net = momentgen.convert(Of(lambda x: FUNCTIONS[name](x).flatten(1)[:, :3]), "controlled", max_rows=16)

    def value(mean: Tensor) -> Tensor:
        found = net(noisy(mean, std=0.2))
        return found.std.sum() + found.mean.sin().sum()

    x = torch.randn(2, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, x, rtol=1e-4, atol=1e-7, fast_mode=True)


@pytest.mark.parametrize("end", [nn.Softmax(-1), nn.LogSoftmax(-1)], ids=["softmax", "log softmax"])
def test_probabilities_of_logits_that_are_not_normal_have_an_error_that_covers_it(end: nn.Module) -> None:
    torch.manual_seed(0)
    # logits that are squares of normal values, far from normal themselves
    net = nn.Sequential(nn.Linear(6, 4), Of(lambda x: 2 * x.square()), end).eval()
    x = torch.randn(12, 6)
    with torch.no_grad():
        drawn = torch.stack([net(x + 0.7 * torch.randn_like(x)) for _ in range(10_000)])
        found = [momentgen.convert(net, "controlled", seed=seed)(noisy(x, std=0.7)) for seed in range(10)]
    std = drawn.std(0)
    large = std > 0.3 * std.mean()
    covered = [((one.std - std).abs() <= 2 * one.std_error)[large].float().mean() for one in found]
    off = [(one.std / std).log()[large].abs().mean() for one in found]
    assert torch.stack(covered).mean() > 0.7
    assert torch.stack(off).mean() < 0.12


@torch.library.custom_op("momentgen_tests::doubled", mutates_args=("x",))
def _doubled(x: Tensor) -> None:
    x.mul_(2)


def _by_data(x: Tensor) -> Tensor:
    x.data = x.data * 2
    return x


def _by_all(x: Tensor) -> Tensor:
    torch._foreach_mul_([x], 2)
    return x


def _by_operator(x: Tensor) -> Tensor:
    _doubled(x)
    return x


def _by_view(view: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        view(x).clamp_(max=0.5)
        return x

    return function


IN_PLACE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "data": (_by_data, lambda x: 2 * x),
    "several tensors": (_by_all, lambda x: 2 * x),
    "an operator": (_by_operator, lambda x: 2 * x),
    "unsqueeze_": (lambda x: x.unsqueeze_(1).exp(), lambda x: x[:, None].exp()),
    "squeeze_": (lambda x: x[:, None].clone().squeeze_(1).exp(), lambda x: x.exp()),
    "t_": (lambda x: x.t_().cumsum(0), lambda x: x.T.cumsum(0)),
    "transpose_": (lambda x: x.view(-1, 2, 2).transpose_(1, 2).flatten(1), lambda x: x.view(-1, 2, 2).mT.flatten(1)),
    "masked_fill_": (lambda x: x.masked_fill_(x > 0.5, 0.5), lambda x: x.clamp(max=0.5)),
    "out=": (lambda x: torch.clamp(x, max=0.5, out=x), lambda x: x.clamp(max=0.5)),
    "out= of several": (lambda x: torch.sort(x, 1, out=(torch.empty(0), torch.empty(0).long()))[0],
        lambda x: x.sort()[0]),
    "a view by T": (_by_view(lambda x: x.T), lambda x: x.clamp(max=0.5)),
    "a view by data": (_by_view(lambda x: x.data), lambda x: x.clamp(max=0.5)),
    "a view by as_strided": (_by_view(lambda x: x.as_strided(x.shape, x.stride())), lambda x: x.clamp(max=0.5)),
    "dropout in evaluation": (_by_view(lambda x: F.dropout(x, 0.5, False)), lambda x: x.clamp(max=0.5)),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_works_in_place_does_so_in_every_draw(name: str) -> None:
    function, expected = IN_PLACE[name]
    off: list[float] = []

    def in_place(x: Tensor) -> Tensor:
        found = function(x.clone())
        with torch._C.DisableTorchFunction():
            off.append(float((found - expected(x)).abs().max()))
        return found

    x = noisy(torch.linspace(-1, 1, 16).view(4, 4), std=0.3)
    with torch.no_grad():
        found = momentgen.convert(Of(in_place).eval(), max_rows=32)(x)
    assert max(off) < 1e-6
    assert (found.std > 0).all()


def test_a_network_that_writes_into_its_input_does_not_write_into_the_means() -> None:
    x = noisy(torch.linspace(-1, 1, 16).view(4, 4), std=0.3)
    given = x.mean.clone()
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten())
    momentgen.convert(net.eval(), max_rows=16)(x)
    momentgen.summary(net, x, samples=2)
    assert torch.equal(x.mean, given)


def test_a_quotient_by_the_number_0_is_that_of_torch() -> None:
    x = noisy(torch.zeros(1, 2), std=1.0)
    found = momentgen.convert(Of(lambda x: (x / 0).sign()), "controlled")(x)
    assert (found.std > 0.9).all()
