"""The method ``covariance``: exact where it says so, sampling elsewhere, and what it refuses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from networks.zoo import BY_NAME
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.errors import InputError, UnsupportedError
from momentgen.laws.covariance import options
from momentgen.runtime import JointMoments

DRAWS = 1_000_000
#: of tests/networks, one of each kind
ZOO = ("multihead_attention", "transformer_encoder_layer_norm_first", "gru_cell", "siren", "nerf", "tcn")


def joint(network: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return momentgen.convert(network, "covariance")(*args, **kwargs)


def noisy(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, spread: float = 0.5) -> Moments:
    draw = torch.Generator().manual_seed(seed)
    mean, var = torch.randn(shape, generator=draw), torch.rand(shape, generator=draw) * spread + 0.02
    return Moments(mean.to(dtype), var.to(dtype))


def sampled(network: nn.Module, x: Moments, n: int = DRAWS, chunk: int = 50_000) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the flattened output for the first example of ``x``, by sampling."""
    draw = torch.Generator().manual_seed(5)
    total: Any = 0.0
    outer: Any = 0.0
    shift: Tensor | None = None
    with torch.no_grad():
        for _ in range(n // chunk):
            z = torch.randn(chunk, *x.mean.shape[1:], generator=draw).to(x.mean.dtype)
            out = network(x.mean[:1] + x.var[:1].sqrt() * z).flatten(1).double()
            shift = out.mean(0) if shift is None else shift
            out = out - shift
            total, outer = total + out.sum(0), outer + out.T @ out
    mean = total / n
    return mean + shift, outer / n - torch.outer(mean, mean)


def assert_close_to_samples(
    network: nn.Module, x: Moments, off: float, of_sd: float, of_mean: float, n: int = DRAWS
) -> JointMoments:
    """Frobenius error of the covariance, geometric mean of σ, and means in σ, within the given bounds."""
    with torch.no_grad():
        out = joint(network, x)
    mean, cov = sampled(network, x, n)
    sd = cov.diagonal().sqrt()
    assert float((out.covariance[0] - cov).norm() / cov.norm()) < off
    assert abs(float((out.std[0].flatten() / sd).log().mean())) < of_sd
    assert float(((out.mean[0].flatten() - mean) / sd).abs().max()) < of_mean
    assert_sound(out)
    return out


def assert_sound(out: JointMoments) -> None:
    """Finite, symmetric to the bit, positive semidefinite, variances not negative and those of the covariance."""
    cov = out.covariance
    assert cov.isfinite().all()
    assert torch.equal(cov, cov.mT)
    assert (out.var >= 0).all()
    largest = cov.diagonal(dim1=-2, dim2=-1).amax(-1)
    assert (torch.linalg.eigvalsh(cov.double()).amin(-1) >= -1e-6 * largest).all()
    rest = (cov.diagonal(dim1=-2, dim2=-1) - out.var.flatten(1)).abs()
    assert (rest <= 1e-5 * largest[:, None]).all()


# ---------------------------------------------------------------------- exact


class Linear(nn.Module):
    """Linear maps that meet again, moved and put together in many ways."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, stride=1)
        self.norm = nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        z = F.avg_pool2d(self.up(y), 2) - 0.3 * x
        both = torch.cat([y.permute(0, 2, 1, 3).reshape(1, 4, 4, 4)[:, :2], z.flip(-1)], 1).contiguous()
        both = torch.where(both.new_ones(both.shape).cumsum(-1) > 1, both, 2.0)
        parts = [part.mean((2, 3)) for part in F.pad(both, (1, 0, 0, 1), value=3.0).chunk(2, 1)]
        flat = torch.stack(parts, 1).roll(1, 2)
        written = torch.zeros_like(torch.cat([flat, flat], 2))
        written[:, :, ::2] = flat
        written[..., 1] = flat.sum(-1) / 2
        out = self.head(written.flatten(1)).unflatten(1, (3, 1)).expand(-1, -1, 2)
        out = out + F.interpolate(z.mean(1)[:, None, :3, :2], (3, 2))[:, 0]
        out *= 1.5
        return torch.diff(out, dim=1).tril()


def test_linear_networks_are_exact() -> None:
    network, x = Linear().double().eval(), noisy(2, 2, 4, 4, dtype=torch.float64)
    out = joint(network, x)
    for i in range(2):
        jacobian = torch.func.jacrev(lambda mean: network(mean[None])[0])(x.mean[i]).reshape(out.mean[i].numel(), -1)
        expected = jacobian @ torch.diag(x.var[i].flatten()) @ jacobian.T
        torch.testing.assert_close(out.mean[i], network(x.mean[i : i + 1])[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(out.covariance[i], expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(out.var[i].flatten(), expected.diagonal(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("function", "terms", "coefficients"),
    [
        (torch.square, 2, lambda m, v: [2 * m, 2 + 0 * m]),
        (lambda x: x**3, 3, lambda m, v: [3 * (m * m + v), 6 * m, 6 + 0 * m]),
        (lambda x: x**4, 4, lambda m, v: [4 * m**3 + 12 * m * v, 12 * (m * m + v), 24 * m, 24 + 0 * m]),
        (torch.exp, 4, lambda m, v: [(m + v / 2).exp()] * 4),
        (torch.sin, 4, lambda m, v: [s * (-v / 2).exp() for s in (m.cos(), -m.sin(), -m.cos(), m.sin())]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_hermite_terms_are_those_of_the_function(
    function: Any, terms: int, coefficients: Any, dtype: torch.dtype
) -> None:
    weight = torch.tensor([[0.5, 0.2, -0.1], [0.3, -0.4, 0.6]], dtype=dtype)
    x = noisy(1, 3, seed=3, dtype=dtype, spread=0.3)
    with options(terms=terms):
        out = joint(Of(lambda x: function(F.linear(x, weight))), x)
    wide, var = weight.double(), x.var[0].double()
    mean, cov = wide @ x.mean[0].double(), wide @ torch.diag(var) @ wide.T
    expected = sum(
        float(c[0] * c[1]) * cov[0, 1] ** k / math.factorial(k)
        for k, c in enumerate(coefficients(mean, cov.diagonal()), 1)
    )
    rtol = 1e-9 if dtype is torch.float64 else 1e-4
    torch.testing.assert_close(out.covariance[0, 0, 1].double(), expected, rtol=rtol, atol=rtol * float(out.var.max()))


def test_relu_of_two_equal_values_keeps_what_four_terms_say() -> None:
    """At mean 0 ReLU's coefficients are 1/2, φ(0), 0 and −φ(0) in units of σ."""
    with options(terms=4):
        out = joint(Of(lambda x: torch.relu(x.expand(-1, 2))), Moments(torch.zeros(1, 1), torch.ones(1, 1)))
    shares = [1 / 4, 1 / (4 * math.pi), 0.0, 1 / (48 * math.pi)]
    torch.testing.assert_close(out.covariance[0, 0, 1], torch.tensor(sum(shares)), rtol=1e-5, atol=0)
    torch.testing.assert_close(out.var[0, 0], torch.tensor(0.5 - 0.5 / math.pi), rtol=1e-6, atol=0)
    assert_sound(out)


def test_products_of_jointly_normal_values_are_exact() -> None:
    first, second = torch.randn(2, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = noisy(1, 3, dtype=torch.float64)
    out = joint(Of(lambda x: F.linear(x, first) * F.linear(x, second)), x)
    cov = torch.diag(x.var[0])
    # E of products of quadratic forms xᵀA_i x of normal values, with A_i the symmetric part of first_i second_iᵀ
    forms = [(torch.outer(a, b) + torch.outer(b, a)) / 2 for a, b in zip(first, second, strict=True)]
    m = x.mean[0]
    for i, a in enumerate(forms):
        torch.testing.assert_close(out.mean[0, i], m @ a @ m + (a @ cov).trace())
        for j, b in enumerate(forms):
            expected = 2 * (a @ cov @ b @ cov).trace() + 4 * m @ a @ cov @ b @ m
            torch.testing.assert_close(out.covariance[0, i, j], expected)


def test_mean_and_variance_of_the_larger_of_two_jointly_normal_values_are_exact() -> None:
    weight = torch.tensor([[1.0, 0.5], [0.8, -0.2]])
    x = noisy(1, 2)

    def larger(x: Tensor) -> Tensor:
        a, b = F.linear(x, weight).split(1, 1)
        return torch.cat([torch.maximum(a, b), torch.minimum(a, b), torch.maximum(a, torch.tensor(0.3))], 1)

    mean, cov = sampled(Of(larger), x)
    out = joint(Of(larger), x)
    torch.testing.assert_close(out.mean[0].double(), mean, rtol=0, atol=4e-3 * float(cov.max()) ** 0.5)
    torch.testing.assert_close(out.var[0].double(), cov.diagonal(), rtol=6e-3, atol=0)
    assert_sound(out)


# ------------------------------------------------------------------- sampling


def mlp(activation: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, 4))


class Residual(nn.Module):
    """Blocks whose branches meet their input, in place."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(8, 8) for _ in range(2 * blocks))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for first, second in zip(self.inner[::2], self.inner[1::2], strict=True):
            identity = x
            x = second(F.relu(first(x), inplace=True))
            x += identity
        return self.head(F.gelu(x))


def convolutional() -> nn.Module:
    layers = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()
    net = nn.Sequential(*layers, nn.Linear(12, 3))
    net[1].running_mean.uniform_(-0.3, 0.3)
    net[1].running_var.uniform_(0.2, 1.0)
    return net


def _attending(net: nn.Module, x: Tensor) -> Tensor:
    """Attention by torch's function and by hand, each with its input added."""
    q, k, v = net.first(x).chunk(3, -1)
    x = x + F.scaled_dot_product_attention(q, k, v)
    q, k, v = net.second(x).chunk(3, -1)
    return net.norm(x + (q @ k.mT / 2).softmax(-1) @ v)


def _stepping(net: nn.Module, x: Tensor) -> Tensor:
    state = (x[:, 0, :3], x[:, 1, 1:])
    for step in range(3):
        state = net.cell(x[:, step], state)
    return torch.cat(state, 1)


@pytest.mark.parametrize(
    ("make", "shape", "spread", "off", "of_sd", "of_mean"),
    [
        (lambda: mlp(nn.ReLU), (16,), 0.2, 0.03, 0.005, 0.01),
        (lambda: mlp(nn.GELU), (16,), 0.2, 0.01, 0.002, 0.01),
        (lambda: mlp(nn.Tanh), (16,), 0.2, 0.01, 0.002, 0.01),
        (Residual, (8,), 0.05, 0.02, 0.005, 0.01),
        (convolutional, (1, 6, 6), 0.05, 0.04, 0.015, 0.1),
        (
            lambda: Of(_attending, first=nn.Linear(4, 12), second=nn.Linear(4, 12), norm=nn.LayerNorm(4)),
            *((3, 4), 0.05, 0.05, 0.01, 0.06),
        ),
        (lambda: Of(_stepping, cell=nn.LSTMCell(4, 3)), (3, 4), 0.05, 0.015, 0.005, 0.01),
    ],
)
def test_a_network_agrees_with_sampling(
    make: Any, shape: tuple[int, ...], spread: float, off: float, of_sd: float, of_mean: float
) -> None:
    torch.manual_seed(0)
    assert_close_to_samples(
        make().eval(), noisy(1, *shape, spread=spread), off, of_sd, of_mean, DRAWS if len(shape) == 1 else 200_000
    )


def test_dropout_of_values_and_of_channels_agrees_with_sampling() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 8)

    def run(x: Tensor) -> Tensor:
        y = F.dropout(F.relu(layer(x)), 0.3, True)
        return F.dropout1d(y.view(-1, 2, 4), 0.4, True).flatten(1)

    network = Of(run).train()
    assert_close_to_samples(network, noisy(1, 6), 0.03, 0.006, 0.006)


