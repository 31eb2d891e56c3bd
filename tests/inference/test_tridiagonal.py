"""The tridiagonal posterior against the paper's recursion, its derivatives, and exact arithmetic."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from momentgen.errors import InputError
from momentgen.inference import Normal, Tridiagonal
from momentgen.inference.tridiagonal import gradients
from momentgen.inference.tridiagonal.correlation import LARGEST_GAMMA as _LARGEST_GAMMA
from momentgen.inference.tridiagonal.correlation import LEAST_DELTA as _LEAST_DELTA
from momentgen.native.c_compiler import find_compiler

Array = NDArray[np.float64]


def text_factor(m: Array, tau: float, rho: float) -> tuple[Array, Array]:
    """Diagonal a and subdiagonal c of the paper's L, by its recursion (10)-(13)."""
    count = len(m)
    a, c = np.empty(count), np.zeros(count - 1)
    last = 0.0
    for i in range(count - 1):
        c[i] = rho * tau**2 * m[i] * m[i + 1] / math.sqrt(tau**2 * m[i] ** 2 - last**2)
        a[i] = rho * tau**2 * abs(m[i]) * abs(m[i + 1]) / c[i]
        last = c[i]
    a[-1] = math.sqrt(tau**2 * m[-1] ** 2 - last**2)
    return a, c


def text_derivatives(m: Array, delta: float, gamma: float) -> tuple[Array, Array]:
    """The Jacobians of (a, c) by (m, delta, gamma): the paper's recursions (37)-(45), O(K²)."""
    tau, rho = math.log1p(math.exp(delta)), 1 / (1 + math.exp(-gamma)) - 0.5
    w_delta, w_gamma = 1 / (1 + math.exp(-delta)), math.exp(-gamma) / (1 + math.exp(-gamma)) ** 2
    count = len(m)
    _, c = text_factor(m, tau, rho)
    da, dc = np.zeros((count, count + 2)), np.zeros((count - 1, count + 2))
    # The last two columns are by tau and rho until the end.
    before, last = np.zeros(count + 2), 0.0
    for i in range(count - 1):
        u, v = tau**2 * m[i] ** 2 - last**2, rho * tau**2 * m[i + 1]
        root = math.sqrt(u)
        dc[i, :i] = rho * tau**2 * m[i] * m[i + 1] * u**-1.5 * last * before[:i]
        dc[i, i] = v * (root - m[i] / root * (tau**2 * m[i] - last * before[i])) / u
        dc[i, i + 1] = rho * tau**2 * m[i] / root
        dc[i, -2] = v * m[i] * (2 * root - tau / root * (tau * m[i] ** 2 - last * before[-2])) / (tau * u)
        dc[i, -1] = tau**2 * m[i] * m[i + 1] * (root - rho / root * (-last * before[-1])) / u
        scale = rho * tau**2 * abs(m[i]) * abs(m[i + 1])
        da[i, :i] = -scale / c[i] ** 2 * dc[i, :i]
        for k, other in ((i, i + 1), (i + 1, i)):
            own = math.copysign(1, m[k]) * c[i] - abs(m[k]) * dc[i, k]
            da[i, k] = rho * tau**2 * abs(m[other]) * own / c[i] ** 2
        da[i, -2] = rho * tau * abs(m[i]) * abs(m[i + 1]) * (2 * c[i] - tau * dc[i, -2]) / c[i] ** 2
        da[i, -1] = tau**2 * abs(m[i]) * abs(m[i + 1]) * (c[i] - rho * dc[i, -1]) / c[i] ** 2
        before, last = dc[i], c[i]
    y = math.sqrt(tau**2 * m[-1] ** 2 - last**2)
    da[-1, : count - 1] = -last / y * before[: count - 1]
    da[-1, count - 1] = (tau**2 * m[-1] - last * before[count - 1]) / y
    da[-1, -2] = (tau * m[-1] ** 2 - last * before[-2]) / y
    da[-1, -1] = -last * before[-1] / y
    factors = np.concatenate([np.ones(count), [w_delta, w_gamma]])
    return da * factors, dc * factors


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


@pytest.mark.parametrize(("count", "rho"), CASES)
def test_covariance_of_draws_is_the_texts(count: int, rho: float) -> None:
    m, tau = means(count, 1), 0.3
    one = posterior(m, tau, rho)
    # a draw is linear in the noise: its Jacobian is the Cholesky factor
    with torch.no_grad():
        noise = torch.eye(count, dtype=torch.float64)
        one._normal = lambda n, generator: noise  # type: ignore[method-assign]
        factor = (one.rsample(count) - one.mean).T.numpy()
    a, c = text_factor(m, tau, rho)
    text = np.diag(a) + np.diag(c, -1)
    signs = np.sign(np.diag(text))
    assert np.allclose(factor, text * signs, rtol=0, atol=1e-12)  # the text's columns have signs
    covariance = factor @ factor.T
    expected = np.diag((tau * m) ** 2)
    for i in range(count - 1):
        expected[i, i + 1] = expected[i + 1, i] = rho * tau**2 * abs(m[i] * m[i + 1])
    assert np.allclose(covariance, expected, rtol=0, atol=1e-13)
    close(one.var, np.diag(expected), 1e-13)
    close(one.neighbour(), np.diag(expected, 1), 1e-13)


