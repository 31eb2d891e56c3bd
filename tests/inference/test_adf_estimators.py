"""The scikit-learn estimators of density filtering: what is theirs beside test_every_estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from inference.every_estimator import FILTERS, REGRESSORS, every, friedman, quick
from scipy.stats import norm
from sklearn.datasets import make_friedman1
from sklearn.model_selection import train_test_split

from momentgen.inference import EBPRegressor


def known(kind: Any, **options: Any) -> Any:
    """An estimator of the size that is chosen for most data."""
    return quick(kind, **{"hidden": (50, 50), "passes": 40, **options})


@every(REGRESSORS[:2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_regression_finds_the_function_and_the_noise(kind: Any, dtype: str) -> None:
    x_train, x_test, y_train, y_test = train_test_split(*make_friedman1(400, noise=0.5, random_state=0), random_state=0)
    model = known(kind, dtype=dtype).fit(x_train, y_train)
    mean, std = model.predict(x_test, return_std=True)
    off = (y_test - mean) / std
    assert np.sqrt(np.mean((y_test - mean) ** 2)) < 0.4 * y_test.std()
    assert 0.5 < np.sqrt(np.mean(off**2)) < 1.6
    expected = -0.5 * off**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(model.log_prob(x_test, y_test), expected, rtol=1e-4, atol=1e-5)


@every(FILTERS)
def test_an_ensemble_is_the_mixture_of_its_members(kind: Any) -> None:
    x, y = friedman(kind)
    model = quick(kind, members=4).fit(x, y)
    net = model.filter_
    mean, var = net.output(model._features(x)[None], model._power)
    assert len(mean) == 4
    if kind in REGRESSORS:
        found, std = model.predict(x, return_std=True)
        scale = model.y_scaler_.scale_[0]
        second = (mean**2 + var).mean(0)[:, 0].numpy() + model._noise.mean().item()
        first = mean.mean(0)[:, 0].numpy()
        np.testing.assert_allclose(found, first * scale + model.y_scaler_.mean_[0])
        np.testing.assert_allclose(std, np.sqrt(second - first**2) * scale, rtol=1e-7)
    else:
        each = norm.cdf((mean / (1 + var).sqrt()).numpy()[..., 0])
        np.testing.assert_allclose(model.predict_proba(x)[:, 1], np.mean(each, 0))


def test_a_filter_that_diverges_is_an_error_and_not_a_prediction() -> None:
    """Weights that begin at thirty times the prior's; at the defaults three hidden layers fit the same data."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(250, 6))
    y = np.exp(x[:, 0]) + x[:, 1] * x[:, 2]
    with pytest.raises(FloatingPointError, match=r"EBPRegressor.*diverged.*2 hidden layers"):
        known(EBPRegressor, passes=3, spread=30.0).fit(x, y)
    assert known(EBPRegressor, hidden=(50,) * 3).fit(x, y).score(x, y) > 0.8


@every(REGRESSORS[:2])
@pytest.mark.parametrize(("rows", "seed"), [(35, 1), (50, 2)])
def test_small_data_sets_are_fitted_at_the_defaults(kind: Any, rows: int, seed: int) -> None:
    """A prior that moves too far between passes throws the filter off."""
    x, y = make_friedman1(rows + 200, noise=1.0, random_state=seed)
    assert known(kind, random_state=seed).fit(x[:rows], y[:rows]).score(x[rows:], y[rows:]) > 0.35


def test_the_gamma_law_of_the_prior_keeps_the_shape_that_it_was_given() -> None:
    """Weights can only add to what is known of their precision."""
    x, y = make_friedman1(30, noise=1.0, random_state=1)
    model = known(EBPRegressor, passes=15).fit(x, y)
    assert (model.filter_.prior.law[:, 0] >= 6).all()
