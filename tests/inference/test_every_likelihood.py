"""What every likelihood of one output has: terms beside scipy's quadrature; and estimators of counts and classes."""

from typing import Any

import numpy as np
import pytest
import torch
from inference.every_estimator import BY_BOUND, REGRESSORS, every, quick
from inference.normal_truth import log_over_normal, over_normal
from scipy import integrate, special, stats

from momentgen.inference import (
    Bernoulli,
    Censored,
    Gaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Probit,
    VBPClassifier,
    VBPRegressor,
)
from momentgen.inference.counts import ByQuadrature
from momentgen.inference.heteroscedastic import KnownNoise
from momentgen.runtime import Moments

CUTS = stats.norm.ppf([1 / 3, 2 / 3])


class Exponential(ByQuadrature):
    """A likelihood of a user's own."""

    def law(self, f: torch.Tensor) -> Any:
        return torch.distributions.Exponential(f.exp())


def binomial(y: float, f: np.ndarray) -> np.ndarray:
    logit = f - np.log(2.0)
    return np.log(y + 1.0) + y * logit - (y + 2.0) * np.logaddexp(0, logit)  # y + 1 ways of two failures


def ordered(y: float, f: np.ndarray) -> np.ndarray:
    ends = [-np.inf, *CUTS, np.inf]
    low, high = ends[int(y)] - f, ends[int(y) + 1] - f
    low, high = np.where(low > 0, -high, low), np.where(low > 0, -low, high)
    return stats.norm.logcdf(high) + np.log1p(-np.exp(stats.norm.logcdf(low) - stats.norm.logcdf(high)))


#: likelihood, observations, and log p(y | f) by scipy
CASES: list[tuple[Any, list[Any], Any]] = [
    (Gaussian(0.25), [0.3, -4.0], lambda y, f: stats.norm.logpdf(y, f, 0.5)),
    (KnownNoise(0.25), [(0.3, 0.0), (-4.0, 2.0)], lambda y, f: stats.norm.logpdf(y[0], f, np.sqrt(0.25 + y[1]))),
    (Probit(), [0, 1], lambda y, f: stats.norm.logcdf((2 * y - 1) * f)),
    (Bernoulli(), [0, 1], lambda y, f: special.log_expit((2 * y - 1) * f)),
    (Poisson(), [0, 2, 80], lambda y, f: stats.poisson.logpmf(y, np.exp(f))),
    (NegativeBinomial(0.5), [0, 2, 80], binomial),
    (Exponential(), [0.01, 1.0, 20.0], lambda y, f: stats.expon.logpdf(y, scale=np.exp(-f))),
    (Ordinal(3), [0, 1, 2], ordered),
    (Censored(var=0.25), [(0.3, 0), (0.3, 1), (-4.0, -1)], lambda y, f: (
        stats.norm.logpdf(y[0], f, 0.5) if y[1] == 0 else stats.norm.logcdf(y[1] * (f - y[0]) / 0.5)
    )),
]  # fmt: skip
cases = pytest.mark.parametrize(("likelihood", "observed", "log_p"), CASES, ids=lambda one: type(one).__name__)


def output(mean: float, var: float) -> Moments:
    return Moments(torch.tensor([[mean]]).double(), torch.tensor([[var]]).double())


def target(y: Any, likelihood: Any = None) -> torch.Tensor:
    found = torch.as_tensor(np.reshape(y, (1, -1)))
    return found if isinstance(likelihood, Ordinal) else found.double()


@cases
@pytest.mark.parametrize("mean", [-2.0, 0.5, 3.0])
@pytest.mark.parametrize("var", [0.0, 0.01, 0.7, 4.0])
def test_evidence_and_expectation_are_those_of_a_quadrature(
    likelihood: Any, observed: list[Any], log_p: Any, mean: float, var: float
) -> None:
    likelihood = likelihood.double()
    for y in observed:
        evidence = likelihood.log_z(output(mean, var), target(y, likelihood)).item()
        truth = log_over_normal(lambda f, y=y: log_p(y, f), mean, var)
        assert evidence == pytest.approx(truth, rel=1e-6, abs=1e-6)
        expected = over_normal(lambda f, y=y: log_p(y, f), mean, var)
        found = likelihood.expected_log_prob(output(mean, var), target(y, likelihood)).item()
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
        own = likelihood.log_prob(output(mean, 0).mean, target(y, likelihood)).item()
        assert own == pytest.approx(float(log_p(y, np.array(mean))), rel=1e-6, abs=1e-6)


@cases
@pytest.mark.parametrize("term", ["log_z", "expected_log_prob"])
def test_terms_have_their_derivatives(likelihood: Any, observed: list[Any], log_p: Any, term: str) -> None:
    for y in observed:
        inputs = [part.requires_grad_() for part in output(0.3, 0.6)]
        assert torch.autograd.gradcheck(
            lambda mean, var, y=y: getattr(likelihood, term)(Moments(mean, var), target(y, likelihood)),
            inputs,
            eps=1e-4,
            atol=1e-4,
        )


