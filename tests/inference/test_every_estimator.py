"""What every estimator does: scikit-learn's conventions, saving, going on, units, hard data, and what it refuses."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from inference.every_estimator import (
    BY_BOUND,
    CLASSIFIERS,
    FILTERS,
    QUICK,
    REGRESSORS,
    answers,
    every,
    friedman,
    line,
    quick,
)
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer, load_iris, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GroupKFold, KFold, TimeSeriesSplit, train_test_split
from sklearn.utils.estimator_checks import check_estimator

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

#: variational ones with draws, and filters that differ from PBP by the rule of a step alone
_SLOW = (CorrelatedRegressor, CorrelatedClassifier, EBPRegressor, EBPClassifier)


@every([pytest.param(kind, marks=pytest.mark.slow if kind in _SLOW else []) for kind in QUICK])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks_pass(kind: Any) -> None:
    # The first noise is estimated from the rows as they come, and their order is drawn: no two such fits are equal.
    # That weights count rows is shown at the optimum, in test_variational_options, and below for filters.
    differ = {"check_sample_weight_equivalence_on_dense_data": "training is stochastic"}
    model = quick(kind, hidden=(10,), chains=1) if kind is BowTieRegressor else quick(kind)
    found = check_estimator(model, on_fail=None, expected_failed_checks=None if kind is BowTieRegressor else differ)
    assert not [(one["check_name"], one["exception"]) for one in found if one["status"] == "failed"]


@every()
def test_fits_with_one_seed_and_saved_ones_predict_the_same_and_go_on_alike(kind: Any, tmp_path: Path) -> None:
    x, y = friedman(kind)
    first, second = (quick(kind).fit(x, y) for _ in range(2))
    joblib.dump(first, tmp_path / "model")
    others = (second, joblib.load(tmp_path / "model"), pickle.loads(pickle.dumps(first)))
    for _ in range(2):
        before = torch.get_rng_state()
        expected = answers(first, x)
        assert torch.equal(torch.get_rng_state(), before)
        for other in others:
            np.testing.assert_array_equal(answers(other, x), expected)
        for each in (first, *others):
            if hasattr(each, "partial_fit"):  # the bow tie has none
                each.partial_fit(x, y, passes=2)


@every([*FILTERS, *BY_BOUND])
def test_partial_fits_are_one_fit(kind: Any) -> None:
    x, y = friedman(kind)
    whole, parts = quick(kind, passes=3).fit(x, y) if kind in FILTERS else quick(kind), quick(kind)
    if kind in BY_BOUND:
        whole.partial_fit(x, y, passes=3)
    for passes in (2, 1):
        parts.partial_fit(x, y, passes=passes)
    np.testing.assert_array_equal(answers(parts, x), answers(whole, x))
    assert kind in FILTERS or parts.n_iter_ == whole.n_iter_ == 3


@every([kind for kind in REGRESSORS if kind is not BowTieRegressor])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("shift", [0.0, 1e7])
def test_predictions_follow_the_units_of_the_data(kind: Any, scale: float, shift: float) -> None:
    x, y = friedman(kind, 100)
    options = {"propagation": "controlled"} if kind is VBPRegressor else {}
    plain = answers(quick(kind, **options).fit(x, y), x)
    found = answers(quick(kind, **options).fit(scale * x, scale * (y + shift)), scale * x) / scale
    # Targets on top of a shift of 1e7 have nine digits left.
    np.testing.assert_allclose(found[0] - shift, plain[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], plain[1], rtol=1e-4)


@every()
def test_a_row_is_predicted_alone_as_among_others(kind: Any) -> None:
    x, y = friedman(kind)
    options = {"propagation": "controlled", "initial_std": 0.5} if kind in (VBPRegressor, VBPClassifier) else {}
    model = quick(kind, **options).fit(x, y)
    rows = -1 if kind in REGRESSORS else 0
    alone = np.concatenate([answers(model, x[row : row + 1]) for row in range(5)], rows)
    np.testing.assert_allclose(alone, answers(model, x).take(range(5), rows), rtol=1e-9)


@every()
def test_the_width_of_one_hidden_layer_may_be_a_number(kind: Any) -> None:
    x, y = friedman(kind)
    one, other = (quick(kind, hidden=hidden).fit(x, y) for hidden in (6, (6,)))
    np.testing.assert_array_equal(answers(one, x), answers(other, x))


# ------------------------------------------------------------------ weights of rows, and folds of one's own


@every(FILTERS)
@pytest.mark.parametrize("hidden", [(), (10,)], ids=str)
def test_a_row_of_weight_three_counts_for_a_filter_as_three_rows(kind: Any, hidden: Any) -> None:
    """A line exactly, a network up to the order of its data; half of the rows, of weight 3, is far off."""
    x, y = line(80, noise=0.1)
    y, weight = y + 2 * (np.arange(80) % 2), 1.0 + 2 * (np.arange(80) % 2)
    if kind in CLASSIFIERS:
        y = y > np.median(y)
    options: dict[str, Any] = {"hidden": hidden, "passes": 40, "members": 4}
    told = answers(quick(kind, **options).fit(x, y, sample_weight=weight), x)
    repeated = quick(kind, **options).fit(*(np.repeat(part, weight.astype(int), 0) for part in (x, y)))
    plain = np.abs(told - answers(quick(kind, **options).fit(x, y), x)).max()
    exact = kind in REGRESSORS and not hidden
    assert np.abs(told - answers(repeated, x)).max() < (1e-9 if exact else 0.3 * plain)


def test_weights_that_are_no_whole_numbers_count_on_average() -> None:
    x, y = line(60, noise=0.1)
    y[:30] += 1
    model = quick(PBPRegressor, passes=60, hidden=(20,), members=4)
    weight = np.where(np.arange(60) < 30, 1.5, 0.5)
    mean = model.fit(x, y, sample_weight=weight).predict(x)
    assert np.mean(mean - x[:, 0]) == pytest.approx(0.75, abs=0.1)
    assert model._updates == 60 * 60


@every(CLASSIFIERS)
def test_weights_of_classes_are_those_of_their_rows(kind: Any) -> None:
    x, y = friedman(kind)
    rows = np.r_[:60, np.flatnonzero(y == "high")]
    x, y = x[rows], y[rows]
    told = quick(kind, class_weight="balanced").fit(x, y)
    by_row = quick(kind).fit(x, y, sample_weight=np.where(y == "high", 90 / 120, 90 / 60))
    np.testing.assert_allclose(answers(told, x), answers(by_row, x), rtol=1e-6)


@every([PBPRegressor, VBPRegressor])
def test_folds_of_ones_own_calibrate_as_the_same_ones_by_default(kind: Any) -> None:
    x, y = friedman(kind)
    model = quick(kind, calibrate="cv").fit(x, y)
    folds = list(KFold(5, shuffle=True, random_state=model._seed()).split(x))
    np.testing.assert_array_equal(answers(quick(kind, calibrate=folds).fit(x, y), x), answers(model, x))


def test_folds_may_keep_groups_and_later_rows_together() -> None:
    """Copies of a row in one group: their errors are those of new rows. Folds are of rows as fit was given them."""
    x, y = line(30, 12, noise=1.0)
    x, y, groups = np.tile(x, (4, 1)), np.tile(y, 4), np.tile(np.arange(30), 4)
    folds = list(GroupKFold(5).split(x, y, groups))
    alike, apart = (quick(PBPRegressor, hidden=(), calibrate=way).fit(x, y) for way in ("cv", folds))
    assert apart.sigma_scale_[0] > 1.25 * alike.sigma_scale_[0]
    weight = np.where(groups == 3, 0.0, 1.0)
    told = quick(PBPRegressor, hidden=(), calibrate=folds).fit(x, y, sample_weight=weight)
    place = np.cumsum(weight > 0) - 1
    left = [tuple(place[part[weight[part] > 0]] for part in pair) for pair in folds]
    without = quick(PBPRegressor, hidden=(), calibrate=left).fit(x[weight > 0], y[weight > 0])
    np.testing.assert_allclose(answers(told, x), answers(without, x), rtol=1e-9)
    later = quick(PBPRegressor, hidden=(), calibrate=TimeSeriesSplit(4)).fit(x, y)
    assert later._laws[0].counts[-1] == 96  # a fifth is never held out


# ------------------------------------------------------------------ hard data


def _odd() -> tuple[np.ndarray, np.ndarray]:
    """Every row twice, and features that are constant."""
    x, y = friedman(PBPRegressor)
    x[:, 1], x[:, 3] = 5.0, 0.0
    return np.repeat(x, 2, 0), np.repeat(y, 2)


def _units() -> tuple[np.ndarray, np.ndarray]:
    x = np.stack([np.linspace(-1e12, 1e12, 40), np.full(40, 7.0), np.linspace(0, 1e-12, 40)], 1)
    return x, 1e9 * np.linspace(-1, 1, 40) ** 2


#: data, and how far a regressor's mean may be from the targets in the root mean square, if that is to be asked
HARD: dict[str, tuple[tuple[np.ndarray, np.ndarray], float | None]] = {
    "one row": ((np.array([[1.0, 2.0]]), np.array([7.0])), 1.5),
    "twenty rows": (line(20, noise=0.1), None),
    "more features than rows": (line(60, 500, noise=0.1), None),
    "constant targets": ((line(40, 3)[0], np.full(40, 7.0)), None),
    "constant features, all rows twice": (_odd(), None),
    "units far apart": (_units(), 0.5e9),
}
#: sweeps of the sampler that these take
BOW_TIE = {
    "more features than rows": {"burn_in": 4, "draws": 4},
    "constant features, all rows twice": {"burn_in": 150, "draws": 40},
    "units far apart": {"burn_in": 200, "draws": 50},
}


@every()
@pytest.mark.parametrize("name", HARD)
def test_hard_data_are_fitted_with_predictions_that_make_sense(kind: Any, name: str) -> None:
    (x, y), off = HARD[name]
    options: dict[str, Any] = {}
    if kind in CLASSIFIERS:
        if len(np.unique(y)) < 2:
            with pytest.raises(ValueError, match=r"at least 2 classes, got one class|minimum of"):
                quick(kind).fit(x, y)
            return
        y = y > np.median(y)
    elif name in ("twenty rows", "constant targets"):
        options = {"calibrate": "split"}
    if kind is BowTieRegressor:
        options |= BOW_TIE.get(name, {"burn_in": 60, "draws": 40})
    model = quick(kind, **options).fit(x, y)
    found = answers(model, x)
    if off is not None and kind in REGRESSORS:
        assert np.sqrt(np.mean((found[0] - y) ** 2)) < off
    if name == "constant targets" and kind in REGRESSORS:
        np.testing.assert_allclose(found[0], y, rtol=0, atol=0.7)
        assert (found[1] < 2).all()
    if name == "constant features, all rows twice":
        assert np.isfinite(model.log_prob(x, y)).all()
        assert model.score(x, y) > 0.3


@pytest.mark.parametrize(("kind", "seed"), [(PBPRegressor, 0), pytest.param(EBPRegressor, 1, marks=pytest.mark.slow)])
def test_twenty_rows_are_fitted_better_than_by_their_mean(kind: Any, seed: int) -> None:
    x, y = line(20, noise=0.1, seed=seed)
    new, targets = line(200, noise=0.1, seed=seed + 100)
    mean, std = answers(kind(random_state=seed).fit(x, y), new)
    assert np.mean((mean - targets) ** 2) < np.mean((targets - y.mean()) ** 2)
    assert np.mean(np.abs(mean - targets) < 3 * std) > 0.9


def test_a_classifier_chooses_its_widths_and_passes_for_twenty_rows() -> None:
    x, y = line(20)
    assert (answers(PBPClassifier().fit(x, y > 0), x) > 0).all()


@pytest.mark.parametrize("kind", [PBPRegressor, VBPClassifier])
def test_an_outlier_beside_which_all_else_is_one_value_is_said(kind: Any) -> None:
    x, y = line(60, 3)
    rare = np.c_[x, np.arange(60) == 7]  # of two values, none of which is out of the way
    skewed = rare.copy()
    skewed[5, 1] = 1e6
    targets = np.where(np.arange(60) == 9, 1e6, y)
    y, cases = y > 0 if kind in CLASSIFIERS else y, []
    if kind in REGRESSORS:
        cases = [(rare, targets, "of the targets lie"), (skewed, targets, "of the targets, feature 1 lie")]
    for features, labels, said in ((rare, y, None), (skewed, y, "of feature 1 lie"), *cases):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", ConvergenceWarning)
            quick(kind).fit(features, labels)
        found = [str(one.message) for one in heard if "outliers" in str(one.message)]
        assert [text.split("values ")[1].split(" within")[0] for text in found] == ([] if said is None else [said])


# ------------------------------------------------------------------ classes


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"passes": 20, "likelihood": how, "dtype": dtype}) for kind in CLASSIFIERS[:2]
          for how in ("sampled", "bound") for dtype in ("float32", "float64")),
        (VBPClassifier, {"epochs": 60, "lr": 0.01, "hidden": (50,), "propagation": "controlled"}),
        (CorrelatedClassifier, {"epochs": 60, "lr": 0.01, "hidden": (50,), "samples": 20}),
    ],
    ids=str,
)  # fmt: skip
def test_probabilities_of_three_classes_are_right(kind: Any, options: dict[str, Any]) -> None:
    x, labels = load_iris(return_X_y=True)
    x_train, x_test, train, test = train_test_split(
        x, np.array(["setosa", "versicolor", "virginica"])[labels], random_state=0
    )
    model = quick(kind, **options).fit(x_train, train)
    found = answers(model, x_test)
    assert model.score(x_test, test) > (0.85 if kind in FILTERS else 0.9)
    own = [row[list(model.classes_).index(label)] for row, label in zip(found, test, strict=True)]
    np.testing.assert_allclose(model.log_prob(x_test, test), np.log(own), rtol=1e-5)


@every(CLASSIFIERS[:2])
def test_two_classes_by_probit(kind: Any) -> None:
    x_train, x_test, y_train, y_test = train_test_split(*load_breast_cancer(return_X_y=True), random_state=0)
    model = quick(kind, hidden=(50, 50), passes=5).fit(x_train, y_train)
    assert model.score(x_test, y_test) > 0.93
    assert -model.log_prob(x_test, y_test).mean() < 0.25
    by_softmax = quick(kind, hidden=(50, 50), passes=5, likelihood="sampled").fit(x_train, y_train)
    assert (by_softmax.predict(x_test) == model.predict(x_test)).mean() > 0.93


@every(CLASSIFIERS)
def test_a_label_that_was_not_in_the_first_data_is_refused(kind: Any) -> None:
    x, y = load_iris(return_X_y=True)
    with pytest.raises(InputError, match="expected labels of"):
        quick(kind).partial_fit(x[:100], y[:100]).partial_fit(x, y)
    model = quick(kind).partial_fit(x[:100], y[:100], classes=[0, 1, 2])
    assert model.partial_fit(x, y).predict_proba(x).shape == (150, 3)


# ------------------------------------------------------------------ filters


def known(kind: Any, **options: Any) -> Any:
    """An estimator of the size that is chosen for most data."""
    return quick(kind, **{"hidden": (50, 50), "passes": 40, **options})


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


# ------------------------------------------------------------------ what is refused


@every()
def test_data_that_cannot_be_fitted_are_refused(kind: Any) -> None:
    x, y = friedman(kind)
    with pytest.raises(ValueError, match=r"inconsistent|samples"):
        quick(kind).fit(x, y[:-1])
    x[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        quick(kind).fit(x, y)
