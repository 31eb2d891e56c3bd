"""Variances of hidden layers in the method ``adjoint``: probes bring them to their size (momentgen.laws.probes)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.small_networks import Of
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.laws.notes import listening
from momentgen.laws.numerics.shrinkage import shrunk
from momentgen.laws.probes import pushed
from momentgen.laws.sources import Sources, probes_for
from momentgen.runtime import JointMoments


def relu_of_normal(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of a ReLU, in float64, by the textbook's formulas."""
    std = var.sqrt()
    away = mean / std
    density, share = (-away.square() / 2).exp() / math.sqrt(2 * math.pi), (1 + torch.erf(away / math.sqrt(2))) / 2
    first = mean * share + std * density
    return first, (mean.square() + var) * share + mean * std * density - first.square()


def random_input(count: int, batch: int = 3) -> Moments:
    return Moments(torch.randn(batch, count), torch.rand(batch, count) + 0.1)


def covariance_through(maps: Callable[[Tensor], Tensor], x: Moments) -> tuple[Tensor, Tensor]:
    """Mean and variance of an affine function of one value, in float64."""
    mean = maps(x.mean.double())
    slope = torch.vmap(torch.func.jacrev(lambda one: maps(one[None])[0]))(x.mean.double())
    return mean, (slope.square() * x.var.double()[:, None]).sum(-1)


def check(net: nn.Module, maps: Callable[[Tensor], Tensor], x: Moments, tolerance: float = 1e-4) -> None:
    """The network is ReLU of ``maps``, an affine function to one value, so that its moments are known."""
    found = momentgen.convert(net, method="adjoint")(x)
    mean, var = relu_of_normal(*covariance_through(maps, x))
    torch.testing.assert_close(found.mean.double(), mean, rtol=tolerance, atol=1e-5)
    torch.testing.assert_close(found.var.double(), var, rtol=tolerance, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 16), st.integers(0, 1000))
def test_of_few_inputs_the_variance_behind_two_layers_is_exact(inputs: int, seed: int) -> None:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(inputs, 20), nn.Linear(20, 1), nn.ReLU())
    affine = nn.Sequential(net[0], net[1])

    def maps(x: Tensor) -> Tensor:
        return torch.func.functional_call(affine, {k: v.double() for k, v in affine.state_dict().items()}, x)

    check(net, maps, random_input(inputs))


def around(between: Callable[[Tensor, nn.Module], Tensor]) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Two layers with something between or around them, to one value whose ReLU is taken; and without the ReLU."""
    layers = nn.ModuleDict({"first": nn.Linear(6, 8), "inner": nn.Linear(8, 8), "last": nn.Linear(8, 1)})

    def affine(net: Any, x: Tensor) -> Tensor:
        return net.last(between(net.first(x), net.inner))

    exact = copy.deepcopy(layers).double()
    return Of(lambda net, x: affine(net, x).relu(), **layers), lambda x: affine(exact, x)


def _in_place(h: Tensor, inner: nn.Module) -> Tensor:
    h = h.mul(1.0)
    h += inner(h)
    return h


AFFINE: dict[str, Callable[[Tensor, nn.Module], Tensor]] = {
    "residual": lambda h, inner: h + inner(h),
    "difference": lambda h, inner: h - inner(h),
    "in place": _in_place,
    "moved": lambda h, inner: h.reshape(-1, 2, 4).transpose(1, 2).flatten(1).contiguous(),
    "joined": lambda h, inner: torch.cat([h[:, 4:], inner(h)[:, :4]], 1),
    "turned": lambda h, inner: h.flip(1).roll(2, 1),
    "stacked": lambda h, inner: torch.stack([h, inner(h)], 1).mean(1),
    "scaled": lambda h, inner: 3 * h / 2 - 1,
    "masked": lambda h, inner: h.masked_fill(torch.arange(8) < 3, 0.5),
    "multiplied": lambda h, inner: h @ inner.weight,
    "batch norm": lambda h, inner: torch.nn.functional.batch_norm(
        h, torch.zeros(8, dtype=inner.weight.dtype), torch.full((8,), 2.0, dtype=inner.weight.dtype)
    ),
}


@pytest.mark.parametrize("between", AFFINE)
def test_probes_go_through_what_adds_scales_and_moves(between: str) -> None:
    torch.manual_seed(1)
    check(*around(AFFINE[between]), random_input(6))


def test_an_input_with_a_covariance_has_it_in_its_probes() -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(30, 1), nn.ReLU())
    x = JointMoments.of(torch.randn(2, 30), torch.ones(2, 30), torch.randn(2, 3, 30))
    found = momentgen.convert(net, method="adjoint")(x)
    weight = net[0].weight.double()
    mean = x.mean.double() @ weight.T + net[0].bias.double()
    factor = x.factor.double() @ weight.T
    expected = relu_of_normal(mean, factor.square().sum(1))
    torch.testing.assert_close(found.mean.double(), expected[0].detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.var.double(), expected[1].detach(), rtol=1e-4, atol=1e-6)


def test_probes_go_through_a_function_that_overwrites_as_through_one_that_does_not() -> None:
    torch.manual_seed(3)
    x = random_input(6)
    for inplace in (False, True):
        torch.manual_seed(4)
        layers = [nn.Linear(6, 8), nn.ReLU(inplace), nn.Linear(8, 8), nn.ReLU(inplace), nn.Linear(8, 1)]
        found = momentgen.convert(nn.Sequential(*layers), method="adjoint")(x)
        if not inplace:
            expected = found
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("image", [False, True])
def test_variances_of_wide_correlated_layers_come_out_within_a_few_per_cent(image: bool) -> None:
    """Layers behind one of few directions, of 200 inputs; truth by 20,000 samples; a diagonal is off by more."""
    torch.manual_seed(5)
    if image:
        front = nn.Conv2d(2, 8, 5, padding=2)
        with torch.no_grad():
            front.weight.copy_(front.weight.mean(0, keepdim=True) + 0.1 * front.weight)
        net = nn.Sequential(front, nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 1))
        x = Moments(torch.rand(2, 2, 10, 10), torch.full((2, 2, 10, 10), 0.05))
    else:
        front = nn.Linear(200, 100)
        with torch.no_grad():
            front.weight.copy_(torch.randn(100, 4) @ torch.randn(4, 200) / 20)
        net = nn.Sequential(front, nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 1))
        x = Moments(torch.randn(2, 200), torch.full((2, 200), 0.05))
    with torch.no_grad():
        samples = torch.stack([net(x.mean + x.var.sqrt() * torch.randn_like(x.mean)) for _ in range(20000)])
        found, diagonal = (momentgen.convert(net, method=method)(x) for method in ("adjoint", "ap2"))
    ratio, of_diagonal = ((moments.var.sqrt() / samples.std(0)).flatten() for moments in (found, diagonal))
    assert ((of_diagonal - 1).abs() > 0.1).all()
    assert ((ratio - 1).abs() < 0.03).all(), ratio
    off, was = (((moments.mean - samples.mean(0)).abs() / samples.std(0)).max() for moments in (found, diagonal))
    assert off < was
    assert off < 0.1


def test_networks_of_many_inputs_have_few_probes_and_those_of_few_inputs_many() -> None:
    """Inputs count that are certain, too, where the noise is the network's own."""
    for inputs, random, expected in ((10, True, 16), (10, False, 16), (100, True, 4), (100, False, 4)):
        laws: list[Any] = []

        def dropped(net: Any, x: Tensor) -> Tensor:
            hidden = net.drop(net.first(x))
            laws.append(hidden)  # noqa: B023
            return net.last(hidden)

        net = Of(dropped, first=nn.Linear(inputs, 8), drop=nn.Dropout(0.5), last=nn.Linear(8, 1)).eval()
        net.drop.train()
        converted = momentgen.convert(net, method="adjoint")
        x = torch.zeros(1, inputs)
        converted(Moments(x, torch.ones_like(x)) if random else x)
        assert len(laws[-1]._joint.rows) == expected