def test_noise_of_certain_values_is_independent_noise() -> None:
    network = Of(lambda x: F.dropout(x, 0.5, True) + F.dropout(x, 0.5, True)).train()
    out = joint(network, torch.full((1, 2), 3.0))
    torch.testing.assert_close(out.mean, torch.full((1, 2), 6.0))
    torch.testing.assert_close(out.covariance[0], torch.eye(2) * 18, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("name", ZOO)
def test_networks_of_other_people_run_unmodified(name: str) -> None:
    network = BY_NAME[name]
    mean = network.mean()
    with torch.no_grad():
        out = network.call(momentgen.convert(network.build(), "covariance"), Moments(mean, torch.full_like(mean, 1e-4)))
    assert out.mean.shape == mean.shape[:1] + out.mean.shape[1:]
    assert (out.var > 0).any()
    assert_sound(out)


# ----------------------------------------------------------------- properties


def test_no_noise_gives_the_plain_output_and_no_covariance() -> None:
    network, mean = Residual(), noisy(2, 8).mean
    out = joint(network, Moments(mean, torch.zeros_like(mean)))
    torch.testing.assert_close(out.mean, network(mean))
    assert not out.var.any()
    assert not out.covariance.any()


def test_an_example_does_not_depend_on_the_others_nor_on_how_many_fit() -> None:
    network, x = Residual(), noisy(5, 8)
    whole = joint(network, x)
    with options(memory=8 * 8 * 4 * 2):  # two examples at a time, and old matrices forgotten
        few = joint(network, x)
    single = joint(network, Moments(x.mean[3:4], x.var[3:4]))
    for other, mine in ((few, whole), (single, JointMoments.of(whole.mean[3:4], whole.var[3:4], whole.factor[3:4]))):
        torch.testing.assert_close(other.mean, mine.mean)
        torch.testing.assert_close(other.covariance, mine.covariance)


def test_an_output_of_no_values_has_no_covariance() -> None:
    assert joint(Of(lambda x: x[:, :0]), noisy(2, 3)).covariance.shape == (2, 0, 0)


@pytest.mark.parametrize("method", ["adjoint", "covariance"])
def test_the_variant_of_a_layer_is_that_which_was_chosen(method: Any) -> None:
    layer, x = momentgen.nn.LeakyReLU(0.1), noisy(1, 3)
    with momentgen.method(method):
        out = momentgen.nn.set_variant(layer, "fitted")(x)
    torch.testing.assert_close(out.var, layer(x).var)


def test_writing_in_place_is_seen_under_every_name() -> None:
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))

    def in_place(x: Tensor) -> Tensor:
        y = F.linear(x, weight)
        flat = y.view(2, 2)
        flat.relu_()
        y.mul_(2).unsqueeze_(0)
        z = torch.zeros_like(x)
        z[:, 1:] = flat.reshape(1, 4)[:, :3]
        z[0, 0] = 1.0
        z += x
        return z

    def out_of_place(x: Tensor) -> Tensor:
        y = 2 * F.relu(F.linear(x, weight))
        return torch.cat([torch.ones_like(x[:, :1]), y[:, :3]], 1) + x

    x = noisy(2, 4)
    out, expected = joint(Of(in_place), x), joint(Of(out_of_place), x)
    torch.testing.assert_close(out.mean, expected.mean)
    torch.testing.assert_close(out.covariance, expected.covariance)


