"""What the compiler finds out about f from its expression: lines, lengths and centres, at every scale."""

from __future__ import annotations

from contextlib import suppress

import pytest
import sympy as sp

from momentgen.compiler.function.activation import Line, analyse
from momentgen.compiler.function.pieces import split
from momentgen.errors import BuildError
from momentgen.rule import Phi, S, phi, x

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
