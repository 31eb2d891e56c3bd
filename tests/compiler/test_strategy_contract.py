"""What a variant holds by whatever strategy: exact values, both forms of its graphs, and f at v = 0.

A strategy's own algebra, refusals and limits are in a file of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import sympy as sp
from compiler.forms import SIX, by_quadrature, cubic, in_float32, in_float64, stable_of
from real_rules import rules

from momentgen.compiler.certify.points import calibration_points
from momentgen.compiler.derive import derive
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.pipeline import compile_rule
from momentgen.compiler.strategies import logistic_input, stabilise
from momentgen.errors import BuildError
from momentgen.rule import LogisticInput, Phi, Rule, x

HALF = sp.Rational(1, 2)


@dataclass(frozen=True)
class Case:
    """A variant and what it keeps.

    Attributes:
        f: the function, at the setting.
        stable: makes the variant.
        points: (mean, variance) to compare with quadrature of f.
        fine, coarse: largest errors of the float64 graphs and of double-floats there, of what ``measure`` allows.
        far: the same of points far out, against the variant's own exact values; None where others look there.
        truth: largest relative error of the exact values.
    """

    f: sp.Expr
    stable: Callable[[], Stable]
    points: Sequence[tuple[float, float]]
    fine: float = 1e-8
    coarse: float = 0.1
    far: tuple[float, float] | None = None
    truth: float = 1e-10
    setting: Mapping[str, float] = field(default_factory=dict)
    input: str = "normal"


def of(f: sp.Expr, way: str = "", *points: tuple[float, float], **given: object) -> Case:
    return Case(f, functools.partial(stable_of, f, way), points, **given)  # type: ignore[arg-type]


@functools.lru_cache
def logistic(name: str) -> Stable:
    return logistic_input.stable_variants(derive(rules()[name]))[0]


@functools.lru_cache
def exact_variant(name: str) -> Stable:
    return next(stable for stable in stabilise(derive(rules()[name])) if stable.variant == "exact")


def at_setting(case: Case, name: str, setting: Mapping[str, float]) -> Case:
    f = rules()[name].f.subs({p.symbol: sp.Rational(setting[p.name]) for p in rules()[name].parameters})
    return replace(case, f=f, setting=setting)


GATES = ((0.3, 1.0), (-2.0, 0.25), (7.0, 2.0), (-1e-3, 1e4))
SLOW_TAIL = ((0.3, 1e-6), (-2.5, 4.0), (0.0, 1e-20), (3.0, 1e4))
CASES = {
    "sine": of(sp.sin(x), "", (0.8, 1e-8), (0.3, 1.5), (-2.0, 4.0)),
    "cosine": of(1 - 2 * sp.cos(3 * x / 10), "", (0.8, 1e-8), (-1.0, 30.0)),
    "exponential": of(1 - sp.exp(-x / 3) / 2, "", (0.3, 1.5), (-1.0, 1e-6), (5.0, 20.0)),
    "square": of(x**2 / 2 - 1, "", (0.8, 3.0)),
    "shrink": of(sp.Piecewise((x, x > HALF), (x, x < -HALF), (0, True)), "", (-4.42, 0.241), (2.7, 0.65), coarse=1.0),
    "huber": of(sp.sqrt(1 + x**2) - 1, "", *SLOW_TAIL, fine=0.2, coarse=1.0, truth=1e-7),
}
GATED = Case(x, lambda: logistic("heaviside"), GATES, 1e-7, 2.0, (1e-6, 2.0), 1e-12, input="logistic")
CASES |= {
    f"logistic {name} {number}": at_setting(replace(GATED, stable=functools.partial(logistic, name)), name, setting)
    for name, slopes in (("heaviside", ({},)), ("leaky_relu", ({"negative_slope": 0.01}, {"negative_slope": 0.3})))
    for number, setting in enumerate(slopes)  # relu is a leaky one of slope 0
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
    rows = [by_quadrature(case.f, m, v, 20, input=case.input) for m, v in at]
    found = stable.truth(mean, var, case.setting)
    measure = stable.at(case.setting).measure
    forms = ((in_float64, case.fine), (in_float32, case.coarse))
    for output in SIX:
        exact = np.array([float(row[output]) for row in rows])
        assert found[output] == pytest.approx(exact, rel=case.truth, abs=1e-13), output
        for form, most in forms:
            errors = measure(output, form(stable, mean, var, case.setting)[output], exact, mean, var)
            assert errors.max() <= most, (form.__name__, output)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].far])
def test_far_out_both_forms_are_near_the_exact_values_that_float32_holds(name: str) -> None:
    check_at_variance_0(name)
    case, stable = CASES[name], CASES[name].stable()
    mean, var, *_ = calibration_points(stable.box, 200, 3)
    exact, measure = stable.truth(mean, var, case.setting), stable.at(case.setting).measure
    assert case.far is not None
    for form, most in zip((in_float64, in_float32), case.far, strict=True):
        for output, values in form(stable, mean, var, case.setting).items():
            # Beyond range the largest number stands for a result: that of float32 is what is measured.
            held = np.abs(exact[output]) <= (1e38 if form is in_float64 else np.inf)
            assert measure(output, values, exact[output], mean, var)[held].max() <= most, (form.__name__, output)


def test_a_logistic_input_is_for_a_step_or_lines() -> None:
    rule = Rule("square", f=x**2, variants={"logistic_input": LogisticInput()})
    with pytest.raises(BuildError, match="a logistic input is for a step or max"):
        logistic_input.stable_variants(derive(rule))
    assert sp.Max(x, 0) == rules()["relu"].f


SOFTPLUS = sp.log(1 + sp.exp(x))
WHOLE = {
    **{str(f): f for f in (sp.sin(x) + x / 2, x * sp.sin(x), x**3 - x, x**4, 2 - sp.exp(-x / 3), 3 * x - 1)},
    "two sines": sp.sin(x) * sp.cos(2 * x),
    "a jump beside a line": sp.Piecewise((x + 1, x > 0), (0, True)),
    "bump": x * sp.exp(-(x**2)),
    "two bells": x**2 * sp.exp(-(x**2)),
    "x Phi²": x * Phi(x) ** 2,
    "leaky softplus": SOFTPLUS - SOFTPLUS.subs(x, -x) / 10,
    "x |x|": x * sp.Abs(x),
    "leaky square": sp.Piecewise((x**2, x > 0), (-(x**2) / 4, True)),
    **{f"cubics {seed}": cubic(seed) for seed in range(2, 14)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_build_is_within_its_goal(name: str) -> None:
    (summary,) = compile_rule(Rule("mine", f=WHOLE[name])).variants
    for bound in summary.bounds.values():
        error, unit = bound.split(maxsplit=1)
        assert float(error) <= (8.0 if unit.startswith("ulp") else 1.0), summary.bounds
