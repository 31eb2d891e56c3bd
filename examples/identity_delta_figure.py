"""Identity and delta: figure 1 of variance back-propagation.

    left    ReLU as the product of the identity and a delta, f · [f > 0]
    right   the delta relaxed to a Bernoulli variable of probability S(C · f), for three C: the mean of f · z

Run it with ``python examples/identity_delta_figure.py``.
Source: Haussmann, Hamprecht & Kandemir, Sampling-Free Variational Inference of Bayesian Neural Networks by Variance
Backpropagation, section 1 and figure 1.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "identity_delta.png")
    arguments = parser.parse_args()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    f = torch.linspace(-3, 3, 601)
    axes[0].plot(f, f, "C0:", label="identity f")
    axes[0].plot(f, (f > 0).float(), "C1--", label="delta [f > 0]")
    axes[0].plot(f, f.relu(), "C2", label="product: ReLU")
    axes[0].set(title="identity · delta", ylim=(-1.5, 3))
    for number, sharpness in enumerate((1, 3, 10)):
        z = (sharpness * f).sigmoid()
        axes[1].plot(f, z, "--", color=f"C{number}", linewidth=1, label=f"P(z = 1) = S({sharpness} f)")
        axes[1].plot(f, f * z, color=f"C{number}", label=f"f · S({sharpness} f)")
    axes[1].set(title="relaxed delta: z is Bernoulli")
    for axis in axes:
        axis.set_xlabel("f")
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, dpi=90)


if __name__ == "__main__":
    main()
