"""The bow tie: an activation's distribution given its input, for four temperatures and noises (figure 1 of the paper).

    z ~ Bernoulli(sigmoid(u / tau)),  a ~ N(z u, eta^2)

Black points are draws by the model itself (momentgen.inference.bowtie.simulate, a network whose one weight is 1); red
are the mean and two standard deviations: E a = p u, Var a = p (1 - p) u^2 + eta^2, p = sigmoid(u / tau).  Far below 0
the unit is off, far above it is on, and near 0, where off and on hardly differ, it may be either.

    python examples/bow_tie_figure.py

Source: Smith, Lawson & Linderman, Bayesian Inference in Augmented Bow Tie Networks, figure 1.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from momentgen import Moments
from momentgen.inference.bowtie import BowTieModel, ConjugatePrior, simulate

#: tau, eta
CASES = ((0.01, 0.01), (1.0, 0.1), (1.0, 0.5), (3.0, 0.1))


def drawn(u: Tensor, tau: float, eta: float) -> Tensor:
    """An activation for each input ``(n,)``, by a network whose weights and noise the prior leaves no choice."""
    sure = ConjugatePrior(mean=((1.0, 0.0),), var=1e-12, shape=1e8, rate=1e8 * eta**2)
    model = BowTieModel((1, 1, 1), tau, (sure, ConjugatePrior()))
    state, _ = simulate(model, u[:, None], 1, torch.Generator().manual_seed(0))
    return state.activations[0][0, :, 0]


def moments(u: Tensor, tau: float, eta: float) -> Moments:
    on = (u / tau).sigmoid()
    return Moments(on * u, on * (1 - on) * u.square() + eta**2)


def draw(axis: Axes, tau: float, eta: float) -> None:
    draw_at = torch.empty(3000, dtype=torch.float64).uniform_(-6, 6, generator=torch.Generator().manual_seed(1))
    axis.plot(draw_at, drawn(draw_at, tau, eta), "k.", markersize=1.5, alpha=0.4)
    line = torch.linspace(-6, 6, 400, dtype=torch.float64)
    mean, std = moments(line, tau, eta).mean, moments(line, tau, eta).var.sqrt()
    axis.plot(line, mean, color="tab:red")
    axis.fill_between(line, mean - 2 * std, mean + 2 * std, color="tab:red", alpha=0.2, linewidth=0)
    axis.set(title=f"τ = {tau:g}, η = {eta:g}", xlabel="u")
    axis.grid(alpha=0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "bow_tie.png")
    arguments = parser.parse_args()
    figure, axes = plt.subplots(1, len(CASES), figsize=(14, 3.6), sharex=True, sharey=True, layout="constrained")
    for axis, case in zip(axes, CASES, strict=True):
        draw(axis, *case)
    axes[0].set_ylabel("a")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, dpi=90)
    print(f"picture: {arguments.out}")


if __name__ == "__main__":
    main()
