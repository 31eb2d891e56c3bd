"""Correlated parameters against dropout and weight decay: LeNet on MNIST (tables I to III, figures 1 to 6).

LeNet with 100 and with 250 units in its first full layer is trained twice:

    plain        dropout 0.5 after the first full layer, weight decay 5e-4
    correlated   all weights, and all biases, of a layer have a normal posterior of tridiagonal covariance: standard
                 deviations tau |mean|, one correlation rho of neighbours; prior N(0, 1), divergence times 1/100

The kind "uncorrelated" is the same with all correlations fixed at 0, which shows what they are worth.

The correlated networks predict by the mean of softmax outputs over draws of their parameters.  A prediction is quite
certain where the 95 % interval of its class overlaps no other class's.

    python examples/vi_correlated_mnist.py --data DIR                       # DIR holds mnist.npz; as long as the paper
    python examples/vi_correlated_mnist.py --data DIR --iterations 6000     # shorter; the learning rate falls as far
    python examples/vi_correlated_mnist.py --data DIR --kinds uncorrelated         # a row more

A run that was interrupted goes on where it stopped, also in the middle of training (--fresh starts anew).
Source: Posch & Pilz, Correlated Parameters to Accurately Measure Uncertainty in Deep Neural Networks, section IV-A.
"""

from __future__ import annotations

import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from _common import Results, wide_console
from _data import Images, mnist
from _vi import first, scaled, to_device
from _vi_correlated import draw, fit, row_of, show
from rich.console import Console
from torch import nn

from momentgen.inference import Normal, Tridiagonal, randomise

BATCH = 64
#: what the paper trains with, where options may say otherwise
PAPER = {"iterations": 100_000, "train": 60_000, "samples": 200}
UNITS = [100, 250]
KINDS = ["plain", "correlated"]
#: factor on the divergence, the paper's nu times the number of images
KL_WEIGHT = 1 / 100
#: factor on the learning rate of the correlations, the paper's kappa
KAPPA = 50.0

TABLE1 = {"plain, 100": 0.0084, "correlated, 100": 0.0070, "plain, 250": 0.0070, "correlated, 250": 0.0061}
#: tau, tau of biases, rho, rho of biases
TABLE2 = {
    "correlated, 100": {
        "conv1": [0.04, 0.05, -0.44, -0.04],
        "conv2": [0.52, 0.05, -0.25, -0.01],
        "fc1": [0.86, 0.05, -0.15, 0.01],
        "fc2": [0.05, 0.04, -0.21, 0.01],
    },
    "correlated, 250": {
        "conv1": [0.03, 0.05, -0.44, 0.03],
        "conv2": [0.35, 0.05, -0.21, -0.01],
        "fc1": [2.02, 0.06, -0.15, -0.01],
        "fc2": [0.06, 0.05, -0.18, 0.01],
    },
}
TABLE3 = {"correlated, 100": {"95%": [9668, 262, 14, 56]}, "correlated, 250": {"95%": [9587, 352, 8, 53]}}


# ---------------------------------------------------------------------- model


def lenet(units: int, drop: float) -> nn.Sequential:
    """Caffe's LeNet, filled as Caffe does: one ReLU, after the first full layer."""
    net = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 20, 5),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(20, 50, 5),
            pool2=nn.MaxPool2d(2),
            flat=nn.Flatten(),
            fc1=nn.Linear(800, units),
            relu1=nn.ReLU(),
            drop1=nn.Dropout(drop),
            fc2=nn.Linear(units, 10),
        )
    )
    for name, parameter in net.named_parameters():
        if name.endswith("weight"):
            bound = (3 / parameter[0].numel()) ** 0.5  # Caffe's "xavier"
            nn.init.uniform_(parameter, -bound, bound)
        else:
            nn.init.zeros_(parameter)
    return net.to(memory_format=torch.channels_last)  # a third faster on a CPU


# ------------------------------------------------------------------------ run


def run(name: str, images: Images, options: dict[str, Any], folder: Path, console: Console) -> dict[str, Any]:
    """A network, trained, and all that is kept of it."""
    kind, units = name.split(", ")
    correlated = kind != "plain"
    torch.manual_seed(options["seed"])
    network: Any = lenet(int(units), 0.0 if correlated else 0.5).to(images.x_train.device)
    groups: Any = network.parameters()
    if correlated:
        family = Tridiagonal(rate=KAPPA) if kind == "correlated" else Tridiagonal(rho=0.0, rate=0.0)
        network = randomise(network, family, prior=Normal(0.0, 1.0)).set_method("sample")
        groups = network.parameter_groups(0.01)
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9, weight_decay=0.0 if correlated else 5e-4)
    longer = PAPER["iterations"] / options["iterations"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + 1e-4 * step * longer) ** -0.75)
    training = fit(
        network, optimizer, images, options, folder / f"{kind}_{units}.pt", console,
        batch=BATCH, steps=options["iterations"], kl_weight=KL_WEIGHT, schedule=schedule,
    )  # fmt: skip
    return row_of(network, training, images, options["samples"], (0.95,), console)


def main(
    data: Annotated[Path | None, typer.Option(help="folder with mnist.npz")] = None,
    iterations: Annotated[int, typer.Option(help="training steps of 64 images")] = PAPER["iterations"],
    train: Annotated[int, typer.Option(help="training images, from the set's start")] = PAPER["train"],
    samples: Annotated[int, typer.Option(help="draws of the parameters for predictions")] = PAPER["samples"],
    units: Annotated[list[int], typer.Option(help="sizes of the first full layer")] = UNITS,
    kinds: Annotated[list[str], typer.Option(help="plain, correlated, or uncorrelated: rho fixed at 0")] = KINDS,
    every: Annotated[int, typer.Option(help="steps from one look at the test error to the next")] = 500,
    seed: Annotated[int, typer.Option()] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    fresh: Annotated[bool, typer.Option("--fresh", help="forget an earlier run's results")] = False,
    out: Annotated[Path, typer.Option()] = Path(__file__).parent / "results" / "vi_correlated_mnist.json",
) -> None:
    """LeNet on MNIST, plain and with correlated parameters."""
    console = wide_console()
    found = mnist(data, console)
    images = to_device(first(found, train), device)
    options = {"iterations": iterations, "train": len(images.x_train), "samples": samples, "every": every, "seed": seed}
    settings = {"data": found.source, **options, "scaled": scaled(PAPER, options)}
    results = Results(out, settings, ("networks",), fresh, console)
    folder = out.with_suffix(".checkpoints")
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    for size in units:
        for kind in kinds:
            name = f"{kind}, {size}"
            if name not in results["networks"]:
                results.keep("networks", name, run(name, images, options, folder, console))
                (folder / f"{kind}_{size}.pt").unlink()
    rows = results["networks"]
    show("Test error, %", rows, TABLE1, TABLE2, TABLE3, console)
    results.say_where(*draw(rows, [f"correlated, {size}" for size in UNITS], images, out))


if __name__ == "__main__":
    typer.run(main)
