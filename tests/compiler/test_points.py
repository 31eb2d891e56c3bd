"""The inputs at which programs are measured: where they lie, and that they are the same every time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from momentgen.compiler.certify.points import (
    Points,
    calibration_points,
    edge_points,
    in_domain,
    near_points,
    neighbours,
    points_at,
    points_beside,
    seed_of,
    wide_points,
)

BOX = {"a": (-18.0, 18.0), "log2_var": (-50.0, 50.0)}
GENERATORS: dict[str, Callable[[int], Points]] = {
    "calibration": lambda seed: calibration_points(BOX, 1000, seed),
    "wide": lambda seed: wide_points(1000, seed),
    "near": lambda seed: near_points((-1.7, 0.5), 1000, seed),
    "at": lambda seed: points_at((0.1, 20.0), 1000, seed),
    "neighbours": lambda seed: neighbours(wide_points(100, 0), seed, 40),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_points_belong_to_the_seed(name: str) -> None:
    make = GENERATORS[name]
    first, second, other = make(1), make(1), make(2)
    for a, b, c in zip(first, second, other, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_array_equal(a, b)
        assert a.shape != c.shape or (a != c).any()
    assert not np.isnan(first[0]).any()
    assert (first[1] >= 0).all()


def test_wide_points_reach_everything_that_is_promised() -> None:
    mean, var = wide_points(20_000, 3)
    with np.errstate(divide="ignore", over="ignore"):
        ratio = np.abs(mean) / np.sqrt(var.astype(np.float64))
    assert ratio.max() > 1e5
    assert ratio[mean != 0].min() < 1e-15
    assert var.min() < 2.0**-126
    assert var.max() > 1e38
    assert np.abs(mean).max() > 1e20
    assert {-1.0, 1.0} <= set(np.sign(mean))


def test_edges_hold_zeros_the_ends_of_float32_and_both_signs() -> None:
    mean, var = edge_points()
    pairs = set(zip(mean.tolist(), var.tolist(), strict=True))
    assert (0.0, 0.0) in pairs
    assert {mean.min(), mean.max()} == {-np.float32(3.4e38), np.float32(3.4e38)}
    assert 2.0**-149 in var
    assert (mean == -mean[::1][np.argmax(mean)]).any()


def test_near_points_close_in_on_their_ratio() -> None:
    mean, var = near_points((-1.75,), 4000, 0)
    away = np.abs(mean / np.sqrt(var.astype(np.float64)) / -1.75 - 1)
    assert (away < 0.51).all()
    assert np.quantile(away, 0.2) < 1e-6
    assert near_points((), 10, 0)[0].size == 0


def test_neighbours_are_a_few_units_away_and_in_the_domain() -> None:
    points = np.float32([1.0, -3.0]), np.float32([2.0, 1e-20])
    moved = neighbours(points, 0, 40, count=50)
    assert moved[0].size == 100
    assert in_domain(*moved).all()
    for before, after in zip(points, moved, strict=True):
        distance = np.abs(np.repeat(before, 50).view(np.int32) - after.view(np.int32))
        assert 0 < distance.max() <= 40


def test_domain_leaves_out_what_certificates_do_not_cover() -> None:
    mean = np.float32([0.0, 2.0**-127, 1.0, 1.0, np.inf, np.nan, 2.0**-126, 1.0])
    var = np.float32([1.0, 1.0, 0.0, 2.0**-127, 1.0, 1.0, 1.0, 2.0**-128])
    assert in_domain(mean, var).tolist() == [True, False, False, True, False, False, True, False]


def test_seeds_depend_on_names_alone() -> None:
    assert seed_of("relu", "exact") == seed_of("relu", "exact")
    assert len({seed_of("relu"), seed_of("abs"), seed_of("relu", "exact")}) == 3


def test_points_at_a_place_are_at_it_and_within_sigmas_of_it() -> None:
    beside = points_beside((0.1, -3.0), 400, 1)[0].size
    mean, var = (array[:-beside] for array in points_at((0.1, -3.0), 400, 1))
    assert mean.size == 800
    assert (mean == np.float32(0.1)).sum() > 80
    for place, part in ((0.1, slice(0, 400)), (-3.0, slice(400, 800))):
        away = np.abs(mean[part].astype(np.float64) - place)
        assert (away <= 10 * np.sqrt(var[part].astype(np.float64)) + 1e-6).all()
    assert points_at((), 400, 1)[0].size == 0


def test_points_beside_a_place_are_the_next_float32_numbers_at_up_to_13_sigmas() -> None:
    mean, var = points_beside((0.1, -3.0), 400, 1)
    near = {float(np.float32(0.1) + k * np.spacing(np.float32(0.1))) for k in range(-2, 3)}
    assert set(mean[mean > 0].tolist()) == near
    place = np.where(mean > 0, 0.1, -3.0)
    away = np.abs(mean - place)[mean != place] / np.sqrt(var.astype(np.float64))[mean != place]
    assert away.min() > 0.04
    assert 12 < away.max() < 13.1
