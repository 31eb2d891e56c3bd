"""Noise on its way through a LeNet: mean and standard deviation of a map of every layer (figure 1 of the paper).

A LeNet with leaky ReLU learns MNIST with analytic normalisation.  A test image has Gaussian noise of variance 0.1.
Of each layer the channel with the largest average standard deviation is drawn:

    rows      mean and standard deviation by AP2 (exact ops), and the same by Monte Carlo
    columns   the input, convolutions C and activations A, the output F as bars over the classes

    python examples/noise_through_lenet.py --data DIR      # DIR holds mnist.npz

Source: Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks with
Categorical and Max Layers, figure 1.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from _common import wide_console
from _data import mnist
from lenet_mnist import COLUMNS, train

import momentgen
from momentgen import Moments, nn

NOISE = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--samples", type=int, default=2000, help="of Monte Carlo")
    parser.add_argument("--train", type=int, default=60_000, help="training images to use")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "noise_through_lenet.png")
    arguments = parser.parse_args()
    console = wide_console()
    images = mnist(arguments.data, console)
    net = train("lrelu", True, images, arguments, console).eval()
    x = images.x_test[:1]
    given = Moments(x, torch.full_like(x, NOISE))
    with torch.no_grad():
        layers = {"AP2": {"input": given} | nn.moments(net, given, method="ap2")}
    drawn = momentgen.monte_carlo(net, given, arguments.samples, seed=0, progress=False)
    layers["Monte Carlo"] = {"input": given} | drawn.layers

    columns = ("input", *COLUMNS)
    figure, axes = plt.subplots(4, len(columns), figsize=(1.6 * len(columns), 6.4), layout="constrained")
    for column, name in enumerate(columns):
        channel = int(layers["Monte Carlo"][name].std[0].flatten(1).mean(1).argmax())
        for row, (method, kind) in enumerate((m, k) for m in layers for k in ("mean", "std")):
            axis, values = axes[row, column], getattr(layers[method][name], kind)[0].detach()
            both = torch.stack([getattr(layers[m][name], kind)[0].detach().double() for m in layers])
            if values.shape[-1] == 1:
                axis.bar(range(len(values)), values.flatten())
                axis.set_ylim(min(0.0, both.min().item()), both.max().item())
            else:
                both = both[:, channel]
                axis.imshow(values[channel], vmin=both.min().item(), vmax=both.max().item(), cmap="viridis")
            axis.set(xticks=[], yticks=[], title=name if not row else "")
            if not column:
                axis.set_ylabel(f"{method}\n{'mean' if kind == 'mean' else 'σ'}")
    figure.savefig(arguments.out, dpi=90)
    console.print(f"picture: {arguments.out}", soft_wrap=True)


if __name__ == "__main__":
    main()
