"""Norms, and quadrature of one normal value: against Monte Carlo, exact integrals, and the plain functions."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.numerics.normalise import centred, l2_normalise, layer_norm, rms_norm
from momentgen.laws.numerics.quadrature import quadrature

Rule = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

EPS = 1e-3
RULES: dict[str, tuple[Rule, Callable[[Tensor], Tensor]]] = {
    "layer": (lambda m, v: layer_norm(m, v, 1, EPS), lambda x: F.layer_norm(x, x.shape[-1:], eps=EPS)),
    "rms": (lambda m, v: rms_norm(m, v, 1, EPS), lambda x: F.rms_norm(x, x.shape[-1:], eps=EPS)),
    "l2": (lambda m, v: l2_normalise(m, v, -1, 1e-12), lambda x: F.normalize(x, dim=-1)),
}
every_rule = pytest.mark.parametrize("name", RULES)


def inputs(n: int, noise: float, kind: str, rows: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(seed)
    m, v = random.standard_normal((rows, n)), np.full((rows, n), noise**2)
    if kind == "unequal":
        v *= np.exp(2 * random.standard_normal((rows, n)))
    elif kind == "dominating variance":
        v[:, 0] *= 3 * n
    elif kind == "dominating mean":
        m[:, 0] = 3 * math.sqrt(n)
        v[:, 0] = (noise * m[:, 0]) ** 2
    elif kind == "no mean":
        m *= 0
    elif kind == "half certain":
        v[:, ::2] = 0
    return torch.from_numpy(m), torch.from_numpy(v)


KINDS = ["equal", "unequal", "dominating variance", "dominating mean", "no mean", "half certain"]


def integrated(m: np.ndarray, v: np.ndarray, e: float, layer: bool) -> tuple[np.ndarray, np.ndarray]:
    """Both moments of x / sqrt(|x|² + e) from the textbook integrals over log t, by 1601 trapezoids in float64.

    Nothing of the rule is in it: no control variate, no interpolation; matrices in place of sums for layer norm.
    """
    n = len(m)
    centre = np.eye(n) - 1 / n if layer else np.eye(n)
    size = (centre @ m) @ (centre @ m) + np.trace(centre @ np.diag(v)) + e
    u = np.linspace(-46, 26, 1601)
    t = np.exp(u) / size
    # The density exp(-t x'Cx) tilts the normal law: its precision times the covariance is I + 2 t V C.
    tilted = np.linalg.inv(np.eye(n) + 2 * t[:, None, None] * (np.diag(v) @ centre))
    _, logdet = np.linalg.slogdet(tilted)
    shifted = tilted @ m
    g = np.exp(0.5 * logdet - t * (shifted @ centre @ m) - t * e)
    y, cov = shifted @ centre, centre @ tilted @ np.diag(v) @ centre
    first = (g * np.sqrt(t / math.pi)) @ y
    second = (g * t) @ (y**2 + np.diagonal(cov, axis1=1, axis2=2))
    h = u[1] - u[0]
    return first * h, second * h - (first * h) ** 2


@every_rule
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "noise"), [(2, 0.5), (4, 0.1), (9, 1.0), (16, 0.3), (24, 3.0), pytest.param(128, 0.5, marks=pytest.mark.slow)]
)
def test_error_is_within_a_thousandth_of_the_standard_deviation(n: int, noise: float, kind: str, name: str) -> None:
    m, v = inputs(n, noise, kind, seed=n)
    mean, var = (part[0].numpy() for part in RULES[name][0](m, v))
    size = 1 if name == "l2" else n  # of the square of what is normalised
    expected, spread = integrated(m[0].numpy(), v[0].numpy(), 0.0 if name == "l2" else n * EPS, name == "layer")
    expected, spread = expected * math.sqrt(size), spread * size
    some = spread > 1e-9  # the reference cancels below
    assert (np.abs(mean - expected)[some] <= 1e-3 * np.sqrt(spread[some])).all()
    np.testing.assert_allclose(np.sqrt(var[some] / spread[some]), 1, atol=1e-3)


@pytest.mark.parametrize("n", [2, 9, 10, 64, 768])
@pytest.mark.parametrize("name", ["layer", "rms"])
def test_mean_square_of_the_outputs_is_one_where_eps_is_nothing(name: str, n: int) -> None:
    m, v = inputs(n, 0.7, "unequal", rows=4)
    mean, var = (layer_norm if name == "layer" else rms_norm)(m, v, 1, 0.0)
    torch.testing.assert_close((mean.square() + var).mean(-1), torch.ones(4).double(), rtol=1e-3, atol=0)


def test_layer_norm_does_not_see_a_shift_and_its_means_sum_to_nothing() -> None:
    m, v = inputs(64, 0.7, "unequal", rows=3)
    mean, var = layer_norm(m, v, 1, EPS)
    torch.testing.assert_close((mean, var), layer_norm(m + 10, v, 1, EPS))
    torch.testing.assert_close(mean.sum(-1), torch.zeros(3).double(), rtol=0, atol=1e-3)


@every_rule
@pytest.mark.parametrize("n", [2, 9, 10, 64, 768])
@pytest.mark.parametrize("values", ["random", "constant", "zero", "large", "tiny"])
def test_a_certain_input_gives_the_plain_norm_no_variance_and_finite_gradients(name: str, n: int, values: str) -> None:
    rule, plain = RULES[name]
    m = torch.randn(3, n, generator=torch.Generator().manual_seed(n))
    m = {"random": m, "constant": 0 * m + 1, "zero": 0 * m, "large": 1e12 * m, "tiny": 1e-15 * m}[values]
    m, v = m.requires_grad_(), torch.zeros(3, n, requires_grad=True)
    mean, var = rule(m, v)
    torch.testing.assert_close(mean, plain(m), rtol=2e-6, atol=2e-6)
    assert (var == 0).all()
    for gradient in torch.autograd.grad(mean.square().sum() + mean.sum() + var.sum(), (m, v)):
        assert gradient.isfinite().all()


@every_rule
@pytest.mark.parametrize("n", [5, 64, 768])
def test_small_variances_give_the_jacobians_variance_in_float32(name: str, n: int) -> None:
    rule, plain = RULES[name]
    m, v = inputs(n, 1e-4, "unequal")
    jacobian = torch.autograd.functional.jacobian(lambda x: plain(x[None])[0], m[0])
    var = rule(m.float(), v.float())[1][0]
    torch.testing.assert_close(var.double(), jacobian.square() @ v[0], rtol=1e-3, atol=0)


@every_rule
@pytest.mark.parametrize("n", [4, 16, 768])
@pytest.mark.parametrize("kind", KINDS)
def test_float32_agrees_with_float64(name: str, n: int, kind: str) -> None:
    rule = RULES[name][0]
    for noise in (1e-4, 1e-2, 1.0, 3.0):
        m, v = inputs(n, noise, kind, rows=4, seed=n)
        (mean, var), (near, spread) = rule(m, v), rule(m.float(), v.float())
        assert (spread >= 0).all()
        torch.testing.assert_close(spread.double(), var, rtol=1e-3, atol=1e-7 * float(var.max()))
        assert ((near - mean).abs() <= 1e-3 * var.sqrt() + 2e-6 * mean.abs().amax(-1, keepdim=True)).all()


@every_rule
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    m, v = inputs(12, 0.6, "unequal", rows=2)
    # Loose, since the points of interpolation, beyond a few values, are held constant.
    assert torch.autograd.gradcheck(RULES[name][0], (m.requires_grad_(), v.requires_grad_()), atol=1e-4)


def test_several_dimensions_are_one() -> None:
    m, v = inputs(24, 0.5, "unequal", rows=2)
    for rule in (layer_norm, rms_norm):
        got = rule(m.view(2, 4, 6), v.view(2, 4, 6), 2, EPS)
        torch.testing.assert_close(tuple(part.view(2, 24) for part in got), rule(m, v, 1, EPS))


def test_l2_takes_any_dimension_and_divides_a_vector_shorter_than_eps_by_eps() -> None:
    m, v = inputs(24, 0.5, "unequal", rows=2)
    got = l2_normalise(m.T, v.T, 0, 1e-12)
    torch.testing.assert_close(tuple(part.T for part in got), l2_normalise(m, v, 1, 1e-12))
    torch.testing.assert_close(l2_normalise(m, v, 1, 1e3), (m / 1e3, v / 1e6))


def test_eps_of_rms_norm_is_the_dtypes_where_none_is_given() -> None:
    m = torch.full((1, 8), 1e-4)
    torch.testing.assert_close(rms_norm(m, 0 * m, 1, None)[0], F.rms_norm(m, (8,)))


def test_one_value_minus_its_mean_is_certain_and_empty_inputs_stay_empty() -> None:
    one = torch.ones(3, 1)
    assert all((part == 0).all() for part in layer_norm(one, one, 1, EPS))
    assert (centred(one, (1,)) == 0).all()
    assert centred(torch.ones(2, 0), (1,)).shape == (2, 0)
    for rule in (layer_norm, rms_norm):
        assert rule(torch.ones(0, 4), torch.ones(0, 4), 1, EPS)[0].shape == (0, 4)


def test_centred_is_the_diagonal_of_the_projected_covariance() -> None:
    v = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0)).double()
    centre = torch.eye(12).double() - 1 / 12
    wanted = ((centre.square()) @ v.view(2, 12).T).T.view(2, 3, 4)
    torch.testing.assert_close(centred(v, (1, 2)), wanted)


# Quadrature of one normal value against closed forms and mpmath's adaptive integrals.
def expected(function: Callable[[mpmath.mpf], mpmath.mpf], mean: float, var: float) -> tuple[float, float]:
    sd = math.sqrt(var)
    places = [-12, -6, -3, -1, 0, 1, 3, 6, 12]
    first = mpmath.quad(lambda z: mpmath.npdf(z) * function(mean + sd * z), places)
    second = mpmath.quad(lambda z: mpmath.npdf(z) * (function(mean + sd * z) - first) ** 2, places)
    return float(first), float(second)


def agrees(function: Any, exact: Any, mean: float, var: float, tolerance: float, *how: Any, **more: Any) -> None:
    got = quadrature(function, torch.tensor(mean).double(), torch.tensor(var).double(), *how, **more)
    e, v = expected(exact, mean, var)
    assert got[0].item() == pytest.approx(e, abs=tolerance * math.sqrt(v))
    assert math.sqrt(got[1].item() / v) == pytest.approx(1, abs=tolerance)


@pytest.mark.parametrize(
    ("function", "exact", "mean", "std", "tolerance"),
    [
        (lambda x: x * torch.exp(x), lambda x: x * mpmath.exp(x), 0.3, 3.0, 1e-5),
        (lambda x: 1 / (1 + x * x), lambda x: 1 / (1 + x * x), 0.3, 3.0, 1e-3),
        (lambda x: torch.sin(3 * x), lambda x: mpmath.sin(3 * x), 0.3, 3.0, 1e-3),
        (lambda x: torch.sigmoid(x) * torch.sigmoid(-x), lambda x: mpmath.sech(x / 2) ** 2 / 4, -1.0, 5.0, 1e-3),
    ],
)
def test_graded_nodes_serve_inputs_wider_than_a_bend_and_exponentials(
    function: Any, exact: Any, mean: float, std: float, tolerance: float
) -> None:
    agrees(function, exact, mean, std**2, tolerance, 56, ())


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (lambda x: 1 / (x.abs() + 0.5), lambda x: 1 / (abs(x) + 0.5)),
        (lambda x: x.relu() * x.sigmoid(), lambda x: max(x, 0) / (1 + mpmath.exp(-x))),
        (lambda x: (x > 0).double(), lambda x: mpmath.mpf(x > 0)),
    ],
    ids=["a pointed one", "one with a kink", "a jump"],
)  # fmt: skip
def test_a_cut_keeps_full_accuracy_and_derivatives_at_a_kink(function: Any, exact: Any) -> None:
    for m in (-0.7, 0.0, 0.4):
        mean = torch.tensor(m, dtype=torch.float64, requires_grad=True)
        var = torch.tensor(0.49, dtype=torch.float64)
        found = quadrature(function, mean, var, 56, (torch.zeros(()),))
        places = sorted((-12.0, -m / 0.7, 12.0))
        moment, slope, square = (
            float(
                mpmath.quad(
                    lambda z, k=k, m=m: mpmath.npdf(z) * z ** (k % 2) * exact(m + 0.7 * z) ** (1 + k // 2), places
                )
            )
            for k in (0, 1, 2)
        )
        assert found[0].item() == pytest.approx(moment, abs=1e-7)
        assert found[1].item() == pytest.approx(square - moment**2, abs=1e-7)
        (gradient,) = torch.autograd.grad(found[0], mean)
        assert gradient.item() == pytest.approx(slope / 0.7, abs=1e-5)


@pytest.mark.parametrize("function", [torch.relu, torch.exp, torch.tanh, torch.sqrt, torch.log, torch.abs])
def test_a_certain_value_is_the_functions_own_and_its_gradients_are_finite(
    function: Callable[[Tensor], Tensor],
) -> None:
    m = torch.tensor([0.5, 1.0, 30.0], requires_grad=True)
    v = torch.zeros(3, requires_grad=True)
    mean, var = quadrature(function, m, v)
    assert torch.equal(mean, function(m))
    assert (var == 0).all()
    gradient, slope = torch.autograd.grad(mean.sum() + var.sum(), (m, v))
    torch.testing.assert_close(gradient, torch.autograd.grad(function(m).sum(), m)[0])
    assert slope.isfinite().all()


def test_an_infinite_value_of_a_certain_input_stays_infinite_and_certain() -> None:
    mean, var = quadrature(torch.log, torch.zeros(1), torch.zeros(1))
    assert mean.item() == -math.inf
    assert var.item() == 0


def test_a_function_that_is_infinite_at_the_mean_alone_is_integrated() -> None:
    mean, var = quadrature(lambda x: torch.log(x * x), torch.zeros(1), torch.ones(1))
    assert mean.isfinite().all()
    assert (var > 0).all()


def test_variances_are_never_negative_whatever_the_size_of_the_values() -> None:
    m = torch.full((1000,), 1e4)
    v = torch.logspace(-12, 0, 1000)
    assert (quadrature(lambda x: x + 1e6, m, v)[1] >= 0).all()


def test_gradients_follow_parameters_of_the_function() -> None:
    slope = torch.tensor(1.3, requires_grad=True)
    mean, _ = quadrature(lambda x: slope * x, torch.full((3,), 2.0), torch.ones(3))
    torch.testing.assert_close(torch.autograd.grad(mean.sum(), slope)[0], torch.tensor(6.0))
