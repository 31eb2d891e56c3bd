"""LeNet trained from scratch by AP2 in float32, with no floor on any variance: is every number finite?

One epoch of MNIST, from torch's own initialisation, for networks in which variances are zero (certain pixels), tiny
(dead units, noise of 1e-4) or divided by (normalisation, eps = 0).  After every step the loss, the output's moments,
every gradient and every parameter are looked at; what is not finite, or a variance below 0, ends the run with an error.

    python examples/from_scratch.py --data DIR        # DIR holds mnist.npz

A run that was interrupted goes on with the network where it stopped (--fresh starts anew).
Source: Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks with
Categorical and Max Layers, sections 3 and 4, appendix D.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from _common import Results, flat, wide_console
from _data import Images, mnist
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import momentgen
from momentgen import Moments, nn
from momentgen.nn import functional

#: name -> activation, drop probability, variance of the pixels' noise, whether normalised.
CASES: dict[str, tuple[type[torch.nn.Module], float, float, bool]] = {
    "leaky ReLU, dropout 0.2, certain pixels": (nn.LeakyReLU, 0.2, 0.0, False),
    "ReLU, noise 1e-4": (nn.ReLU, 0.0, 1e-4, False),
    "leaky ReLU, noise 0.01, normalised, eps 0": (nn.LeakyReLU, 0.0, 0.01, True),
    "logistic Bernoulli, certain pixels, normalised, eps 0": (nn.LogisticBernoulli, 0.0, 0.0, True),
}


# ---------------------------------------------------------------------- model


def lenet(activation: type[torch.nn.Module], drop: float, normalised: bool) -> nn.Sequential:
    """The paper's LeNet (D.4), initialised as torch does."""
    layers: list[torch.nn.Module] = []
    for inputs, outputs, kernel, stride in [(1, 32, 5, 2), (32, 64, 5, 2), (64, 50, 4, 1), (50, 10, 1, 1)]:
        layers.append(nn.Conv2d(inputs, outputs, kernel, stride, bias=not normalised))
        layers += [nn.Normalize(outputs, eps=0.0)] if normalised else []
        layers += [activation()] if outputs != 10 else []
        layers += [nn.Dropout(drop)] if drop and outputs != 10 else []
    return nn.Sequential(*layers)


# ------------------------------------------------------------------------ run


class Watch:
    """Looks at numbers, and counts them."""

    def __init__(self) -> None:
        self.looked_at = 0
        self.least_variance = float("inf")

    def finite(self, what: str, values: Tensor) -> None:
        if not bool(torch.isfinite(values).all()):
            raise FloatingPointError(f"{what} is not finite")
        self.looked_at += values.numel()

    def moments(self, what: str, x: Moments) -> None:
        self.finite(f"the mean of {what}", x.mean)
        self.finite(f"the variance of {what}", x.var)
        least = x.var.min().item()
        if least < 0:
            raise FloatingPointError(f"the variance of {what} is {least}")
        self.least_variance = min(self.least_variance, least)


def run(name: str, images: Images, arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    """Train for an epoch by AP2 with Adam at 1e-3, batch 128; losses, and what was looked at."""
    activation, drop, noise, normalised = CASES[name]
    torch.manual_seed(arguments.seed)
    net = lenet(activation, drop, normalised)
    model: torch.nn.Module = net
    x, y = images.x_train[: arguments.train], images.y_train[: arguments.train]
    if normalised:
        model = nn.AnalyticNormalization(net, x.mean(), x.var())
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    watch, losses = Watch(), []
    for step, batch in enumerate(track(torch.randperm(len(x)).split(128), name, console=console, transient=True)):
        out = flat(model(noisy(x[batch], noise)))
        loss = functional.nll_loss(out, y[batch])
        adam.zero_grad()
        loss.backward()
        watch.moments(f"the output at step {step}", out)
        watch.finite(f"the loss at step {step}", loss)
        for label, parameter in model.named_parameters():
            watch.finite(f"the gradient of {label} at step {step}", parameter.grad)
        adam.step()
        for label, parameter in model.named_parameters():
            watch.finite(f"{label} after step {step}", parameter)
        losses.append(loss.item())
    if normalised:
        model.refresh()
    return {
        "steps": len(losses),
        "numbers": watch.looked_at,
        "least_variance": watch.least_variance,
        "loss_first": statistics.fmean(losses[: max(1, len(losses) // 20)]),
        "loss_last": statistics.fmean(losses[-max(1, len(losses) // 20) :]),
        "accuracy_ap1": accuracy(net, "ap1", images, noise),
        "accuracy_ap2": accuracy(net, "ap2", images, noise),
        "losses": losses[:: max(1, len(losses) // 100)],
    }


def noisy(x: Tensor, variance: float) -> Moments | Tensor:
    return Moments(x, torch.tensor(variance).expand_as(x)) if variance else x


@torch.no_grad()
def accuracy(net: torch.nn.Module, method: str, images: Images, noise: float) -> float:
    net.eval()
    with momentgen.method(method):
        posteriors = [functional.log_class_posterior(flat(net(noisy(x, noise)))) for x in images.x_test.split(1000)]
    return (torch.cat(posteriors).argmax(1) == images.y_test).double().mean().item()


# ------------------------------------------------------------- table, picture


def show(rows: dict[str, dict[str, object]], console: Console) -> None:
    table = Table(title="Training from scratch by AP2, float32, no floor on variances: all numbers finite")
    for column in (
        "",
        "steps",
        "numbers looked at",
        "least variance",
        "loss, first 5 %",
        "last 5 %",
        "AP1, %",
        "AP2, %",
    ):
        table.add_column(column, justify="left" if not column else "right")
    for name, row in rows.items():
        shares = (f"{100 * row[key]:.2f}" for key in ("accuracy_ap1", "accuracy_ap2"))
        losses = (f"{row[key]:.3f}" for key in ("loss_first", "loss_last"))
        table.add_row(
            name, str(row["steps"]), f"{row['numbers']:.2g}", f"{row['least_variance']:.2g}", *losses, *shares
        )
    console.print(table)
    console.print(
        "The paper states no such figure; its appendix D.1 keeps log-sum-exp stable by taking the maximum away."
    )


def draw(rows: dict[str, dict[str, object]], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name, row in rows.items():
        axis.semilogy([index / len(row["losses"]) for index in range(len(row["losses"]))], row["losses"], label=name)
    axis.set(xlabel="epoch", ylabel="loss of a batch")
    axis.legend()
    axis.grid(alpha=0.3)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--train", type=int, default=60_000, help="training images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, to see that it runs")
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run's results")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "from_scratch.json")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.train = 512
    console = wide_console()
    images = mnist(arguments.data, console)
    arguments.train = min(arguments.train, len(images.x_train))
    settings = {"data": images.source, "train": arguments.train, "seed": arguments.seed}
    results = Results(arguments.out, settings, ("networks",), arguments.fresh, console)
    for name in CASES:
        if name not in results["networks"]:
            started = time.perf_counter()
            row = run(name, images, arguments, console)
            results.keep("networks", name, {**row, "seconds": time.perf_counter() - started})
    show(results["networks"], console)
    draw(results["networks"], arguments.out.with_suffix(".png"))
    results.say_where(arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
