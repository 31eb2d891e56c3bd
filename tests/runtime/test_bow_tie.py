"""Bow tie units against their definition: a = z u + eta e, z ~ Bernoulli(S(u/tau)), integrated with 40 digits.

The references share nothing with the compiler's way to the variance: they integrate E(a² | u) = u² S(u/tau) + eta².
"""

from __future__ import annotations

import functools
import itertools
import math

import mpmath
import pytest
import torch
from flint import arb, ctx

from momentgen.errors import InputError
from momentgen.generated import bow_tie, relu, silu

TAUS = (1e-3, 0.1, 1.0, 10.0)
#: variances in units of tau²: the gate's width small and large beside sigma
SHARES = (1e-12, 1e-4, 0.3, 1.0, 30.0, 1e4, 1e8)
#: means in units of tau, and of sigma, tails and |mu|/sigma = 1e4 among them
OF_TAU = (0.0, 0.3, -1.5, 4.0, -9.0, 25.0, -60.0)
OF_SIGMA = (1.0, -3.0, 8.0, 1e4, -1e4)
SIX = ("mean", "var", "dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar")
#: share of the tolerance that a result may take
ROOM = {torch.float32: 1.0, torch.float64: 0.1}
L = 1.0998393194  # the largest slope of SiLU
_NODES, _BITS = 24, 160


@functools.cache
def legendre() -> list[tuple[arb, arb]]:
    """Nodes and weights of the Gauss-Legendre rule."""
    with ctx.workprec(_BITS):
        return [arb.legendre_p_root(_NODES, k, weight=True) for k in range(_NODES)]


@functools.cache
def exact(mean: float, var: float, tau: float, eta: float) -> dict[str, float]:
    """The six outputs, the partials by the score of the normal density; at variance 0 mean and variance."""
    with ctx.workprec(_BITS):
        mu, v, t, noise = arb(mean), arb(var), arb(tau), arb(eta)
        open_ = 1 / (1 + (-mu / t).exp())
        if var == 0:
            return {"mean": float(mu * open_), "var": float(mu**2 * open_ / (1 + (mu / t).exp()) + noise**2)}
        sigma = v.sqrt()
        steps = [tau * 2.0**k for k in range(-1, 9)]
        cuts = {mean + k * math.sqrt(var) for k in range(-14, 15)} | {s * step for step in (0, *steps) for s in (-1, 1)}
        ends = sorted(c for c in cuts if abs(c - mean) <= 14 * math.sqrt(var))
        # Differences from the values at the mean: nothing is lost where sigma is small.
        f0, s0 = mu * open_, mu**2 * open_
        sums = [arb(0)] * 6
        for low, high in itertools.pairwise(ends):
            half, middle = (arb(high) - arb(low)) / 2, (arb(high) + arb(low)) / 2
            for node, weight in legendre():
                u = middle + half * node
                z, product = (u - mu) / sigma, u / (1 + (-u / t).exp())
                h = z * z - 1
                w = half * weight * (-z * z / 2).exp()
                f, s = w * (product - f0), w * (u * product - s0)
                sums = [a + b for a, b in zip(sums, (f, s, f * z, f * h, s * z, s * h), strict=True)]
        f, s, f1, f2, s1, s2 = (a / (sigma * (2 * arb.pi()).sqrt()) for a in sums)
        m = f0 + f
        found = {
            "mean": m,
            "var": s0 + s - m * m + noise**2,
            "dmean_dmu": f1 / sigma,
            "dmean_dvar": f2 / (2 * v),
            "dvar_dmu": (s1 - 2 * m * f1) / sigma,
            "dvar_dvar": (s2 / 2 - m * f2) / v,
        }
        return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize(("mean", "var", "tau"), [(0.3, 0.5, 0.1), (-0.02, 1e-4, 0.01), (5.0, 40.0, 10.0)])
def test_the_references_are_mpmath_s_quadrature(mean: float, var: float, tau: float) -> None:
    with mpmath.workdps(20):
        sigma = mpmath.sqrt(var)
        places = sorted({mean + k * sigma for k in (-10, -4, -1, 1, 4, 10)} | {mpmath.mpf(k * tau) for k in (-4, 0, 4)})

        def power(n: int) -> mpmath.mpf:
            return mpmath.quad(lambda u: u**n / (1 + mpmath.exp(-u / tau)) * mpmath.npdf(u, mean, sigma), places)

        want = exact(mean, var, tau, 0.0)
        assert want["mean"] == pytest.approx(float(power(1)), rel=1e-12)
        assert want["var"] == pytest.approx(float(power(2) - power(1) ** 2), rel=1e-10)


def computed(mean: list[float], var: float, dtype: torch.dtype, **params: float) -> dict[str, torch.Tensor]:
    at = torch.tensor(mean, dtype=dtype, requires_grad=True)
    v = torch.full_like(at, var).detach().requires_grad_()
    out = bow_tie(at, v, **params)
    rows = [*out]
    for value in out:
        rows += torch.autograd.grad(value.sum(), (at, v), retain_graph=True)
    return {name: row.detach().double() for name, row in zip(SIX, rows, strict=True)}


