"""Posteriors that are known: of linear models in closed form or by optimisation, of a small network by a long chain."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from momentgen import method
from momentgen.inference import Gamma, Gaussian, MeanField, Normal, Posterior, Tridiagonal, elbo, randomise

NOISE = 0.3


def linear_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Correlated features, targets, and the exact posterior's mean and precision for a standard normal prior."""
    torch.manual_seed(0)
    x = torch.randn(40, 4, dtype=torch.float64) @ torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]
    x[:, 1] += 0.8 * x[:, 0]
    y = x @ torch.tensor([1.0, -0.7, 0.5, 2.0], dtype=torch.float64) + NOISE**0.5 * torch.randn(40).double()
    precision = x.T @ x / NOISE + torch.eye(4, dtype=torch.float64)
    return x, y[:, None], torch.linalg.solve(precision, x.T @ y / NOISE), precision


def trained(family: Posterior, x: Tensor, y: Tensor) -> Posterior:
    """The posterior of a linear model's weights at the optimum of the bound."""
    bayes = randomise(nn.Linear(4, 1, bias=False).double(), family, prior=Normal(std=1.0))
    optimizer = torch.optim.LBFGS(
        bayes.parameters(), max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        with method("ap2"):
            found = -elbo(bayes, Gaussian(var=NOISE), x, y, size=len(x))
        found.backward()
        return found

    optimizer.step(loss)
    return next(iter(bayes.posteriors.values()))


def test_the_mean_field_optimum_of_a_linear_model_is_the_known_one() -> None:
    """Means are exact, variances are those given all other weights: 1 over the diagonal of the precision."""
    x, y, mean, precision = linear_data()
    found = trained(MeanField(std=0.1), x, y)
    assert torch.allclose(found.mean[0], mean, atol=1e-5)
    assert torch.allclose(found.var[0], 1 / precision.diagonal(), rtol=1e-4)


def test_the_tridiagonal_optimum_of_a_linear_model_is_that_of_its_divergence() -> None:
    """The divergence from the exact posterior, of dense matrices, minimised by another optimiser from other starts."""
    x, y, mean, precision = linear_data()
    exact, at = precision.numpy(), mean.numpy()

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
    found = trained(Tridiagonal(tau=0.1, rho=0.0), x, y)
    own = np.concatenate(
        [found.mean.detach().numpy()[0], [math.log(found.tau.item()), math.atanh(2 * found.rho.item())]]
    )
    assert divergence(own) == pytest.approx(least.fun, abs=1e-6)
    assert found.mean.detach().numpy()[0] == pytest.approx(least.x[:4], abs=1e-3)
    assert found.rho.item() == pytest.approx(0.5 * np.tanh(least.x[5]), abs=1e-3)


# ------------------------------------------------------------------ a network, by Hamiltonian Monte Carlo


def hamiltonian(
    log_density: Callable[[Tensor], Tensor], start: Tensor, draws: int, step: float, leaps: int
) -> tuple[Tensor, float]:
    """Draws of chains ``(chains, draws, dims)`` that run side by side, and how often a proposal was accepted."""

    def slope(at: Tensor) -> tuple[Tensor, Tensor]:
        at = at.detach().requires_grad_()
        value = log_density(at)
        return torch.autograd.grad(value.sum(), at)[0], value.detach()

    at, kept, accepted = start, [], 0.0
    gradient, value = slope(at)
    for _ in range(draws):
        momentum = torch.randn_like(at)
        energy = value - momentum.square().sum(1) / 2
        new, new_gradient, new_value = at, gradient, value
        size = step * (0.8 + 0.4 * torch.rand(()))
        for _ in range(leaps):
            momentum = momentum + size / 2 * new_gradient
            new = new + size * momentum
            new_gradient, new_value = slope(new)
            momentum = momentum + size / 2 * new_gradient
        ratio = new_value - momentum.square().sum(1) / 2 - energy
        take = ratio.exp() > torch.rand(len(at))
        at = torch.where(take[:, None], new, at)
        gradient, value = torch.where(take[:, None], new_gradient, gradient), torch.where(take, new_value, value)
        accepted += take.double().mean().item()
        kept.append(at)
    return torch.stack(kept, 1), accepted / draws


@pytest.mark.slow
def test_variational_predictions_of_a_network_are_near_those_of_a_long_chain() -> None:
    """One hidden layer: means agree within the noise of a datum, and σ is smaller, as a mean field's is.

    In units of the posterior's σ means differ by 1.2 in the root mean square, and by more at the ends: the bound
    switches off units that the posterior uses.
    """
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, 30, dtype=torch.float64)[:, None]
    y = torch.sin(1.5 * x) + 0.2 * torch.randn(30, 1, dtype=torch.float64)
    net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)).double()

    def run(vectors: Tensor) -> Tensor:
        """Outputs ``(chains, rows, 1)`` for parameters ``(chains, 25)`` in the network's order."""
        w1, b1, w2, b2 = vectors.split([8, 8, 8, 1], 1)
        return torch.relu(x * w1[:, None] + b1[:, None]) @ w2[:, :, None] + b2[:, None]

    def log_density(vectors: Tensor) -> Tensor:
        off = (y - run(vectors)).square().sum((1, 2))
        return -off / (2 * 0.04) - vectors.square().sum(1) / 2

    draws, accepted = hamiltonian(log_density, torch.randn(32, 25, dtype=torch.float64) / 2, 1200, 0.012, 25)
    assert 0.5 < accepted < 0.99
    kept = draws[:, 400:]
    with torch.no_grad():
        outputs = torch.stack([run(one)[..., 0] for one in kept.unbind(1)], 1)
    between, within = outputs.mean(1).var(0), outputs.var(1).mean(0)
    assert ((between + within) / within).sqrt().max() < 1.1  # R̂ of predictions
    outputs = outputs.flatten(0, 1)
    truth, spread = outputs.mean(0), outputs.std(0)
    best = None
    for seed in range(3):
        torch.manual_seed(seed)
        for part in net:
            if isinstance(part, nn.Linear):
                part.reset_parameters()
        bayes = randomise(net, MeanField(std=0.02), prior=Normal(std=1.0))
        adam = torch.optim.Adam(bayes.parameters(), lr=0.02)
        for _ in range(2500):
            adam.zero_grad()
            with method("ap2"):
                loss = -elbo(bayes, Gaussian(var=0.04), x, y, size=30)
            loss.backward()
            adam.step()
        with torch.no_grad(), method("controlled", rtol=0.02):
            out = bayes.eval()(x)
        if best is None or loss.item() < best[0]:
            best = loss.item(), out.mean[:, 0], out.std[:, 0]
    assert best is not None
    _, mean, std = best
    assert (mean - truth).square().mean().sqrt() < 0.2  # the noise of one datum
    assert 0.5 < (std / spread).median() < 1.1


@pytest.mark.parametrize("how", ["sample", "local"])
def test_the_bound_of_drawn_outputs_is_in_the_mean_that_of_moments_where_the_noise_is_random_too(how: Any) -> None:
    torch.manual_seed(2)
    bayes = randomise(nn.Linear(2, 1).double(), MeanField(std=0.3))
    likelihood = Gaussian(precision=Gamma(3.0, 2.0))
    x, y = torch.randn(50, 2, dtype=torch.float64), torch.randn(50, 1, dtype=torch.float64)
    with torch.no_grad():
        with method("ap2"):
            exact = elbo(bayes, likelihood, x, y, size=50)
        with method(how):
            found = torch.stack([elbo(bayes, likelihood, x, y, size=50) for _ in range(1000)])
    assert abs(found.mean() - exact) < 4 * found.std() / math.sqrt(1000)
