"""Certification: the inputs that are measured, the search for the worst errors, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from real_rules import F32, all_of, settings_of, stables

from momentgen.compiler.certify import points
from momentgen.compiler.certify.bounds import Bound, Runner, check_promises, measure
from momentgen.compiler.certify.points import (
    Points,
    calibration_points,
    edge_points,
    in_domain,
    largest,
    near_points,
    nearly_exact,
    neighbours,
    points_at,
    points_beside,
    wide_points,
    worst_points,
)
from momentgen.compiler.certify.variant import _evaluated
from momentgen.compiler.ir.op import Op
from momentgen.compiler.ir.passes import optimise
from momentgen.compiler.ir.program import Builder, Program, f32_bits
from momentgen.compiler.ir.stable import OUTPUTS, Stable
from momentgen.compiler.lower.words import lower
from momentgen.compiler.measure.ulp import ulp_error
from momentgen.compiler.strategies.elementary import Edge
from momentgen.errors import BuildError
from momentgen.rule import Rule, x


# Certification refuses programs that are wrong, wherever and however little, and says where.
@functools.lru_cache
def stable() -> Stable:
    return stables("relu")["exact"]


@functools.lru_cache
def programs() -> tuple[Program, Program]:
    """ReLU with every node in double: right, if slow."""
    made = []
    for graph, backward in ((stable().forward, False), (stable().partials, True)):
        name = "relu_backward" if backward else "relu_forward"
        made.append(optimise(lower(graph, name, set(range(len(graph.nodes))), {}, backward=backward)))
    return made[0], made[1]


def errors(runner: Runner) -> dict[str, Bound]:
    measured = measure(stable(), runner, points=300, seed=0)
    return dict(measured.bounds)


def changed(program: Program, index: int, factor: float) -> Program:
    """One constant multiplied."""
    instructions = list(program.instructions)
    value = float(np.float32(instructions[index].value * factor))
    instructions[index] = dataclasses.replace(instructions[index], bits=f32_bits(value))
    return dataclasses.replace(program, instructions=tuple(instructions))


def rewritten(program: Program, output: str, write: str) -> Program:
    """One output replaced by an expression of it: ``neg``, ``flush`` (0 for NaN)."""
    b = Builder(program.name, program.inputs, program.params)
    new: list[int] = []
    for ins in program.instructions:
        args = tuple(new[a] for a in ins.args)
        new.append(b.fma(*args) if ins.op is Op.FMA else b.emit(ins.op, *args, bits=ins.bits, name=ins.name))
    for name, index in program.outputs:
        value = new[index]
        if name == output:
            value = b.neg(value) if write == "neg" else b.select(b.eq(value, value), value, b.f32(0.0))
        b.output(name, value)
    return b.build()


def coefficients(program: Program) -> list[int]:
    """Constants of the fitted polynomials, by their size."""
    return [
        i
        for i, ins in enumerate(program.instructions)
        if ins.op is Op.CONST_F32 and 0.02 < abs(float(ins.value)) < 0.9 and ins.bits is not None and ins.bits & 0xFFF
    ]


def test_a_right_program_is_well_within_the_goal() -> None:
    for name, bound in errors(Runner(*programs())).items():
        assert 0.3 < bound.error < 2, name
        assert sum(bound.histogram) > 100, name
        assert set(bound.at) == {"mean", "var"}, name


def test_a_nudged_coefficient_breaks_the_bound_and_the_points_are_kept() -> None:
    forward, backward = programs()
    found = 0
    for index in coefficients(forward)[:8]:
        wrong = Runner(changed(forward, index, 1 + 1e-5), backward)
        measured = measure(stable(), wrong, points=300, seed=0)
        bad = [name for name, bound in measured.bounds.items() if bound.error > stable().goal]
        assert set(bad) <= set(OUTPUTS)
        assert bool(bad) == bool(measured.hard)
        found += bool(bad)
    assert found >= 4


def promises(forward: Program, backward: Program, f: object = None) -> int:
    relu: Any = f or (lambda x: np.maximum(x, 0))
    variant = dataclasses.replace(stable(), goal=8.0)
    return check_promises("relu", variant, Runner(forward, backward), {}, relu, seed=0)


def test_promises_hold_for_a_right_program() -> None:
    assert promises(*programs()) > 100_000


def infinite_at_variance_0() -> Program:
    b = Builder("relu_backward", inputs=("mean", "var", "grad_mean", "grad_var"))
    b.output("grad_mean", b.mul(b.input("grad_mean"), b.div(b.f32(1.0), b.input("var"))))
    b.output("grad_var", b.mul(b.input("grad_var"), b.f32(0.0)))
    return b.build()


@pytest.mark.parametrize(
    ("forward", "backward", "f", "promise"),
    [
        (lambda right: rewritten(right, "var", "neg"), None, None, "variance that is not negative"),
        (lambda right: rewritten(right, "var", "flush"), None, None, "NaN"),
        (lambda right: rewritten(right, "mean", "flush"), None, None, "mean to be NaN"),
        (None, None, np.abs, r"the mean f\(mean\) at var = 0"),
        (None, infinite_at_variance_0, None, "finite dmean_dmu"),
    ],
)
def test_a_broken_promise_names_rule_stage_and_point(forward: Any, backward: Any, f: Any, promise: str) -> None:
    right = programs()
    with pytest.raises(BuildError, match=promise) as caught:
        promises(forward(right[0]) if forward else right[0], backward() if backward else right[1], f)
    assert (caught.value.rule, caught.value.stage) == ("relu", "certify")
    assert "mean = " in str(caught.value)


def test_a_bound_is_rounded_up_and_keeps_its_worst_point() -> None:
    bound = Bound()
    exact = np.array([1.0, 1.0])
    computed: F32 = np.float32([1.0, 1.0 + 3 * 2.0**-23])
    points = np.float32([5.0, 6.0]), np.float32([7.0, 8.0])
    bound.update(np.array([0.12345678, 3.00001]), computed, exact, points, {"p": 0.5})
    assert bound.at == {"mean": 6.0, "var": 8.0, "p": 0.5}
    data = bound.as_data("ulp")
    assert data["ulp"] == 3.001
    assert data["histogram_ulp"]["<= 0.5"] == 1
    assert sum(data["histogram_ulp"].values()) == 2


def test_the_reference_at_variance_0_is_f_of_the_number_itself() -> None:
    """exp(x) - 1 at 1e-33: 30 digits of the exponential leave nothing of it."""
    rule = Rule("mine", f=sp.exp(x) - 1)
    reference = _evaluated(rule, rule.f, stables("relu")["exact"], {})
    assert reference(np.array([1e-33, -(2.0**-126)])) == pytest.approx([1e-33, -(2.0**-126)], rel=1e-15)


def test_a_program_may_be_nan_beyond_its_edge_and_nowhere_else() -> None:
    b = Builder("mine_forward", inputs=("mean", "var"))
    mean, var, one = b.input("mean"), b.input("var"), b.f32(1.0)
    far = b.lt(b.f32(1e6), b.abs(mean))
    lost = b.sqrt(b.select(b.either(far, b.lt(var, b.f32(0.0))), b.f32(-1.0), one))
    b.output("mean", b.mul(b.mul(mean, lost), b.select(b.eq(var, var), one, var)))
    b.output("var", b.mul(b.mul(var, lost), b.select(b.eq(mean, mean), one, mean)))
    forward = b.build()
    b = Builder("mine_backward", inputs=("mean", "var", "grad_mean", "grad_var"))
    b.output("grad_mean", b.mul(b.input("grad_mean"), b.f32(1.0)))
    b.output("grad_var", b.mul(b.input("grad_var"), b.f32(1.0)))
    runner = Runner(forward, b.build())
    assert check_promises("mine", dataclasses.replace(stable(), edge=Edge(1.0)), runner, {}, None, seed=1) > 1000
    with pytest.raises(BuildError, match="no NaN in mean"):
        check_promises("mine", stable(), runner, {}, None, seed=1)


# The inputs at which programs are measured: where they lie, and that they are the same every time.
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
    beside = neighbours((np.float32([2.0**-126]), np.float32([2.0**-127])), 0, 40, count=50)
    assert 0 < beside[0].size < 50
    assert in_domain(*beside).all()


def test_domain_leaves_out_what_certificates_do_not_cover() -> None:
    mean = np.float32([0.0, 2.0**-127, 1.0, 1.0, np.inf, np.nan, 2.0**-126, 1.0])
    var = np.float32([1.0, 1.0, 0.0, 2.0**-127, 1.0, 1.0, 1.0, 2.0**-128])
    assert in_domain(mean, var).tolist() == [True, False, False, True, False, False, True, False]


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


# The search for the worst errors finds what a sample misses.
def test_the_screen_is_good_to_a_thousandth_of_an_ulp() -> None:
    stable = stables("leaky_relu")["exact"]
    mean, var = wide_points(1_000, 5)
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

    def run(mean: F32, var: F32, _: object = None) -> dict[str, F32]:
        results = all_of("relu", "exact", (mean, var))
        hit = (var > 1.0) & (var < 1.01) & (np.abs(mean) < 1)
        return results | {"mean": np.where(hit, results["mean"] * np.float32(1 + 2e-5), results["mean"])}

    mean, var = worst_points(stable, run, {}, points=30_000, seed=0)
    assert in_domain(mean, var).all()
    error = ulp_error(run(mean, var)["mean"], stable.truth(mean, var, {})["mean"])
    assert error.max() > 100


def test_the_search_is_deterministic_and_worse_than_a_sample() -> None:
    stable = stables("heaviside")["exact"]

    def run(mean: F32, var: F32, _: object = None) -> dict[str, F32]:
        return all_of("heaviside", "exact", (mean, var))

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

        def run(mean: F32, var: F32, _: object = None, factor: float = factor) -> dict[str, F32]:
            return {name: values * np.float32(factor) for name, values in all_of("relu", "exact", (mean, var)).items()}

        worst_points(stable, run, {}, points=1000, seed=1)
    worst_points(stable, run, {}, points=1000, seed=2)
    assert drawn == [1, 2]
