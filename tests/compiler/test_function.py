"""What the compiler finds out about f, and the domain that a rule states."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest
import sympy as sp

from momentgen.compiler.derive import derive
from momentgen.compiler.function.activation import Line, analyse
from momentgen.compiler.function.pieces import split
from momentgen.compiler.ir.stable import limits_of
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.strategies import stabilise
from momentgen.compiler.strategies.elementary import Edge
from momentgen.compiler.strategies.finish import DomainEdge
from momentgen.errors import BuildError
from momentgen.rule import Formula, Phi, Rule, S, mu, phi, v, x

# What the compiler finds out about f from its expression: lines, lengths and centres, at every scale.
SHAPES = {
    "tanh": sp.tanh(x),
    "softplus": sp.log(1 + sp.exp(x)),
    "gaussian": sp.exp(-(x**2)),
    "elu": sp.Piecewise((sp.exp(x) - 1, x < 0), (x, True)),
    "two sigmoids": S(2 * x) + S(x),
}


@pytest.mark.parametrize(("power", "steps"), [(-12, 0), (-3, 700), (3, -40), (11, 5)])
@pytest.mark.parametrize("name", SHAPES)
def test_lengths_lines_and_centres_follow_the_units_of_f(name: str, power: int, steps: int) -> None:
    own = analyse(name, split(SHAPES[name]))
    width = sp.Integer(2) ** power
    f = analyse(name, split(SHAPES[name].subs(x, (x - steps * width) / width)))
    assert f.algebraic == own.algebraic
    assert f.length / width == pytest.approx(own.length, rel=0.1)
    assert abs(f.centre / width - steps - own.centre) <= 6 * own.length
    assert f.lipschitz * width == pytest.approx(own.lipschitz, rel=0.01)
    slopes, own_slopes = ([side.slope for side in (a.left, a.right) if side] for a in (f, own))
    assert [slope * width for slope in slopes] == pytest.approx(own_slopes)
    assert f.span == pytest.approx(own.span, rel=0.01)


def test_a_centre_a_million_lengths_away_is_found() -> None:
    f = analyse("far", split(sp.tanh(x - 10**6)))
    assert (f.left, f.right) == (Line(0.0, -1.0), Line(0.0, 1.0))
    assert abs(f.centre - 1e6) < 2
    assert f.lipschitz == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize(
    ("f", "left", "right"),
    [
        (phi(x) / Phi(x), Line(-1.0, 0.0), Line(0.0, 0.0)),  # nears -x as 1/x does, by a ratio of two tails
        (phi(x) / Phi(-x), Line(0.0, 0.0), Line(1.0, 0.0)),
    ],
)
def test_a_line_is_found_beneath_a_ratio_of_tails(f: sp.Expr, left: Line, right: Line) -> None:
    found = analyse("ratio", split(f))
    assert (found.left, found.right) == (left, right)


@pytest.mark.parametrize(
    "f",
    [
        sp.Piecewise((sp.exp(-1 / (1 - x**2)), sp.Abs(x) < 1), (0, True)),
        sp.Piecewise((x / (1 - sp.exp(x)), x > 0), (0, True)),
    ],
)
def test_a_denominator_that_vanishes_at_a_kink_is_no_crash(f: sp.Expr) -> None:
    with suppress(BuildError):
        analyse("pole", split(f))


# Domains: what a rule states, and what holds beyond.
def test_beyond_the_domain_every_output_of_every_variant_is_nan_and_within_it_nothing_changes() -> None:
    variants = {"rough": Formula(mu**2, v)}
    plain = stabilise(derive(Rule("square_plus", f=x**2 + 1, variants=variants)))
    limited = stabilise(derive(Rule("square_plus", f=x**2 + 1, variants=variants, domain={"mean": 8.0, "var": 100.0})))
    mean = np.array([0.5, -8.0, 8.5, 0.5, 8.5, math.nan])
    var = np.array([0.0, 100.0, 1.0, 101.0, 1e30, 1.0])
    beyond = np.array([False, False, True, True, True, True])
    assert [one.variant for one in plain] == [one.variant for one in limited]
    for one, other in zip(plain, limited, strict=True):
        assert limits_of(other)["nan"] == "|mean| > 8 or var > 100"
        assert other.domain["var"] == "0 or 2^-127 <= var <= 100"
        for field in ("forward", "partials", "forward64", "partials64"):
            at = {"mean": mean, "var": var}
            want, found = outputs_float64(getattr(one, field), at), outputs_float64(getattr(other, field), at)
            for name in want:
                value, free = (np.broadcast_to(values[name], mean.shape) for values in (found, want))
                assert np.isnan(value[beyond]).all(), (field, name)
                assert (value[~beyond] == free[~beyond]).all(), (field, name)
        wrong = np.full(6, 1e9, np.float32)
        errors = other.measure("mean", wrong, np.zeros(6), mean.astype(np.float32), var.astype(np.float32))
        assert (errors[beyond] == 0).all()
        assert (errors[~beyond] > 1).all()


def test_an_edge_keeps_the_one_that_the_variant_has() -> None:
    edge = DomainEdge(var=4.0, own=Edge(30.0))
    assert edge.words == "var > 4 or |mean| > 33333.3"
    assert edge.inside(np.array([0.0, 0.0, 1e6]), np.array([1.0, 5.0, 1.0])).tolist() == [True, False, False]
