"""Networks that return probabilities: σ of each by the default, and of normal logits, over Monte Carlo's.

Trained classifiers of MNIST, ending in a softmax or a log softmax.  Of normal logits with Monte Carlo's own mean and
covariance one learns what is lost by taking logits for normal, whatever their covariance.

    python benchmarks/probabilities.py --data DIR        # with mnist.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from _answers import inputs, log_ratios
from _common import console, environment, save
from _trained import cache_folder, images, trained
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor, nn

import momentgen
from momentgen import Moments

__all__ = ["main"]

NETWORKS, VARIANCES = ("mlp", "lenet"), (0.01, 0.1)
ENDS = {"softmax": nn.Softmax(-1), "log softmax": nn.LogSoftmax(-1)}
LARGE = 0.05  # σ of a probability that one looks at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist.npz")
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--inputs", type=int, default=64, help="test images")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    titles = ("network, noise, end", "by", "σ/σ_MC", "spread", f"of σ > {LARGE}", "spread", "mean, σ")
    table, rows = Table(*titles, box=SIMPLE_HEAD, pad_edge=False), []
    data = images(arguments.data)
    for name in NETWORKS:
        net = trained(name, data, cache_folder(), False)
        for var in VARIANCES:
            x = inputs(net, var, arguments.inputs)
            logits = sampled(net.net, x, arguments.samples)
            normal = normal_like(logits)
            for end, last in ENDS.items():
                truth = last(logits)
                with torch.no_grad():
                    found = momentgen.convert(nn.Sequential(net.net, last).eval())(x)
                answers = {
                    "controlled": (found.mean.double(), found.var.double()),
                    "normal logits": (last(normal).mean(0), last(normal).var(0)),
                }
                for method, (mean, variance) in answers.items():
                    row = {"network": name, "noise": var, "end": end, "method": method}
                    row |= figures(mean, variance, truth)
                    rows.append(row)
                    shown = [f"{row[key]:.3f}" for key in ("ratio", "spread", "ratio_large", "spread_large")]
                    table.add_row(f"{name}, {var:g}, {end}", method, *shown, f"{row['mean_error']:.3f}")
    console.print(table)
    settings = {"samples": arguments.samples, "inputs": arguments.inputs, "large": LARGE}
    save("probabilities", {"environment": environment(), **settings, "results": rows})


def sampled(net: nn.Module, x: Moments, samples: int) -> Tensor:
    """Logits of drawn inputs, shape (samples, batch, classes)."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        draws = [net(x.mean + x.std * torch.randn(x.mean.shape, generator=generator)).double() for _ in range(samples)]
    return torch.stack(draws)


def normal_like(logits: Tensor) -> Tensor:
    """As many normal draws of the same mean and covariance."""
    away = logits - logits.mean(0)
    covariance = torch.einsum("sbi,sbj->bij", away, away) / len(logits)
    factor = torch.linalg.cholesky(covariance + 1e-9 * torch.eye(covariance.shape[-1], dtype=torch.float64))
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randn(logits.shape, generator=generator, dtype=torch.float64)
    return logits.mean(0) + torch.einsum("bij,sbj->sbi", factor, drawn)


def figures(mean: Tensor, var: Tensor, truth: Tensor) -> dict[str, Any]:
    """Geometric mean and spread of σ over Monte Carlo's, of all that vary and of those that vary much."""
    exact = truth.var(0)
    sigma = exact.sqrt()
    logs, large = log_ratios(var, exact), (var / exact).log()[sigma > LARGE] / 2
    error = ((mean - truth.mean(0)) / sigma)[sigma > 0.01 * sigma.mean()]
    return {
        "ratio": logs.mean().exp().item(),
        "spread": logs.std().item(),
        "ratio_large": large.mean().exp().item(),
        "spread_large": large.std().item(),
        "count_large": int(large.numel()),
        "mean_error": error.square().mean().sqrt().item(),
    }


if __name__ == "__main__":
    main()
