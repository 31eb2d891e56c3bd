"""Bow tie units: a = z u + eta e, z ~ Bernoulli(S(u/tau)); their accuracy is asked in ``tests/contract``."""

from __future__ import annotations

import mpmath
import pytest
import torch

from momentgen.generated import bow_tie

TAUS = (1e-3, 0.1, 1.0, 10.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_noise_s_variance_is_added(dtype: torch.dtype) -> None:
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
        open_, shut = (float(1 / (1 + mpmath.exp(sign * m / tau))) for sign in (-1, 1))
        mean, var = m * open_, m**2 * open_ * shut + eta**2
        assert abs(got_mean - mean) <= 2.0**-22 * max(tau, abs(mean))
        assert abs(got_var - var) <= 2.0**-22 * max(tau**2, var)
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


def test_the_certificate_says_what_is_allowed_to_the_variance_and_what_it_is_at_0() -> None:
    certificate = bow_tie.certificate()
    assert "Errors of the variance are at most 1e-05*L^2*v + 1e-06*max(A^2, V)." in certificate.words
    checked = certificate.method["promises"]["checked"]
    assert "v = 0 gives the variance given x = mu" in checked
    assert "v = 0 gives variance 0" not in checked