@pytest.mark.parametrize(("count", "rho"), CASES)
def test_gradients_of_draws_equal_the_texts_recursion(count: int, rho: float) -> None:
    m, rng = means(count, 2), np.random.default_rng(3)
    one = posterior(m, 0.3, rho)
    x, weight = rng.standard_normal(count), rng.standard_normal(count)
    a, _ = text_factor(m, one.tau.item(), one.rho.item())
    one._normal = lambda n, generator: torch.tensor(x * np.sign(a))  # type: ignore[method-assign]
    (torch.tensor(weight) * one.rsample()).sum().backward()
    da, dc = text_derivatives(m, one.delta.item(), one.gamma.item())
    jacobian = da * x[:, None]  # (34)-(36)
    jacobian[1:] += dc * x[:-1, None]
    jacobian[:, :count] += np.eye(count)
    found = weight @ jacobian
    close(one.mean.grad, found[:count])
    close(one.delta.grad, found[-2])
    close(one.gamma.grad, found[-1])


@pytest.mark.parametrize(("count", "rho"), CASES)
def test_gradients_of_the_divergence_equal_the_texts(count: int, rho: float) -> None:
    m = means(count, 4)
    one = posterior(m, 0.3, rho)
    mu, zeta = 0.4, 0.7
    one.kl(Normal(mu, var=zeta**2)).backward()
    tau = one.tau.item()
    a, _ = text_factor(m, tau, one.rho.item())
    da, _ = text_derivatives(m, one.delta.item(), one.gamma.item())
    of_log_det = -(da / a[:, None]).sum(0)
    close(one.mean.grad, of_log_det[:count] + tau**2 / zeta**2 * m + (m - mu) / zeta**2)  # (46)
    w_delta = 1 / (1 + math.exp(-one.delta.item()))
    close(one.delta.grad, of_log_det[-2] + w_delta * tau / zeta**2 * (m**2).sum())  # (47)
    close(one.gamma.grad, of_log_det[-1])  # (48)


@pytest.mark.parametrize("rho", [-0.4999, -0.2, 0.0, 0.01, 0.4999])
def test_values_and_gradients_equal_differences_in_exact_arithmetic(rho: float) -> None:
    count = 12
    m, rng = means(count, 5), np.random.default_rng(6)
    x, weight = rng.standard_normal(count), rng.standard_normal(count)
    one = posterior(m, 0.3, rho)
    one._normal = lambda n, generator: torch.tensor(x)  # type: ignore[method-assign]
    value = (torch.tensor(weight) * one.rsample()).sum() + one.log_det()
    value.backward()
    delta, gamma = one.delta.item(), one.gamma.item()

    def exact(*parameters: mpmath.mpf) -> mpmath.mpf:
        *centre, own_delta, own_gamma = parameters
        tau, r = mpmath.log(1 + mpmath.exp(own_delta)), 1 / (1 + mpmath.exp(-own_gamma)) - mpmath.mpf(1) / 2
        total, share, last = mpmath.mpf(0), mpmath.mpf(0), mpmath.mpf(0)
        for k in range(count):
            d = 1 - share  # r_k = rho²/(1 - r_{k-1})
            noise = mpmath.sqrt(d) * x[k] + last
            total += weight[k] * (centre[k] + tau * abs(centre[k]) * noise) + mpmath.log(tau**2 * centre[k] ** 2 * d)
            last, share = r / mpmath.sqrt(d) * x[k], r**2 / d
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
def test_log_determinant_and_entropy_of_many_elements_are_exact(rho: float) -> None:
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
    assert one.entropy().item() == pytest.approx((expected + count * (1 + math.log(2 * math.pi))) / 2, rel=1e-13)


def test_draws_far_along_have_the_covariance_of_the_posterior() -> None:
    one = posterior(means(6000, 8), 0.5, -0.47)
    draws = (one.sample(4000, torch.Generator().manual_seed(0)) - one.mean).detach()
    found = (draws[:, 1:] * draws[:, :-1]).mean(0) / (one.var[1:] * one.var[:-1]).sqrt()
    # correlations of 4,000 draws scatter by 0.016; their mean over 6,000 neighbours by 100 times less
    assert float(found[-2000:].mean()) == pytest.approx(-0.47, abs=0.003)
    assert float((draws.square().mean(0) / one.var).mean()) == pytest.approx(1, abs=0.004)
    assert float((draws[:, 2:] * draws[:, :-2]).mean(0).div(one.var[2:]).mean()) == pytest.approx(0, abs=0.004)


