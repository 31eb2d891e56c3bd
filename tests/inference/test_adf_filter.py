"""The filter: steps against autograd, batches against single networks, going on, extremes."""

import math

import pytest
import torch

from momentgen.errors import InputError
from momentgen.generated import relu
from momentgen.inference import compiled
from momentgen.inference.adf import DensityFilter, native
from momentgen.inference.adf.network import count_weights, propagate, unflatten
from momentgen.inference.compiled import MissingCompilerError
from momentgen.inference.likelihood import Categorical, Gamma, Gaussian, Probit
from momentgen.runtime.toolchain import Unavailable

NOISY = Gaussian(precision=Gamma(6.0, 6.0))
LIKELIHOODS = [
    (NOISY, 1), (NOISY, 3), (Gaussian(var=0.3), 1), (Probit(), 1), (Categorical(), 4),
    (Categorical("bound"), 4),
]  # fmt: skip


def weights(replicates: int, sizes: tuple[int, ...], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = replicates, count_weights(sizes)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    return mean, 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64)


def likelihood_samples(likelihood) -> bool:
    return isinstance(likelihood, Categorical) and likelihood.expectation != "bound"


def data(likelihood, outputs: int, replicates: int, n: int, dtype=torch.float64, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(replicates, n, 5, generator=generator, dtype=dtype)
    if not isinstance(likelihood, Gaussian):
        return x, torch.randint(0, max(outputs, 2), (replicates, n), generator=generator)
    return x, torch.randn(replicates, n, outputs, generator=generator, dtype=dtype)


def test_the_outputs_moments_are_those_of_sampled_weights() -> None:
    """One hidden layer, where the only approximation is none: mean and variance of the output are exact."""
    mean, var = weights(1, (2, 6, 1))
    x = torch.tensor([[[0.5, -1.0]]], dtype=torch.float64)
    found = propagate(*(unflatten(part, (2, 6, 1)) for part in (mean, var)), x)
    draws = 200_000
    noise = torch.randn(draws, mean.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    first, second = unflatten(mean + var.sqrt() * noise, (2, 6, 1))
    hidden = torch.relu(torch.nn.functional.pad(x, (0, 1), value=1) @ first / math.sqrt(3))
    out = (torch.nn.functional.pad(hidden, (0, 1), value=1) @ second / math.sqrt(7)).flatten()
    assert abs(out.mean() - found.mean.item()) < 5 * out.std() / draws**0.5
    kurtosis = ((out - out.mean()) ** 4).mean() / out.var() ** 2
    assert abs(out.var() - found.var.item()) < 5 * out.var() * ((kurtosis - 1) / draws) ** 0.5


def at(net: DensityFilter, mean: torch.Tensor, var: torch.Tensor) -> DensityFilter:
    for part, value in zip(net.weights, (mean, var), strict=True):
        part.copy_(value)
    return net


@pytest.mark.parametrize("likelihood", [Gaussian(var=0.3), Probit()], ids=str)
def test_the_step_of_probabilistic_backpropagation_is_autograds(likelihood) -> None:
    """Of log Z at the moments of the output, which the tests of evidence compare with quadrature."""
    sizes = (5, 8, 7, 1)
    mean, var = (part.requires_grad_() for part in weights(2, sizes))
    x, y = data(likelihood, 1, 2, 1)
    out = propagate(*(unflatten(part, sizes) for part in (mean, var)), x)
    d_mean, d_var = torch.autograd.grad(likelihood.log_z(out, y.reshape(2, 1, 1)).sum(), (mean, var))
    net = at(DensityFilter(sizes, likelihood, replicates=2), mean.detach(), var.detach())
    net.update(x, y)
    assert net.skipped.sum() == 0
    torch.testing.assert_close(net.weights.mean, (mean + var * d_mean).detach(), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(
        net.weights.var, (var - var**2 * (d_mean**2 - 2 * d_var)).detach(), rtol=1e-11, atol=1e-12
    )


@pytest.mark.parametrize("sizes", [(5, 8, 1), (1, 1, 1, 1)])
def test_the_curvature_of_expectation_backpropagation_is_exact_where_units_have_one_path(sizes) -> None:
    """From each unit of the first layer to the output: products of two paths are what is left out."""
    mean, var = weights(1, sizes, seed=3)
    mean, var, noise = mean.abs(), 0.1 * var, 0.3
    layers = [unflatten(part, sizes) for part in (mean, var)]
    x = torch.randn(1, 1, sizes[0], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    outputs = [propagate(*(part[:layer] for part in layers), x) for layer in range(1, len(sizes))]
    y = outputs[-1].mean + 0.7

    def log_z(u):  # with all variances held
        for layer in range(1, len(sizes) - 1):
            z = torch.nn.functional.pad(relu(u, outputs[layer - 1].var).mean, (0, 1), value=1.0)
            u = z @ layers[0][layer] / math.sqrt(sizes[layer] + 1)
        return -0.5 * ((y - u).square() / (outputs[-1].var + noise)).sum()

    point = outputs[0].mean
    slope = torch.autograd.functional.jacobian(log_z, point).flatten()
    bend = torch.autograd.functional.hessian(log_z, point).reshape(sizes[1], sizes[1]).diagonal()
    z = torch.nn.functional.pad(x[0], (0, 1), value=1.0).mT / math.sqrt(sizes[0] + 1)
    net = at(DensityFilter(sizes, Gaussian(var=noise), rule="ebp"), mean, var)
    net.update(x, y)
    found, (m, v) = [unflatten(part, sizes)[0][0] for part in net.weights], (part[0][0] for part in layers)
    assert net.skipped.sum() == 0
    torch.testing.assert_close(found[0], m + v * z * slope, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(found[1], v + v**2 * z**2 * bend, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("rule", ["pbp", "ebp"])
@pytest.mark.parametrize(("likelihood", "outputs"), LIKELIHOODS)
def test_float32_is_the_same_filter(likelihood, outputs, rule) -> None:
    (x, y), sizes = data(likelihood, outputs, 3, 25), (5, 8, 7, outputs)
    draws = torch.randn(3, 25, 7, outputs, dtype=torch.float64) if likelihood_samples(likelihood) else None
    exact, near = (
        DensityFilter(sizes, likelihood, rule=rule, samples=7, replicates=3, dtype=dtype)
        for dtype in (torch.float64, torch.float32)
    )
    expected, found = exact.update(x, y, draws), near.update(x, y, None if draws is None else draws.float())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for own, other in zip(near.weights, exact.weights, strict=True):
        torch.testing.assert_close(own.double(), other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(near.noise, exact.noise, rtol=1e-4, atol=0)
    assert near.skipped.tolist() == exact.skipped.tolist()


@pytest.mark.parametrize(("likelihood", "outputs"), LIKELIHOODS)
def test_a_batch_of_replicates_is_each_of_them_alone(likelihood, outputs) -> None:
    x, y = data(likelihood, outputs, 3, 10)
    draws = torch.randn(3, 10, 100, outputs, dtype=torch.float64) if likelihood_samples(likelihood) else None
    batch = DensityFilter((5, 6, outputs), likelihood, replicates=3)
    singles = [DensityFilter((5, 6, outputs), likelihood) for _ in range(3)]
    for place, single in enumerate(singles):
        single.weights = type(batch.weights)(*(part[place : place + 1].clone() for part in batch.weights))
    batch.update(x, y, draws)
    for place, single in enumerate(singles):
        at = slice(place, place + 1)
        single.update(x[at], y[at], None if draws is None else draws[at])
        torch.testing.assert_close(batch.weights.mean[at], single.weights.mean, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(batch.weights.var[at], single.weights.var, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(batch.noise[at], single.noise, rtol=1e-11, atol=0)


def test_replicates_may_share_their_data() -> None:
    x, y = data(NOISY, 1, 1, 10)
    shared, own = (DensityFilter((5, 6, 1), NOISY, replicates=3) for _ in range(2))
    shared.update(x, y)
    own.update(x.expand(3, -1, -1), y.expand(3, -1, -1))
    torch.testing.assert_close(tuple(shared.weights), tuple(own.weights), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("rule", ["pbp", "ebp"])
def test_a_step_that_would_make_a_variance_negative_is_skipped_and_counted(rule) -> None:
    """The bound's curvature is not that of an exact log Z: a wide weight would lose more than its variance."""
    net = DensityFilter((1, 2), Categorical("bound"), rule=rule)
    net.weights.mean.zero_()
    net.weights.var.copy_(torch.tensor([[50.0, 0.5, 0.5, 0.5]]))
    before = net.weights.mean.clone(), net.weights.var.clone()
    net.update(torch.ones(1, 1, 1), torch.ones(1, 1))
    if rule == "pbp":
        assert net.skipped.tolist() == [[1, 0, 0]]
        assert (net.weights.mean[0, 0], net.weights.var[0, 0]) == (before[0][0, 0], before[1][0, 0])
    assert (net.weights.var > 0).all()
    assert (net.weights.var[0, 1:] < before[1][0, 1:]).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rule", ["pbp", "ebp"])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_extreme_targets_leave_positive_finite_variances(scale, rule, dtype) -> None:
    x, y = data(NOISY, 1, 2, 30, dtype)
    net = DensityFilter((5, 8, 8, 1), NOISY, rule=rule, replicates=2, dtype=dtype)
    log_z = net.fit(x, scale * y, 2)
    assert log_z.isfinite().all()
    assert net.weights.mean.isfinite().all()
    assert ((net.weights.var > 0) & net.weights.var.isfinite()).all()
    assert ((net.noise > 0) & net.noise.isfinite()).all()
    assert net.output(x).mean.isfinite().all()


def test_outputs_beyond_the_range_of_the_dtype_are_refused() -> None:
    x, y = data(NOISY, 1, 1, 30, torch.float32)
    net = DensityFilter((5, 8, 8, 1), NOISY, rule="ebp", dtype=torch.float32)
    with pytest.raises(InputError, match=r"left the range of torch.float32"):
        net.fit(x, 1e18 * y, 2)


def test_a_machine_without_a_compiler_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(stem: str, source: str) -> None:
        raise Unavailable("no such compiler: /nonexistent/cc")

    native.native.cache_clear()
    monkeypatch.setattr(compiled, "compile_and_load", fail)
    with pytest.raises(MissingCompilerError, match=r"PBP and EBP: expected a C compiler.*no such compiler"):
        DensityFilter((5, 1), NOISY).update(torch.zeros(1, 1, 5), torch.zeros(1, 1))


def test_first_means_have_the_spread_asked_for() -> None:
    published = DensityFilter((99, 300, 1), NOISY)
    wide = DensityFilter((99, 300, 1), NOISY, spread=2.0)
    assert unflatten(published.weights.mean, (99, 300, 1))[0].std().item() == pytest.approx(0.1, rel=0.02)
    assert wide.weights.mean.std().item() == pytest.approx(2.0, rel=0.02)
    assert (wide.weights.var == 6 / 5).all()


def test_a_prior_that_is_not_learnt_stays() -> None:
    x, y = data(NOISY, 1, 1, 20)
    net = DensityFilter((5, 6, 1), NOISY, learn_prior=False)
    law = net.prior.law.clone()
    net.fit(x, y, 2)
    torch.testing.assert_close(net.prior.law, law, rtol=0, atol=0)


@pytest.mark.parametrize("rule", ["pbp", "ebp"])
@pytest.mark.parametrize(
    ("likelihood", "samples"), [(Categorical(), 100), (Categorical(), 1), (Categorical("bound"), 1)]
)
def test_many_passes_over_separable_classes_stay_finite(likelihood, samples, rule) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(200)[None] % 4
    x = torch.randn(1, 200, 5, generator=generator, dtype=torch.float64)
    x[..., :4] += 4 * torch.nn.functional.one_hot(y, 4)
    options = {"samples": samples, "learn_prior": False, "spread": 1.0}
    net = DensityFilter((5, 30, 30, 4), likelihood, rule=rule, **options)
    net.fit(x, y, 30)
    assert (net.output(x).mean.argmax(2) == y).double().mean() > 0.97
    assert net.weights.var.max() < 1e3
