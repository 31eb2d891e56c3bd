"""log Z, its derivatives and moment matching against quadrature and closed forms."""

import functools
import math

import mpmath as mp
import pytest
import torch

from momentgen.inference.adf import DensityFilter
from momentgen.inference.adf.gamma import PriorFactors, match_gamma
from momentgen.inference.likelihood import Categorical, Gamma, Gaussian, Likelihood, Probit
from momentgen.runtime import Moments

X, START = 0.7, (4.0, 3.0)
#: a network of one unit: w1, b1, w2, b2
MEAN, VAR = (0.8, -0.3, 1.2, 0.4), (0.6, 0.9, 0.5, 0.3)


def normal_expectation(f, mean, var, kink=None):
    """E f(u) for u ~ N(mean, var), by quadrature."""
    sd = mp.sqrt(var)
    ends = [mean + k * sd for k in (-12, -4, 0, 4, 12)]
    return mp.quad(lambda u: f(u) * mp.npdf(u, mean, sd), sorted(ends if kink is None else [*ends, kink]))


@functools.cache
def relu_by_quadrature(mean, var):
    """E max(u, 0) and E max(u, 0)², as real and imaginary part."""
    return normal_expectation(lambda u: mp.mpc(u, u**2) if u > 0 else 0, mean, var, mp.mpf(0))


def output_by_quadrature(mean, var):
    """Mean and variance of the output of the network of one unit."""
    moments = relu_by_quadrature((mean[0] * X + mean[1]) / mp.sqrt(2), (var[0] * X**2 + var[1]) / 2)
    first, second = moments.real, moments.imag
    return (
        (mean[2] * first + mean[3]) / mp.sqrt(2),
        (var[2] * second + mean[2] ** 2 * (second - first**2) + var[3]) / 2,
    )


def density(likelihood, y):
    """p(y | f) as the filter takes it."""
    if isinstance(likelihood, Probit):
        return lambda f: mp.ncdf(f if y == 1 else -f)
    noise = mp.mpf(likelihood.var.item())
    return lambda f: mp.npdf(y, f, mp.sqrt(noise))


def log_z_by_quadrature(likelihood, y, mean, var):
    return mp.log(normal_expectation(density(likelihood, y), *output_by_quadrature(mean, var)))


def evidence(likelihood: Likelihood, mean, var, y, draws=None, samples: int = 1) -> list[torch.Tensor]:
    """What ``filter.c`` has of outputs ``(n, k)``: log Z, its derivatives by mean and var, and twice by the mean.

    Read off the steps that PBP and EBP make of the bias of a linear network whose feature is 0.
    """
    (n, outputs), found = mean.shape, []
    for rule in ("pbp", "ebp"):
        net = DensityFilter((1, outputs), likelihood, rule=rule, replicates=n, samples=samples)
        before = [math.sqrt(2) * mean, 2 * var]
        for part, value in zip(net.weights, before, strict=True):
            part[:, outputs:] = value
        log_z = net.update(torch.zeros(1, 1, 1), y.reshape(n, 1, *y.shape[1:]), draws)
        assert net.skipped[:, 0].sum() == 0
        by_mean, by_var = (part[:, outputs:] - old for part, old in zip(net.weights, before, strict=True))
        by_mean, by_var = by_mean / before[1], by_var / before[1] ** 2
        found += [log_z[:, 0], math.sqrt(2) * by_mean, by_var + by_mean**2, 2 * by_var]
    return [*found[:3], found[7]]


def one_unit(likelihood) -> DensityFilter:
    net = DensityFilter((1, 1, 1), likelihood)
    net.weights.mean.copy_(torch.tensor([MEAN], dtype=torch.float64))
    net.weights.var.copy_(torch.tensor([VAR], dtype=torch.float64))
    return net


CASES = [
    (Gaussian(var=0.2), 0.9),
    (Gaussian(precision=Gamma(*START)), -1.3),
    (Gaussian(precision=Gamma(*START)), 6.0),
    (Probit(), 1),
    (Probit(), 0),
]


