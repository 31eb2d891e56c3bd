"""KL divergence of approximations of a logistic unit: figure C.2 of the paper.

Y is 1 with probability S(w·x + b); the inputs x are n independent bits, each 1 with probability one half, n = 1 to 5.
The weights are those of the paper's figure C.3.  The true P(Y = 1) is a sum over the 2^n inputs.  The other P(Y = 1)
see the mean and variance of w·x + b only; each line is the divergence of such a Bernoulli law from the true one.

    AP1            the ordinary network: S at the mean
    AP2a, AP2b     a normal in the logistic's place, and a logistic in the normal's
    PEA            the logistic as a piecewise exponential
    exact          our op: exact for a normal pre-activation, which that of few bits is not
    50 samples     S averaged over 50 draws of the inputs: mean of 1,000 trials, and where 90 % of them lie

The paper found the variance of S(X) by PEA inaccurate for small σ, and unstable.  PEA is 2^x / 2 left of 0 and
1 - 2^-x / 2 right of it, whose variance for a normal X has a closed form.  A second table compares it with that of S.

Run it with ``python examples/logistic_approximations.py``.
(Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, C.2.)
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from momentgen.generated import logistic_bernoulli, logistic_transform

WEIGHTS = (5.1, 4.6, 3.5, 0.9, 4.3)
SAMPLES, TRIALS = 50, 1000
#: standard deviations of X, and the means at which the variance of S(X) is compared
SIGMAS, MEANS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0), (-10.0, 10.0, 201)
VARIANTS = {"AP1": "ap1", "AP2a": "ap2a", "AP2b": "ap2b", "PEA": "pea", "exact": "exact"}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="where numbers and picture go")


def divergence(true: Tensor, found: Tensor) -> Tensor:
    """KL divergence in bits of Bernoulli laws with P(Y = 1) ``found`` from those with ``true``."""
    return sum(
        torch.special.xlogy(p, p) - torch.special.xlogy(p, q) for p, q in ((true, found), (1 - true, 1 - found))
    ) / torch.log(torch.tensor(2.0))


def curves(inputs: int, bias: Tensor) -> dict[str, Tensor]:
    """Divergences at each bias ``(k,)``, float64; of samples the mean and the 5 and 95 % quantiles of the trials."""
    weights = torch.tensor(WEIGHTS[:inputs], dtype=torch.float64)
    bits = torch.tensor(list(itertools.product((0.0, 1.0), repeat=inputs)), dtype=torch.float64)
    answers = torch.sigmoid(bits @ weights + bias[:, None])
    true = answers.mean(1)
    mean, var = 0.5 * weights.sum() + bias, (0.25 * weights.square().sum()).expand(len(bias))
    found = {name: divergence(true, logistic_bernoulli(mean, var, variant=how).mean) for name, how in VARIANTS.items()}
    drawn = torch.randint(len(bits), (TRIALS, SAMPLES), generator=torch.Generator().manual_seed(0))
    trials = divergence(true[:, None], answers[:, drawn].mean(2))
    found["50 samples"] = trials.mean(1)
    found["50 samples, 5 %"], found["50 samples, 95 %"] = trials.quantile(torch.tensor([0.05, 0.95]).double(), dim=1)
    return found


def pea_variance(mean: Tensor, std: Tensor) -> Tensor:
    """Variance of the piecewise exponential function of normal values, E[p²] - E[p]² as it is written; any shape."""
    log2 = torch.log(torch.tensor(2.0, dtype=mean.dtype))

    def below(mean: Tensor, power: int) -> Tensor:
        """E[2^(power · X)] where X < 0."""
        return torch.exp2(power * mean + log2 / 2 * (power * std) ** 2) * torch.special.ndtr(
            -(mean + power * log2 * std**2) / std
        )

    above = torch.special.ndtr(mean / std)
    first = above + (below(mean, 1) - below(-mean, 1)) / 2
    second = above - below(-mean, 1) + (below(mean, 2) + below(-mean, 2)) / 4
    return second - first.square()


def variances() -> dict[float, dict[str, float]]:
    """By σ: relative errors of the standard deviation of S(X), and the share of means at which float32 fails.

    ``PEA`` and ``(33)``, the paper's own approximation, have the largest size over the means; ``PEA at 0`` is at mean
    0.
    Float32 fails where PEA's variance is not positive, not finite or 1 % off that in float64.
    """
    mean, rows = torch.linspace(*MEANS, dtype=torch.float64), {}
    for sigma in SIGMAS:
        std = torch.full_like(mean, sigma)
        exact, ours = (logistic_transform(mean, std.square(), variant=how).std for how in ("exact", "ap2b"))
        found, short = pea_variance(mean, std), pea_variance(mean.float(), std.float())
        off = found.sqrt() / exact - 1
        right = (short > 0) & ((short / found - 1).abs() < 0.01)
        rows[sigma] = {
            "PEA at 0": off[len(off) // 2].item(),
            "PEA": off.abs().max().item(),
            "(33)": (ours / exact - 1).abs().max().item(),
            "float32 fails": 1 - right.double().mean().item(),
        }
    return {sigma: {name: float(f"{value:.4g}") for name, value in row.items()} for sigma, row in rows.items()}


def draw(every: dict[int, dict[str, Tensor]], bias: Tensor, path: Path) -> None:
    """One plot for each approximation, a line for each number of inputs; AP1's axis is ten times the others'."""
    figure, axes = plt.subplots(2, 3, figsize=(9, 5), sharex=True, layout="constrained")
    for axis, name in zip(axes.flat, (*VARIANTS, "50 samples"), strict=True):
        for number, (inputs, found) in enumerate(every.items()):
            axis.plot(bias, found[name], color=f"C{number}", label=str(inputs))
            if name == "50 samples":
                for end in ("5 %", "95 %"):
                    axis.plot(bias, found[f"{name}, {end}"], "--", color=f"C{number}", linewidth=0.7)
        axis.set(title=name, ylim=(0, 1.0 if name == "AP1" else 0.1))
    axes[0, 0].legend(title="inputs", frameon=False)
    for axis in axes[1]:
        axis.set_xlabel("mean of w·x + b")
    for axis in axes[:, 0]:
        axis.set_ylabel("KL divergence, bits")
    figure.savefig(path, dpi=110)


def main() -> None:
    out: Path = parser.parse_args().out
    centred = torch.linspace(-12, 12, 241, dtype=torch.float64)
    every = {n: curves(n, centred - 0.5 * sum(WEIGHTS[:n])) for n in range(1, len(WEIGHTS) + 1)}
    table = Table(title="largest KL divergence over biases, in bits")
    names = (*VARIANTS, "50 samples", "50 samples, 95 %")
    for column in ("inputs", *names):
        table.add_column(column, justify="right")
    largest = {n: {name: float(f"{found[name].max():.4g}") for name in names} for n, found in every.items()}
    for n, row in largest.items():
        table.add_row(str(n), *(f"{row[name]:.3g}" for name in names))
    Console(width=120).print(table)
    spread = variances()
    table = Table(
        "σ of X", *spread[SIGMAS[0]], title="standard deviation of S(X): relative errors; failures of float32"
    )
    for sigma, row in spread.items():
        table.add_row(f"{sigma:g}", *(f"{value:.1%}" for value in row.values()))
    Console(width=120).print(table)
    out.mkdir(parents=True, exist_ok=True)
    (out / "logistic_approximations.json").write_text(
        json.dumps(
            {"weights": WEIGHTS, "samples": SAMPLES, "trials": TRIALS, "largest": largest, "variance": spread}, indent=1
        )
        + "\n"
    )
    draw(every, centred, out / "logistic_approximations.png")


if __name__ == "__main__":
    main()