def test_neighbouring_sources_are_uncorrelated_among_the_probes() -> None:
    """Exactly, up to as many as there are probes, also across sources; and single products are signs."""
    for probes in {probes_for(10), probes_for(1000)}:
        sources = Sources([], torch.float32, probes)
        drawn = torch.cat([sources.moved(torch.ones(count)) for count in (1, 3, probes, 2 * probes)], 1)
        assert torch.equal(drawn.square(), torch.ones_like(drawn))
        for start in range(2 * probes + 4):
            some = drawn[:, start : start + probes]
            assert torch.equal(some.T @ some, probes * torch.eye(probes))


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "truth values": {"attn_mask": torch.arange(5) < torch.arange(1, 6)[:, None]},
    "added": {"attn_mask": torch.arange(25.0).view(5, 5) / 10},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
}


@pytest.mark.parametrize("form", FORMS)
def test_torch_differentiates_every_form_of_attention_forwards(form: str) -> None:
    torch.manual_seed(7)

    def attending(net: Any, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(*net.first(x).chunk(3, -1), **FORMS[form]).flatten(1)

    net = momentgen.convert(Of(attending, first=nn.Linear(4, 12)), method="adjoint")
    with listening() as notes:
        found = net(Moments(torch.randn(3, 5, 4), torch.rand(3, 5, 4) / 10))
    assert found.var.isfinite().all()
    assert not any("forwards" in note for note in notes)


def test_a_function_that_torch_cannot_differentiate_forwards_says_that_its_values_count_as_independent() -> None:
    def without_tangent(x: Tensor) -> Tensor:
        raise NotImplementedError("Trying to use forward AD with a function that does not support it")

    with listening() as notes:
        assert pushed(without_tangent, [torch.zeros(3)], [torch.ones(4, 3)], "strange") is None
    assert any("strange" in note and "independent" in note for note in notes)


def test_no_variance_and_one_beyond_range_stay_what_they_are() -> None:
    torch.manual_seed(6)
    net = momentgen.convert(nn.Sequential(nn.Linear(100, 9), nn.ReLU(), nn.Linear(9, 1)), method="adjoint")
    x = torch.randn(2, 100)
    assert torch.equal(net(Moments(x, torch.zeros_like(x))).var, torch.zeros(2, 1))
    for scale in (1e-44, 1e-38, 1e-30, 1e30):
        found = net(Moments(x, torch.full_like(x, scale)))
        assert found.mean.isfinite().all()
        assert (found.var >= 0).all()


def test_factors_of_next_to_no_variance_have_finite_gradients() -> None:
    """1 / prior² is beyond range below 1e-19."""
    for scale in (1e-36, 1e-30, 1e-20, 1.0):
        prior = (scale * torch.rand(1, 1, 4, 4)).requires_grad_()
        rows = (scale**0.5 * torch.randn(4, 1, 1, 4, 4)).requires_grad_()
        (shrunk(prior, rows, None) * prior).sum().backward()
        assert prior.grad is not None
        assert rows.grad is not None
        assert prior.grad.isfinite().all(), scale
        assert rows.grad.isfinite().all(), scale