@pytest.mark.parametrize(("likelihood", "y"), CASES)
def test_log_z_and_its_derivatives_are_those_of_quadrature_for_one_unit(likelihood, y) -> None:
    """In every weight's mean and variance, to 1e-10."""
    with mp.workdps(20):
        point, step = [mp.mpf(value) for value in (*MEAN, *VAR)], mp.mpf(10) ** -6

        def log_z(moved=0, by=0):
            values = [value + by * (place == moved) for place, value in enumerate(point)]
            return log_z_by_quadrature(likelihood, y, values[:4], values[4:])

        truth = log_z()
        slopes = [(log_z(place, step) - log_z(place, -step)) / (2 * step) for place in range(8)]
    expected = torch.tensor([float(slope) for slope in slopes], dtype=torch.float64)
    compiled = one_unit(likelihood)
    log_z_compiled = compiled.update(
        torch.full((1, 1, 1), X, dtype=torch.float64), torch.tensor([[float(y)]], dtype=torch.float64)
    )
    assert log_z_compiled.item() == pytest.approx(float(truth), rel=1e-10, abs=1e-10)
    mean, var = torch.tensor(MEAN, dtype=torch.float64), torch.tensor(VAR, dtype=torch.float64)
    new_mean = mean + var * expected[:4]
    new_var = var - var**2 * (expected[:4] ** 2 - 2 * expected[4:])
    good = new_var > 0  # a target far out may leave none
    torch.testing.assert_close(compiled.weights.mean[0], torch.where(good, new_mean, mean), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(compiled.weights.var[0], torch.where(good, new_var, var), rtol=1e-10, atol=1e-10)
    assert compiled.skipped.tolist() == [[(~good).sum().item(), 0, 0]]
    assert good.all() or y == 6.0


@pytest.mark.parametrize("off", [0.01, 0.8, 30.0])
@pytest.mark.parametrize("law", [(1.5, 0.3), (6.0, 6.0), (5e5, 2e5)])
def test_the_gamma_law_is_the_conjugate_one_of_a_normal_datum(off, law) -> None:
    with mp.workdps(40):
        half, rate = mp.mpf(1) / 2, mp.mpf(law[1]) + mp.mpf(off) ** 2 / 2

        def log_z(shape):  # E N(off | 0, 1/λ) for λ ~ Gamma(shape, law[1])
            powers = shape * mp.log(law[1]) - (shape + half) * mp.log(rate)
            return mp.loggamma(shape + half) - mp.loggamma(shape) + powers - mp.log(2 * mp.pi) / 2

        zs = [torch.tensor([float(log_z(mp.mpf(law[0]) + k))], dtype=torch.float64) for k in range(3)]
    found, good = match_gamma(torch.tensor([law], dtype=torch.float64), *zs)
    assert good.all()
    # log Z of 1e6 rounded, differenced twice: the shape loses digits in proportion to itself
    tolerance = 1e-12 * max(1.0, law[0]) * max(1.0, abs(zs[0].item()))
    assert found[0].tolist() == pytest.approx([law[0] + 0.5, float(rate)], rel=tolerance)


def test_a_gamma_law_without_tilted_moments_stays() -> None:
    law = torch.tensor([[2.0, 1.0], [2.0, 1.0]], dtype=torch.float64)
    nan, zero = torch.tensor([torch.nan, 0.0]).double(), torch.zeros(2, dtype=torch.float64)
    found, good = match_gamma(law, nan, zero, zero)
    assert good.tolist() == [False, True]
    assert found[0].tolist() == [2.0, 1.0]


def test_sampled_log_z_and_its_derivatives_are_those_of_quadrature_for_two_classes() -> None:
    """p(0 | f) is a logistic function of f0 − f1, so that one integral has it."""
    mean, var, samples, repeats = (0.4, -0.8), (0.6, 0.3), 5000, 100
    with mp.workdps(15):

        def log_z(m0, v0):
            return mp.log(normal_expectation(lambda u: 1 / (1 + mp.exp(-u)), m0 - mp.mpf(mean[1]), v0 + mp.mpf(var[1])))

        point = mp.mpf(mean[0]), mp.mpf(var[0])
        truth = [log_z(*point), *(mp.diff(log_z, point, order) for order in ((1, 0), (0, 1), (2, 0)))]
    draws = torch.randn(repeats, 1, samples, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    given = (torch.tensor([value], dtype=torch.float64).expand(repeats, 2) for value in (mean, var))
    found = evidence(Categorical(), *given, torch.zeros(repeats), draws, samples)
    for value, estimates in zip(truth, (found[0], *(part[:, 0] for part in found[1:])), strict=True):
        # The log of a mean and a quotient of means are biased by about 1/samples of their variance.
        error = (estimates.std() / repeats**0.5).item()
        assert abs(estimates.mean().item() - float(value)) < 5 * error + 2 * estimates.var().item()


@pytest.mark.parametrize("samples", [1, 3])
def test_few_samples_give_the_derivatives_of_the_expected_log_of_their_mean(samples) -> None:
    """Against autograd through the samples, an estimator of the same expectation that scatters more."""
    repeats = 40_000
    draws = torch.randn(repeats, samples, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mean = torch.tensor([[0.4, -0.8, 0.1]], dtype=torch.float64).expand(repeats, 3).clone().requires_grad_()
    var = torch.tensor([[0.5, 0.2, 0.6]], dtype=torch.float64).expand(repeats, 3).clone().requires_grad_()
    given = mean.detach(), var.detach(), torch.ones(repeats)
    log_z, by_mean, by_var, _ = evidence(Categorical(), *given, draws[:, None], samples)
    logs = (mean[:, None] + var[:, None].sqrt() * draws).log_softmax(2)[..., 1].logsumexp(1) - math.log(samples)
    torch.testing.assert_close(log_z, logs.detach(), rtol=1e-10, atol=1e-12)
    through = torch.autograd.grad(logs.sum(), (mean, var))
    torch.testing.assert_close(by_mean, through[0], rtol=1e-10, atol=1e-12)
    off = by_var - through[1]
    assert (off.mean(0).abs() < 5 * off.std(0) / repeats**0.5).all()
    assert (by_var.std(0) < through[1].std(0)).all()


def test_refining_the_prior_under_a_known_precision_gives_that_prior() -> None:
    """With λ known the factor is N(0, 1/λ), whatever the posterior; posterior = cavity times factor."""
    shape, precision = 1e9, 2.5
    factors = PriorFactors(shape, shape / precision, torch.zeros(2, 3), torch.full((2, 3), 1.0))
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2, 3, generator=generator).double()
    var = torch.full((2, 3), 0.2, dtype=torch.float64)
    new_mean, new_var, skipped = factors.refine(mean, var)
    cavity = 1 / var - 1.0
    torch.testing.assert_close(factors.precision, torch.full((2, 3), precision).double(), rtol=1e-7, atol=0)
    torch.testing.assert_close(new_var, 1 / (cavity + precision), rtol=1e-7, atol=0)
    torch.testing.assert_close(new_mean, (mean / var) * new_var, rtol=1e-7, atol=0)
    assert skipped.tolist() == [0, 0]


def test_the_prior_learns_the_spread_of_the_weights() -> None:
    drawn = 0.3 * torch.randn(1, 4000, generator=torch.Generator().manual_seed(0)).double()
    factors = PriorFactors(6.0, 6.0, torch.zeros_like(drawn), torch.ones_like(drawn))
    mean, var = drawn, torch.full_like(drawn, 1e-6)
    for _ in range(10):
        mean, var, _ = factors.refine(mean, var)
    shape, rate = factors.law[0].tolist()
    # Posterior of a precision from known normal values: Gamma(6 + n/2, 6 + sum w²/2)
    assert shape == pytest.approx(6 + 2000, rel=0.01)
    assert rate == pytest.approx(6 + (drawn**2).sum().item() / 2, rel=0.01)


def test_many_factors_at_once_leave_a_gamma_law() -> None:
    """Weights far outside of a prior that is taken as known narrow: all together ask for less than no shape.

    They can only add to what is known of their precision.
    """
    generator = torch.Generator().manual_seed(0)
    mean = 30 * torch.randn(1, 5000, generator=generator, dtype=torch.float64)
    var = torch.full_like(mean, 0.99)
    factors = PriorFactors(6.0, 6.0, torch.zeros_like(mean), torch.ones_like(mean))
    for _ in range(5):
        mean, var, _ = factors.refine(mean, var)
        assert factors.law[0, 0] >= 6
        assert factors.law[0, 1] > 0
        torch.testing.assert_close(
            factors.law[0], torch.stack([6 + factors.shape.sum(), 6 + factors.rate.sum()]), rtol=1e-9, atol=1e-9
        )


def test_a_weight_that_the_data_tell_nothing_of_is_skipped_and_counted() -> None:
    factors = PriorFactors(6.0, 6.0, torch.zeros(1, 2), torch.ones(1, 2))
    mean, var = torch.tensor([[0.1, 0.3]]).double(), torch.tensor([[1.0, 0.5]]).double()
    new_mean, new_var, skipped = factors.refine(mean, var)
    assert skipped.tolist() == [1]
    assert (new_mean[0, 0], new_var[0, 0]) == (mean[0, 0], var[0, 0])
    assert new_var[0, 1] != var[0, 1]


@pytest.mark.parametrize("far", [-60.0, -11.0, -9.0, 9.0, 60.0])
def test_probit_is_right_far_out(far) -> None:
    log_z, *found = (
        part.item()
        for part in evidence(Probit(), torch.tensor([[far]]).double(), torch.tensor([[0.5]]).double(), torch.ones(1))
    )
    with mp.workdps(40):
        point = mp.mpf(far), mp.mpf(0.5)

        def of(m, v):
            return mp.log(mp.ncdf(m / mp.sqrt(1 + v)))

        truth = [float(mp.diff(of, point, order)) for order in ((1, 0), (0, 1), (2, 0))]
        assert log_z == pytest.approx(float(of(*point)), rel=1e-12)
    # steps are read off weights of size |far|; h + phi/Phi cancels: of size 1/h where each is of size h
    for value, expected, near in zip(found, truth, (1e-12, 1e-11, 1e-15 * far**4 + 1e-12), strict=True):
        assert value == pytest.approx(expected, rel=near, abs=1e-15 * abs(far))


@pytest.mark.parametrize(
    "likelihood", [Gaussian(var=0.4), Gaussian(precision=Gamma(5.0, 2.0)), Probit(), Categorical("bound")], ids=str
)
def test_log_z_is_that_of_the_shared_likelihoods_and_its_derivatives_are_autograds(likelihood) -> None:
    outputs = 3 if isinstance(likelihood, Categorical) else 1
    generator = torch.Generator().manual_seed(0)
    mean = 3 * torch.randn(50, outputs, generator=generator, dtype=torch.float64)
    var = 0.45 * torch.rand(50, outputs, generator=generator, dtype=torch.float64)
    for y in range(max(outputs, 2)):
        log_z, *found = evidence(likelihood, mean, var, torch.full((50,), float(y)))
        m, v = mean.clone().requires_grad_(), var.clone().requires_grad_()
        if outputs > 1:
            truth = m[:, y] - (m + v / 2).logsumexp(1)
        else:
            truth = likelihood.log_z(Moments(m, v), torch.full((50, 1), float(y), dtype=torch.float64))
        torch.testing.assert_close(log_z, truth.detach(), rtol=1e-12, atol=1e-14)
        by_mean, by_var = torch.autograd.grad(truth.sum(), (m, v), create_graph=True)
        bends = [torch.autograd.grad(by_mean[:, k].sum(), m, retain_graph=True)[0][:, k] for k in range(outputs)]
        for own, expected in zip(found, (by_mean, by_var, torch.stack(bends, 1)), strict=True):
            torch.testing.assert_close(own, expected.detach(), rtol=1e-8, atol=1e-9)
