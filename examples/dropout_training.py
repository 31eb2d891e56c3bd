"""Training with dropout taken analytically, against dropout that is sampled and none (figure 4 of the paper).

LeNet with dropout after every activation is trained on few images, where overfitting shows:

    plain                  no dropout
    dropout p              noise drawn in training, validated without it (AP1), the usual way
    analytic p             noise propagated (AP2), in training and in validation
    analytic p, normalised  the same with the paper's analytic normalisation
    dropout p, normalised   noise drawn in a normalised network: a control that the paper does not have

All but the normalised start from one point, rescaled by batch statistics.  They learn by Adam at 1e-3·0.96^epoch,
batch 128.
The paper trains its 9-layer network on CIFAR-10; this is LeNet on MNIST, sized for one core.

    python examples/dropout_training.py --data DIR        # DIR holds mnist.npz

A run that was interrupted goes on with the network where it stopped (--fresh starts anew).
Source: Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks with
Categorical and Max Layers, section 4 and figure 4.
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
from _common import Results, flat, initialise_by_batch, wide_console
from _data import Images, mnist
from rich.console import Console
from rich.progress import track
from rich.table import Table

import momentgen
from momentgen import nn
from momentgen.nn import functional

#: name -> share of units dropped, method in training, method in validation, whether normalised.
RUNS = {
    "plain": (0.0, "ap1", "ap1", False),
    "dropout 0.2": (0.2, "sample", "ap1", False),
    "dropout 0.3": (0.3, "sample", "ap1", False),
    "dropout 0.2, normalised": (0.2, "sample", "ap1", True),
    "dropout 0.3, normalised": (0.3, "sample", "ap1", True),
    "analytic 0.2": (0.2, "ap2", "ap2", False),
    "analytic 0.3": (0.3, "ap2", "ap2", False),
    "analytic 0.2, normalised": (0.2, "ap2", "ap2", True),
    "analytic 0.3, normalised": (0.3, "ap2", "ap2", True),
}
PAPER = (
    "The paper's figure 4 is a plot (CIFAR-10, nine layers). Its caption: “dropout (green) fails to improve the "
    "validation accuracy compared to standard training (red) for higher drop probability within the training schedule. "
    "The proposed analytic dropout clearly improves the validation accuracy without a noticeable slow down.”"
)


# ---------------------------------------------------------------------- model


def lenet(drop: float, normalised: bool) -> nn.Sequential:
    """The paper's LeNet (D.4), leaky ReLU, dropout after every activation."""
    layers: list[torch.nn.Module] = []
    for inputs, outputs, kernel, stride in [(1, 32, 5, 2), (32, 64, 5, 2), (64, 50, 4, 1)]:
        layers.append(nn.Conv2d(inputs, outputs, kernel, stride, bias=not normalised))
        layers += [nn.Normalize(outputs)] if normalised else []
        layers += [nn.LeakyReLU(), nn.Dropout(drop)]
    layers.append(nn.Conv2d(50, 10, 1, bias=not normalised))
    layers += [nn.Normalize(10)] if normalised else []
    return nn.Sequential(*layers)


# ------------------------------------------------------------------------ run


