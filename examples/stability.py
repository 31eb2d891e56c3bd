"""How a 784-100-10 network bears noise and attacks: sigmoids, and Bernoulli units that know of noise (figures 5, D.1).

The paper trains an ordinary network, one with batch norm, and one of logistic Bernoulli units by AP2 that takes every
pixel to have noise of variance 0.1.  All are then given images with Gaussian noise, and images moved by the sign of the
loss's gradient, each network by its own.  Two more tell what does it: the ordinary network trained on images with that
noise drawn, and the ordinary network asked for its prediction by AP2.

    accuracy   share of right answers
    odds       max_y q(y) / q(y*), how much more the network believes its answer than the true one: the geometric mean
               over its wrong answers

    python examples/stability.py --data DIR        # DIR holds mnist.npz

A run that was interrupted goes on with the network where it stopped (--fresh starts anew).
Source: Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks with
Categorical and Max Layers, section 4, figures 5 and D.1.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from _common import Results, wide_console
from _data import Images, mnist
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import momentgen
from momentgen import Moments, nn
from momentgen.nn import functional

#: variance of the pixels' noise that AP2 is told of, and that the control is trained with.
NOISE = 0.1
GAUSSIAN = [round(0.1 * step, 1) for step in range(11)]
SIGN = [round(0.025 * step, 3) for step in range(9)]
PAPER = (
    "The paper's figures 5 and D.1 are plots. The caption of figure 5: “All networks have similar test accuracy in the "
    "noise-free scenario (numbers in brackets). Bernoulli model with analytic propagation shows a better stability "
    "w.r.t. random perturbations of the input. Batch normalization achieves a lower training loss than the standard NN "
    "which leads to a significant drop in the stability. When the network trained with BN makes errors under noise it "
    "does so with a very high confidence odds”. Section 4: “The same dependance is observed for gradient sign attack”."
)


@dataclass(frozen=True)
class Case:
    """A network: its units, what follows each linear layer, how it is trained and asked."""

    units: str = "sigmoid"
    norm: str = "none"
    training: str = "ap1"
    drawn: bool = False
    prediction: str = "ap1"


CASES = {
    "sigmoid": Case(),
    "sigmoid, batch norm": Case(norm="batch"),
    "Bernoulli, AP2": Case("bernoulli", "none", "ap2", prediction="ap2"),
    "Bernoulli, AP2, normalised": Case("bernoulli", "analytic", "ap2", prediction="ap2"),
    "control: sigmoid, noise drawn": Case(drawn=True),
    "control: sigmoid, asked by AP2": Case(prediction="ap2"),
}


# ---------------------------------------------------------------------- model


def network(case: Case, images: Images) -> torch.nn.Module:
    """784-100-10 (the paper's D.4): linear, norm, units, linear, norm."""
    norms = {"none": nn.Identity, "batch": nn.BatchNorm1d, "analytic": nn.Normalize}
    layers: list[torch.nn.Module] = [nn.Flatten()]
    for inputs, outputs in ((784, 100), (100, 10)):
        layers += [nn.Linear(inputs, outputs, bias=case.norm == "none"), norms[case.norm](outputs)]
        layers += [nn.Sigmoid() if case.units == "sigmoid" else nn.LogisticBernoulli()] if outputs == 100 else []
    net = nn.Sequential(*layers)
    if case.norm != "analytic":
        return net
    return nn.AnalyticNormalization(net, images.x_train.mean(), images.x_train.var() + NOISE)


def log_posterior(net: torch.nn.Module, x: Tensor, method: str) -> Tensor:
    """Logarithm of the class probabilities; AP2 takes every pixel to have the noise."""
    with momentgen.method(method):
        given = Moments(x, torch.tensor(NOISE).expand_as(x)) if method == "ap2" else x
        return functional.log_class_posterior(net(given), 1, "simplified")


# ------------------------------------------------------------------------ run


def train(name: str, case: Case, images: Images, arguments: argparse.Namespace, console: Console) -> torch.nn.Module:
    """Adam at 1e-3·0.96^epoch, batch 128."""
    torch.manual_seed(arguments.seed)
    net = network(case, images)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    rate = torch.optim.lr_scheduler.ExponentialLR(adam, 0.96)
    x, y = images.x_train[: arguments.train], images.y_train[: arguments.train]
    for _ in track(range(arguments.epochs), f"training {name}", console=console, transient=True):
        for batch in torch.randperm(len(x)).split(128):
            inputs = x[batch]
            if case.drawn:
                inputs = inputs + NOISE**0.5 * torch.randn_like(inputs)
            loss = torch.nn.functional.nll_loss(log_posterior(net, inputs, case.training), y[batch])
            adam.zero_grad()
            loss.backward()
            adam.step()
        rate.step()
    if isinstance(net, nn.AnalyticNormalization):
        net.refresh()
    return net.eval()


def measure(net: torch.nn.Module, method: str, images: Images) -> dict[str, object]:
    """Accuracy and odds of the network under noise and under attack."""
    x, y = images.x_test, images.y_test
    with torch.no_grad():
        log_q = log_posterior(net, images.x_train[:10_000], method)
        row: dict[str, object] = {
            "training_loss": torch.nn.functional.nll_loss(log_q, images.y_train[:10_000]).item(),
            "accuracy": judged(log_posterior(net, x, method), y)[0],
        }
        draw = torch.Generator().manual_seed(0)
        noise = torch.randn(x.shape, generator=draw)
        row["gaussian"] = [judged(log_posterior(net, x + std * noise, method), y) for std in GAUSSIAN]
    attacked = x.clone().requires_grad_()
    (direction,) = torch.autograd.grad(torch.nn.functional.nll_loss(log_posterior(net, attacked, method), y), attacked)
    with torch.no_grad():
        row["sign"] = [judged(log_posterior(net, x + size * direction.sign(), method), y) for size in SIGN]
    return row


def judged(log_q: Tensor, y: Tensor) -> tuple[float, float]:
    """Accuracy, and the geometric mean of the odds over wrong answers (1 if there are none)."""
    best, answer = log_q.max(1)
    wrong = answer != y
    odds = (best - log_q.gather(1, y[:, None])[:, 0])[wrong].double()
    return 1 - wrong.double().mean().item(), odds.mean().exp().item() if len(odds) else 1.0


# ------------------------------------------------------------- table, picture


def show(rows: dict[str, dict[str, object]], console: Console) -> None:
    console.print(PAPER, soft_wrap=True, highlight=False)
    for kind, levels, shown, what in (
        ("gaussian", GAUSSIAN, (0.2, 0.4, 0.6, 0.8, 1.0), "Gaussian noise of standard deviation"),
        ("sign", SIGN, (0.05, 0.1, 0.15, 0.2), "a gradient-sign attack of size"),
    ):
        table = Table(title=f"Accuracy, % (odds of wrong answers) under {what} …")
        for column in ("", "training loss", "0", *map(str, shown)):
            table.add_column(column, justify="left" if not column else "right")
        for name, row in rows.items():
            cells = [row[kind][levels.index(level)] for level in (0.0, *shown)]
            table.add_row(name, f"{row['training_loss']:.3f}", *(f"{100 * a:.1f} ({o:.2g})" for a, o in cells))
        console.print(table)


def draw(rows: dict[str, dict[str, object]], path: Path) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(12, 8), layout="constrained")
    for (kind, levels, label), (left, right) in zip(
        (("gaussian", GAUSSIAN, "standard deviation of the noise"), ("sign", SIGN, "size of the gradient-sign attack")),
        axes,
        strict=True,
    ):
        for index, (name, row) in enumerate(rows.items()):
            style = {"color": f"C{index}", "linestyle": "--" if name.startswith("control") else "-"}
            left.plot(levels, [100 * a for a, _ in row[kind]], label=f"{name} ({row['accuracy']:.3f})", **style)
            right.semilogy(levels, [odds for _, odds in row[kind]], **style)
        left.set(xlabel=label, ylabel="test accuracy, %")
        right.set(xlabel=label, ylabel="odds of wrong answers")
        left.grid(alpha=0.3)
        right.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--train", type=int, default=60_000, help="training images")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, to see that it runs")
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run's results")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "stability.json")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.train, arguments.epochs = 1000, 1
    console = wide_console()
    images = mnist(arguments.data, console)
    if arguments.quick:
        images.x_test, images.y_test = images.x_test[:1000], images.y_test[:1000]
    settings = {
        "data": images.source,
        **{name: getattr(arguments, name) for name in ("train", "epochs", "seed", "quick")},
    }
    results = Results(arguments.out, settings, ("networks",), arguments.fresh, console)
    trained: dict[Case, torch.nn.Module] = {}
    for name, case in CASES.items():
        if name in results["networks"]:
            continue
        started = time.perf_counter()
        as_trained = replace(case, prediction="")  # the same network, asked in another way
        if as_trained not in trained:
            trained[as_trained] = train(name, case, images, arguments, console)
        row = measure(trained[as_trained], case.prediction, images)
        results.keep("networks", name, {**row, "seconds": time.perf_counter() - started})
    show(results["networks"], console)
    draw(results["networks"], arguments.out.with_suffix(".png"))
    results.say_where(arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
