"""The tridiagonal posterior against the paper's covariance, and its derivatives in exact arithmetic."""

import math

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from momentgen.inference import Gaussian, Normal, Tridiagonal, elbo, randomise
from momentgen.inference.tridiagonal import _LARGEST_GAMMA, _LEAST_DELTA

Array = NDArray[np.float64]


def posterior(m: Array, tau: float, rho: float) -> Tridiagonal:
    return Tridiagonal(tau, rho).of(torch.nn.Parameter(torch.tensor(m, dtype=torch.float64)))


def means(count: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return rng.uniform(0.2, 2, count) * rng.choice([-1.0, 1.0], count)


def close(found: torch.Tensor | None, expected: Array, tolerance: float = 1e-10) -> None:
    assert found is not None
    scale = max(1.0, float(np.abs(expected).max()))
    assert float(np.abs(found.detach().numpy() - expected).max()) <= tolerance * scale


CASES = [(k, rho) for k in (2, 3, 17, 200) for rho in (-0.4999, -0.3, 0.01, 0.45, 0.4999)]


def factor_of(one: Tridiagonal, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """The linear map from noise to draws, ``(K, K + 1)``: a draw's Jacobian."""
    noise = torch.eye(one.mean.numel() + 1, dtype=torch.float64)
    monkeypatch.setattr(one, "_noise", lambda n, generator: noise)
    return (one.rsample(len(noise)) - one.mean).T


@pytest.mark.parametrize(("count", "rho"), CASES)
def test_covariance_of_draws_is_the_texts(count: int, rho: float, monkeypatch: pytest.MonkeyPatch) -> None:
    m, tau = means(count, 1), 0.3
    one = posterior(m, tau, rho)
    factor = factor_of(one, monkeypatch).detach().numpy()
    covariance = factor @ factor.T
    expected = np.diag((tau * m) ** 2)
    for i in range(count - 1):
        expected[i, i + 1] = expected[i + 1, i] = rho * tau**2 * abs(m[i] * m[i + 1])
    assert np.allclose(covariance, expected, rtol=0, atol=1e-13)
    close(one.var, np.diag(expected), 1e-13)
    close(one.neighbour(), np.diag(expected, 1), 1e-13)


@pytest.mark.parametrize("rho", [-0.4999, -0.2, 0.0, 0.01, 0.4999])
def test_values_and_gradients_equal_differences_in_exact_arithmetic(
    rho: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 12
    m, rng = means(count, 5), np.random.default_rng(6)
    x, weight = rng.standard_normal(count + 1), rng.standard_normal(count)
    one = posterior(m, 0.3, rho)
    monkeypatch.setattr(one, "_noise", lambda n, generator: torch.tensor(x))
    value = (torch.tensor(weight) * one.rsample()).sum() + one.log_det() + one.trace()
    value.backward()
    delta, gamma = one.delta.item(), one.gamma.item()

    def exact(*parameters: mpmath.mpf) -> mpmath.mpf:
        *centre, own_delta, own_gamma = parameters
        tau, r = mpmath.log(1 + mpmath.exp(own_delta)), 1 / (1 + mpmath.exp(-own_gamma)) - mpmath.mpf(1) / 2
        own, below = ((mpmath.sqrt(1 + 2 * r) + sign * mpmath.sqrt(1 - 2 * r)) / 2 for sign in (1, -1))
        total, share = mpmath.mpf(0), mpmath.mpf(0)
        for k in range(count):
            d = 1 - share  # r_k = rho²/(1 - r_{k-1})
            noise = own * x[k + 1] + below * x[k]
            total += weight[k] * (centre[k] + tau * abs(centre[k]) * noise)
            total += mpmath.log(tau**2 * centre[k] ** 2 * d) + tau**2 * centre[k] ** 2
            share = r**2 / d
        return total

    with mpmath.workdps(50):
        at = [mpmath.mpf(float(v)) for v in (*m, delta, gamma)]
        assert abs(float(exact(*at)) - value.item()) <= 1e-11 * max(1, abs(value.item()))
        step, found = mpmath.mpf(10) ** -15, []
        for place in range(count + 2):
            up, down = list(at), list(at)
            up[place] += step
            down[place] -= step
            found.append(float((exact(*up) - exact(*down)) / (2 * step)))
    close(one.mean.grad, np.array(found[:count]))
    close(one.delta.grad, np.array(found[-2]))
    close(one.gamma.grad, np.array(found[-1]))


@pytest.mark.parametrize("rho", [-0.49995, -0.3, 0.0, 0.49])
def test_the_log_determinant_of_many_elements_is_exact(rho: float) -> None:
    count = 5000
    one = posterior(means(count, 7), 0.3, rho)
    with mpmath.workdps(40):
        r, share, total = mpmath.mpf(float(one.rho)), mpmath.mpf(0), mpmath.mpf(0)
        tau = mpmath.mpf(float(one.tau))
        for value in one.mean.tolist():
            d = 1 - share
            total += mpmath.log(tau**2 * mpmath.mpf(value) ** 2 * d)
            share = r**2 / d
        expected = float(total)
    assert one.log_det().item() == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("rho", [-0.49995, 0.49995])
def test_gradients_of_rho_near_its_limits_lose_nothing_in_float32(rho: float) -> None:
    found = []
    for dtype in (torch.float32, torch.float64):
        one = Tridiagonal(0.3, rho).of(torch.nn.Parameter(torch.ones(5000, dtype=dtype)))
        with torch.no_grad():
            one.gamma.copy_(torch.tensor(math.copysign(9.2, rho), dtype=torch.float32))
        one.log_det().backward()
        assert one.gamma.grad is not None
        found.append(one.gamma.grad.item())
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_the_log_determinant_takes_means_whose_squares_float16_does_not_hold() -> None:
    mean = torch.tensor([1e-4, -2e-5, 0.0, 0.5], dtype=torch.float16)
    half, exact = (Tridiagonal(0.1, 0.3).of(torch.nn.Parameter(m)).log_det().item() for m in (mean, mean.double()))
    assert half == pytest.approx(exact, rel=2e-3)


def test_one_element_has_no_neighbour_and_no_gradient_of_rho(monkeypatch: pytest.MonkeyPatch) -> None:
    one = posterior(np.array([1.5]), 0.2, 0.3)
    (factor_of(one, monkeypatch).square().sum() + one.log_det()).backward()
    assert one.neighbour().shape == (0,)
    assert one.log_det().item() == pytest.approx(2 * math.log(0.3), abs=1e-12)
    assert one.gamma.grad is not None
    assert one.gamma.grad.item() == pytest.approx(0, abs=1e-15)


def test_the_texts_limits_hold_and_gradients_pass_through_them() -> None:
    one = posterior(np.array([1e-9, 0.0, 1.0]), 0.2, 0.3)
    with torch.no_grad():
        one.delta.fill_(-50)
        one.gamma.fill_(80)
    assert float(one.tau) == pytest.approx(math.log1p(math.exp(_LEAST_DELTA)))
    assert float(one.rho) == pytest.approx(1 / (1 + math.exp(-_LARGEST_GAMMA)) - 0.5)
    assert one.var[:2].tolist() == pytest.approx([(float(one.tau) * 1e-6) ** 2] * 2)
    (one.rsample(generator=torch.Generator().manual_seed(1)).sum() + one.log_det()).backward()
    for value in (one.mean.grad, one.delta.grad, one.gamma.grad):
        assert value is not None
        assert bool(value.isfinite().all())
    assert one.delta.grad is not None
    assert one.delta.grad != 0


def test_a_rate_of_0_keeps_the_correlation() -> None:
    bayes = randomise(torch.nn.Linear(3, 2), Tridiagonal(rho=0.0, rate=0.0)).set_method("sample")
    sgd = torch.optim.SGD(bayes.parameters(), 0.1)
    (bayes(torch.ones(4, 3)).mean.square().sum() + bayes.kl()).backward()
    sgd.step()
    assert [(one.rho.item(), one.tau.item() == 0.05) for one in bayes.posteriors.values()] == [(0.0, False)] * 2


def test_the_optimum_for_a_linear_model_is_that_of_its_divergence() -> None:
    """The divergence from the exact posterior, of dense matrices, minimised by another optimiser from other starts."""
    torch.manual_seed(0)
    x, noise = torch.randn(40, 4, dtype=torch.float64), 0.3
    x[:, 1] += 0.8 * x[:, 0]
    y = x @ torch.tensor([1.0, -0.7, 0.5, 2.0], dtype=torch.float64) + noise**0.5 * torch.randn(40).double()
    precision = x.T @ x / noise + torch.eye(4, dtype=torch.float64)
    exact, at = precision.numpy(), torch.linalg.solve(precision, x.T @ y / noise).numpy()

    def divergence(values: np.ndarray) -> float:
        means, tau, rho = values[:4], np.exp(values[4]), 0.5 * np.tanh(values[5])
        scale = tau * np.abs(means)
        corr = np.eye(4) + rho * (np.eye(4, k=1) + np.eye(4, k=-1))
        off = means - at
        spread = np.trace(exact @ (corr * np.outer(scale, scale)))
        return float(spread + off @ exact @ off - np.linalg.slogdet(corr)[1] - 2 * np.log(scale).sum()) / 2

    starts = [np.concatenate([at, [math.log(tau), gamma]]) for tau in (0.03, 0.3) for gamma in (-0.5, 0.5)]
    options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20_000, "maxfev": 20_000}
    least = min((minimize(divergence, s, method="Nelder-Mead", options=options) for s in starts), key=lambda r: r.fun)
    bayes = randomise(torch.nn.Linear(4, 1, bias=False).double(), Tridiagonal(tau=0.1, rho=0.0), prior=Normal(std=1.0))
    optimizer = torch.optim.LBFGS(
        bayes.parameters(), max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        found = -elbo(bayes.set_method("ap2"), Gaussian(var=noise), x, y[:, None], size=len(x))
        found.backward()
        return found

    optimizer.step(loss)
    found = bayes.posteriors["weight"]
    own = np.concatenate(
        [found.mean.detach().numpy()[0], [math.log(found.tau.item()), math.atanh(2 * found.rho.item())]]
    )
    assert divergence(own) == pytest.approx(least.fun, abs=1e-6)
    assert found.mean.detach().numpy()[0] == pytest.approx(least.x[:4], abs=1e-3)
    assert found.rho.item() == pytest.approx(0.5 * np.tanh(least.x[5]), abs=1e-3)