def run(name: str, seed: int, images: Images, arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    """Train one network; its validation accuracy and loss on the way, and milliseconds a training step."""
    drop, training, validation, normalised = RUNS[name]
    torch.manual_seed(seed)
    net = lenet(drop, normalised)
    x, y = images.x_train[: arguments.train], images.y_train[: arguments.train]
    model: torch.nn.Module = net
    if normalised:
        model = nn.AnalyticNormalization(net, x.mean(), x.var())
    else:
        initialise_by_batch(net, x)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    rate = torch.optim.lr_scheduler.ExponentialLR(adam, 0.96)
    row: dict[str, list[float]] = {"epoch": [], "accuracy": [], "loss": [], "training_loss": []}
    spent, steps = 0.0, 0
    for epoch in track(range(1, arguments.epochs + 1), f"{name}, seed {seed}", console=console, transient=True):
        started, total = time.perf_counter(), 0.0
        model.train()
        for batch in torch.randperm(len(x)).split(128):
            with momentgen.method(training):
                loss = functional.nll_loss(flat(model(x[batch])), y[batch])
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += loss.item() * len(batch)
            steps += 1
        rate.step()
        spent += time.perf_counter() - started
        if epoch % arguments.every == 0 or epoch == arguments.epochs:
            accuracy, loss = validate(model, validation, images, arguments)
            for key, value in zip(row, (epoch, accuracy, loss, total / len(x)), strict=True):
                row[key].append(value)
    return {**row, "ms_a_step": 1e3 * spent / steps}


@torch.no_grad()
def validate(model: torch.nn.Module, method: str, images: Images, arguments: argparse.Namespace) -> tuple[float, float]:
    """Accuracy and loss on images of the training set's end; under AP2 with dropout's noise, which it propagates."""
    if isinstance(model, nn.AnalyticNormalization):
        model.refresh()
    model.train(method == "ap2")
    x, y = images.x_train[-arguments.validation :], images.y_train[-arguments.validation :]
    network = getattr(model, "network", model)
    with momentgen.method(method):
        parts = [functional.log_class_posterior(flat(network(part)), 1, "simplified") for part in x.split(500)]
    log_q = torch.cat(parts)
    return (log_q.argmax(1) == y).double().mean().item(), torch.nn.functional.nll_loss(log_q, y).item()


# ------------------------------------------------------------- table, picture


def last(row: dict[str, list[float]], key: str) -> float:
    """The average over the last fifth of the validations."""
    return statistics.fmean(row[key][-max(1, len(row[key]) // 5) :])


def show(rows: dict[str, dict[str, dict[str, list[float]]]], console: Console) -> None:
    console.print(PAPER, soft_wrap=True, highlight=False)
    table = Table(title="Validation after training; ± is a standard error over seeds, of the difference in pairs")
    for column in ("", "accuracy, %", "above plain", "loss", "training loss", "ms a step"):
        table.add_column(column, justify="left" if not column else "right")
    plain = [last(row, "accuracy") for row in rows["plain"].values()]
    for name, seeds in rows.items():
        accuracy = [100 * last(row, "accuracy") for row in seeds.values()]
        gain = [a - 100 * p for a, p in zip(accuracy, plain, strict=True)]
        above = f"{statistics.fmean(gain):+.2f}" + (f" ± {error(gain):.2f}" if len(gain) > 1 else "")
        table.add_row(
            name,
            f"{statistics.fmean(accuracy):.2f}",
            "" if name == "plain" else above,
            *(f"{statistics.fmean(last(row, key) for row in seeds.values()):.3f}" for key in ("loss", "training_loss")),
            f"{statistics.fmean(row['ms_a_step'] for row in seeds.values()):.1f}",
        )
    console.print(table)


def error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def draw(rows: dict[str, dict[str, dict[str, list[float]]]], path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    for axis, drop in zip(axes, ("0.2", "0.3"), strict=True):
        shown = (
            "plain",
            f"dropout {drop}",
            f"analytic {drop}",
            f"analytic {drop}, normalised",
            f"dropout {drop}, normalised",
        )
        for name, color in zip(shown, ("C3", "C2", "C0", "C1", "C4"), strict=True):
            curves = [running(row["accuracy"]) for row in rows[name].values()]
            mean = [100 * statistics.fmean(values) for values in zip(*curves, strict=True)]
            axis.plot(next(iter(rows[name].values()))["epoch"], mean, color=color, label=name)
        axis.set(xlabel="epoch", title=f"drop probability {drop}")
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right")
    axes[0].set_ylabel("validation accuracy, %, running average")
    top = 100 * max(max(row["accuracy"]) for seeds in rows.values() for row in seeds.values())
    axes[0].set_ylim(top - 6, top + 0.3)
    figure.savefig(path, dpi=90)


def running(values: list[float], weight: float = 0.6) -> list[float]:
    """An average that forgets by ``weight`` a step."""
    averages, total, mass = [], 0.0, 0.0
    for value in values:
        total, mass = weight * total + value, weight * mass + 1
        averages.append(total / mass)
    return averages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--train", type=int, default=1000, help="training images, from the set's start")
    parser.add_argument("--validation", type=int, default=3000, help="validation images, from the training set's end")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--every", type=int, default=2, help="epochs from one validation to the next")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, to see that it runs")
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run's results")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "dropout_training.json")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.train, arguments.validation, arguments.epochs, arguments.every, arguments.seeds = 256, 200, 2, 1, 1
    console = wide_console()
    images = mnist(arguments.data, console)
    if len(images.x_train) < arguments.train + arguments.validation:
        arguments.validation = len(images.x_train) // 4
        arguments.train = min(arguments.train, len(images.x_train) - arguments.validation)
    wanted = ("train", "validation", "epochs", "every", "seeds")
    settings = {"data": images.source, **{name: getattr(arguments, name) for name in wanted}}
    results = Results(arguments.out, settings, ("networks",), arguments.fresh, console)
    for seed in range(arguments.seeds):
        for name in RUNS:
            if f"{name} | {seed}" not in results["networks"]:
                results.keep("networks", f"{name} | {seed}", run(name, seed, images, arguments, console))
    rows = {
        name: {key: row for key, row in results["networks"].items() if key.split(" | ")[0] == name} for name in RUNS
    }
    show(rows, console)
    draw(rows, arguments.out.with_suffix(".png"))
    results.say_where(arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
