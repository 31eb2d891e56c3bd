"""Phi(X) of a normal X, and draws of 0 or 1: against quadrature of f itself, and by what mathematics says of them."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from quadrature_truth import moments, partials
from real_rules import fresh_seed, op_of, rules

from momentgen.compiler.derive import derive
from momentgen.compiler.points import in_domain, wide_points
from momentgen.compiler.stabilise import OUTPUTS, PARTIALS, stabilise
from momentgen.compiler.stabilise.mixture_truth import bernoulli_truth
from momentgen.compiler.stabilise.owen import owen_truth
from momentgen.rule import Phi, S, x

POINTS = ((0.3, 1e-10), (-2.0, 0.5), (4.0, 2.0), (-7.5, 30.0), (0.0, 1e4))
DRAWS = ("probit", "logistic_bernoulli")


@pytest.mark.parametrize(("mu", "v"), POINTS)
def test_owen_s_integral_is_the_variance(mu: float, v: float) -> None:
    mu32, v32 = (np.float32([value]) for value in (mu, v))
    got = owen_truth(mu32, v32, {})
    exact = dict(zip(OUTPUTS, moments(Phi(x), float(mu32[0]), float(v32[0]), digits=15), strict=True))
    exact |= partials(Phi(x), float(mu32[0]), float(v32[0]), digits=15)
    for name, value in exact.items():
        assert got[name][0] == pytest.approx(float(value), rel=1e-11, abs=1e-30), name


@pytest.mark.parametrize("name", ["normal_cdf", *DRAWS])
def test_generated_code_is_within_its_tolerance_anywhere(name: str) -> None:
    """Exact variants, and of the draws the approximations too."""
    mean, var = wide_points(1500, fresh_seed(name, "wide"))
    usable = in_domain(mean, var)
    mean, var = mean[usable], var[usable]
    m, v = torch.from_numpy(mean), torch.from_numpy(var)
    one, zero = torch.ones_like(m), torch.zeros_like(m)
    for stable in stabilise(derive(rules()[name])):
        op = op_of(name)
        results = list(op.kernel("forward", variant=stable.variant)(m, v))
        for seeds in ((one, zero), (zero, one)):
            results += op.kernel("backward", variant=stable.variant)(m, v, *seeds)
        truth = stable.truth(mean, var, {})
        for output, result in zip((*OUTPUTS, *PARTIALS), results, strict=True):
            error = stable.measure(output, result.numpy(), truth[output], mean, var)
            worst = int(np.argmax(error))
            assert error[worst] <= stable.goal, f"{stable.variant}, {output} at {mean[worst]!r}, {var[worst]!r}"


def test_the_normal_cdf_s_tolerance_is_a_share_of_a_tiny_variance() -> None:
    """At v = 1e-12 the variance is v phi(mu)² to a part in 1e5 of v/(2 pi)."""
    m = torch.linspace(-3, 3, 31)
    v = torch.full_like(m, 1e-12)
    want = v.double() * torch.exp(-m.double().square()) / (2 * torch.pi)
    got = op_of("normal_cdf")(m, v).var.double()
    assert (got - want).abs().max() <= 1e-5 * 1e-12 / (2 * np.pi)


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_s_variance_is_that_of_its_mean(name: str) -> None:
    m, v = torch.randn(1000) * 3, torch.rand(1000) * 9
    for variant in op_of(name).variants:
        out = op_of(name)(m.double(), v.double(), variant=variant)
        torch.testing.assert_close(out.var, out.mean * (1 - out.mean), rtol=1e-9, atol=1e-15)


def test_a_draw_has_the_mean_of_the_transform() -> None:
    m, v = torch.randn(1000) * 3, torch.rand(1000) * 9
    assert torch.equal(op_of("logistic_bernoulli")(m, v).mean, op_of("logistic_transform")(m, v).mean)
    mean, var = (np.float32([w]) for w in (0.7, 2.0))
    exact, _ = moments(S(x), float(mean[0]), 2.0, digits=15)
    truth = bernoulli_truth(mean, var, {})
    assert truth["mean"][0] == pytest.approx(float(exact), rel=1e-12)
    assert truth["dvar_dmu"][0] == pytest.approx(
        float((1 - 2 * exact) * partials(S(x), float(mean[0]), 2.0, digits=15)["dmean_dmu"]), rel=1e-12
    )


def test_probit_by_monte_carlo_of_the_latent_variable() -> None:
    """Y = [X >= Z], Z standard normal: a heaviside of a difference."""
    m, v = torch.tensor([0.4]), torch.tensor([2.0])
    one, zero = torch.ones(1), torch.zeros(1)
    heaviside = op_of("heaviside")(*op_of("difference")(m, v, zero, one))
    probit = op_of("probit")(m, v)
    for a, b in zip(heaviside, probit, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
    assert probit.mean.item() == pytest.approx(float(mpmath.ncdf(0.4 / mpmath.sqrt(3))), rel=1e-6)


def test_rules_say_which_are_draws() -> None:
    assert {name for name, rule in rules().items() if rule.bernoulli} == set(DRAWS)
