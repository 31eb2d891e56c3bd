"""The law of held-out errors: scale, where it is large, tails, and what it does not find where there is nothing."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from momentgen.inference import PBPRegressor
from momentgen.inference.estimators.calibration import beside_known_noise, fit_error_law
from momentgen.inference.estimators.passes import choose, stages


def test_normal_errors_of_one_scale_are_taken_for_such() -> None:
    """Of twenty sets at most two get a law with more parameters, and the scale is that of the errors."""
    found = []
    for seed in range(20):
        draw = np.random.default_rng(seed)
        x = draw.normal(size=(300, 3))
        law = fit_error_law(2 * draw.normal(size=300), x, x[:, 0])
        found.append(law)
        # A scale of 300 errors has σ 4 %.
        assert abs(np.sqrt(np.mean(law.scale(x, x[:, 0]) ** 2)) * law.deviation / 2 - 1) < 0.2
    assert sum(law.share > 0 for law in found) <= 3


@pytest.mark.parametrize("space", ["features", "mean"])
def test_a_scale_that_depends_on_the_place_is_found_there(space: str) -> None:
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, (600, 2))
    mean = x[:, 0] * 0.0 if space == "features" else x[:, 0]
    truth = np.exp(1.5 * x[:, 0])
    law = fit_error_law(truth * draw.normal(size=600), x if space == "features" else draw.normal(size=x.shape), mean)
    assert law.space == space
    new = np.stack([np.linspace(-0.6, 0.6, 9), np.zeros(9)], 1)
    found = law.scale(new if space == "features" else draw.normal(size=new.shape), new[:, 0] * (space == "mean"))
    assert np.abs(np.log(found * law.deviation) - 1.5 * new[:, 0]).max() < 0.4


def test_long_tails_have_few_degrees_of_freedom() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(800, 1))
    law = fit_error_law(draw.standard_t(4, 800), x, x[:, 0])
    assert law.freedom in (3.0, 5.0)
    assert abs(law.size - 1) < 0.15


def test_no_errors_have_the_scale_of_the_model() -> None:
    law = fit_error_law(np.zeros(30), np.zeros((30, 1)), np.zeros(30))
    assert law.scale(np.zeros((2, 1)), np.zeros(2)).tolist() == [1.0, 1.0]


def test_intervals_are_narrow_where_noise_is_small() -> None:
    """The noise of a sine is 0.02 at its left end and 0.5 at its right one; each third holds what it says."""
    draw = np.random.default_rng(0)
    x = draw.uniform(-3, 3, (900, 1))
    y = np.sin(2 * x[:, 0]) + (0.02 + 0.08 * (x[:, 0] + 3)) * draw.normal(size=900)
    model = PBPRegressor(hidden=(50, 50), passes=60, members=1, random_state=0).fit(x[:400], y[:400])
    low, high = model.predict_interval(x[400:], 0.9)
    left, right = x[400:, 0] < -1, x[400:, 0] > 1
    width = high - low
    assert width[left].mean() < 0.6 * width[right].mean()
    inside = (low <= y[400:]) & (y[400:] <= high)
    assert abs(inside.mean() - 0.9) < 0.05
    assert min(inside[left].mean(), inside[right].mean()) > 0.8


def test_passes_grow_to_what_may_be_spent() -> None:
    few = list(stages(10**7))
    assert few[0] == 5
    assert few[-1] == 800
    assert all(1 < after / before <= 1.7 for before, after in itertools.pairwise(few))
    assert list(stages(10**9))[-1] == 15


def test_the_best_passes_are_chosen_and_divergence_ends_a_search() -> None:
    def predict(state: list[int], more: int) -> int:
        state[0] += more
        if state[0] > 100 and state[1] == 2:
            raise FloatingPointError("diverged")
        return state[0]

    def score(passes: int) -> float:
        return -abs(math.log(passes / 60))

    assert [choose((2,), None, 1, [0, width], predict, score, 10_000).passes for width in (1, 2)] == [57, 57]
    with pytest.raises(FloatingPointError, match="diverged"):
        choose((2,), 200, 1, [0, 2], predict, score, 10_000)


@pytest.mark.parametrize("known", [np.zeros(1), np.full(1, 0.5), np.array([0.1, 2.0]), np.full(1, 20.0)], ids=str)
def test_noise_of_known_size_is_not_counted_in_the_scale_of_sigma(known: np.ndarray) -> None:
    """σ is twice what it should be; noise that drowns it tells nothing, and leaves it as it is."""
    noise = np.tile(known, 2000 // len(known))
    off = np.hypot(0.5, noise) * np.random.default_rng(0).normal(size=2000)
    factor, weights = beside_known_noise(off, np.ones(2000), noise, np.ones(2000))
    law = fit_error_law(off / np.hypot(factor, noise), np.zeros((2000, 1)), np.zeros(2000), weights)
    assert factor * law.root_mean_square == pytest.approx(1.0 if known[0] == 20 else 0.5, rel=0.06)
    assert weights.sum() == pytest.approx(2000 / len(known), rel=0.03)  # of a mixture the exact rows count


def test_intervals_of_each_target_are_as_wide_as_its_own_held_out_rows_ask_for() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 2)), draw.normal(size=(60, 2))
    model = PBPRegressor(random_state=0, passes=2).fit(x, y)
    laws = [fit_error_law(draw.normal(size=count), np.zeros((count, 1)), np.zeros(count)) for count in (40, 400)]
    reach = []
    for own in (laws, laws[::-1], laws[:1] * 2, laws[1:] * 2):
        model._laws = own
        reach.append(model._reach(0.95).tolist())
    assert reach[0] == reach[1][::-1] == [reach[2][0], reach[3][0]]
    model._laws = laws[::-1]
    for few in (model._reach(0.99), model._reach(0.9999)):
        assert (few > scipy.stats.norm.ppf(0.995)).all()  # answers, wide


def test_intervals_of_few_normal_errors_hold_what_they_say_on_average() -> None:
    """Of twenty errors the Student law; beyond what a hundred can show, the law and no less than the largest."""
    for count, coverage in ((20, 0.95), (30, 0.99), (100, 0.995)):
        held = []
        for seed in range(200):
            errors = np.random.default_rng(seed).normal(size=count)
            law = fit_error_law(errors, np.zeros((count, 1)), np.zeros(count))
            held.append(1 - 2 * scipy.stats.norm.sf(law.size * law.reach(coverage)))
        # The level of one set has σ of some percent, of 200 sets a fourteenth of it.
        assert coverage - 0.006 < np.mean(held) < coverage + 0.5 * (1 - coverage)
