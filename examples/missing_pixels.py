"""Missing pixels: class probabilities by one propagation against marginalising over draws of what is missing.

A network of 784-200-10 with ReLU learns whole digits.  In each test image a share of the pixels is missing at random.
A missing pixel is replaced by a normal distribution of its mean and variance over the training images, independent of
the others.  Class probabilities, the expected softmax, are then found in four ways:

    mean filled   softmax of the network at the pixels' means (AP1)
    AP2           means and variances through the network, then the logistic approximation of the softmax
    controlled    draws of the network with a linear map as control variate, the default in evaluation
    draws         the mean softmax over --draws samples of the missing pixels, which is the truth here

Kept are the KL divergence from the last way, the test error and the log loss, and the seconds that a way takes.

    python examples/missing_pixels.py --data DIR     # DIR holds mnist.npz

Results are written after every share; a run that was interrupted goes on where it stopped (--fresh starts anew).
Source of the question: Shekhovtsov & Flach 2018, section 1.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _common import Results, wide_console
from _data import Images, mnist
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import momentgen
from momentgen import Moments

SHARES = (0.25, 0.5, 0.75, 0.9)


def train(images: Images, arguments: argparse.Namespace, console: Console) -> torch.nn.Sequential:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(784, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10))
    x, y = images.x_train[: arguments.train].flatten(1), images.y_train[: arguments.train]
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    batches = [part for _ in range(arguments.epochs) for part in torch.randperm(len(x)).split(100)]
    for batch in track(batches, "training", console=console, transient=True):
        loss = torch.nn.functional.cross_entropy(net(x[batch]), y[batch])
        adam.zero_grad()
        loss.backward()
        adam.step()
    return net.eval()


def with_missing(images: Images, share: float, count: int) -> Moments:
    """Test images in which pixels are missing, as means and variances."""
    x = images.x_test[:count].flatten(1)
    var, mean = torch.var_mean(images.x_train.flatten(1), 0)
    gone = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < share
    return Moments(torch.where(gone, mean, x), torch.where(gone, var, 0.0))


def probabilities(net: torch.nn.Module, given: Moments, draws: int) -> dict[str, tuple[Tensor, float]]:
    """Way -> class probabilities, and seconds."""

    def propagated(method: str) -> Tensor:
        return momentgen.class_posterior(momentgen.convert(net, method)(given), -1)

    def drawn() -> Tensor:
        total = torch.zeros(())
        for _ in range(draws):
            x = given.mean + given.var.sqrt() * torch.randn_like(given.mean)
            total = total + net(x).softmax(1).double()
        return total / draws

    ways: dict[str, Callable[[], Tensor]] = {
        "mean filled": lambda: net(given.mean).softmax(1),
        "AP2": lambda: propagated("ap2"),
        "controlled": lambda: propagated("controlled"),
        "draws": drawn,
    }
    found = {}
    for name, way in ways.items():
        torch.manual_seed(2)
        started = time.perf_counter()
        value = way()
        found[name] = (value.double(), time.perf_counter() - started)
    return found


@torch.no_grad()
def measure(net: torch.nn.Module, images: Images, share: float, arguments: argparse.Namespace) -> dict[str, object]:
    given = with_missing(images, share, arguments.images)
    y = images.y_test[: arguments.images]
    found = probabilities(net, given, arguments.draws)
    tiny = torch.finfo(torch.float64).tiny
    logs = {name: value.clamp_min(tiny).log() for name, (value, _) in found.items()}
    truth = found["draws"][0]
    return {
        name: {
            "KL": (truth * (logs["draws"] - logs[name])).sum(1).mean().item(),
            "error": (value.argmax(1) != y).double().mean().item(),
            "log loss": -logs[name].gather(1, y[:, None]).mean().item(),
            "seconds": seconds,
        }
        for name, (value, seconds) in found.items()
    }


def show(results: Results, console: Console) -> None:
    table = Table(title="Class probabilities of digits with missing pixels")
    for column in ("missing", "way", "KL from draws", "test error", "log loss", "seconds"):
        table.add_column(column)
    for share, ways in results["missing"].items():
        for name, row in ways.items():
            cells = f"{row['KL']:.4f}", f"{row['error']:.1%}", f"{row['log loss']:.3f}", f"{row['seconds']:.2f}"
            table.add_row(share, name, *cells)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--draws", type=int, default=2000, help="samples of the missing pixels")
    parser.add_argument("--images", type=int, default=1000, help="test images")
    parser.add_argument("--train", type=int, default=60_000, help="training images to use")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run's results")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "missing_pixels.json")
    arguments = parser.parse_args()
    console = wide_console()
    images = mnist(arguments.data, console)
    wanted = ("draws", "images", "train", "epochs")
    settings = {"data": images.source, **{name: getattr(arguments, name) for name in wanted}}
    results = Results(arguments.out, settings, ("missing",), arguments.fresh, console)
    missing = [share for share in SHARES if str(share) not in results["missing"]]
    if missing:
        net = train(images, arguments, console)
        for share in missing:
            results.keep("missing", str(share), measure(net, images, share, arguments))
    show(results, console)
    results.say_where()


if __name__ == "__main__":
    main()