def test_one_element_has_no_neighbour_and_no_gradient_of_rho() -> None:
    one = posterior(np.array([1.5]), 0.2, 0.3)
    (one.rsample().sum() + one.log_det()).backward()
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


@pytest.mark.parametrize(
    ("tau", "rho"), [(0.0, 0.1), (-1.0, 0.1), (math.nan, 0.1), (0.1, 0.5), (0.1, -0.7), (0.1, math.nan)]
)
def test_values_outside_their_range_are_refused(tau: float, rho: float) -> None:
    with pytest.raises(InputError, match=r"Tridiagonal: expected (tau|rho)"):
        Tridiagonal(tau, rho)


def test_time_is_linear_in_the_number_of_elements() -> None:
    """Ten million elements in seconds; a hundred times the elements take at most some 300 times the time."""
    taken = []
    for count in (10**5, 10**7):
        one = Tridiagonal(0.1, -0.4).of(torch.nn.Parameter(torch.ones(count)))
        start = time.perf_counter()
        (one.rsample().square().sum() + one.kl(Normal())).backward()
        taken.append(time.perf_counter() - start)
    assert taken[1] < 30
    assert taken[1] < 300 * max(taken[0], 1e-3)


def posterior_of(count: int, rho: float, dtype: torch.dtype = torch.float64) -> Tridiagonal:
    """With elements of both signs, of which a few count as 1e-6."""
    mean = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=dtype)
    mean[1::7] *= 1e-7
    return Tridiagonal(tau=0.3, rho=rho).of(torch.nn.Parameter(mean))


def value_and_gradients(function: Callable[[], torch.Tensor], one: Tridiagonal) -> list[torch.Tensor]:
    value = function()
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view_as(value)
    return [value.detach(), *torch.autograd.grad((value * weights).sum(), (one.mean, one.delta, one.gamma))]


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("draws", [None, 3])
@pytest.mark.parametrize("rho", [-0.4999, -0.1, 0.0, 0.4999])
@pytest.mark.parametrize("count", [1, 2, 40, 3000])
def test_draws_in_c_and_their_gradients_are_those_of_torch(
    count: int, rho: float, draws: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = posterior_of(count, rho)
    assert gradients.native_draws(torch.float64) is not None

    def drawn() -> torch.Tensor:
        return one.rsample(draws, torch.Generator().manual_seed(1))

    in_c = value_and_gradients(drawn, one)
    monkeypatch.setattr(gradients, "native_draws", lambda dtype: None)
    for found, expected in zip(in_c, value_and_gradients(drawn, one), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11 * (1 + float(expected.abs().max())))


@pytest.mark.parametrize("centre", [0.0, 0.7])
@pytest.mark.parametrize("rho", [-0.4999, 0.0, 0.3])
@pytest.mark.parametrize("count", [1, 2, 40, 3000])
def test_divergence_from_one_normal_law_is_that_of_its_sums(count: int, rho: float, centre: float) -> None:
    """The posterior's own formula against the prior's, of trace and log determinant, which autograd differentiates."""
    one, prior = posterior_of(count, rho), Normal(centre, var=0.4)
    own = value_and_gradients(lambda: one.kl(prior), one)
    for found, expected in zip(own, value_and_gradients(lambda: prior.kl(one), one), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert own[0] > 0


def test_gradients_that_lie_in_no_memory_of_their_own_are_taken_as_they_are() -> None:
    """Zero tensors, views that are to be negated, and batches of gradients, which C would misread."""
    one = posterior_of(40, 0.3)
    leaves = (one.mean, one.delta, one.gamma)
    seed = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def gradients_for(weight: torch.Tensor, batched: bool = False) -> tuple[torch.Tensor, ...]:
        drawn = one.rsample(generator=torch.Generator().manual_seed(1))
        return torch.autograd.grad(drawn, leaves, weight, is_grads_batched=batched)

    expected = gradients_for(seed)
    negated = torch.complex(torch.zeros(40, dtype=torch.float64), -seed).conj().imag
    assert negated.is_neg()
    batch = gradients_for(torch.stack([seed, 2 * seed]), batched=True)
    zero = gradients_for(torch._efficientzerotensor(40, dtype=torch.float64))
    for k, exact in enumerate(expected):
        torch.testing.assert_close(gradients_for(negated)[k], exact, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(batch[k], torch.stack([exact, 2 * exact]), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(zero[k], torch.zeros_like(exact))
