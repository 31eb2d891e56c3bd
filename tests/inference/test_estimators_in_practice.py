"""What practitioners do to estimators: frames, rare classes, weights, known noise in chunks, interrupted fits."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from inference.every_estimator import line
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from momentgen.errors import InputError
from momentgen.inference import (
    CorrelatedRegressor,
    EBPClassifier,
    EBPRegressor,
    PBPClassifier,
    PBPRegressor,
    VBPClassifier,
    VBPRegressor,
)
from momentgen.inference.estimators import held_out
from momentgen.inference.estimators.calibration import fit_error_law

FILTER: dict[str, Any] = {"hidden": (5,), "passes": 5, "members": 1, "random_state": 0}
BOUND: dict[str, Any] = {"hidden": (10,), "epochs": 20, "lr": 0.03, "random_state": 0}


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(1)], ids=["none", "a stream"])
def test_rows_that_calibrate_were_not_fitted_whatever_the_random_state(random_state: Any) -> None:
    """Without a fixed seed the rows were once divided anew, and errors of fitted rows made σ too small."""
    np.random.seed(5)  # noqa: NPY002
    x, y = make_friedman1(100, noise=1.0, random_state=1)
    new, targets = make_friedman1(2000, noise=1.0, random_state=99)
    low, high = PBPRegressor((20,), 60, members=1, random_state=random_state).fit(x, y).predict_interval(new, 0.9)
    # The level that 100 rows give has σ 0.03.
    assert np.mean((low <= targets) & (targets <= high)) > 0.8


@pytest.mark.parametrize("kind", [PBPClassifier, EBPClassifier])
def test_a_class_of_one_row_in_five_hundred_is_fitted(kind: Any) -> None:
    x, _ = line(501)
    labels = np.arange(501) == 7
    found = kind(hidden=(5,), members=1, random_state=0).fit(x, labels).predict_proba(x)
    assert found.shape == (501, 2)
    assert 0.0005 < found[:, 1].mean() < 0.02


@pytest.mark.parametrize("model", [VBPClassifier(hidden=(5,), epochs=5), PBPClassifier((5,), 5)])
def test_log_probabilities_of_a_column_of_labels_are_one_per_row(model: Any) -> None:
    x, y = line(40)
    labels = np.where(y > 0, "up", "down")
    model.fit(x, labels)
    expected = np.log(model.predict_proba(x))[np.arange(40), (labels == "up").astype(int)]
    assert model.log_prob(x, labels) == pytest.approx(expected)
    assert model.log_prob(x, labels[:, None]) == pytest.approx(expected)


def test_a_first_call_that_was_refused_leaves_no_trace() -> None:
    x, y = line(20)
    model = VBPClassifier(hidden=(5,), random_state=0)
    with pytest.raises(ValueError, match="at least 2 classes"):
        model.partial_fit(x, np.ones(20))
    assert model.partial_fit(x, np.ones(20), classes=[0, 1]).classes_.tolist() == [0, 1]
    filtered = PBPRegressor(**FILTER)
    with pytest.raises(InputError, match="n_total"):
        filtered.partial_fit(x, y, n_total=1)
    assert np.isfinite(filtered.partial_fit(x, y).predict(x)).all()


def test_a_fit_that_is_broken_off_is_no_fit_though_its_callback_may_predict() -> None:
    x, y = line(60)
    seen: list[Any] = []

    def interrupt(trainer: Any) -> None:
        seen.append(model.predict(x))
        if len(seen) == 2:
            raise KeyboardInterrupt

    model = VBPRegressor(**BOUND, propagation="ap2", callback=interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y)
    with pytest.raises(NotFittedError):
        model.predict(x)
    seen.extend([0, 0])
    assert np.isfinite(model.fit(x, y).predict(x)).all()


def test_a_fit_whose_calibration_is_broken_off_has_no_σ(monkeypatch: Any) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(held_out, "fit_error_law", interrupt)
    model = PBPRegressor(**FILTER)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*line(40))
    with pytest.raises(NotFittedError):
        model.predict(line(40)[0])


def test_a_callback_that_has_ended_training_does_not_end_that_of_networks_that_calibrate() -> None:
    """One that counted once ended the second training after an epoch, and σ was that of its errors."""
    x, y = line(80)
    seen: list[int] = []

    def stop(trainer: Any) -> bool:
        seen.append(len(trainer.history))
        return len(seen) >= 60

    settings = BOUND | {"propagation": "ap2", "epochs": 200}
    stopped = VBPRegressor(**settings, callback=stop).fit(x, y)
    assert seen == list(range(1, 61))
    assert stopped.predict(x, return_std=True)[1].mean() < 0.45


def test_frames_are_fitted_and_calibrated_without_a_warning() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = line(60)
    frame = pandas.DataFrame(x, columns=["one", "two"])
    weight = pandas.Series(np.ones(60))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        filtered = PBPRegressor(**FILTER).fit(frame, frame["one"])
        bound = VBPRegressor(**BOUND, propagation="ap2").fit(
            frame, pandas.Series(y), sample_weight=weight, y_std=0.1 * weight
        )
        assert bound.predict(frame).shape == (60,)
    assert filtered.predict(frame) == pytest.approx(PBPRegressor(**FILTER).fit(x, x[:, 0]).predict(x))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_targets_of_low_precision_are_fitted_as_the_numbers_that_they_are(dtype: str) -> None:
    x, y = line(60)
    rounded = (1000 + y).astype(dtype)
    targets = (rounded, rounded.astype(np.float64))
    found, expected = (PBPRegressor(**FILTER).fit(x, some).predict(x, return_std=True) for some in targets)
    assert np.array_equal(found, expected)


# ------------------------------------------------------------------ weights of rows


@pytest.mark.parametrize(
    "model",
    [
        VBPRegressor(**BOUND, propagation="ap2"),
        VBPRegressor(hidden=(5,), propagation="ap2", max_steps=60, validation_fraction=0.3, random_state=0),
        CorrelatedRegressor(**BOUND, samples=10),
        PBPRegressor(**FILTER),
        PBPRegressor(hidden=(5,), members=1, random_state=0),
    ],
    ids=["calibrated", "stopped early", "correlated", "filtered", "passes chosen"],
)
def test_rows_of_weight_zero_leave_σ_and_intervals_as_if_they_were_not_there(model: Any) -> None:
    x, y = line(80)
    weight = (np.arange(80) % 4 != 0).astype(float)
    spoilt = np.where(weight == 0, 1e3, y)
    new, _ = line(5, seed=1)
    without = model.fit(x[weight > 0], y[weight > 0])
    expected = (*without.predict(new, return_std=True), *without.predict_interval(new, 0.9))
    told = model.fit(x, spoilt, sample_weight=weight)
    found = (*told.predict(new, return_std=True), *told.predict_interval(new, 0.9))
    for mine, other in zip(found, expected, strict=True):
        assert mine == pytest.approx(other, rel=1e-6)


def test_held_out_rows_count_in_calibration_as_often_as_their_weight_says() -> None:
    draw = np.random.default_rng(0)
    z, x = draw.standard_t(4, 40), draw.normal(size=(40, 2))
    weight = draw.integers(1, 4, 40)
    told = fit_error_law(z, x, x[:, 0], weight.astype(float))
    repeated = fit_error_law(*(np.repeat(part, weight, 0) for part in (z, x, x[:, 0])))
    assert told.freedom == repeated.freedom
    assert told.root_mean_square == pytest.approx(repeated.root_mean_square)
    level = 0.9 * (weight.sum() + 1)
    ends = [law.errors[np.searchsorted(law.counts, level)] * law.size for law in (told, repeated)]
    assert told.counts[-1] == len(repeated.errors)
    if told.share == repeated.share == 0:
        assert told.size == pytest.approx(repeated.size)
        assert ends[0] == pytest.approx(ends[1])


def test_a_class_whose_rows_have_weight_zero_stays_a_class() -> None:
    x, y = line(60)
    labels = np.digitize(y, [-0.5, 0.5])
    model = VBPClassifier(hidden=(5,), epochs=20, random_state=0).fit(x, labels, sample_weight=labels != 1)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.predict_proba(x).shape == (60, 3)


@pytest.mark.parametrize("kind", [VBPRegressor, CorrelatedRegressor])
def test_batch_norm_is_trained_where_a_single_row_is_left_for_the_last_batch(kind: Any) -> None:
    x, y = line(65)

    def make(features: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(features, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))

    model = kind(module=make, epochs=2, batch_size=64, calibrate=None, random_state=0).fit(x, y)
    assert np.isfinite(model.predict(x)).all()
    assert model.trainer_.steps == 2


# ------------------------------------------------------------------ data in chunks


@pytest.mark.parametrize("kind", [PBPRegressor, EBPRegressor])
@pytest.mark.parametrize("rows", [1, 7])
def test_small_chunks_leave_the_noise_of_all_rows_and_one_that_is_far_off_is_no_divergence(
    kind: Any, rows: int
) -> None:
    """The noise was once that of the last chunk alone: 0.08 for 0.3 after single rows, a dozen of which raised."""
    x, y = line(400)
    model = kind((5,), members=1, random_state=0).partial_fit(x[:100], y[:100], passes=10)
    for start in range(100, 400, rows):
        model.partial_fit(x[start : start + rows], y[start : start + rows])
    assert model.predict_parts(x[:1]).aleatoric[0] == pytest.approx(0.3, rel=0.25)


def test_chunks_go_on_from_a_fit_with_known_noise() -> None:
    x, y = line(60)
    model = VBPRegressor(**BOUND, propagation="ap2").fit(x, y, y_std=np.full(60, 0.1))
    assert np.isfinite(model.partial_fit(x[:30], y[:30]).predict(x)).all()


# ------------------------------------------------------------------ threads


@pytest.mark.parametrize(
    "model",
    [
        VBPRegressor(hidden=(5,), epochs=40, propagation="ap2", calibrate=None, random_state=0),
        VBPRegressor(hidden=(5,), epochs=10, calibrate=None, random_state=0),
        CorrelatedRegressor(hidden=(5,), epochs=20, samples=10, calibrate=None, random_state=0),
    ],
    ids=["ap2", "controlled", "draws"],
)
def test_fits_in_threads_side_by_side_are_those_of_one_after_the_other(model: Any) -> None:
    """Threads once took each other's forward-mode differentiation for a transform, and refused to predict."""
    x, y = line(60)

    def fit(_: int) -> Any:
        return clone(model).fit(x, y).predict(x, return_std=True)

    expected = fit(0)
    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(fit, range(3)):
            assert np.array_equal(found, expected)
