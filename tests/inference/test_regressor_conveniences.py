"""What all regressors share: intervals that hold, parts of σ, quantiles, draws, warnings, data in chunks."""

import functools
from typing import Any

import numpy as np
import pytest
from inference.every_estimator import FILTERS, quick
from sklearn.base import clone, is_classifier
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning

from momentgen.errors import InputError
from momentgen.inference import (
    BowTieRegressor,
    CorrelatedClassifier,
    CorrelatedRegressor,
    EBPClassifier,
    EBPRegressor,
    PBPClassifier,
    PBPRegressor,
    VBPClassifier,
    VBPRegressor,
)

QUICK: list[Any] = [
    *(quick(kind) for kind in FILTERS[:2]),
    quick(VBPRegressor, hidden=(10,), epochs=60, lr=0.05),
    quick(CorrelatedRegressor, hidden=(10,), epochs=40),
    quick(BowTieRegressor, burn_in=100, draws=40),
]
each = pytest.mark.parametrize("estimator", QUICK, ids=lambda one: type(one).__name__)


def data(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return make_friedman1(rows, n_features=5, noise=1.0, random_state=seed)


@functools.cache
def fitted(kind: type) -> Any:
    """One of them, fitted to 200 rows and calibrated by cross-validation."""
    (estimator,) = (one for one in QUICK if type(one) is kind)
    return kind(**{**estimator.get_params(), "calibrate": "cv"}).fit(*data(200))


@each
def test_conformal_intervals_hold_what_they_say(estimator: Any) -> None:
    new, targets = data(1000, seed=1)
    model = fitted(type(estimator))
    for coverage in (0.5, 0.9, 0.95):
        low, high = model.predict_interval(new, coverage)
        # The level of 200 held-out rows has σ 0.035 at one half and 0.021 at 0.9; 1,000 new rows add 0.016 and 0.01.
        assert abs(np.mean((low <= targets) & (targets <= high)) - coverage) < (0.12 if coverage == 0.5 else 0.07)
    mean, std = model.predict(new, return_std=True)
    assert 0.8 < np.sqrt(np.mean(((targets - mean) / std) ** 2)) < 1.25


@each
def test_parts_quantiles_and_draws_are_of_one_distribution(estimator: Any) -> None:
    X, y = data(60)
    model = type(estimator)(**{**estimator.get_params(), "calibrate": "split"}).fit(X, np.stack([y, 100 - 10 * y], 1))
    first, second = model.predict(X).T
    assert np.corrcoef(first, y)[0, 1] > 0.8
    assert np.corrcoef(second, y)[0, 1] < -0.8
    mean, std = model.predict(X[:4], return_std=True)
    parts = model.predict_parts(X[:4])
    np.testing.assert_array_equal(parts.mean, mean)
    np.testing.assert_allclose(np.hypot(parts.epistemic, parts.aleatoric), std)
    assert (parts.epistemic > 0).all()
    drawn = model.sample_y(X[:4], 4000)
    assert drawn.shape == (4, 2, 4000)
    levels = [0.1, 0.5, 0.9]
    quantiles = model.predict_quantiles(X[:4], levels)
    assert quantiles.shape == (3, 4, 2)
    for level, ends in zip(levels, quantiles, strict=True):  # a share of 4,000 draws has σ 0.008 at most
        np.testing.assert_allclose((drawn <= ends[..., None]).mean(-1), level, atol=0.04)
    np.testing.assert_allclose(drawn.mean(-1), mean, atol=0.1 * std.max(0).max())
    np.testing.assert_allclose(quantiles[1], mean, rtol=1e-9)  # errors are symmetric
    # Two independent targets: their density is the slope of the quantiles, both ways.
    close = model.predict_quantiles(X[:4], [0.6999, 0.7, 0.7001])
    expected = np.log(2e-4 / (close[2] - close[0])).sum(1)
    np.testing.assert_allclose(model.log_prob(X[:4], close[1]), expected, atol=1e-3)


@pytest.mark.parametrize(
    "estimator",
    [*QUICK, *[clone(one).set_params(noise="input") for one in QUICK if hasattr(one, "module")]],
    ids=lambda one: f"{type(one).__name__}, {getattr(one, 'noise', '')}",
)
def test_density_is_the_slope_of_the_quantiles_without_calibration(estimator: Any) -> None:
    X, y = data(60)
    model = clone(estimator).set_params(calibrate=None).fit(X, y)
    for level in (0.01, 0.3, 0.99):
        below, at, above = model.predict_quantiles(X[:4] * 2, [level - 1e-4, level, level + 1e-4])
        np.testing.assert_allclose(model.log_prob(X[:4] * 2, at), np.log(2e-4 / (above - below)), atol=1e-3)


@pytest.mark.parametrize("kind", [PBPRegressor, EBPRegressor])
def test_the_filters_noise_is_that_of_the_last_pass(kind: Any) -> None:
    """The errors of the first passes, when nothing was known, are no noise: true σ 0.05, of targets of σ 1."""
    X = np.random.default_rng(0).uniform(-2, 2, (300, 1))
    y = np.sin(2 * X[:, 0]) + 0.05 * np.random.default_rng(1).normal(size=300)
    model = kind(hidden=(50, 50), passes=40, calibrate=None, random_state=0).fit(X, y)
    assert model.predict_parts(X).aleatoric[0] < 0.2
    assert (model.filter_.noise_var.sqrt() * y.std()).min() > 0.2


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (VBPRegressor(epochs=1), "bound still rises"),
        (VBPRegressor(max_steps=20), "max_steps above 20"),
        (CorrelatedRegressor(epochs=1), "bound still rises"),
        (PBPRegressor(hidden=(50,), passes=1), "1 passes over 60 rows are few"),
        (EBPRegressor(hidden=(50,), passes=1), "1 passes over 60 rows are few"),
        (BowTieRegressor(hidden=(5,), burn_in=1, draws=20, start="random"), "chains disagree"),
        (VBPClassifier(epochs=1), "bound still rises"),
        (CorrelatedClassifier(epochs=1), "bound still rises"),
        (PBPClassifier(passes=1), "1 passes over 60 rows are few"),
        (EBPClassifier(passes=1), "1 passes over 60 rows are few"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_fit_that_cannot_be_relied_on_is_said(estimator: Any, said: str) -> None:
    X, y = data(60)
    fixed: dict[str, Any] = {"random_state": 0}
    if is_classifier(estimator):
        y = (y > np.median(y)).astype(int)
    else:
        fixed["calibrate"] = None
    with pytest.warns(ConvergenceWarning, match=f"{type(estimator).__name__}: .*{said}") as heard:
        estimator.set_params(**fixed).fit(X, y)
    assert {one.filename for one in heard if one.category is ConvergenceWarning} == {__file__}
    assert estimator.diagnostics_


def test_skipped_updates_are_said() -> None:
    X, y = data(60)
    model = PBPRegressor(hidden=(5,), passes=5, members=1, calibrate=None, random_state=0).fit(X, y)
    model.filter_.skipped[:, 0] += 10_000
    assert "updates of weights and noise were skipped" in model._complaint()
    assert model.diagnostics_["skipped"]["weights"] == 10_000


@pytest.mark.parametrize("kind", [VBPRegressor, VBPClassifier, PBPRegressor, PBPClassifier])
def test_chunks_count_as_parts_of_one_data_set_and_further_passes_as_none(kind: Any) -> None:
    X, y = data(90)
    y = y if "Regressor" in kind.__name__ else (y > np.median(y)).astype(int)
    model = kind(hidden=(5,), random_state=0)
    sizes = []
    for rows in (slice(0, 30), slice(30, 60), slice(0, 30), slice(60, 90)):
        model.partial_fit(X[rows], y[rows])
        sizes.append(model._size)
    assert sizes == [30, 60, 60, 90]
    model.partial_fit(X[:30], y[:30], n_total=1000)
    assert model._size == 1000
    with pytest.raises(InputError, match="n_total of at least 30"):
        model.partial_fit(X[:30], y[:30], n_total=10)


def test_chunks_leave_the_noise_that_all_data_leave() -> None:
    """Each chunk once weighed the whole divergence, and the noise grew: truth is 0.1 of the targets' σ."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(400, 2))
    y = X @ [1.0, -1.0] + 0.14 * draw.normal(size=400)
    order = [slice(start, start + 40) for start in range(0, 400, 40)]
    model = VBPRegressor(hidden=(), lr=0.03, propagation="ap2", random_state=0)
    for _ in range(60):
        for rows in order:
            model.partial_fit(X[rows], y[rows])
    assert abs(model.predict_parts(X[:1]).aleatoric[0] / 0.14 - 1) < 0.25
