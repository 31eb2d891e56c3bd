"""What a bow tie network predicts: the mixture against simulation and SciPy, and the scikit-learn estimator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from momentgen.errors import InputError
from momentgen.inference.bowtie import BowTieModel, ConjugatePrior, Draws, predict, simulate
from momentgen.inference.estimators.bowtie import BowTieRegressor


def one_network(model: BowTieModel, draws: int) -> Draws:
    """The same parameters in every draw: the mixture is then over gates and lower activations alone."""
    state, _ = simulate(
        model, torch.zeros(1, model.widths[0], dtype=torch.float64), 1, torch.Generator().manual_seed(4)
    )
    weights, precisions = (
        tuple(part[:, None].expand(1, draws, *part.shape[1:]) for part in field)
        for field in (state.weights, state.precisions)
    )
    return Draws(weights, precisions, torch.zeros(1, draws))


@pytest.mark.parametrize("widths", [(2, 3, 1), (2, 3, 2), (2, 3, 4, 1), (2, 3, 2, 2, 2)])
def test_the_mixture_has_the_distribution_of_simulated_targets(widths: tuple[int, ...]) -> None:
    """Simulated here step by step from equations (4) and (5), for 40,000 draws of gates and noise."""
    model, n = BowTieModel(widths, 0.7, ConjugatePrior(shape=3.0, rate=1.0)), 40_000
    draws = one_network(model, n)
    x = torch.tensor([[0.4, -1.0], [1.5, 0.2]], dtype=torch.float64)
    found = predict(model, draws, x)
    draw = torch.Generator().manual_seed(9)
    a = x.expand(n, -1, -1)
    for layer, (weights, precision) in enumerate(zip(draws.weights, draws.precisions, strict=True)):
        u = a @ weights[0, 0, :, :-1].T + weights[0, 0, :, -1]
        on = torch.rand(u.shape, generator=draw, dtype=torch.float64) < torch.sigmoid(u / model.tau)
        noise = torch.randn(u.shape, generator=draw, dtype=torch.float64) / precision[0, 0].sqrt()
        a = noise + (u if layer == model.depth else u * on)
    moments, var = found.moments(), a.var(0)
    # 4.5 standard errors of two samples; of a variance √2 times the fourth root of kurtosis, at most 3 here.
    assert ((moments.mean - a.mean(0)).abs() / (2 * var / n).sqrt()).max() < 4.5
    assert (moments.var / var - 1).abs().max() < 4.5 * (2 * 3 / n) ** 0.5
    for level in (0.05, 0.5, 0.9):
        share = (a < found.quantile(level)).double().mean(0)
        assert ((share - level).abs() / (2 * level * (1 - level) / n) ** 0.5).max() < 4.5


@pytest.mark.parametrize("outputs", [1, 2])
def test_log_density_and_quantiles_are_those_of_scipys_mixture(outputs: int) -> None:
    model, count = BowTieModel((2, 3, outputs), 0.7, ConjugatePrior(shape=3.0, rate=1.0)), 7
    state, _ = simulate(model, torch.zeros(1, 2, dtype=torch.float64), count, torch.Generator().manual_seed(4))
    weights, precisions = (tuple(part[None] for part in field) for field in (state.weights, state.precisions))
    x, y = (
        torch.tensor([[0.4, -1.0], [1.5, 0.2]]).double(),
        torch.tensor([[0.1, 2.0], [-1.0, 0.4]]).double()[:, :outputs],
    )
    found = predict(model, Draws(weights, precisions, torch.zeros(1, count)), x)
    covs = found.roots @ found.roots.mT
    parts = [[stats.multivariate_normal(found.means[s, i], covs[s]) for s in range(count)] for i in range(2)]
    expected = [np.log(np.mean([part.pdf(y[i]) for part in parts[i]])) for i in range(2)]
    np.testing.assert_allclose(found.log_prob(y), expected, rtol=1e-12)
    for level in (1e-3, 0.3, 0.999):
        q = found.quantile(level)
        for i in range(2):
            for k in range(outputs):
                std = covs[:, k, k].sqrt()
                assert np.mean(stats.norm.cdf(q[i, k], found.means[:, i, k], std)) == pytest.approx(level, rel=1e-10)
    for level in (0.0, 1.0, -1.0):
        with pytest.raises(InputError, match="level"):
            found.quantile(level)


def test_a_rows_prediction_does_not_depend_on_the_others() -> None:
    model = BowTieModel((2, 3, 3, 1), 0.7)
    draws = one_network(model, 20)
    x = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together, alone = predict(model, draws, x), predict(model, draws, x[4:5])
    assert torch.allclose(together.means[:, 4:5], alone.means, rtol=1e-13, atol=1e-13)
    for bad in (x[:, :1], x * float("nan")):
        with pytest.raises(InputError, match="finite features of shape"):
            predict(model, draws, bad)


# ------------------------------------------------------------------- estimator


def small(**options: object) -> BowTieRegressor:
    return BowTieRegressor(
        **{"hidden": (10,), "burn_in": 60, "draws": 40, "calibrate": None, "random_state": 0, **options}
    )


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    X = draw.uniform(-3, 3, (120, 1))
    return X, 100 + 10 * np.abs(X[:, 0]) + draw.normal(size=120)


def test_the_regressor_finds_a_bend_and_its_noise(data: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = data
    model = small(burn_in=300, draws=200).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.sqrt(np.mean((mean - 100 - 10 * np.abs(X[:, 0])) ** 2)) < 0.7
    assert 0.8 < np.median(std) < 1.5
    low, middle, high = model.predict_quantiles(X)
    assert 0.9 < np.mean((low < y) & (y < high)) <= 1
    assert np.all((low < middle) & (middle < high))
    # Of the same mixture in the targets' unit, by SciPy.
    found = model.chains_.predict(model._features(X))
    scale, shift = model.y_scaler_.scale_[0], model.y_scaler_.mean_[0]
    parts = stats.norm.logpdf(y, found.means[..., 0] * scale + shift, found.roots[:, 0] * scale)
    expected = np.log(np.mean(np.exp(parts), 0))
    np.testing.assert_allclose(model.log_prob(X, y), expected, rtol=1e-9)


def test_partial_fit_keeps_draws_of_the_same_data_and_begins_anew_with_others(
    data: tuple[np.ndarray, np.ndarray],
) -> None:
    X, y = data
    model = small(chains=1).fit(X, y)
    before = model.chains_.draws.log_joint
    after = model.partial_fit(X, y, 5).chains_.draws.log_joint
    assert after.shape == (1, 45)
    assert torch.equal(after[:, :40], before)
    weights = model.chains_.state.weights
    model.partial_fit(X[:50], y[:50], 2)
    assert model.chains_.draws.log_joint.shape == (1, 2)
    assert len(model.chains_.data.x) == 50
    assert not torch.equal(model.chains_.state.weights[0], weights[0])
    assert small().partial_fit(X, y, 3).chains_.draws.log_joint.shape == (2, 3)
    assert model.set_params(chains=2).diagnostics_["draws"] == 2  # of the one chain that ran


def test_bad_levels_are_refused(data: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = data
    model = small().fit(X, y)
    for levels in ([], [[0.1]], [0.0], [1.5]):
        with pytest.raises(InputError, match="level"):
            model.predict_quantiles(X, levels)
