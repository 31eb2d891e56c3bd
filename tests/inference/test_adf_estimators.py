"""The scikit-learn estimators of density filtering."""

from __future__ import annotations

import joblib
import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer, load_iris, make_friedman1
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import train_test_split
from sklearn.utils.estimator_checks import parametrize_with_checks

from momentgen.errors import InputError
from momentgen.inference.estimators.adf import EBPClassifier, EBPRegressor, PBPClassifier, PBPRegressor

REGRESSORS, CLASSIFIERS = (PBPRegressor, EBPRegressor), (PBPClassifier, EBPClassifier)
ALL = (*REGRESSORS, *CLASSIFIERS)


def friedman(n: int = 200):
    return train_test_split(*make_friedman1(n, noise=0.5, random_state=0), random_state=0)


def small(kind, **options):
    plain = {"calibrate": None} if kind in REGRESSORS else {}
    return kind(**{"hidden": (10,), "passes": 10, "members": 1, "random_state": 0, **plain, **options})


def known(kind, **options):
    """An estimator whose widths and passes are given, not chosen."""
    plain = {"calibrate": None} if kind in REGRESSORS else {}
    return kind(**{"hidden": (50, 50), "passes": 40, "members": 1, "random_state": 0, **plain, **options})


def data(kind, n: int = 60):
    x, y = make_friedman1(n, random_state=0)
    return (x, y) if kind in REGRESSORS else (x, np.where(y > np.median(y), "high", "low"))


@parametrize_with_checks([small(kind, hidden=(20,)) for kind in ALL])
def test_scikit_learns_checks(estimator, check) -> None:
    check(estimator)


