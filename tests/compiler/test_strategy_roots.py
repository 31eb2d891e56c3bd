"""Roots on either side of 0: which are served, exact values against quadrature, graphs, and words on errors."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import sympy as sp

from momentgen.compiler.derive import derive
from momentgen.compiler.exact import ClosedFormTruth
from momentgen.compiler.strategies import plans
from momentgen.compiler.strategies.homogeneous import roots
from momentgen.compiler.strategies.homogeneous.roots import RootMeasure, Roots
from momentgen.rule import Rule
from momentgen.rule.symbols import x

SERVED = {
    "root_relu": (sp.sqrt(sp.Max(x, 0)), Roots(4, 0.0, 1.0)),
    "signed_root": (sp.sign(x) * sp.sqrt(sp.Abs(x)), Roots(4, -1.0, 1.0)),
    "leaky_root": (
        sp.Piecewise((3 * x ** sp.Rational(3, 4), x > 0), (-((-x) ** sp.Rational(3, 4)), True)),
        Roots(6, -1.0, 3.0),
    ),
}


@pytest.mark.parametrize("name", SERVED)
def test_a_root_is_known_however_it_is_written(name: str) -> None:
    f, known = SERVED[name]
    derivation = derive(Rule(name, f=f))
    assert roots._roots(derivation) == known
    assert next(iter(plans(derivation))).what == "roots on either side of 0"


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("a", [-3.0, -0.2, 0.0, 1.5, 12.0])
def test_exact_values_are_those_of_quadrature(name: str, a: float) -> None:
    known = SERVED[name][1]
    p, truth = known.eighths / 8, ClosedFormTruth(known.outputs())
    with mpmath.workdps(40):

        def moments(mu: mpmath.mpf, v: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
            # in y with x = ±y^8 no root is left at 0
            def power(n: int) -> mpmath.mpf:
                total = mpmath.mpf(0)
                for side, factor in ((-1, known.left), (1, known.right)):
                    middle = max(side * mu, 0) ** (mpmath.mpf(1) / 8)
                    cuts = sorted({mpmath.mpf(0), middle, middle + 0.3, middle + 1, mpmath.mpf(3)})
                    total += mpmath.quad(
                        lambda y, side=side, factor=factor: (
                            (factor * y**known.eighths) ** n * mpmath.npdf(side * y**8, mu, mpmath.sqrt(v)) * 8 * y**7
                        ),
                        cuts,
                    )
                return total

            mean = power(1)
            return mean, power(2) - mean**2

        mu, one = mpmath.mpf(a), mpmath.mpf(1)
        found = [float(row[0]) for row in truth(np.array([a]), np.ones(1), {}).values()]
        for value, exact in zip(found[:2], moments(mu, one), strict=True):
            assert abs(value - float(exact)) < 1e-12
        if a == -0.2:
            step = mpmath.mpf("1e-6")
            by_mu = [
                (u - w) / (2 * step) for u, w in zip(moments(mu + step, one), moments(mu - step, one), strict=True)
            ]
            by_v = [(u - w) / (2 * step) for u, w in zip(moments(mu, one + step), moments(mu, one - step), strict=True)]
            for value, slope in zip(found[2:], (by_mu[0], by_v[0], by_mu[1], by_v[1]), strict=True):
                assert abs(value - float(slope)) < 1e-9
    here = truth(np.array([4 * a], np.float32), np.array([16.0], np.float32), {})
    assert float(here["mean"][0]) == pytest.approx(found[0] * 4**p, rel=1e-7, abs=1e-9)
    assert float(here["dvar_dmu"][0]) == pytest.approx(found[4] * 4 ** (2 * p - 1), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", SERVED)
def test_exact_values_go_as_far_as_float32_does(name: str) -> None:
    truth, rng = ClosedFormTruth(SERVED[name][1].outputs()), np.random.default_rng(2)
    var = np.exp2(rng.uniform(-126, 126, 200)).astype(np.float32)
    mean = (np.exp2(rng.uniform(-126, 126, 200)) * rng.choice([-1, 1], 200)).astype(np.float32)
    found = truth(mean, var, {})
    assert all(np.isfinite(values).all() for values in found.values())
    assert (found["var"] >= -(2.0**-200)).all()


def test_the_words_on_roots_are_what_is_measured() -> None:
    rng = np.random.default_rng(1)
    m, mu, v = rng.normal(size=30), rng.normal(size=30) * 10, np.exp(rng.normal(size=30) * 3)
    measure = RootMeasure(6, 3.0)
    said = measure.words()
    for output in ("mean", "var"):
        known = {"abs": abs, "m": m, "v": v, "sigma": np.sqrt(v), "r": np.hypot(mu, np.sqrt(v)), **said["values"]}
        stated = eval(said[output].replace("^", "**").replace("|m|", "abs(m)"), known)
        np.testing.assert_allclose(stated, measure.allowed(output, m, mu, v), rtol=1e-9)
