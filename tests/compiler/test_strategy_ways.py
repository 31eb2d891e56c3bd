"""Several ways may serve a rule: the first that reaches the accuracy asked is taken, and a certificate says which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st

from momentgen.compiler import pipeline, strategies
from momentgen.compiler.certify.evidence import Evidence
from momentgen.compiler.derive import derive
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.ir.values import evaluate_float64
from momentgen.compiler.strategies import stabilise, ways
from momentgen.errors import BuildError
from momentgen.rule import Accuracy, Rule
from momentgen.rule.symbols import x

SMOOTH = Rule("smooth", f=sp.tanh(x))


WAYS = ("smooth, by polynomials", "quadrature")


@pytest.mark.slow
def test_ways_come_in_the_order_of_the_strategies_and_carry_their_names() -> None:
    assert [tuple(stable.way for stable in stables) for stables in ways(derive(SMOOTH))] == [(way,) for way in WAYS]


def test_a_way_can_be_asked_for_by_its_name_and_is_missed_by_name() -> None:
    (stable,) = stabilise(derive(SMOOTH), WAYS[1])
    assert stable.way == WAYS[1]
    with pytest.raises(BuildError, match="with kinks, by power series"):
        stabilise(derive(SMOOTH), "with kinks, by power series")


@pytest.mark.parametrize(
    ("f", "moved"),
    [
        (50 * sp.tanh(x / 50), True),
        (sp.tanh(x) / 1000, True),
        (sp.Max(0, sp.Min(6, x)) ** 3, True),
        (50 * sp.log(1 + sp.exp(x / 50)), True),
        (50 * sp.Heaviside(x - 1, 1), True),
        (sp.tanh(x), False),
        (sp.Max(0, sp.Min(6, x)), False),
        (100 * sp.sin(x), False),
        (50 * sp.Max(0, x), False),
    ],
)
def test_an_f_far_from_one_in_size_is_fitted_in_units_of_its_size(f: sp.Expr, moved: bool) -> None:
    derivation = derive(Rule("sized", f=f, accuracy=Accuracy(moments=True)))
    assert (strategies._of_size_one(derivation).base is not None) == moved


def test_goals_in_absolute_errors_are_those_of_f_itself() -> None:
    rule = Rule("sized", f=50 * sp.tanh(x / 50), accuracy=Accuracy(mean_abs=1e-3, var_abs=1e-1))
    assert strategies._of_size_one(derive(rule)).base is None


@pytest.mark.slow
def test_the_mean_of_such_an_f_is_measured_in_that_unit() -> None:
    (stable,) = next(ways(derive(Rule("sized", f=50 * sp.tanh(x / 50)))))
    said = stable.measure.words()
    assert said["mean"] == "1e-06*max(A, |m|) + 1e-09*min(L*sigma, range)"
    assert (said["values"]["A"], said["values"]["range"]) == (64, 100)


@dataclass(frozen=True)
class Made:
    """What the pipeline asks of a variant before it is certified."""

    way: str
    unit: str = "tolerance"
    goal: float = 1.0


def first(
    misses: Sequence[str],
    tried: Sequence[str | Made],
    monkeypatch: pytest.MonkeyPatch,
    rule: Rule = SMOOTH,
) -> object:
    """What comes of ways of these names, some of which miss the accuracy."""

    def compiled(rule: Rule, stable: Made, *rest: object) -> str:
        if stable.way in misses:
            raise BuildError(rule.name, "certify", f"the variance is off by {len(stable.way)} tolerances")
        return str(stable.way)

    made: Any = [(Made(one) if isinstance(one, str) else one,) for one in tried]
    monkeypatch.setattr(pipeline, "certified", compiled)
    return pipeline._compile_first(rule, made, lambda stage: None, Evidence(rule.name))


def test_a_way_that_misses_the_accuracy_gives_place_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    assert first([], WAYS, monkeypatch) == (WAYS[0],)
    assert first(WAYS[:1], WAYS, monkeypatch) == (WAYS[1],)


def test_a_way_that_promises_less_is_not_taken_instead() -> None:
    """Else a rule that asks for a third of an ulp would get a tolerance."""
    rule = Rule("strict", f=sp.Max(x, 0), accuracy=Accuracy(ulp={"exact": 0.3}))
    with pytest.raises(BuildError, match=r"expected at most 0\.3"):
        pipeline.compile_rule(rule)


def test_where_all_ways_miss_the_error_says_by_how_much_each(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError) as error:
        first(WAYS, WAYS, monkeypatch)
    *others, last = WAYS
    said = [f"stage certify, the variance is off by {len(way)} tolerances" for way in WAYS]
    assert error.value.others == tuple(zip(others, said, strict=False))
    assert str(error.value) == f"rule smooth, {said[-1].replace(',', ':')} ({last})"
    with pytest.raises(
        BuildError, match=rf"^rule smooth, stage certify: the variance is off by {len(WAYS[1])} tolerances$"
    ):
        first(WAYS, WAYS[1:], monkeypatch)


@pytest.mark.slow
@given(ratio=st.floats(-3.0, 3.0), share=st.floats(0.0, 1.0))
def test_a_short_scale_changes_nothing_but_the_units(ratio: float, share: float) -> None:
    """Moments of f(1000 x) at (mu, v) are those of f at (1000 mu, 10^6 v)."""
    long, short = _root(), _root(1000)
    mean, var = ratio, 1e-6 + share
    for name, unit in (("dmean_dmu", 1e3), ("dmean_dvar", 1e6), ("dvar_dmu", 1e3), ("dvar_dvar", 1e6)):
        wide = evaluate_float64(long.partials, {"mean": mean, "var": var})[long.partials.outputs[name]]
        thin = evaluate_float64(short.partials, {"mean": mean / 1e3, "var": var / 1e6})[short.partials.outputs[name]]
        assert abs(thin / unit - wide) < 1e-6, name


_ROOTS: dict[int, Stable] = {}


def _root(rate: int = 1) -> Stable:
    if rate not in _ROOTS:
        (_ROOTS[rate],) = stabilise(derive(Rule("root", f=sp.sqrt(1 + (rate * x) ** 2))))
    return _ROOTS[rate]


@pytest.mark.parametrize(("moments", "taken"), [(True, "by tolerance"), (False, None)])
def test_a_missed_goal_in_ulp_leaves_the_ways_by_moments_where_the_rule_takes_them(
    moments: bool, taken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Rule("valley", f=sp.Max(x, -x / 2), accuracy=Accuracy(ulp={"exact": 8.0}, moments=moments))
    tried = (Made("in ulp", "ulp", 8.0), Made("by tolerance", "tolerance", 8.0))
    if taken is None:
        with pytest.raises(BuildError, match="off by 6 tolerances"):
            first(["in ulp"], tried, monkeypatch, rule=rule)
    else:
        assert first(["in ulp"], tried, monkeypatch, rule=rule) == (taken,)
