"""Scores, leave-one-out likelihoods and pictures of fitted regressors."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from momentgen.inference import (
    PBPRegressor,
    crps,
    plot_calibration,
    plot_intervals,
    plot_parts,
    to_arviz,
)

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(40, 2))
Y = X @ [1.0, -0.5] + 0.3 * DRAW.normal(size=40)


@pytest.fixture(scope="module")
def line() -> PBPRegressor:
    """The exact posterior of a line, without calibration."""
    return PBPRegressor(hidden=(), calibrate=None, random_state=0).fit(X, Y)


def test_the_score_of_a_normal_prediction_is_its_closed_form() -> None:
    class Normal:
        def predict_quantiles(self, x: Any, levels: Any) -> Any:
            return norm.ppf(levels)[:, None] * [1.0, 2.0, 0.5, 1.0]

    y, std = np.array([0.3, -4.0, 2.5, 0.0]), np.array([1.0, 2.0, 0.5, 1.0])
    z = y / std
    expected = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    np.testing.assert_allclose(crps(Normal(), None, y), expected, atol=1e-3)  # type: ignore[arg-type]


def test_scores_have_the_shape_of_targets_and_prefer_the_truth(line: PBPRegressor) -> None:
    found = crps(line, X, Y)
    assert found.shape == Y.shape
    assert found.mean() < crps(line, X, Y + 1).mean()
    two = PBPRegressor(hidden=(), calibrate=None, random_state=0).fit(X, np.stack([Y, -Y], 1))
    assert crps(two, X, np.stack([Y, -Y], 1)).shape == (40, 2)


def test_leave_one_out_by_arviz_is_that_of_linear_regression(line: PBPRegressor) -> None:
    """With unknown noise and flat priors, a row given the others has a Student law."""
    arviz = pytest.importorskip("arviz")
    data = to_arviz(line, X, Y, draws=4000)
    assert data.log_likelihood["y"].shape == data.posterior_predictive["y"].shape == (1, 4000, 40)
    design, expected = np.column_stack([X, np.ones(len(X))]), 0.0
    for row in range(len(Y)):
        rest, at = np.arange(len(Y)) != row, design[row]
        inverse = np.linalg.inv(design[rest].T @ design[rest])
        weights, freedom = inverse @ design[rest].T @ Y[rest], len(Y) - 1 - design.shape[1]
        noise = ((Y[rest] - design[rest] @ weights) ** 2).sum() / freedom
        expected += student.logpdf(Y[row], freedom, at @ weights, np.sqrt(noise * (1 + at @ inverse @ at)))
    assert arviz.loo(data).elpd_loo == pytest.approx(expected, abs=0.5)
    assert arviz.waic(data).elpd_waic == pytest.approx(expected, abs=0.5)


def test_draws_for_arviz_have_the_predictive_mean_and_deviation(line: PBPRegressor) -> None:
    pytest.importorskip("arviz")
    drawn = to_arviz(line, X[:3], Y[:3], draws=20_000).posterior_predictive["y"].to_numpy()[0]
    mean, std = line.predict(X[:3], return_std=True)
    np.testing.assert_allclose(drawn.mean(0), mean, atol=4 * std.max() / np.sqrt(20_000))
    np.testing.assert_allclose(drawn.std(0), std, rtol=0.03)


def test_pictures_show_every_row_and_say_what_share_is_inside(line: PBPRegressor) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    low, high = line.predict_interval(X, 0.5)
    inside = f"{((low <= Y) & (high >= Y)).mean():.1%}"
    axes = plot_intervals(line, X, Y, 0.5)
    assert axes.get_title().startswith(inside)
    assert len(axes.collections[1].get_offsets()) == len(Y)
    shares = plot_calibration(line, X, Y).lines[0].get_ydata()
    assert (np.diff(shares) >= 0).all()
    assert shares[9] == pytest.approx(((low <= Y) & (high >= Y)).mean())
    epistemic, aleatoric = (part.get_ydata() for part in plot_parts(line, X).lines)
    assert (np.diff(epistemic**2 + aleatoric**2) >= 0).all()
    assert len(epistemic) == len(Y)
