"""The search for the worst errors finds what a sample misses."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from real_rules import F32, settings_of, six, stables

from momentgen.compiler.certify import points
from momentgen.compiler.certify.points import in_domain, largest, nearly_exact, wide_points, worst_points
from momentgen.compiler.measure.ulp import ulp_error


def test_the_screen_is_good_to_a_thousandth_of_an_ulp() -> None:
    stable = stables("leaky_relu")["exact"]
    mean, var = wide_points(2_000, 5)
    usable = in_domain(mean, var)
    mean, var = mean[usable], var[usable]
    for setting in settings_of("leaky_relu"):
        exact, near = stable.truth(mean, var, setting), nearly_exact(stable, mean, var, setting)
        for name, values in near.items():
            # Where a mean changes sign the float64 form cancels too.
            error = ulp_error(values.astype(np.float32), exact[name])
            assert np.quantile(error, 0.999) <= 0.51, name
            assert error.max() < 1.0, name


@given(
    arrays(np.float64, st.integers(1, 2_000), elements=st.sampled_from([0.0, 0.5, 1.0, 7.5, np.inf, np.nan])),
    st.integers(1, 200),
)
def test_the_largest_errors_are_found_and_which_of_equal_ones_is_decided(error: np.ndarray, count: int) -> None:
    found = largest(error, count)
    ranked = np.where(np.isnan(error), np.inf, error)
    assert found.tolist() == sorted(set(found.tolist()))
    assert found.size == min(count, error.size)
    np.testing.assert_array_equal(np.sort(ranked[found]), np.sort(ranked)[-found.size :])
    # The processor decides nothing: an order of the whole array that keeps equal errors in place agrees.
    if error.size <= 64:
        by_rank = np.lexsort((np.arange(error.size), -ranked))[: found.size]
        assert found.tolist() == sorted(by_rank.tolist())


def test_an_error_in_one_binade_of_the_variance_alone_is_found() -> None:
    stable = stables("relu")["exact"]

    def run(mean: F32, var: F32) -> dict[str, F32]:
        results = six("relu", "exact", mean, var, {})
        hit = (var > 1.0) & (var < 1.01) & (np.abs(mean) < 1)
        return results | {"mean": np.where(hit, results["mean"] * np.float32(1 + 2e-5), results["mean"])}

    mean, var = worst_points(stable, run, {}, points=30_000, seed=0)
    assert in_domain(mean, var).all()
    error = ulp_error(run(mean, var)["mean"], stable.truth(mean, var, {})["mean"])
    assert error.max() > 100


def test_the_search_is_deterministic_and_worse_than_a_sample() -> None:
    stable = stables("heaviside")["exact"]

    def run(mean: F32, var: F32) -> dict[str, F32]:
        return six("heaviside", "exact", mean, var, {})

    first, second = (worst_points(stable, run, {}, points=10_000, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    sample = wide_points(10_000, 3)
    usable = in_domain(*sample)
    sample = sample[0][usable], sample[1][usable]
    for output in ("mean", "var", "dvar_dvar"):
        errors = [ulp_error(run(*p)[output], stable.truth(*p, {})[output]).max() for p in (sample, first)]
        assert errors[1] >= errors[0], output


def test_where_a_search_begins_is_found_once_for_all_programs_of_a_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    stable = replace(stables("relu")["exact"], forward64=copy(stables("relu")["exact"].forward64))
    drawn: list[int] = []
    monkeypatch.setattr(points, "wide_points", lambda n, seed: drawn.append(seed) or wide_points(n, seed))
    for factor in (1.0, 1.0 + 2**-20):

        def run(mean: F32, var: F32, factor: float = factor) -> dict[str, F32]:
            return {name: values * np.float32(factor) for name, values in six("relu", "exact", mean, var, {}).items()}

        worst_points(stable, run, {}, points=1000, seed=1)
    worst_points(stable, run, {}, points=1000, seed=2)
    assert drawn == [1, 2]
