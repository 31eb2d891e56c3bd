"""A fit that predicts no better than a constant or a line says so; lines are exact; features may be uncertain."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from inference.every_estimator import CLASSIFIERS, every, friedman, line, quick
from sklearn.exceptions import ConvergenceWarning

from momentgen.inference import (
    Categorical,
    EBPRegressor,
    MeanField,
    PBPClassifier,
    PBPRegressor,
    Poisson,
    VBPClassifier,
    VBPRegressor,
    elbo,
    randomise,
)
from momentgen.inference.estimators.passes import choose
from momentgen.inference.linear import LinearPosterior
from momentgen.laws.methods import method

_BY_LAYER: Any = {"hidden": (50,) * 4, "passes": 20}


def _said(model: Any, x: Any, y: Any) -> str:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(x, y)
    return " ".join(str(one.message) for one in heard)


# ------------------------------------------------------------------ warnings


@pytest.mark.parametrize("calibrate", [None, "split"])
@pytest.mark.parametrize(
    ("kind", "settings", "noise", "said"),
    [
        (EBPRegressor, _BY_LAYER, 0.0, "a line predicts .* rows better, .* fewer hidden layers, or PBP"),
        (VBPRegressor, {"prior_std": 1e-3, "epochs": 100, "kl_weight": 1.0}, 0.1, "rows .* kl_weight below 1"),
        (PBPRegressor, {}, 0.1, None),
    ],
    ids=str,
)
def test_a_fit_that_a_line_beats_says_so_and_what_to_try(
    kind: Any, settings: Any, noise: float, said: str | None, calibrate: Any
) -> None:
    x, y = line(60, 1, noise=noise)
    heard = _said(quick(kind, **settings, calibrate=calibrate), x, y)
    assert ("predict" in heard) == (said is not None)
    if said is not None:
        assert re.search(said, heard)


@pytest.mark.parametrize("seed", range(3, 9))
def test_targets_that_the_features_do_not_tell_of_are_said(seed: int) -> None:
    """Of some of these draws a fit is ahead of the mean, by chance."""
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(60, 3)), draw.normal(size=60)
    assert "predicted hardly better than by their mean" in _said(quick(PBPRegressor, calibrate="cv"), x, y)


@pytest.mark.parametrize(
    ("kind", "settings"), [(PBPClassifier, {"passes": None}), (VBPClassifier, {"prior_std": 1e-3})]
)
def test_probabilities_that_are_no_better_than_the_shares_of_classes_are_said(kind: Any, settings: Any) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 3))
    assert "hardly better than the shares" in _said(quick(kind, **settings), x, draw.integers(0, 2, 60))
    sensible = {name: value for name, value in settings.items() if name != "prior_std"}
    assert "shares" not in _said(quick(kind, **sensible), x, x[:, 0] > 0)


def test_classes_that_are_told_apart_by_chance_alone_are_said() -> None:
    """The number of passes with the best score of held-out rows is ahead of the shares here, by 0.03 nats."""
    draw = np.random.default_rng(6)
    x, y = draw.normal(size=(60, 3)), draw.integers(0, 2, 60)
    said = _said(quick(PBPClassifier, hidden=(), passes=None), x, y)
    assert re.search(r"hardly better than the shares of the classes, by 0\.\d+ nats", said)


def test_too_few_rows_to_calibrate_are_said() -> None:
    said = _said(quick(PBPRegressor, calibrate="cv"), *line(15))
    assert "not calibrated, since 15 rows are too few" in said
    assert "not calibrated" not in _said(quick(PBPRegressor), *line(15))


# ------------------------------------------------------------------ plateaus


def test_stages_without_a_gain_do_not_count_on_the_first_plateau() -> None:
    """Networks that learn nothing until 6,000 updates are waited for, and given up where they never learn."""

    def search(rows: int, floor: float, learns: bool) -> tuple[int, int]:
        state = [0]

        def predict(networks: list[int], more: int) -> int:
            networks[0] += more
            return networks[0]

        def score(passes: int) -> float:
            return 0.0 if learns and passes * rows > 6000 else -1.0 - 1e-6 * passes

        return choose((1,), None, 1, state, predict, score, rows, floor).passes, state[0]

    for rows in (30, 60, 300):
        assert search(rows, -1.0, True)[0] * rows > 6000
        assert search(rows, -2.0, True)[0] * rows < 6000  # of a fit that is better than a line, patience counts
        assert 20_000 <= search(rows, -1.0, False)[1] * rows < 50_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PBPRegressor, EBPRegressor])
@pytest.mark.parametrize("seed", range(3))
def test_a_sine_of_sixty_rows_is_found_at_the_defaults(kind: Any, seed: int) -> None:
    draw = np.random.default_rng(seed)
    x = draw.uniform(-3, 3, (60, 1))
    model = kind(random_state=seed).fit(x, np.sin(2 * x[:, 0]) + 0.1 * draw.normal(size=60))
    new = np.linspace(-2.7, 2.7, 200)[:, None]
    assert model.score(new, np.sin(2 * new[:, 0])) > 0.9


def test_a_divergence_that_outweighs_thirty_rows_is_made_lighter_where_that_predicts_better() -> None:
    """A prior far too narrow for the slope: at a tenth of its weight the rows win."""
    x, y = line(30, 1, noise=0.1)
    settings: Any = {"hidden": (), "prior_std": 0.05, "epochs": 100, "lr": 0.05, "random_state": 0}
    light, whole = (VBPRegressor(kl_weight=weight, propagation="ap2", **settings) for weight in (None, 1.0))
    assert "kl_weight below 1" in _said(whole, x, y)
    light.fit(x, y)
    assert (light.trainer_.kl_weight, whole.trainer_.kl_weight) == (0.1, 1.0)
    assert light.score(x, y) > 0.9 > 0.7 > whole.score(x, y)


# ------------------------------------------------------------------ lines


def _correlated(rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 4))
    x[:, 1] = x[:, 0] + 0.1 * x[:, 1]
    return x, x @ [1.0, 2.0, 0.0, 0.1] + 0.3 * draw.normal(size=rows)


def test_no_hidden_layers_have_the_exact_posterior_at_the_largest_evidence() -> None:
    """The evidence of n - 1 contrasts, of which the intercept is no part, and the posterior with correlations."""
    x, y = _correlated()
    model = PBPRegressor(hidden=(), calibrate=None).fit(x, y)
    z, t = model.x_scaler_.transform(x), (y - y.mean()) / y.std()
    contrasts = np.linalg.svd(np.ones((1, 60)))[2][1:]
    noise = model.line_.noise.item()

    def evidence(noise: float, prior: float) -> float:
        cov = contrasts @ (noise * np.eye(60) + prior * z @ z.T) @ contrasts.T
        return float(scipy.stats.multivariate_normal.logpdf(contrasts @ t, cov=cov))

    best = scipy.optimize.minimize(lambda at: -evidence(*np.exp(at)), np.log([noise, 0.3]), method="Nelder-Mead")
    assert noise == pytest.approx(np.exp(best.x[0]), rel=1e-2)
    assert model.line_.log_z == pytest.approx(-best.fun, abs=1e-4)
    prior = np.exp(best.x[1])
    cov = np.linalg.inv(z.T @ z / noise + np.eye(4) / prior)
    new = np.random.default_rng(1).normal(size=(50, 4))
    at = model.x_scaler_.transform(new)
    exact = np.sqrt(np.einsum("ij,jk,ik->i", at, cov, at) + noise / 60) * y.std()
    np.testing.assert_allclose(model.predict_parts(new).epistemic, exact, rtol=1e-2)
    np.testing.assert_allclose(
        model.predict(new), y.mean() + at @ cov @ z.T @ t / noise * y.std(), rtol=1e-3, atol=1e-3
    )


def test_a_line_of_chunks_is_that_of_all_rows_and_a_further_pass_is_no_more_data() -> None:
    x, y = (torch.as_tensor(part.reshape(60, -1)) for part in _correlated())
    whole = LinearPosterior().add(x, y)
    parts = LinearPosterior().add(x[:10], y[:10]).add(x[10:45], y[10:45]).add(x[45:], y[45:])
    for found, expected in zip(parts(x[:5]), whole(x[:5]), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    model = PBPRegressor(hidden=()).partial_fit(*_correlated())
    before = model.predict_parts(x[:5]).epistemic
    np.testing.assert_array_equal(model.partial_fit(*_correlated()).predict_parts(x[:5]).epistemic, before)


# ------------------------------------------------------------------ uncertain features


@every()
def test_predictions_for_uncertain_features_are_those_of_many_draws(kind: Any) -> None:
    x, y = friedman(kind)
    model, rows, draws = quick(kind).fit(x[:, :2], y), x[:3, :2], 4000
    std = np.array([0.3, 0.1])
    off = std * np.random.default_rng(0).normal(size=(draws, 3, 2))
    drawn = (rows + off).reshape(-1, 2)
    if kind in CLASSIFIERS:
        expected = model.predict_proba(drawn).reshape(draws, 3, -1).mean(0)
        np.testing.assert_allclose(model.predict_proba(rows, x_std=std), expected, atol=0.02)
        assert set(model.predict(rows, x_std=std)) <= set(model.classes_)
        return
    mean, each = (part.reshape(draws, 3) for part in model.predict(drawn, return_std=True))
    expected = np.sqrt((each**2).mean(0) + mean.var(0))
    found = model.predict(rows, return_std=True, x_std=std)
    np.testing.assert_allclose(
        found[0], mean.mean(0), atol=4 * (expected / np.sqrt(draws)).max() + 0.02 * expected.max()
    )
    np.testing.assert_allclose(found[1], expected, rtol=0.04)
    np.testing.assert_allclose(model.predict(rows, x_cov=np.diag(std**2)), found[0], rtol=0.02)


def test_intervals_of_uncertain_features_hold_the_targets_of_rows_with_such_errors() -> None:
    draw = np.random.default_rng(0)
    x, std = draw.normal(size=(4000, 1)), 0.3
    y = 2 * x[:, 0] + 0.2 * draw.normal(size=4000)
    model = PBPRegressor(hidden=(), random_state=0).fit(x[:400], y[:400])
    seen = x[400:] + std * draw.normal(size=(3600, 1)) * (0.5 + (x[400:] > 0))
    each = std * (0.5 + (x[400:] > 0))
    low, high = model.predict_interval(seen, 0.9, x_std=each)
    assert abs(((low <= y[400:]) & (y[400:] <= high)).mean() - 0.9) < 0.03
    certain = model.predict_interval(seen, 0.9)
    assert ((certain[0] <= y[400:]) & (y[400:] <= certain[1])).mean() < 0.6


@pytest.mark.parametrize("others", [0, 1, 4])
def test_uncertain_features_of_a_curved_function_have_the_mixtures_moments_and_intervals(others: int) -> None:
    """y near x₀² about 0: the law is skewed, and features that are certain change nothing."""
    draw = np.random.default_rng(0)
    x = draw.uniform(-4, 4, (200, 1 + others))
    model = PBPRegressor(hidden=(30,), passes=20, calibrate=None, random_state=0).fit(
        x, x[:, 0] ** 2 + 0.1 * draw.normal(size=200)
    )
    std = np.eye(1 + others)[0]
    places = np.zeros((4000, 1 + others))
    places[:, 0] = scipy.stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    means, each = model.predict(places, return_std=True)
    mean, sigma = model.predict(places[:1] * 0, return_std=True, x_std=std)
    assert mean[0] == pytest.approx(means.mean(), abs=0.01)
    assert sigma[0] == pytest.approx(math.sqrt(means.var() + (each**2).mean()), rel=0.01)
    low, high = model.predict_interval(places[:1] * 0, 0.9, x_std=std)
    below = [scipy.stats.norm.cdf((end[0] - means) / each).mean() for end in (low, high)]
    assert below == pytest.approx([0.05, 0.95], abs=0.002)


def test_counts_of_uncertain_features_and_far_from_the_data_have_whole_intervals() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(100, 1))
    model = VBPRegressor(hidden=(5,), epochs=60, likelihood=Poisson(), random_state=0)
    model.fit(x, draw.poisson(np.exp(1 + 0.5 * x[:, 0])))
    for rows, std in (([[0.0], [1.0]], None), ([[0.0], [1.0]], 0.3), ([[1000.0]], None)):
        low, high = model.predict_interval(rows, 0.95, x_std=std)
        for end in (low, high):
            np.testing.assert_array_equal(end, np.round(end))
        assert ((low >= 0) & (low <= high)).all()
    certain = model.predict_interval([[0.0], [1.0]], 0.95, x_std=0.0)
    np.testing.assert_allclose(certain, model.predict_interval([[0.0], [1.0]], 0.95), atol=1)


def test_errors_of_features_that_cancel_leave_a_lines_sigma_as_it_is() -> None:
    """y = x₀ - x₁ under errors of covariance C has the variance wᵀ C w besides; weights of variance V add tr(V C)."""
    x = np.random.default_rng(0).normal(size=(200, 2))
    model = PBPRegressor(hidden=(), calibrate=None).fit(x, x[:, 0] - x[:, 1])
    mean, epistemic, aleatoric = model.predict_parts(x[:2])
    ends = model.predict_parts(np.concatenate([np.zeros((1, 2)), np.eye(2), -np.eye(2), np.ones((1, 2))]))
    at, var = ends.mean, ends.epistemic**2
    slopes, (first, second) = at[1:3] - at[0], 0.5 * (var[1:3] + var[3:5]) - var[0]
    both = 0.5 * (var[5] - var[1] - var[2] + var[0])
    for covariance, expected in (([[1, 1], [1, 1]], 0.0), ([[1, 0], [0, 1]], 2**0.5), ([[1, -1], [-1, 1]], 2.0)):
        _, std = model.predict(x[:2], return_std=True, x_cov=covariance)
        np.testing.assert_allclose(std, expected, rtol=0.02, atol=1e-3)
        parts = model.predict_parts(x[:2], x_cov=covariance)
        np.testing.assert_allclose(np.hypot(np.hypot(*parts[1:3]), parts.features), std)
        np.testing.assert_allclose(parts.features, np.sqrt(slopes @ covariance @ slopes), rtol=1e-6, atol=1e-6)
        trace = np.sum([[first, both], [both, second]] * np.array(covariance))
        np.testing.assert_allclose(parts.epistemic, np.sqrt(epistemic**2 + trace), rtol=1e-6)
        np.testing.assert_allclose([parts.mean, parts.aleatoric], [mean, aleatoric], rtol=1e-9)


# ------------------------------------------------------------------ known noise, labels, mixed precision


@pytest.mark.parametrize("besides", [0.0, 0.3])
def test_noise_besides_that_of_the_measurements_is_what_there_is(besides: float) -> None:
    draw = np.random.default_rng(0)
    x, known = draw.normal(size=(300, 1)), draw.uniform(0.05, 0.5, 300)
    y = x[:, 0] + np.hypot(known, besides) * draw.normal(size=300)
    model = VBPRegressor(hidden=(), epochs=150, lr=0.05, propagation="ap2", calibrate=None, random_state=0)
    found = model.fit(x, y, y_std=known).predict_parts(x[:1]).aleatoric[0]
    assert found == pytest.approx(besides, abs=0.05)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_integers_have_the_bound_of_int64(dtype: torch.dtype) -> None:
    network = randomise(torch.nn.Linear(3, 4), MeanField(std=0.1))
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 3])
    expected = elbo(network, Categorical(), x, y, size=4)
    torch.testing.assert_close(elbo(network, Categorical(), x, y.to(dtype), size=4), expected)


@pytest.mark.parametrize("how", ["ap2", "local", "sample"])
def test_the_bound_in_mixed_precision_is_near_that_of_float32(how: Any) -> None:
    torch.manual_seed(0)
    network = randomise(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)), MeanField())
    x, y, bounds = torch.randn(64, 3), torch.randint(4, (64,)), []
    for autocast in (False, True):
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast), method(how):
            bounds.append(elbo(network, Categorical(), x, y, size=64))
    bounds[1].backward()
    assert bounds[1].item() == pytest.approx(bounds[0].item(), rel=0.02)
