"""The logistic function's approximations, as the paper draws them (figures C.1, C.3, C.4).

    C.1   the logistic distribution function and the piecewise exponential one, 2^x / 2 for x < 0
    C.3   density of U + Z: U a weighted sum of random bits, Z logistic noise, which makes P(U + Z > 0) the posterior;
          beside it a normal and a logistic density of the same mean and variance
    C.4   mean of max(0, X) for a normal and for a logistic X of the same mean and variance 1

    python examples/logistic_illustrations.py

Source: Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks with
Categorical and Max Layers, appendix C.
"""

from __future__ import annotations

import argparse
import itertools
import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from logistic_approximations import WEIGHTS
from torch import Tensor

from momentgen.generated import relu

#: standard deviation of the standard logistic distribution
S = math.pi / 3**0.5


def logistic_density(x: Tensor) -> Tensor:
    return x.sigmoid() * (-x).sigmoid()


def sum_density(at: Tensor) -> Tensor:
    """Density of the centred U + Z over all states of the bits, each 1 with probability 1/2."""
    states = torch.tensor(list(itertools.product((0.0, 1.0), repeat=len(WEIGHTS))), dtype=torch.float64)
    centres = (states - 0.5) @ torch.tensor(WEIGHTS, dtype=torch.float64)
    return logistic_density(at[:, None] - centres).mean(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "logistic_illustrations.png")
    arguments = parser.parse_args()
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    x = torch.linspace(-6, 6, 601, dtype=torch.float64)
    axes[0].plot(x, x.sigmoid(), label="logistic")
    half = 0.5 * torch.exp2(-x.abs())
    axes[0].plot(x, torch.where(x < 0, half, 1 - half), "--", label="piecewise exponential")
    axes[0].set(title="C.1: distribution functions", xlabel="x")

    wide = torch.linspace(-20, 20, 801, dtype=torch.float64)
    std = math.sqrt(sum(weight**2 for weight in WEIGHTS) / 4 + S**2)
    axes[1].plot(wide, sum_density(wide), label="U + Z")
    axes[1].plot(wide, torch.exp(-0.5 * (wide / std) ** 2) / (std * math.sqrt(2 * math.pi)), "--", label="normal")
    axes[1].plot(wide, logistic_density(wide * S / std) * S / std, ":", label="logistic")
    axes[1].set(title=f"C.3: density of U + Z, {len(WEIGHTS)} bits", xlabel="U + Z − mean")

    mean = torch.linspace(-4, 4, 401, dtype=torch.float64)
    axes[2].plot(mean, relu(mean, torch.ones_like(mean)).mean, label="normal X")
    axes[2].plot(mean, torch.nn.functional.softplus(mean * S) / S, "--", label="logistic X")
    axes[2].plot(mean, mean.clamp_min(0), color="grey", linewidth=0.8, label="max(0, mean)")
    axes[2].set(title="C.4: mean of max(0, X)", xlabel="mean of X, variance 1")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(arguments.out, dpi=90)


if __name__ == "__main__":
    main()
