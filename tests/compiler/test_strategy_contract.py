"""What a variant holds by whatever strategy, and the limits of the elementary one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import sympy as sp
from compiler.foreign_functions import FOREIGN, Foreign, built
from compiler.forms import by_quadrature, cubic, in_float32, in_float64, stable_of
from real_rules import rules

from momentgen.compiler.derive import derive
from momentgen.compiler.exact import ball_function, evaluate
from momentgen.compiler.function.pieces import split
from momentgen.compiler.ir.stable import SIX, Stable, limits_of
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.pipeline import compile_rule
from momentgen.compiler.strategies import elementary, stabilise
from momentgen.compiler.strategies.finish import DomainEdge
from momentgen.rule import Formula, Parameter, Rule, mu, v, x

# What a variant holds by whatever strategy: exact values, both forms of its graphs, and f at v = 0.
HALF = sp.Rational(1, 2)


@dataclass(frozen=True)
class Case:
    """A variant and what it keeps.

    Attributes:
        f: the function, at the setting.
        stable: makes the variant.
        points: (mean, variance) to compare with quadrature of f.
        fine, coarse: largest errors of the float64 graphs and of double-floats there, of what ``measure`` allows.
        truth: largest relative error of the exact values.
    """

    f: sp.Expr
    stable: Callable[[], Stable]
    points: Sequence[tuple[float, float]]
    fine: float = 1e-8
    coarse: float = 0.1
    truth: float = 1e-10
    setting: Mapping[str, float] = field(default_factory=dict)


def of(f: sp.Expr, way: str = "", *points: tuple[float, float], **given: object) -> Case:
    return Case(f, functools.partial(stable_of, f, way), points, **given)  # type: ignore[arg-type]


@functools.lru_cache
def exact_variant(name: str) -> Stable:
    return next(stable for stable in stabilise(derive(rules()[name])) if stable.variant == "exact")


def at_setting(case: Case, name: str, setting: Mapping[str, float]) -> Case:
    f = rules()[name].f.subs({p.symbol: sp.Rational(setting[p.name]) for p in rules()[name].parameters})
    return replace(case, f=f, setting=setting)


SLOW_TAIL = ((0.3, 1e-6), (-2.5, 4.0), (0.0, 1e-20), (3.0, 1e4))
CASES = {
    "sine": of(sp.sin(x), "", (0.8, 1e-8), (0.3, 1.5), (-2.0, 4.0)),
    "cosine": of(1 - 2 * sp.cos(3 * x / 10), "", (0.8, 1e-8), (-1.0, 30.0)),
    "exponential": of(1 - sp.exp(-x / 3) / 2, "", (0.3, 1.5), (-1.0, 1e-6), (5.0, 20.0)),
    "square": of(x**2 / 2 - 1, "", (0.8, 3.0)),
    "shrink": of(sp.Piecewise((x, x > HALF), (x, x < -HALF), (0, True)), "", (-4.42, 0.241), (2.7, 0.65), coarse=1.0),
    "huber": of(sp.sqrt(1 + x**2) - 1, "", *SLOW_TAIL, fine=0.2, coarse=1.0, truth=1e-7),
}
#: rules in other units -> settings to look at, and places that matter at each: kinks, or where f bends
UNITS: Mapping[str, tuple[tuple[dict[str, float], tuple[float, ...]], ...]] = {
    "elu": (({"alpha": 0.5}, (0.0,)), ({"alpha": 1.0}, (0.0,)), ({"alpha": 3.7}, (0.0,))),
    "selu": (({}, (0.0,)),),
    "celu": (({"alpha": 0.25}, (0.0,)), ({"alpha": 9.0}, (0.0,))),
    "threshold": (({"threshold": 0.0, "value": -1.0}, (0.0,)), ({"threshold": -3.3, "value": 7.0}, (-3.3,))),
    "hardtanh": (({"min_val": -2.0, "max_val": 3.0}, (-2.0, 3.0)), ({"min_val": 0.0, "max_val": 0.1}, (0.0, 0.1))),
    "softshrink": (({"lambd": 0.1}, (-0.1, 0.1)), ({"lambd": 5.0}, (-5.0, 5.0))),
    "hardshrink": (({"lambd": 0.1}, (-0.1, 0.1)), ({"lambd": 5.0}, (-5.0, 5.0))),
    "softplus": (({"beta": 2.0}, (0.0, 0.3)), ({"beta": 100.0}, (0.0, 0.01))),
}
for _name, _settings in UNITS.items():
    for _number, (_setting, _places) in enumerate(_settings):
        _width = max(map(abs, _places)) or 1.0
        _points = [(p + a * s * _width, (s * _width) ** 2) for p in _places for s, a in ((1e-4, -1.3), (0.7, 0.4))]
        _case = Case(x, functools.partial(exact_variant, _name), _points, 1e-2, 1.0, truth=1e-7)
        CASES[f"{_name} {_number}"] = at_setting(_case, _name, _setting)
#: what takes more than some seconds
SLOW = {"huber"}
SLOW |= {name for name in CASES if name.split()[0] in UNITS and "threshold" not in name}
NAMED = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]


def check_at_variance_0(name: str) -> None:
    case, mean = CASES[name], np.array([-2.5, -0.3, 0.2, 0.8, 3.1])
    found = in_float64(case.stable(), mean, np.zeros(5), case.setting)
    want = [float(sp.N(case.f.subs(x, sp.Rational(m)), 20)) for m in mean.tolist()]
    assert found["mean"] == pytest.approx(want, rel=1e-6, abs=1e-6 if name in SLOW else 1e-9)
    assert np.abs(found["var"]).max() < 1e-300


@pytest.mark.parametrize("name", NAMED)
def test_exact_values_and_both_forms_are_those_of_quadrature_and_at_variance_0_f_is_given(name: str) -> None:
    check_at_variance_0(name)
    case, stable = CASES[name], CASES[name].stable()
    mean, var = np.array(case.points, np.float32).T.copy()
    at = zip(mean.tolist(), var.tolist(), strict=True)
    rows = [by_quadrature(case.f, m, v, 20) for m, v in at]
    found = stable.truth(mean, var, case.setting)
    measure = stable.at(case.setting).measure
    forms = ((in_float64, case.fine), (in_float32, case.coarse))
    for output in SIX:
        exact = np.array([float(row[output]) for row in rows])
        assert found[output] == pytest.approx(exact, rel=case.truth, abs=1e-13), output
        for form, most in forms:
            errors = measure(output, form(stable, mean, var, case.setting)[output], exact, mean, var)
            assert errors.max() <= most, (form.__name__, output)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 14))
def test_a_random_piecewise_cubic_builds_within_its_goal(seed: int) -> None:
    (summary,) = compile_rule(Rule("mine", f=cubic(seed))).variants
    for bound in summary.bounds.values():
        error, unit = bound.split(maxsplit=1)
        assert float(error) <= (8.0 if unit.startswith("ulp") else 1.0), summary.bounds


@pytest.mark.slow
@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda f: f.name)
def test_an_activation_of_another_project_builds_and_holds_or_has_no_second_moment(foreign: Foreign) -> None:
    found = built(foreign.name)
    assert ("refused" in found) == (foreign.diverges is not None), found
    if "errors" in found:
        assert found["errors"].pop("mean") < 3e-6
        assert found["errors"].pop("var") < 1e-4
        assert all(error < 1e-3 for error in found["errors"].values()), found


# x, x², exp, sin and cos, times and plus constants: where they end, and what they are beyond range.
SLOPE = Parameter("slope", default=1.0, low=0.5, high=2.0)


def test_floats_in_f_are_the_fractions_that_they_are() -> None:
    (piece,) = split(sp.sin(0.3 * x) ** 2 / 0.3)
    assert not piece.expr.atoms(sp.Float)
    assert float(piece.expr.subs(x, 2)) == pytest.approx(np.sin(0.3 * 2) ** 2 / 0.3, rel=1e-15)


@pytest.mark.parametrize(
    ("f", "served"),
    [
        (3 * x - 1, True),
        (x**2 / 2 + 1, True),
        (2 * sp.exp(-x / 3) + 1, True),
        (1 - sp.cos(3 * x), True),
        (2**x, True),
        (x**2 + x, False),
        (x**3, False),
        (x * sp.exp(x), False),
        (sp.exp(x) - sp.exp(-x), False),
        (x + sp.sin(x) ** 2, False),
        (sp.tanh(x), False),
        (SLOPE.symbol * sp.sin(x), False),
    ],
    ids=str,
)
def test_one_term_and_a_constant_are_served_and_sums_are_not(f: sp.Expr, served: bool) -> None:
    parameters = (SLOPE,) if f.has(SLOPE.symbol) else ()
    assert (elementary.why_not(derive(Rule("mine", f=f, parameters=parameters))) is None) == served


def test_a_sine_at_a_rate_that_single_floats_do_not_hold_keeps_its_angle_far_out() -> None:
    stable = stable_of(sp.sin(sp.Rational(3, 10) * x))
    mean, var = np.array([1.2e6, -9.876543e5, 3.3e5], np.float32), np.full(3, 0.01, np.float32)
    values, exact = in_float32(stable, mean, var, double=True), stable.truth(mean, var, {})
    assert np.abs(values["dmean_dmu"] - exact["dmean_dmu"]).max() < 1e-6


@pytest.mark.parametrize(("f", "edge"), [(sp.exp(-3 * x), 1e6 / 3), (sp.sin(x), 1e6)], ids=str)
def test_the_certificates_domain_ends_where_nothing_is_measured(f: sp.Expr, edge: float) -> None:
    stable = stable_of(f)
    assert stable.domain["mean"].endswith(f"|mean| <= {edge:g}")
    mean = np.array([-0.999 * edge, -1.01 * edge], np.float32)
    exact = stable.truth(mean, np.full(2, 1e-6, np.float32), {})["var"]
    wrong = np.full(2, 12.25, np.float32)  # measured up to there, and beyond not
    error = stable.measure("mean", wrong, np.array([1.0, exact[1]]), mean, np.full(2, 1e-6, np.float32))
    assert error[0] > 1
    assert error[1] == 0
    assert np.isinf(exact[1])


@pytest.mark.parametrize("f", [sp.exp(-2 * x), x**2], ids=str)
def test_a_rate_that_is_a_power_of_two_and_a_square_are_measured_everywhere(f: sp.Expr) -> None:
    stable = stable_of(f)
    assert not stable.edge.words
    mean, var = np.array([-3e38, 3e38], np.float32), np.ones(2, np.float32)
    for held, wrong in ((3.4028235e38, False), (-np.inf, True), (np.inf, True), (1e38, True), (0.0, True)):
        error = stable.measure("mean", np.full(2, held, np.float32), np.full(2, np.inf), mean, var)
        assert ((error > 1) == wrong).all(), held


@pytest.mark.parametrize("f", [x**2, sp.exp(3 * x), 3 * x - 1], ids=str)
@pytest.mark.parametrize("form", ["double", "float64"])
def test_beyond_range_outputs_are_the_largest_number_of_the_right_sign(f: sp.Expr, form: str) -> None:
    stable, derivation = stable_of(f), derive(Rule("mine", f=f))
    means = [-3e38, -1e10, -700.0, -60.0, 0.5, 60.0, 90.0, 3e5, 1e30]
    variances = [1e-30, 1e-3, 1.0, 60.0, 2e5, 1e30]
    mean, var = (axis.ravel().astype(np.float32) for axis in np.meshgrid(means, variances))
    exact = ball_function([derivation.mean, derivation.var, *derivation.partials.values()], ["mu", "v"])
    want = dict(zip(SIX, evaluate(exact, {"mu": mean.astype(float), "v": var.astype(float)}), strict=True))
    largest = np.finfo(np.float64 if form == "float64" else np.float32).max
    values = in_float64(stable, mean, var) if form == "float64" else in_float32(stable, mean, var, double=True)
    inside = stable.edge.inside(mean.astype(np.float64), var.astype(np.float64))
    for name in SIX:
        got, beyond = values[name], np.abs(want[name]) > largest
        known = ~np.isnan(got)
        assert not np.isinf(got).any(), name
        assert (known | ~inside).all(), name
        assert (got == np.sign(want[name]) * largest)[beyond & known].all(), name
        error = stable.measure(
            name, np.clip(got, -3.4028235e38, 3.4028235e38).astype(np.float32), want[name], mean, var
        )
        assert (error[~beyond & known] <= 0.3).all(), name


@pytest.mark.parametrize(("f", "mean"), [(sp.sin(30 * x), 1e5), (sp.sin(x), 3e6), (sp.cos(x), -3e6)], ids=str)
def test_an_angle_without_digits_gives_nan_in_outputs_and_partials(f: sp.Expr, mean: float) -> None:
    stable, at = stable_of(f), (np.array([mean], np.float32), np.ones(1, np.float32))
    assert stable.edge.words
    assert not stable.edge.inside(at[0].astype(np.float64), at[1].astype(np.float64)).any()
    for values in (in_float32(stable, *at, double=False), in_float64(stable, *at)):
        assert all(np.isnan(values[name]).all() for name in SIX)


def test_an_exponent_whose_parts_cancel_far_out_gives_nan_and_others_their_limits() -> None:
    stable = stable_of(sp.exp(3 * x))
    mean, var = np.array([-1e9, -1e9, 1e9], np.float32), np.array([2e9 / 3, 1.0, 1.0], np.float32)
    for values, largest in (
        (in_float32(stable, mean, var, double=False), np.finfo(np.float32).max),
        (in_float64(stable, mean, var), np.finfo(np.float64).max),
    ):
        assert np.isnan(values["mean"][0])
        assert values["mean"][1] == 0 == values["var"][1]
        assert values["mean"][2] == largest == values["var"][2]


# Domains: what a rule states, and what holds beyond.
def test_beyond_the_domain_every_output_of_every_variant_is_nan_and_within_it_nothing_changes() -> None:
    variants = {"rough": Formula(mu**2, v)}
    plain = stabilise(derive(Rule("square_plus", f=x**2 + 1, variants=variants)))
    limited = stabilise(derive(Rule("square_plus", f=x**2 + 1, variants=variants, domain={"mean": 8.0, "var": 100.0})))
    mean = np.array([0.5, -8.0, 8.5, 0.5, 8.5, np.nan])
    var = np.array([0.0, 100.0, 1.0, 101.0, 1e30, 1.0])
    beyond = np.array([False, False, True, True, True, True])
    assert [one.variant for one in plain] == [one.variant for one in limited]
    for one, other in zip(plain, limited, strict=True):
        assert limits_of(other)["nan"] == "|mean| > 8 or var > 100"
        assert other.domain["var"] == "0 or 2^-127 <= var <= 100"
        for form in ("forward", "partials", "forward64", "partials64"):
            at = {"mean": mean, "var": var}
            want, found = outputs_float64(getattr(one, form), at), outputs_float64(getattr(other, form), at)
            for name in want:
                value, free = (np.broadcast_to(values[name], mean.shape) for values in (found, want))
                assert np.isnan(value[beyond]).all(), (form, name)
                assert (value[~beyond] == free[~beyond]).all(), (form, name)
        wrong = np.full(6, 1e9, np.float32)
        errors = other.measure("mean", wrong, np.zeros(6), mean.astype(np.float32), var.astype(np.float32))
        assert (errors[beyond] == 0).all()
        assert (errors[~beyond] > 1).all()


def test_an_edge_keeps_the_one_that_the_variant_has() -> None:
    edge = DomainEdge(var=4.0, own=elementary.Edge(30.0))
    assert edge.words == "var > 4 or |mean| > 33333.3"
    assert edge.inside(np.array([0.0, 0.0, 1e6]), np.array([1.0, 5.0, 1.0])).tolist() == [True, False, False]