def test_evidence_far_from_a_count_is_found_at_its_mode() -> None:
    """A count of 3 under a rate of e^50 known to a factor e: the mode is 42 standard deviations off."""
    grid = np.linspace(1, 9, 800_001)
    logs = stats.poisson.logpmf(3, np.exp(grid)) + stats.norm.logpdf(grid, 50, 1)
    expected = np.log(integrate.simpson(np.exp(logs - logs.max()), x=grid)) + logs.max()
    assert Poisson().log_z(output(50, 1), target(3)).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial(0.5), Exponential()], ids=str)
def test_predictions_are_those_of_draws(likelihood: Any) -> None:
    torch.manual_seed(0)
    draws = likelihood.sample(0.5 + 0.3 * torch.randn(400_000, 1, 1).double()).double()
    found = likelihood.predictive(output(0.5, 0.09))
    assert found.mean.item() == pytest.approx(draws.mean().item(), rel=0.02)
    assert found.var.item() == pytest.approx(draws.var().item(), rel=0.05)
    means = likelihood.law(0.5 + 0.3 * torch.randn(400_000).double()).mean
    assert likelihood.expected(output(0.5, 0.09)).var.item() == pytest.approx(means.var().item(), rel=0.02)


# ------------------------------------------------------------------ estimators


def counts(seed: int, rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 2))
    return x, draw.poisson(np.exp(3 + 0.5 * x[:, 0]))


@every([kind for kind in BY_BOUND if kind in REGRESSORS])
@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial()], ids=lambda one: type(one).__name__)
def test_counts_are_predicted_nearly_as_well_as_by_the_truth(kind: Any, likelihood: Any) -> None:
    (x, y), (new, targets) = counts(0), counts(1)
    model = quick(kind, likelihood=likelihood, calibrate="cv", epochs=120).fit(x, y)
    truth = stats.poisson.logpmf(targets, np.exp(3 + 0.5 * new[:, 0])).mean()
    constant = stats.nbinom.logpmf(targets, *_moments_of_counts(y)).mean()
    found = model.log_prob(new, targets).mean()
    assert truth - 0.25 * (truth - constant) < found < truth + 0.02
    low, high = model.predict_interval(new, 0.9)
    assert 0.85 < np.mean((low <= targets) & (targets <= high)) < 0.98
    assert (low == low.round()).all()
    mean, std = model.predict(new, return_std=True)
    drawn = model.sample_y(new, 2000)
    assert np.abs(drawn.mean(1) - mean).max() < 0.2 * std.max()
    parts = model.predict_parts(new)
    assert np.hypot(parts.epistemic, parts.aleatoric) == pytest.approx(std)
    assert (parts.aleatoric**2 > 0.99 * mean).all()


def _moments_of_counts(y: np.ndarray) -> tuple[float, float]:
    """Negative binomial parameters of a constant with the mean and variance of these counts."""
    return y.mean() ** 2 / (y.var() - y.mean()), y.mean() / y.var()


def test_the_dispersion_of_counts_is_learnt() -> None:
    x, _ = counts(0, 500)
    y = np.random.default_rng(2).negative_binomial(4, 4 / (4 + np.exp(3 + 0.5 * x[:, 0])))
    model = quick(VBPRegressor, likelihood=NegativeBinomial(), epochs=150).fit(x, y)
    assert model.likelihood_.dispersion.item() == pytest.approx(0.25, rel=0.35)


def test_censored_times_are_not_taken_for_short_ones() -> None:
    """Times of survival of which nearly half were cut off at random: fits without this knowledge are biased."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(300, 1))
    log_time, end = 0.5 * x[:, 0] + 0.3 * draw.normal(size=300), np.log(draw.exponential(1.5, size=300))
    y, cut = np.minimum(log_time, end), log_time > end
    fits = [quick(VBPRegressor, epochs=150).fit(x, y, censored=told) for told in (cut, None)]
    (mean, std), (biased, _) = (model.predict(x, return_std=True) for model in fits)
    assert 0.3 < cut.mean() < 0.6
    assert np.mean(mean - 0.5 * x[:, 0]) == pytest.approx(0, abs=0.1)
    assert np.mean(biased - 0.5 * x[:, 0]) < -0.2
    assert std.mean() == pytest.approx(0.3, rel=0.4)


def test_the_order_of_classes_helps_where_they_are_many() -> None:
    draw = np.random.default_rng(0)
    x, new = draw.normal(size=(2, 80, 2))
    labels, targets = (np.digitize(2 * one[:, 0] + draw.normal(size=80), [-2, -1, 0, 1, 2]) for one in (x, new))
    told, plain = (
        quick(VBPClassifier, epochs=80, likelihood=likelihood).fit(x, labels) for likelihood in (Ordinal(6), None)
    )
    assert told.predict_proba(new).sum(1) == pytest.approx(1)
    ends = np.array([-np.inf, -2, -1, 0, 1, 2, np.inf])
    chances = np.diff(stats.norm.cdf(ends[:, None] - 2 * new[:, 0]), axis=0)[targets, range(80)]
    assert told.log_prob(new, targets).mean() > plain.log_prob(new, targets).mean()
    assert told.log_prob(new, targets).mean() > np.log(chances).mean() - 0.2
