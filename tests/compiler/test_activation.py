"""What the compiler finds out about f from its expression: lines, lengths and centres, at every scale."""

from __future__ import annotations

import pytest
import sympy as sp

from momentgen.compiler.function.activation import analyse
from momentgen.compiler.function.pieces import split
from momentgen.rule import S, x

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
    own = analyse(name, split(SHAPES[name]), {})
    width = sp.Integer(2) ** power
    f = analyse(name, split(SHAPES[name].subs(x, (x - steps * width) / width)), {})
    assert f.algebraic == own.algebraic
    assert f.length / width == pytest.approx(own.length, rel=0.1)
    assert abs(f.centre / width - steps - own.centre) <= 6 * own.length
    assert f.lipschitz * width == pytest.approx(own.lipschitz, rel=0.01)
    slopes, own_slopes = ([side.slope for side in (a.left, a.right) if side] for a in (f, own))
    assert [slope * width for slope in slopes] == pytest.approx(own_slopes)
    assert f.span == pytest.approx(own.span, rel=0.01)
