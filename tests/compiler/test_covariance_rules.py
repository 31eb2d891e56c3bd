"""Rules whose output is the covariance of f(X1) and f(X2): the generated code against truth of other kinds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
import torch
from real_rules import fresh_seed, op_of, stables

from momentgen.compiler.certify import joint_points
from momentgen.compiler.strategies.covariance.correlation import gauss_legendre
from momentgen.compiler.strategies.covariance.covariance import stabilise_covariance
from momentgen.errors import BuildError, InputError, RuleError
from momentgen.rule import Accuracy, Rule, x, x1, x2

F32 = npt.NDArray[np.float32]
NAMES = ("heaviside_covariance", "normal_cdf_covariance", "relu_covariance", "gelu_covariance")
each = pytest.mark.parametrize("name", NAMES)
#: the same numerics as Heaviside's, or many more nodes of them: their exact values take long
_LONG = ("normal_cdf_covariance", "gelu_covariance")
each_with_exact_values = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in _LONG else name for name in NAMES]
)
PARTIALS = tuple(f"dcovariance_d{of}" for of in ("mu1", "var1", "mu2", "var2", "cov"))

#: f, and its mean for a normal value
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "heaviside_covariance": (lambda z: mpmath.mpf(z >= 0), lambda m, v: mpmath.ncdf(m / mpmath.sqrt(v))),
    "normal_cdf_covariance": (mpmath.ncdf, lambda m, v: mpmath.ncdf(m / mpmath.sqrt(1 + v))),
    "relu_covariance": (
        lambda z: max(z, mpmath.mpf(0)),
        lambda m, v: m * mpmath.ncdf(m / mpmath.sqrt(v)) + mpmath.sqrt(v) * mpmath.npdf(m / mpmath.sqrt(v)),
    ),
    "gelu_covariance": (
        lambda z: z * mpmath.ncdf(z),
        lambda m, v: (
            m * mpmath.ncdf(m / mpmath.sqrt(1 + v)) + v / mpmath.sqrt(1 + v) * mpmath.npdf(m / mpmath.sqrt(1 + v))
        ),
    ),
}
"""Of the second input given the first the mean is known in closed form: one integral remains."""

POINTS = (
    (0.3, 1.0, -0.4, 2.0, 0.9),
    (0.3, 1.0, -0.4, 2.0, -1.2),
    (-2.0, 0.5, -1.5, 0.7, 0.5),
    (1.5, 0.04, 1.4, 0.09, 0.0599),
    (-0.7, 4.0, 0.7, 4.0, -3.999),
    (3.0, 1.0, -3.0, 1.0, 0.25),
    (0.0, 1.0, 0.0, 1.0, 1e-3),
)
SMOOTH = (POINTS[2],)  # of which differences tell the partials


def independent(name: str, m1: float, v1: float, m2: float, v2: float, c: float) -> Any:
    """Cov(f(X1), f(X2)) = E (f(X1) - E f(X1)) E(f(X2) | X1), to 20 digits or so."""
    f, mean = FUNCTIONS[name]
    with mpmath.workdps(30):
        m1, v1, m2, v2, c = map(mpmath.mpf, (m1, v1, m2, v2, c))
        s1, rest, own = mpmath.sqrt(v1), v2 - c * c / v1, mean(m1, v1)

        def integrand(z: Any) -> Any:
            return (f(m1 + s1 * z) - own) * mean(m2 + c / s1 * z, rest) * mpmath.npdf(z)

        bends = sorted({-14, 14, *(max(-14, min(14, z)) for z in (-m1 / s1, -m2 * s1 / c))})
        pieces = [float(z) for z in bends]
        inner = [z + d for z in pieces[1:-1] for d in (-1, -0.1, 0.1, 1)]
        return mpmath.quad(integrand, sorted({*pieces, *(z for z in inner if abs(z) < 14), -4, 0, 4}))


@each_with_exact_values
def test_the_exact_values_are_those_of_an_integral_over_the_first_input(name: str) -> None:
    for point in POINTS:
        want, step = independent(name, *point), 1e-4
        exact = stables(name)["exact"].truth(*(np.array([value]) for value in point), {})
        assert abs(exact["covariance"][0] - want) <= 1e-12 + 1e-9 * abs(want), point
        for i, partial in enumerate(PARTIALS if point in SMOOTH else ()):
            up, down = (
                independent(name, *(value + sign * step * (k == i) for k, value in enumerate(point)))
                for sign in (1, -1)
            )
            difference = float((up - down) / (2 * step))
            assert exact[partial][0] == pytest.approx(difference, rel=2e-3, abs=1e-5), (point, partial)


@each_with_exact_values
def test_float64_has_the_digits_of_the_exact_values(name: str) -> None:
    points = joint_points.spread(400, fresh_seed(name, "float64"), covariance=True, reach=10)
    near = np.abs(points[4]) < (1 - 1e-6) * np.sqrt(points[1].astype(np.float64) * points[3])
    points = tuple(array[near] for array in points)
    exact, scales = stables(name)["exact"].truth(*points, {}), stables(name)["exact"].measure.scales(points)  # type: ignore[attr-defined]
    leaves = [torch.from_numpy(array).double().requires_grad_() for array in points]
    found = op_of(name)(*leaves)
    gradients = torch.autograd.grad(found.sum(), leaves)
    for key, value in zip(("covariance", *PARTIALS), (found.detach(), *gradients), strict=True):
        error = np.abs(value.numpy() - exact[key]) / np.maximum(np.maximum(scales[key], np.abs(exact[key])), 1e-30)
        assert error.max() <= 1e-8, (key, [float(array[error.argmax()]) for array in points])


@each
def test_no_covariance_gives_none_and_a_certain_value_too(name: str) -> None:
    mean, var = (torch.from_numpy(array) for array in joint_points.spread(500, 3, covariance=True, reach=40)[:2])
    zero = torch.zeros_like(mean)
    assert not op_of(name)(mean, var, -mean, 2 * var, zero).any()
    assert not op_of(name)(mean, zero, -mean, var, zero).any()


@pytest.mark.parametrize("name", NAMES)
def test_of_a_value_with_itself_it_is_the_variance(name: str) -> None:
    mean, var = torch.linspace(-3, 3, 41).double(), torch.linspace(0.1, 4, 41).double()
    want = op_of(name.removesuffix("_covariance"))(mean, var).var
    torch.testing.assert_close(op_of(name)(mean, var, mean, var, var), want, rtol=0, atol=2e-6)


def test_heaviside_at_the_origin_is_the_arcsine_law() -> None:
    rho = torch.linspace(-0.999, 0.999, 101)
    zero, one = torch.zeros_like(rho), torch.ones_like(rho)
    found = op_of("heaviside_covariance")(zero, one, zero, one, rho)
    torch.testing.assert_close(found, torch.asin(rho.double()).float() / (2 * math.pi), rtol=3e-6, atol=1e-7)


def test_such_a_rule_says_what_it_needs() -> None:
    with pytest.raises(RuleError, match="needs two inputs and covariance=True"):
        Rule("f", f=x**2, outputs=("covariance",))
    with pytest.raises(RuleError, match=r"outputs must be \('mean', 'var'\) or \('covariance',\), got \('mean',\)"):
        Rule("f", f=x**2, outputs=("mean",))
    two: dict[str, Any] = {"inputs": ("x1", "x2"), "covariance": True, "outputs": ("covariance",)}
    with pytest.raises(RuleError, match=r"x1|x2"):
        Rule("f", f=x1 * x2, **two)
    with pytest.raises(RuleError, match="no mean can be given"):
        Rule("f", f=x**2, mean=x**2, **two)
    with pytest.raises(BuildError, match="expected f to be one of"):
        stabilise_covariance(Rule("f", f=x**2, accuracy=Accuracy(moments=True), **two))


def test_the_op_returns_a_tensor_and_has_no_mean_to_differentiate() -> None:
    op, one = op_of("relu_covariance"), torch.ones(3)
    assert op.outputs == ("covariance",)
    assert isinstance(op(one, one, one, one, one / 2), torch.Tensor)
    assert "Covariance of ``relu(X1)`` and ``relu(X2)``" in op.__doc__
    with pytest.raises(InputError, match="expects an op that returns a mean, got one of"):
        op.mean_gradients(one, one, one, one, one / 2)


def test_nodes_of_gauss_and_legendre_integrate_polynomials() -> None:
    total = sum(weight * node**7 for node, weight in gauss_legendre(4))
    assert abs(total - mpmath.mpf(1) / 8) < mpmath.mpf(10) ** -30
