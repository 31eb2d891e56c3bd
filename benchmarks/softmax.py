"""The softmaxes of normal logits against quasi-Monte Carlo and quadrature, into benchmarks/results/softmax.json.

For K = 2, 10, 100 classes and sigma = 0.1, 1, 3, 10, several rows of random logits are drawn; the truth is E softmax(X)
by 2^20 scrambled Sobol points (its standard error over independent scramblings is reported), and for K = 2, where
E softmax is E S(X1 - X2), mpmath's quadrature.

    python benchmarks/softmax.py
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import torch
from _common import console, save
from torch import Tensor

from momentgen import Moments
from momentgen.nn.functional import Posterior, class_posterior, log_class_posterior

APPROXIMATIONS: tuple[Posterior, ...] = ("logistic", "normal", "simplified")
CLASSES, SIGMAS, ROWS = (2, 10, 100), (0.1, 0.3, 1.0, 3.0, 10.0), 4
SCRAMBLINGS, POINTS = 4, 1 << 18  # 2^20 points in all


def main() -> None:
    table: list[dict[str, Any]] = []
    for classes in CLASSES:
        for sigma in SIGMAS:
            mean, var = logits(classes, sigma)
            truth, error = quasi_monte_carlo(mean, var)
            entry: dict[str, Any] = {"classes": classes, "sigma": sigma, "standard_error": digits(error)}
            if classes == 2:
                exact = torch.tensor([quadrature(m, v) for m, v in zip(mean.tolist(), var.tolist(), strict=True)])
                entry["sampling_off_quadrature"] = digits((truth - exact.double()).abs().max().item())
                truth = exact.double()
            for variant in APPROXIMATIONS:
                entry[variant] = compare(mean, var, truth, variant)
            table.append(entry)
            shown = ", ".join(f"{v} {entry[v]['max_error']:.2g}" for v in APPROXIMATIONS)
            console.print(f"K = {classes}, sigma = {sigma}: {shown} (s.e. {error:.1g})")
    result = {
        "truth": f"{SCRAMBLINGS} x {POINTS} scrambled Sobol points; K = 2: quadrature",
        "rows": ROWS,
        "logits": "means N(0, 2^2), variances sigma^2 times uniform(1/2, 3/2), from a fixed seed",
        "extremes": extremes(),
        "table": table,
    }
    save("softmax", result)


def logits(classes: int, sigma: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(classes)
    mean = 2 * torch.randn(ROWS, classes, generator=generator)
    return mean, sigma**2 * (0.5 + torch.rand(ROWS, classes, generator=generator))


def quasi_monte_carlo(mean: Tensor, var: Tensor) -> tuple[Tensor, float]:
    """E softmax(X), and the largest standard error of it."""
    estimates = []
    for seed in range(SCRAMBLINGS):
        engine = torch.quasirandom.SobolEngine(mean.shape[-1], scramble=True, seed=seed)
        total, left = torch.zeros(mean.shape, dtype=torch.float64), POINTS
        while left:
            count = min(left, 1 << 14)
            # Half a step inside, so that no coordinate is 0.
            z = torch.special.ndtri(engine.draw(count, dtype=torch.float64) + 2.0**-32)
            x = mean.double()[:, None] + var.double().sqrt()[:, None] * z
            total += torch.softmax(x, -1).sum(1)
            left -= count
        estimates.append(total / POINTS)
    stack = torch.stack(estimates)
    return stack.mean(0), (stack.std(0) / math.sqrt(SCRAMBLINGS)).max().item()


def quadrature(mean: list[float], var: list[float]) -> list[float]:
    """Both probabilities of two classes: E S(X1 - X2)."""
    centre, spread = mean[0] - mean[1], mpmath.sqrt(var[0] + var[1])
    p = mpmath.quad(lambda z: mpmath.npdf(z) / (1 + mpmath.exp(-centre - spread * z)), mpmath.linspace(-12, 12, 25))
    return [float(p), float(1 - p)]


def posterior(mean: Tensor, var: Tensor, variant: Posterior) -> Tensor:
    """Probabilities in float32, of logits in float64: rounded once."""
    return class_posterior(Moments(mean.double(), var.double()), -1, variant).float()


def compare(mean: Tensor, var: Tensor, truth: Tensor, variant: str) -> dict[str, float]:
    p = posterior(mean, var, variant)
    log_p = log_class_posterior(Moments(mean, var), -1, variant).double()
    kl = (truth * (truth.log() - log_p)).sum(-1)
    return {
        "max_error": digits((p.double() - truth).abs().max().item()),
        "mean_error": digits((p.double() - truth).abs().mean().item()),
        "max_kl": digits(kl.max().item()),
        "sum_off_one_ulp": digits(((p.double().sum(-1) - 1).abs().max() / 2.0**-23).item()),
    }


def extremes() -> dict[str, Any]:
    """A thousand classes and logits up to ±1e4: sums in ulp of 1, and whether anything is NaN."""
    generator = torch.Generator().manual_seed(0)
    mean = 1e4 * (2 * torch.rand(8, 1000, generator=generator) - 1)
    found: dict[str, Any] = {}
    for variant in APPROXIMATIONS:
        worst, nan = 0.0, False
        for scale in (0.0, 1e-12, 1.0, 1e4, 1e8):
            leaves = mean.clone().requires_grad_(), torch.full_like(mean, scale).requires_grad_()
            p = posterior(*leaves, variant)
            log_p = log_class_posterior(Moments(*leaves), -1, variant)
            grads = torch.autograd.grad(p[:, 0].sum() + log_p.mean(), leaves)
            nan |= any(bool(t.isnan().any()) for t in (p, *grads))
            worst = max(worst, ((p.double().sum(-1) - 1).abs().max() / 2.0**-23).item())
        found[variant] = {"sum_off_one_ulp": digits(worst), "nan": nan}
    return found


def digits(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main()
