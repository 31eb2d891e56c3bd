"""Errors in ulp and tolerances: what certificates say of them is what is measured."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from real_rules import compiled, rules

from momentgen.compiler.certify.bounds import tolerance_of
from momentgen.compiler.exact.piecewise_truth import BallTruth, QuadratureTruth
from momentgen.compiler.function.activation import analyse
from momentgen.compiler.function.pieces import split
from momentgen.compiler.ir.stable import PARTIALS
from momentgen.compiler.measure.moments import Inside, Limits, MomentsMeasure, measure_for
from momentgen.compiler.measure.ulp import SMALLEST_NORMAL, is_normal, ulp_error, unit
from momentgen.compiler.strategies.elementary import Edge, RelativeMeasure
from momentgen.compiler.strategies.rescaled import RescaledMeasure, Units
from momentgen.compiler.strategies.tolerance import Parametric
from momentgen.compiler.toolchain.float32 import LARGEST
from momentgen.errors import BuildError
from momentgen.rule import Rule, x

# What certificates say of tolerances is what is measured, and what the ops keep.
F64 = npt.NDArray[np.float64]
FLOOR = 2.0**-126


@dataclass
class Measured:
    """As much of a :class:`Stable` as words are made of."""

    measure: Any
    unit: str = "tolerance"
    variant: str = "exact"
    settings: tuple[Mapping[str, float], ...] = ({},)
    facts: Mapping[str, Any] = None  # type: ignore[assignment]

    def at(self, setting: Mapping[str, float]) -> Measured:
        return self


def words(measure: Any, rule: Rule | None = None) -> dict[str, Any]:
    return tolerance_of(rule or Rule("line", f=x), Measured(measure))  # type: ignore[arg-type]


def value(formula: str, said: Mapping[str, Any], **known: Any) -> F64:
    """A formula of a certificate, computed."""
    text = re.sub(r"\|([^|]*)\|", r"abs(\1)", formula).replace("^", "**")
    text = text.replace("sum of J**2*Phi(a)*Phi(-a)", "jumps")
    v = np.asarray(known.get("v", 0.0))
    jumps = np.zeros(v.shape)
    for at, height in said["values"].get("jumps", []):
        a = (known["mu"] - at) / np.sqrt(v)
        jumps = jumps + height**2 * np.vectorize(lambda z: mpmath.ncdf(z) * mpmath.ncdf(-z), otypes=[float])(a)
    names = {"max": np.maximum, "min": np.minimum, "abs": np.abs, "sigma": np.sqrt(v), **said["values"], **known}
    return np.asarray(eval(text, {"__builtins__": {}}, {**names, "jumps": jumps}))


numbers = arrays(np.float64, 20, elements=st.floats(-1e3, 1e3))
variances = arrays(np.float64, 20, elements=st.floats(1e-6, 1e6))
shapes = st.builds(
    MomentsMeasure,
    st.floats(0.01, 100),
    st.floats(0.01, 100) | st.just(math.inf),
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-3, 3)), max_size=2).map(tuple),
    st.just({}),
)


def agree(measure: Any, said: Mapping[str, Any], m: F64, mu: F64, v: F64) -> None:
    for output, exact in (("mean", m), ("var", np.abs(m))):
        stated = value(said[output], said, m=exact, V=exact, v=v, mu=mu)
        np.testing.assert_allclose(np.maximum(stated, FLOOR), measure.allowed(output, exact, mu, v), rtol=1e-9)


@given(shapes, numbers, numbers, variances)
def test_the_words_on_activations_are_what_is_measured(measure: MomentsMeasure, m: F64, mu: F64, v: F64) -> None:
    agree(measure, words(measure), m, mu, v)


@given(shapes, st.floats(0.1, 10), st.floats(0.1, 10), st.sampled_from([0.0, -2.0, 0.7]), numbers, numbers, variances)
def test_the_words_on_other_units_are_what_is_measured(
    base: MomentsMeasure, width: float, scale: float, offset: float, m: F64, mu: F64, v: F64
) -> None:
    @dataclass
    class Map:
        scale: float
        offset: float

    units = Units(centre=0.3, width=width, scale=scale, offset=offset)
    measure = RescaledMeasure(base, Parametric("line", x, ()), Map(scale, offset), units)  # type: ignore[arg-type]
    agree(measure, words(measure), m, mu, v)


@given(numbers, variances)
def test_the_words_on_elementary_functions_are_what_is_measured(m: F64, v: F64) -> None:
    measure = RelativeMeasure()
    for said in (words(measure), words(Inside(measure, Edge(1.0)))):
        agree(measure, said, m, np.zeros_like(v), v)


GOALS = (2e-8, 3e-7, 1e-6, 5e-6, 1e-3)


@pytest.mark.parametrize("draw", [False, True])
@given(st.sampled_from(GOALS), st.sampled_from(GOALS), st.floats(0.01, 100), numbers, variances)
def test_the_words_on_absolute_goals_are_what_is_measured(
    draw: bool, mean: float, var: float, steep: float, mu: F64, v: F64
) -> None:
    measure = MomentsMeasure(steep, 1.0, (), {}, Limits(mean, var, 1e-5), draw)
    agree(measure, words(measure), np.abs(mu) / 1e3, mu, v)
    assert words(measure)["partials"].startswith("1e-05 of the largest")


SHAPES = {
    "tanh": sp.tanh(x),
    "softplus": sp.log(1 + sp.exp(x - 1)),
    "hardtanh": sp.Max(-1, sp.Min(1, x)),
    "jumps": sp.Piecewise((x, x > 0.5), (x, x < -0.5), (0, True)),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("var", [1e-6, 1.7, 1e6])
def test_a_partial_is_allowed_its_share_of_the_largest_over_all_means(name: str, var: float) -> None:
    f = analyse(name, split(SHAPES[name]))
    measure, sigma = measure_for(f, QuadratureTruth(f)), math.sqrt(var)
    places = [f.centre, *f.kinks]
    means = np.concatenate([place + size * np.linspace(-3, 3, 31) for place in places for size in (f.length, sigma)])
    means, variances = means.astype(np.float32), np.full(means.size, var, np.float32)
    exact = BallTruth(f)(means, variances, {})
    for output in PARTIALS:
        allowed = measure.allowed(output, exact[output], means.astype(float), variances.astype(float))
        assert 0.8 <= allowed[0] / (1e-4 * np.abs(exact[output]).max()) <= 1.25, output


def test_a_measure_without_words_stops_the_build() -> None:
    with pytest.raises(BuildError, match="expected words for the tolerance of object"):
        words(object())


def test_approximations_are_measured_against_their_own_formula() -> None:
    rule = rules()["leaky_relu"]
    for variant, against in (
        ("exact", "the exact moments"),
        ("fitted", "the variant's published formula, not the moments that it approximates"),
    ):
        stable: Any = Measured(None, "ulp", variant)
        assert tolerance_of(rule, stable)["against"] == against


def test_a_build_writes_it_into_the_certificate() -> None:
    certificate = json.loads(compiled("exp").files["exact.json"])
    assert certificate["tolerance"]["var"] == "1e-05*V"
    assert certificate["tolerance"]["where"]["V"] == "the exact variance"


# Errors in units in the last place, at the ends of binades and of float32.
@given(st.floats(width=32, allow_nan=False, allow_infinity=False).filter(lambda x: x != 0))
def test_unit_is_the_distance_to_the_next_float32_away_from_zero(x: float) -> None:
    value = np.float32(x)
    away = np.nextafter(value, np.float32(np.copysign(np.inf, value)))
    if np.isfinite(away):
        assert unit(np.array(float(value))) == abs(float(away) - float(value))
        assert ulp_error(np.array([away]), np.array([float(value)]))[0] == (1.0 if abs(x) >= SMALLEST_NORMAL else 0.0)


def test_what_is_not_finite_counts_as_infinitely_wrong_and_below_the_normal_range_not_at_all() -> None:
    computed = np.float32([np.nan, np.inf, 1.0, 0.0, 1.0])
    exact = np.array([1.0, 1.0, 1.0, 2.0**-127, 1e300])
    assert ulp_error(computed, exact).tolist() == [np.inf, np.inf, 0.0, 0.0, 0.0]


def test_normal_range() -> None:
    below = float(np.nextafter(SMALLEST_NORMAL, 0))
    sizes = np.array([0.0, below, SMALLEST_NORMAL, 1.0, LARGEST, LARGEST * (1 + 1e-9), np.inf, np.nan])
    assert is_normal(sizes).tolist() == is_normal(-sizes).tolist() == [0, 0, 1, 1, 1, 0, 0, 0]