def check(tau: float, share: float, eta: float, dtype: torch.dtype) -> None:
    """All outputs at one variance, by the tolerance that the certificate states."""
    number = torch.tensor(share * tau**2, dtype=torch.float32).item()  # the same numbers in both dtypes
    sigma = math.sqrt(number)
    wanted = [*(k * tau for k in OF_TAU), *(k * sigma for k in OF_SIGMA)]
    means = torch.tensor(wanted, dtype=torch.float32).tolist()
    got = computed(means, number, dtype, tau=tau, eta=eta)
    rows = [exact(m, number, tau, eta) for m in means]
    for name in SIX:
        want = torch.tensor([row[name] for row in rows], dtype=torch.float64)
        if name == "mean":
            allowed = 1e-6 * want.abs().clamp_min(tau) + 1e-9 * L * sigma
        elif name == "var":
            allowed = 1e-5 * L**2 * number + 1e-6 * want.abs().clamp_min(tau**2)
        else:
            # Of the largest over all means; of these means the largest is smaller, if anything.
            allowed = 1e-4 * want.abs().max().expand_as(want)
        worst = ((got[name] - want).abs() / allowed).max().item()
        assert worst <= ROOM[dtype], (name, tau, share, worst)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tau", TAUS)
def test_moments_and_partials_are_those_of_the_definition(tau: float, dtype: torch.dtype) -> None:
    for share in SHARES:
        check(tau, share, 0.0, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_noise_s_variance_is_added(dtype: torch.dtype) -> None:
    for share in (1e-4, 1.0):
        check(0.1, share, 0.7, dtype)
    mean, var = torch.linspace(-3, 3, 61, dtype=dtype), torch.full((61,), 0.2, dtype=dtype)
    without, noisy = bow_tie(mean, var, tau=0.5), bow_tie(mean, var, tau=0.5, eta=2.0)
    assert torch.equal(noisy.mean, without.mean)
    torch.testing.assert_close(noisy.var, without.var + 4.0, rtol=4e-7, atol=0)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("eta", [0.0, 0.3])
def test_of_a_certain_input_gate_and_noise_are_all_the_variance(tau: float, eta: float) -> None:
    means = torch.tensor([k * tau for k in (0.0, 0.01, -0.5, 2.0, -2.4, 9.0, -30.0, 200.0)], dtype=torch.float32)
    out = bow_tie(means, torch.zeros_like(means), tau=tau, eta=eta)
    for m, got_mean, got_var in zip(means.tolist(), out.mean.tolist(), out.var.tolist(), strict=True):
        want = exact(m, 0.0, tau, eta)
        assert abs(got_mean - want["mean"]) <= 2.0**-22 * max(tau, abs(want["mean"]))
        assert abs(got_var - want["var"]) <= 2.0**-22 * max(tau**2, want["var"])
    # A closed and an open gate are certain.
    for certain in out.var[-2:].tolist():
        assert certain == pytest.approx(eta**2, rel=2.0**-22, abs=1e-9 * tau**2)


@pytest.mark.parametrize("tau", [1e-3, 0.1, 16.0])
def test_the_ends_of_float32_give_numbers_and_no_negative_variance(tau: float) -> None:
    sizes = [0.0, 2.0**-149, 1e-30, 1e-10, 1.0, 1e10, 1e19, 3e30, torch.finfo(torch.float32).max]
    means = torch.tensor([*sizes, *(-s for s in sizes)])
    mean, var = (t.flatten().requires_grad_() for t in torch.meshgrid(means, torch.tensor(sizes), indexing="ij"))
    out = bow_tie(mean, var, tau=tau)
    assert out.mean.isfinite().all()
    assert out.var.isfinite().all()
    assert (out.var >= 0).all()
    for gradient in torch.autograd.grad((out.mean + out.var).sum(), (mean, var)):
        assert gradient.isfinite().all()


def test_the_mean_is_silu_s_in_units_of_tau_and_the_variance_at_least_its() -> None:
    torch.manual_seed(0)
    mean, var, tau = torch.randn(500), torch.rand(500), 0.25
    out, scaled = bow_tie(mean, var, tau=tau), silu(mean / tau, var / tau**2)
    torch.testing.assert_close(out.mean, tau * scaled.mean, rtol=0, atol=1e-6)
    assert (out.var >= tau**2 * scaled.var - 1e-6).all()


def test_a_cold_gate_makes_it_relu() -> None:
    mean, var = torch.linspace(-3, 3, 101), torch.full((101,), 0.5)
    out, cold = bow_tie(mean, var, tau=1e-3), relu(mean, var)
    # E h and the mean's excess are O(tau²) over sigma: 4e-6 here.
    torch.testing.assert_close(out.mean, cold.mean, rtol=0, atol=5e-6)
    torch.testing.assert_close(out.var, cold.var, rtol=0, atol=3e-5)


@pytest.mark.parametrize("params", [{"tau": 0.0}, {"tau": -1.0}, {"tau": 17.0}, {"eta": -0.1}, {"eta": math.nan}])
def test_parameters_beyond_their_range_are_refused(params: dict[str, float]) -> None:
    with pytest.raises(InputError):
        bow_tie(torch.zeros(2), torch.ones(2), **params)


def test_the_certificate_says_what_is_allowed_to_the_variance_and_what_it_is_at_0() -> None:
    certificate = bow_tie.certificate()
    assert "1e-05*L^2*v + 1e-06*max(A^2, V) in the variance" in " ".join(certificate.words)
    checked = certificate.method["promises"]["checked"]
    assert "v = 0 gives the variance given x = mu" in checked
    assert "v = 0 gives variance 0" not in checked