# ------------------------------------------------------------------- gradients


def test_gradients_are_those_of_differences() -> None:
    weights = torch.randn(3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = noisy(1, 2, dtype=torch.float64)

    def run(mean: Tensor, var: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def forward(x: Tensor) -> Tensor:
            y = torch.sin(F.linear(x, weights[0]))
            return F.linear(y * F.linear(x, weights[1]).softmax(1) + y, weights[2])

        out = joint(Of(forward), Moments(mean, var))
        return out.mean, out.var, out.covariance

    given = tuple(part.requires_grad_() for part in (*x, weights))
    assert torch.autograd.gradcheck(run, given, atol=1e-6)


def test_gradients_of_relu_reach_an_input_without_noise() -> None:
    x = Moments(torch.tensor([[0.5, -0.5]]), torch.zeros(1, 2, requires_grad=True))
    joint(nn.ReLU(), x).var.sum().backward()
    torch.testing.assert_close(x.var.grad, torch.tensor([[1.0, 0.0]]))


# ------------------------------------------------------------------- bad input


def test_a_layer_too_wide_says_what_it_would_take_and_what_to_do() -> None:
    network = nn.Sequential(nn.Linear(2, 300), nn.ReLU())
    said = r"linear, in 0 \(Linear\).*300 values takes.*controlled"
    with options(memory=100_000), pytest.raises(InputError, match=said):
        joint(network, noisy(1, 2))


def _one(function: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: joint(Of(function), noisy(2, 3))


def _relu(mean: Tensor, var: Tensor) -> Callable[[], Any]:
    return lambda: joint(nn.ReLU(), Moments(mean, var))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (_one(lambda x: x.argmax(1)), UnsupportedError, "argmax of a random value, Covariance.*depends on the value"),
        (_one(lambda x: torch.log(x)), UnsupportedError, "log of a random value.*not defined for every value"),
        (
            _one(lambda x: F.batch_norm(x[..., None], None, None, training=True)),
            UnsupportedError,
            "batch_norm.*one by one.*eval",
        ),
        (_one(lambda x: x[:, :2].relu_() + x[:, :2]), UnsupportedError, "another name that is in use"),
        (_one(lambda x: torch.linalg.det(x)), UnsupportedError, r"torch.linalg.det of a random value, Covariance"),
        (_one(lambda x: torch.gather(x, 1, x)), UnsupportedError, "indices cannot be random"),
        # outputs without the example in front
        (_one(lambda x: x.T), InputError, r"dimension 0, got shape \(3, 1\)"),
        (_one(lambda x: x.sum()), InputError, r"dimension 0, got shape \(\)"),
        (lambda: options(terms=5), InputError, "expected from 1 to 4 terms, or None, got 5"),
        (lambda: options(memory=0), InputError, "positive number of bytes"),
        (_relu(torch.zeros(2, 2), -torch.ones(2, 2)), InputError, "must not be negative"),
        (_relu(torch.zeros(0, 2), torch.ones(0, 2)), InputError, "at least one example"),
    ],
)
def test_what_it_does_not_take_is_refused_by_name(call: Callable[[], Any], error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_a_value_less_itself_has_no_covariance_and_no_warning() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = joint(Of(lambda x: layer(x) - layer(x)), noisy(4, 6))
    assert not out.var.any()
    assert not out.covariance.any()