@pytest.mark.parametrize("kind", REGRESSORS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_regression_finds_the_function_and_the_noise(kind, dtype) -> None:
    x_train, x_test, y_train, y_test = friedman(400)
    model = known(kind, dtype=dtype).fit(x_train, y_train)
    mean, std = model.predict(x_test, return_std=True)
    off = (y_test - mean) / std
    assert np.sqrt(np.mean((y_test - mean) ** 2)) < 0.4 * y_test.std()
    assert 0.5 < np.sqrt(np.mean(off**2)) < 1.6
    expected = -0.5 * off**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(model.log_prob(x_test, y_test), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", REGRESSORS)
@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("shift", [0.0, 1e7])
def test_predictions_follow_the_targets_unit(kind, scale, shift) -> None:
    x_train, x_test, y_train, _ = friedman()
    shift *= scale
    plain = small(kind).fit(x_train, y_train).predict(x_test, return_std=True)
    scaled = small(kind).fit(x_train, scale * y_train + shift).predict(x_test, return_std=True)
    # Targets on top of a shift of 1e7 have nine digits left.
    np.testing.assert_allclose((scaled[0] - shift) / scale, plain[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(scaled[1] / scale, plain[1], rtol=1e-5)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_two_classes_by_probit(kind) -> None:
    x_train, x_test, y_train, y_test = train_test_split(*load_breast_cancer(return_X_y=True), random_state=0)
    model = known(kind, passes=5).fit(x_train, y_train)
    found = model.predict_proba(x_test)
    assert model.score(x_test, y_test) > 0.93
    np.testing.assert_allclose(found.sum(1), 1)
    assert -model.log_prob(x_test, y_test).mean() < 0.25


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("likelihood", ["sampled", "bound"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_three_classes(kind, likelihood, dtype) -> None:
    x_train, x_test, y_train, y_test = train_test_split(*load_iris(return_X_y=True), random_state=0)
    model = small(kind, passes=20, likelihood=likelihood, dtype=dtype).fit(x_train, np.array(list("abc"))[y_train])
    found = model.predict_proba(x_test)
    assert model.score(x_test, np.array(list("abc"))[y_test]) > 0.85
    np.testing.assert_allclose(found.sum(1), 1)


def test_two_classes_by_softmax_and_by_probit_agree() -> None:
    x_train, x_test, y_train, _ = train_test_split(*load_breast_cancer(return_X_y=True), random_state=0)
    found = [
        small(PBPClassifier, likelihood=likelihood).fit(x_train, y_train).predict(x_test)
        for likelihood in ("probit", "sampled")
    ]
    assert (found[0] == found[1]).mean() > 0.93


@pytest.mark.parametrize("kind", ALL)
def test_partial_fits_are_one_fit(kind) -> None:
    x, y = data(kind)
    whole, parts = small(kind, passes=3).fit(x, y), small(kind)
    for _ in range(3):
        parts.partial_fit(x, y)
    compare = "predict" if kind in REGRESSORS else "predict_proba"
    np.testing.assert_array_equal(getattr(whole, compare)(x), getattr(parts, compare)(x))


@pytest.mark.parametrize("kind", ALL)
def test_a_saved_estimator_predicts_and_learns_on(kind, tmp_path) -> None:
    x, y = data(kind)
    model = small(kind).fit(x, y)
    joblib.dump(model, tmp_path / "model")
    loaded = joblib.load(tmp_path / "model")
    compare = "predict" if kind in REGRESSORS else "predict_proba"
    np.testing.assert_array_equal(getattr(model, compare)(x), getattr(loaded, compare)(x))
    model.partial_fit(x, y)
    loaded.partial_fit(x, y)
    np.testing.assert_array_equal(getattr(model, compare)(x), getattr(loaded, compare)(x))


@pytest.mark.parametrize("kind", ALL)
def test_an_ensemble_is_the_mixture_of_its_members(kind) -> None:
    x, y = data(kind)
    model = small(kind, members=4).fit(x, y)
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


@pytest.mark.parametrize("kind", ALL)
def test_constant_features_and_duplicate_rows(kind) -> None:
    x, y = data(kind)
    x[:, 1], x[:, 3] = 5.0, 0.0
    x, y = np.repeat(x, 2, 0), np.repeat(y, 2)
    model = small(kind).fit(x, y)
    assert np.isfinite(model.log_prob(x, y)).all()
    assert model.score(x, y) > 0.3


@pytest.mark.parametrize("kind", REGRESSORS)
def test_one_sample(kind) -> None:
    mean, std = small(kind).fit([[1.0, 2.0]], [7.0]).predict([[1.0, 2.0], [3.0, 2.0]], return_std=True)
    np.testing.assert_allclose(mean[0], 7.0, atol=1.5)
    assert (std > 0).all()


@pytest.mark.parametrize("kind", ALL)
def test_skipped_updates_before_fit_are_refused(kind) -> None:
    with pytest.raises(NotFittedError):
        _ = kind().skipped_


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_labels_that_were_not_there_are_refused(kind) -> None:
    x, y = data(kind)
    model = small(kind).fit(x, y)
    with pytest.raises(InputError, match="expected labels of"):
        model.partial_fit(x, np.where(y == "low", "lower", y))


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (PBPRegressor, {"passes": 0}, "passes and members"),
        (PBPRegressor, {"members": 0}, "passes and members"),
        (PBPRegressor, {"dtype": "float16"}, "a dtype of float32, float64"),
        (PBPRegressor, {"noise": (1.0, 1.0)}, "shape above 1"),
        (PBPRegressor, {"prior": (1.0, 1.0)}, "shape above 1"),
        (PBPRegressor, {"hidden": (0,)}, "widths"),
        (PBPClassifier, {"samples": 0}, "at least one sample"),
        (PBPClassifier, {"likelihood": "softmax"}, "a likelihood of auto, probit"),
    ],
)
def test_settings_that_mean_nothing_are_refused(kind, options, said) -> None:
    with pytest.raises(InputError, match=said):
        small(kind, **options).fit(*data(kind))


def test_probit_of_three_classes_is_refused() -> None:
    with pytest.raises(InputError, match="two classes only"):
        small(PBPClassifier, likelihood="probit").fit(*load_iris(return_X_y=True))


@pytest.mark.parametrize("kind", ALL)
def test_skipped_updates_are_counted_by_kind(kind) -> None:
    skipped = small(kind).fit(*data(kind)).skipped_
    assert list(skipped) == ["weights", "noise", "prior"]
    assert skipped["weights"] == skipped["noise"] == 0


def test_no_hidden_layer_is_a_linear_model() -> None:
    x = np.linspace(-1, 1, 50)[:, None]
    model = known(PBPRegressor, hidden=()).fit(x, 2 * x[:, 0] + 1)
    np.testing.assert_allclose(model.predict([[0.0], [0.5]]), [1.0, 2.0], atol=0.02)


def test_a_row_is_predicted_alike_whatever_is_beside_it() -> None:
    x, y = load_iris(return_X_y=True)
    model = small(PBPClassifier).fit(x, y)
    np.testing.assert_allclose(model.predict_proba(x)[70:71], model.predict_proba(x[70:71]), rtol=1e-12)


def test_a_filter_that_diverges_is_an_error_and_not_a_prediction() -> None:
    """Weights that begin at thirty times the prior's; at the defaults three hidden layers fit the same data."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(250, 6))
    y = np.exp(x[:, 0]) + x[:, 1] * x[:, 2]
    with pytest.raises(FloatingPointError, match=r"EBPRegressor.*diverged.*2 hidden layers"):
        known(EBPRegressor, passes=3, spread=30.0).fit(x, y)
    assert known(EBPRegressor, hidden=(50,) * 3).fit(x, y).score(x, y) > 0.8


@pytest.mark.parametrize("kind", REGRESSORS)
@pytest.mark.parametrize(("rows", "seed"), [(35, 1), (50, 2)])
def test_small_data_sets_are_fitted_at_the_defaults(kind, rows, seed) -> None:
    """A prior that moves too far between passes throws the filter off."""
    x, y = make_friedman1(rows + 200, noise=1.0, random_state=seed)
    assert known(kind, random_state=seed).fit(x[:rows], y[:rows]).score(x[rows:], y[rows:]) > 0.35


def test_the_gamma_law_of_the_prior_keeps_the_shape_that_it_was_given() -> None:
    """Weights can only add to what is known of their precision."""
    x, y = make_friedman1(30, noise=1.0, random_state=1)
    model = known(EBPRegressor, passes=15).fit(x, y)
    assert (model.filter_.prior.law[:, 0] >= 6).all()


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_log_probabilities_of_unlikely_labels_are_those_of_the_tail(kind) -> None:
    """Two clusters far apart, and the labels of the other: log Φ(-a), where 1 - Φ(a) is 0."""
    x = np.concatenate([np.full(50, -1.0), np.full(50, 1.0)])[:, None] + 0.01 * np.arange(100)[:, None] / 100
    y = np.repeat([0, 1], 50)
    model = small(kind, hidden=(), passes=400).fit(x, y)
    model._power = torch.ones_like(model._power)  # as certain as 400 passes make it
    far = np.array([[-3.0], [3.0]])
    mean, var = model.filter_.output(model._features(far)[None], model._power)
    a = (mean / (1 + var).sqrt()).numpy()[0, :, 0]
    assert abs(a).min() > 8.5
    np.testing.assert_allclose(model.log_prob(far, [1, 0]), norm.logcdf([a[0], -a[1]]), rtol=1e-9)
    np.testing.assert_allclose(model.predict_proba(far)[[0, 1], [1, 0]], norm.cdf([a[0], -a[1]]), rtol=1e-7)
    assert (model.predict_proba(far) > 0).all()
