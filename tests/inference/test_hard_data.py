"""Data that are few, many, wide or degenerate: estimators fit them with finite predictions, or say what is wrong."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning

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

REGRESSORS: list[Any] = [
    PBPRegressor(hidden=(50, 50), passes=40, members=1, random_state=0),
    EBPRegressor(hidden=(50, 50), passes=40, members=1, random_state=0),
    VBPRegressor(epochs=60, lr=0.03, random_state=0),
    CorrelatedRegressor(epochs=40, samples=20, random_state=0),
    BowTieRegressor(hidden=(5,), burn_in=60, draws=40, random_state=0),
]
#: one of them chooses its widths and passes
CLASSIFIERS: list[Any] = [
    PBPClassifier(), EBPClassifier((50,), 10), VBPClassifier(epochs=1), CorrelatedClassifier(epochs=1)
]  # fmt: skip
each = pytest.mark.parametrize("model", REGRESSORS, ids=lambda one: type(one).__name__)


@pytest.fixture(autouse=True)
def quiet_and_on_one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
    torch.set_num_threads(before)


def line(rows: int, features: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, features))
    return x, x[:, 0] + 0.1 * draw.normal(size=rows)


def finite(model: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, std = model.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std > 0).all()
    return mean, std


@pytest.mark.parametrize(("kind", "seed"), [(PBPRegressor, 0), (EBPRegressor, 1)])
def test_twenty_rows_are_fitted_better_than_by_their_mean(kind: Any, seed: int) -> None:
    x, y = line(20, 2, seed)
    new, targets = line(200, 2, seed + 100)
    mean, std = finite(kind(random_state=seed).fit(x, y), new)
    assert np.mean((mean - targets) ** 2) < np.mean((targets - y.mean()) ** 2)
    assert np.mean(np.abs(mean - targets) < 3 * std) > 0.9


@pytest.mark.parametrize("model", [*REGRESSORS[2:], *CLASSIFIERS], ids=lambda one: type(one).__name__)
def test_twenty_rows_are_fitted(model: Any) -> None:
    x, y = line(20, 2)
    model = clone(model)
    if is_classifier(model):
        found = model.fit(x, y > 0).predict_proba(x)
        assert (found > 0).all()
        np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
    else:
        finite(model.fit(x, y), x)


@pytest.mark.parametrize("model", CLASSIFIERS, ids=lambda one: type(one).__name__)
def test_more_features_than_rows_are_classified(model: Any) -> None:
    x, y = line(60, 500)
    found = clone(model).set_params(random_state=0).fit(x, y > 0).predict_proba(x)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)


@each
def test_more_features_than_rows_are_fitted(model: Any) -> None:
    x, y = line(60, 500)
    few = {"burn_in": 4, "draws": 4} if isinstance(model, BowTieRegressor) else {}  # a sweep takes 0.3 s
    finite(type(model)(**{**model.get_params(), **few, "calibrate": None}).fit(x, y), x)


@each
def test_constant_targets_are_predicted(model: Any) -> None:
    x, _ = line(40, 3)
    mean, std = finite(type(model)(**model.get_params()).fit(x, np.full(40, 7.0)), x)
    assert mean == pytest.approx(np.full(40, 7.0), abs=0.7)
    assert (std < 2).all()


@pytest.mark.parametrize(
    "model",
    [
        PBPRegressor((50,), 2, members=1),
        EBPRegressor((50,), 2, members=1),
        VBPRegressor(epochs=5),
        CorrelatedRegressor(epochs=5, samples=10),
    ],
    ids=lambda one: type(one).__name__,
)
def test_twenty_thousand_rows_are_fitted(model: Any) -> None:
    x, y = line(20_000, 5)
    model = type(model)(**{**model.get_params(), "random_state": 0, "calibrate": None}).fit(x, y)
    mean, _ = finite(model, x[:3000])
    assert np.sqrt(np.mean((mean - x[:3000, 0]) ** 2)) < 0.2


@pytest.mark.parametrize("model", CLASSIFIERS, ids=lambda one: type(one).__name__)
def test_one_class_is_refused(model: Any) -> None:
    x, _ = line(30, 2)
    with pytest.raises(ValueError, match="at least 2 classes, got one class"):
        model.fit(x, np.zeros(30))


@pytest.mark.parametrize(
    "model", [PBPRegressor(hidden=(5,), passes=2), VBPClassifier(epochs=2)], ids=lambda one: type(one).__name__
)
def test_an_outlier_beside_which_all_else_is_one_value_is_said(model: Any) -> None:
    x, y = line(60, 3)
    rare = np.c_[x, np.arange(60) == 7]  # of two values, none of which is out of the way
    skewed = rare.copy()
    skewed[5, 1] = 1e6
    targets = np.where(np.arange(60) == 9, 1e6, y)
    classes, regresses = y > 0, not is_classifier(model)
    for features, labels, said in (
        (rare, y if regresses else classes, None),
        (skewed, y if regresses else classes, "of feature 1 lie"),
        *(
            [(rare, targets, "of the targets lie"), (skewed, targets, "of the targets, feature 1 lie")]
            if regresses
            else ()
        ),
    ):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", ConvergenceWarning)
            clone(model).set_params(random_state=0).fit(features, labels)
        found = [str(one.message) for one in heard if "outliers" in str(one.message)]
        assert [text.split("values ")[1].split(" within")[0] for text in found] == ([] if said is None else [said])


def test_an_outlier_that_does_not_count_is_not_said() -> None:
    x, y = line(60, 3)
    y[9] = 1e6
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", ConvergenceWarning)
        VBPRegressor(epochs=2, random_state=0).fit(x, y, sample_weight=np.arange(60) != 9)
    assert not any("outliers" in str(one.message) for one in heard)
