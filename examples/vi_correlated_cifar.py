"""Correlated parameters on 32 × 32 images: Caffe's CIFAR10_full (tables IV to VI, figures 7 and 8 of the paper).

    plain        weight decay 0.004, of the full layer 1
    correlated   as in vi_correlated_mnist.py; prior N(0, 1), of the full layer N(0, 0.05²); divergence times 1/10

A prediction is quite certain where the 95 %, or 99 %, interval of its class overlaps no other class's.

    python examples/vi_correlated_cifar.py --data DIR      # DIR holds CIFAR-10 (python batches, or cifar10.npz) or SVHN

Without these the images are MNIST's with a black edge, which is said; the paper's figures are then no measure.  A run
that was interrupted goes on where it stopped, also in the middle of training (--fresh starts anew).
Source: Posch & Pilz, Correlated Parameters to Accurately Measure Uncertainty in Deep Neural Networks, section IV-B; the
network and its filling are Caffe's cifar10_full_train_test.prototxt, the momentum its cifar10_full_solver.prototxt's.
"""

from __future__ import annotations

import shutil
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from _common import Results, wide_console
from _data import Images
from _vi import colour_images, first, scaled, to_device
from _vi_correlated import draw, fit, row_of, show
from rich.console import Console
from torch import Tensor, nn

from momentgen.inference import Normal, Tridiagonal, randomise

BATCH = 100
PAPER = {"plain_iterations": 100_000, "iterations": 40_000, "train": 50_000, "samples": 200}
#: factor on the divergence, the paper's nu times the number of images
KL_WEIGHT = 1 / 10
#: factor on the learning rate of the correlations, the paper's kappa
KAPPA = 50.0

TABLE4 = {"plain": 0.209, "correlated": 0.2032}
#: tau, tau of biases, rho, rho of biases
TABLE5 = {
    "correlated": {
        "conv1": [0.04, 0.05, -0.47, 0.01],
        "conv2": [0.46, 0.05, -0.49, -0.01],
        "conv3": [0.37, 0.05, -0.41, 0.01],
        "fc": [0.14, 0.05, -0.29, 0.01],
    }
}
TABLE6 = {"correlated": {"95%": [5894, 2074, 403, 1629], "99%": [5281, 2687, 250, 1782]}}


# ---------------------------------------------------------------------- model


class WithinChannel(nn.Module):
    """Caffe's local response normalisation within a channel: x / (1 + alpha · mean of x² over 3 × 3)^0.75."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 5e-5 * nn.functional.avg_pool2d(x * x, 3, stride=1, padding=1)) ** -0.75


def cifar10_full(channels: int) -> nn.Sequential:
    net = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 5, padding=2),
            pool1=nn.MaxPool2d(3, 2, ceil_mode=True),
            relu1=nn.ReLU(),
            norm1=WithinChannel(),
            conv2=nn.Conv2d(32, 32, 5, padding=2),
            relu2=nn.ReLU(),
            pool2=nn.AvgPool2d(3, 2, ceil_mode=True),
            norm2=WithinChannel(),
            conv3=nn.Conv2d(32, 64, 5, padding=2),
            relu3=nn.ReLU(),
            pool3=nn.AvgPool2d(3, 2, ceil_mode=True),
            flat=nn.Flatten(),
            fc=nn.Linear(1024, 10),
        )
    )
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=1e-4 if name.startswith("conv1") else 0.01)
    return net.to(memory_format=torch.channels_last)


def as_caffe(images: Images) -> Images:
    """Values of 0..255, less the mean image of the training set."""
    mean = images.x_train.mean(0, keepdim=True)
    return replace(images, x_train=255 * (images.x_train - mean), x_test=255 * (images.x_test - mean))


# ------------------------------------------------------------------------ run


def run(name: str, images: Images, options: dict[str, Any], folder: Path, console: Console) -> dict[str, Any]:
    """A network, trained, and all that is kept of it."""
    torch.manual_seed(options["seed"])
    network: Any = cifar10_full(images.x_train.shape[1]).to(images.x_train.device)
    if name == "correlated":
        prior = {"conv*": Normal(0.0, 1.0), "fc*": Normal(0.0, 0.05**2)}
        network = randomise(network, Tridiagonal(rate=KAPPA), prior=prior).set_method("sample")
        groups, steps = network.parameter_groups(1e-3), options["iterations"]
    else:
        decays = {"conv": 0.004, "fc.weight": 1.0, "fc.bias": 0.0}
        groups = [
            {
                "params": [value for key, value in network.named_parameters() if key.startswith(part)],
                "weight_decay": decay,
            }
            for part, decay in decays.items()
        ]
        steps = options["plain_iterations"]
    optimizer = torch.optim.SGD(groups, lr=1e-3, momentum=0.9)
    training = fit(
        network, optimizer, images, options, folder / f"{name}.pt", console,
        batch=BATCH, steps=steps, kl_weight=KL_WEIGHT,
    )  # fmt: skip
    return row_of(network, training, images, options["samples"], (0.95, 0.99), console)


def main(
    data: Annotated[Path | None, typer.Option(help="folder with CIFAR-10, SVHN or mnist.npz")] = None,
    plain_iterations: Annotated[int, typer.Option(help="of the plain network")] = PAPER["plain_iterations"],
    iterations: Annotated[int, typer.Option(help="of the correlated network")] = PAPER["iterations"],
    train: Annotated[int, typer.Option(help="training images, from the set's start")] = PAPER["train"],
    test: Annotated[int, typer.Option(help="test images, from the set's start")] = 10_000,
    samples: Annotated[int, typer.Option(help="draws of the parameters for predictions")] = PAPER["samples"],
    every: Annotated[int, typer.Option(help="steps from one look at the test error to the next")] = 500,
    seed: Annotated[int, typer.Option()] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    fresh: Annotated[bool, typer.Option("--fresh", help="forget an earlier run's results")] = False,
    out: Annotated[Path, typer.Option()] = Path(__file__).parent / "results" / "vi_correlated_cifar.json",
) -> None:
    """CIFAR10_full, plain and with correlated parameters."""
    console = wide_console()
    found = first(colour_images(data, console), train)
    found = replace(found, x_test=found.x_test[:test], y_test=found.y_test[:test])
    shown, images = to_device(found, "cpu"), to_device(as_caffe(found), device)
    options = {
        **{"plain_iterations": plain_iterations, "iterations": iterations, "train": len(images.x_train)},
        **{"test": len(images.x_test), "samples": samples, "every": every, "seed": seed},
    }
    settings = {"data": found.source, **options, "scaled": scaled({**PAPER, "test": 10_000}, options)}
    results = Results(out, settings, ("networks",), fresh, console)
    folder = out.with_suffix(".checkpoints")
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("plain", "correlated"):
        if name not in results["networks"]:
            results.keep("networks", name, run(name, images, options, folder, console))
            (folder / f"{name}.pt").unlink()
    rows = results["networks"]
    console.print(f"images: {found.source}", highlight=False)
    show("Test error, % (the paper's is of CIFAR-10)", rows, TABLE4, TABLE5, TABLE6, console)
    pictures = draw(rows, ["correlated"], shown, out)
    results.say_where(*pictures)


if __name__ == "__main__":
    typer.run(main)
