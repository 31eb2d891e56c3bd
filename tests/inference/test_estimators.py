"""The variational estimators follow scikit-learn's conventions, say how uncertain they are, and refuse bad data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import train_test_split
from sklearn.utils.estimator_checks import check_estimator

from momentgen.errors import InputError
from momentgen.inference import CorrelatedClassifier, CorrelatedRegressor, VBPClassifier, VBPRegressor

QUICK: list[Any] = [
    VBPRegressor(hidden=(16,), epochs=25, lr=0.04, propagation="ap2", random_state=0, calibrate=None),
    VBPClassifier(hidden=(16,), epochs=12, lr=0.04, propagation="ap2", random_state=0),
    CorrelatedRegressor(hidden=(16,), epochs=25, lr=0.04, samples=5, random_state=0, calibrate=None),
    CorrelatedClassifier(hidden=(16,), epochs=12, lr=0.04, samples=5, random_state=0),
]
each = pytest.mark.parametrize("estimator", QUICK, ids=lambda one: type(one).__name__)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # small tensors
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "estimator",
    [pytest.param(one, marks=pytest.mark.slow if "Correlated" in type(one).__name__ else []) for one in QUICK],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks_pass(estimator: Any) -> None:
    # The first noise is estimated from the rows as they come, and their order is drawn: no two such fits are equal.
    # That weights count rows is shown at the optimum, in test_variational_options.
    differ = {"check_sample_weight_equivalence_on_dense_data": "training is stochastic"}
    failed = [
        (one["check_name"], one["exception"])
        for one in check_estimator(estimator, on_fail=None, expected_failed_checks=differ)
        if one["status"] == "failed"
    ]
    assert not failed


@each
def test_two_fits_with_one_seed_and_a_saved_model_predict_the_same(estimator: Any, tmp_path: Any) -> None:
    X, y = (load_iris if "Classifier" in type(estimator).__name__ else load_diabetes)(return_X_y=True)
    X, y = X[::4], y[::4]
    first = estimator.fit(X, y)
    joblib.dump(first, tmp_path / "model")
    again = joblib.load(tmp_path / "model")
    expected = first.predict(X)
    assert np.array_equal(again.predict(X), expected)
    second = type(estimator)(**estimator.get_params()).fit(X, y)
    assert np.array_equal(second.predict(X), expected)
    before = torch.get_rng_state()
    first.predict(X)
    assert torch.equal(torch.get_rng_state(), before)


@each
def test_partial_fits_continue_as_one_partial_fit(estimator: Any) -> None:
    X, y = (load_iris if "Classifier" in type(estimator).__name__ else load_diabetes)(return_X_y=True)
    X, y = X[::3], y[::3]
    whole = type(estimator)(**estimator.get_params()).partial_fit(X, y, passes=5)
    parts = type(estimator)(**estimator.get_params())
    for passes in (2, 3):
        parts.partial_fit(X, y, passes=passes)
    assert parts.n_iter_ == whole.n_iter_ == 5
    assert np.array_equal(parts.predict(X), whole.predict(X))


@pytest.mark.parametrize("kind", [VBPRegressor, CorrelatedRegressor])
def test_predicted_deviations_cover_held_out_targets(kind: Any) -> None:
    X, y = load_diabetes(return_X_y=True)
    train, test, y_train, y_test = train_test_split(X, y, random_state=0)
    # A hundred epochs are few for a posterior that begins narrow, and half of these targets is noise.
    options = {"initial_std": 0.05} if kind is VBPRegressor else {"kl_weight": 1.0}
    model = kind(epochs=100, calibrate=None, random_state=0, **options).fit(train, y_train)
    mean, std = model.predict(test, return_std=True)
    inside = float((np.abs(mean - y_test) <= 1.96 * std).mean())
    assert 0.85 <= inside <= 1.0  # of 111 targets; three standard errors of 95 % are 6 %
    normal = -0.5 * (((y_test - mean) / std) ** 2 + np.log(2 * np.pi * std**2))
    assert model.log_prob(test, y_test).mean() == pytest.approx(normal.mean(), abs=0.1)
    assert model.score(test, y_test) > 0.25


@pytest.mark.parametrize("kind", [VBPClassifier, CorrelatedClassifier])
def test_class_probabilities_sum_to_one_and_classify(kind: Any) -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    train, test, y_train, y_test = train_test_split(X, names, random_state=0)
    model = kind(epochs=60, random_state=0).fit(train, y_train)
    found = model.predict_proba(test)
    assert np.allclose(found.sum(1), 1)
    assert model.score(test, y_test) > 0.9
    own = [row[list(model.classes_).index(label)] for row, label in zip(found, y_test, strict=True)]
    assert np.allclose(model.log_prob(test, y_test), np.log(own))


def test_credible_intervals_of_a_classifier_hold_its_probabilities() -> None:
    X, y = load_iris(return_X_y=True)
    model = CorrelatedClassifier(epochs=40, random_state=0).fit(X[:100], y[:100])  # two classes
    found = model.predict_credible(X[:100])
    assert found.probabilities.shape == (100, 2)
    assert bool((found.lower <= found.upper).all())
    table = found.table(torch.tensor(y[:100]))
    assert sum(table.values()) == 100
    assert table["right certain"] > 90


@pytest.mark.parametrize("kind", [VBPRegressor, CorrelatedRegressor])
@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_scales_of_the_data_do_not_matter(kind: Any, scale: float) -> None:
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:80], y[:80]
    plain = kind(epochs=10, random_state=0).fit(X, y).predict(X[:5])
    scaled = kind(epochs=10, random_state=0).fit(X * scale, y * scale).predict(X[:5] * scale)
    assert np.allclose(scaled / scale, plain, rtol=1e-4)


def test_a_constant_feature_and_a_single_example_are_fitted() -> None:
    X = np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 5.0]])
    model = VBPRegressor(epochs=5, random_state=0).fit(X, X[:, 1])
    assert np.isfinite(model.predict(X)).all()
    model = VBPRegressor(epochs=5, random_state=0).fit(X[:1], X[:1, 1])
    assert np.isfinite(model.predict(X)).all()


@each
def test_data_that_cannot_be_fitted_are_refused(estimator: Any) -> None:
    X = np.random.default_rng(0).standard_normal((20, 3))
    y = (X[:, 0] > 0).astype(int)
    bad = X.copy()
    bad[3, 1] = np.nan
    fresh = type(estimator)(**estimator.get_params())
    with pytest.raises(ValueError, match="NaN"):
        fresh.fit(bad, y)
    with pytest.raises(ValueError, match=r"inconsistent|samples"):
        fresh.fit(X, y[:-1])


@pytest.mark.parametrize("kind", [VBPClassifier, CorrelatedClassifier])
def test_a_label_that_was_not_in_the_first_data_is_refused(kind: Any) -> None:
    X, y = load_iris(return_X_y=True)
    model = kind(epochs=1, random_state=0).partial_fit(X[:100], y[:100])
    with pytest.raises(InputError, match="expected labels of"):
        model.partial_fit(X, y)
    model = kind(epochs=1, random_state=0).partial_fit(X[:100], y[:100], classes=[0, 1, 2])
    assert model.partial_fit(X, y).predict_proba(X).shape == (150, 3)
