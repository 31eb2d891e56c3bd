"""Posteriors of linear models, known in closed form or by optimisation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from momentgen import method
from momentgen.inference import Gaussian, Normal, Posterior, Tridiagonal, elbo, randomise

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
