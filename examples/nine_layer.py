"""How near analytic propagation comes to Monte Carlo in the paper's nine-layer network (table 3 of the paper).

The paper trains it on CIFAR-10.  This script has no CIFAR: its images are digits enlarged to 32 × 32, of one channel;
it takes the network at half the paper's width (--width 1 for all of it), before training and after one pass over 10,240
images.  Depth, kernels, strides and normalisation are the paper's, so the columns compare; the weights do not.

    AP1           means only, the ordinary network
    AP2, fitted   means and variances, by the paper's approximations
    AP2, exact    means and variances, by the certified ops
    Monte Carlo   the truth, mu* and sigma*

    eps_mu    = mean |mu - mu*| / mean sigma*        0 is perfect
    eps_sigma = geometric mean of sigma / sigma*     1 is perfect

    python examples/nine_layer.py --data DIR        # DIR holds mnist.npz

A run that was interrupted goes on with the case where it stopped (--fresh starts anew).
Source: Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks with
Categorical and Max Layers, table 3, appendix D.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import OrderedDict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from _common import Results, flat, wide_console
from _data import Images, mnist
from _tables import ACTIVATIONS, compare, show_case, training_method
from rich.console import Console
from rich.progress import track
from torch import Tensor

import momentgen
from momentgen import Moments, nn
from momentgen.nn import functional

#: kernel, stride and depth of each convolution (D.4).
SIZES = [
    (3, 1, 96),
    (3, 1, 96),
    (3, 2, 96),
    (3, 1, 192),
    (3, 1, 192),
    (3, 2, 192),
    (3, 1, 192),
    (1, 1, 192),
    (1, 1, 10),
]
COLUMNS = (*[f"{letter}{index}" for index in range(1, 9) for letter in "CA"], "C9", "P")


def printed(mu_ap1: str, mu_ap2: str, sigma_ap2: str, divergences: str) -> dict[str, list[float | None]]:
    """Rows of the paper's table as they stand there: eps_mu of AP1 and AP2, eps_sigma of AP2, the three KLs."""
    rows = {"eps_mu_ap1": mu_ap1, "eps_mu_ap2": mu_ap2, "eps_sigma_ap2": sigma_ap2, "kl": divergences}
    return {name: [None if word == "-" else float(word) for word in row.split()] for name, row in rows.items()}


#: case -> network, variance of the pixels' noise, the paper's rows.
CASES: dict[str, tuple[str, float, dict[str, list[float | None]]]] = {
    "LReLU, noise 0.01": ("lrelu", 0.01, printed(
        "0.02 0.24 0.39 0.37 0.76 0.63 1.13 0.85 1.59 1.10 1.93 1.32 2.65 1.86 2.76 1.93 1.99 2.59",
        "0.02 0.02 0.03 0.19 0.49 0.36 0.55 0.42 0.73 0.55 0.96 0.68 1.26 0.97 1.27 1.01 1.14 1.43",
        "1.00 1.11 0.59 0.40 0.37 0.28 0.35 0.19 0.26 0.10 0.17 0.05 0.11 0.05 0.08 0.04 0.07 0.07",
        "4.42 1.71 1.71",
    )),
    "LReLU, dropout 0.2": ("dropout", 0.0, printed(
        "- 0.01 0.02 0.04 0.12 0.07 0.13 0.09 0.17 0.11 0.21 0.14 0.26 0.14 0.27 0.16 0.23 0.32",
        "- 0.01 0.02 0.01 0.02 0.02 0.03 0.02 0.04 0.03 0.05 0.04 0.08 0.05 0.08 0.07 0.10 0.15",
        "- 1.00 1.00 1.02 0.93 0.95 0.90 0.92 0.81 0.79 0.73 0.69 0.71 0.69 0.71 0.65 0.56 0.69",
        "0.05 0.02 0.02",
    )),
    "Logistic Bernoulli": ("bernoulli", 0.0, printed(
        "- 0.02 0.02 0.04 0.12 0.10 0.18 0.15 0.29 0.21 0.37 0.25 0.48 0.31 0.44 0.33 0.27 0.47",
        "- 0.02 0.02 0.03 0.04 0.04 0.05 0.06 0.12 0.10 0.20 0.14 0.30 0.19 0.28 0.19 0.14 0.25",
        "- 1.12 1.00 1.02 0.92 0.99 0.78 0.97 0.59 0.95 0.56 0.94 0.61 0.94 0.73 0.96 0.74 0.99",
        "3.46 0.21 0.1",
    )),
    "Logistic transform, noise 0.01": ("transform", 0.01, printed(
        "0.02 0.17 0.17 0.28 0.49 0.53 0.98 0.96 1.47 1.39 1.62 1.52 2.13 2.06 2.36 2.31 1.86 2.55",
        "0.02 0.03 0.03 0.16 0.40 0.43 0.82 0.81 1.26 1.21 1.39 1.32 1.88 1.84 2.05 2.03 1.60 2.20",
        "1.00 1.01 0.40 0.41 0.28 0.29 0.23 0.23 0.12 0.11 0.05 0.05 0.02 0.02 0.01 0.01 0.01 0.01",
        "3.46 2.68 2.68",
    )),
}  # fmt: skip


# ----------------------------------------------------------------------- data


def enlarged(images: Images) -> Images:
    """The digits, enlarged to 32 × 32."""

    def at_32(x: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(x, size=(32, 32), mode="bilinear")

    source = f"{images.source}, enlarged to 32×32"
    return Images(source, at_32(images.x_train), images.y_train, at_32(images.x_test), images.y_test)


# ---------------------------------------------------------------------- model


def nine_layers(kind: str, width: float) -> nn.Sequential:
    """The paper's nine layers, each with its normalisation; names are those of the table's columns."""
    net, inputs = nn.Sequential(), 1
    for index, (kernel, stride, depth) in enumerate(SIZES, start=1):
        outputs = depth if index == len(SIZES) else round(depth * width)
        net.add_module(f"C{index}_conv", nn.Conv2d(inputs, outputs, kernel, stride, bias=False))
        net.add_module(f"C{index}", nn.Normalize(outputs))
        if index < len(SIZES):
            dropout = kind == "dropout"
            net.add_module(f"A{index}_function" if dropout else f"A{index}", ACTIVATIONS[kind]())
            if dropout:
                net.add_module(f"A{index}", nn.Dropout(0.2))
        inputs = outputs
    return net


# ------------------------------------------------------------------------ run


def trained(kind: str, images: Images, arguments: argparse.Namespace, console: Console) -> dict[str, nn.Sequential]:
    """The network before training and after one pass: Adam at 1e-3, batch 128, stochastic units by AP2."""
    torch.manual_seed(arguments.seed)
    features, pool = nine_layers(kind, arguments.width), nn.AdaptiveAvgPool2d(1)
    model = nn.AnalyticNormalization(features, images.x_train.mean(), images.x_train.var())
    before = with_pool(copy.deepcopy(features), pool)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.randperm(len(images.x_train))[: arguments.train].split(128)
    for batch in track(order, f"training {kind}", console=console, transient=True):
        with momentgen.method(training_method(kind)):
            loss = functional.nll_loss(flat(pool(model(images.x_train[batch]))), images.y_train[batch])
        adam.zero_grad()
        loss.backward()
        adam.step()
    model.refresh()
    return {"untrained": before, "trained": with_pool(features, pool)}


def with_pool(features: nn.Sequential, pool: nn.Module) -> nn.Sequential:
    net = nn.Sequential(OrderedDict(features.named_children()))
    net.add_module("P", pool)
    return net


def table3(case: str, net: nn.Sequential, images: Images, arguments: argparse.Namespace) -> dict[str, object]:
    """Errors of the propagations against Monte Carlo; dropout's noise counts."""
    kind, noise, _ = CASES[case]
    x = images.x_test[: arguments.inputs]
    given = Moments(x, torch.tensor(noise).expand_as(x)) if noise else x
    row = compare(net.train(kind == "dropout"), kind, given, COLUMNS, arguments.samples, rows=256)
    return {**row, "accuracy": accuracy(net.eval(), images)}


@torch.no_grad()
def accuracy(net: nn.Sequential, images: Images) -> float:
    x, y = images.x_test[:1000], images.y_test[:1000]
    with momentgen.method("ap1"):
        right = torch.cat([flat(net(part)).mean.argmax(1) for part in x.split(250)]) == y
    return right.double().mean().item()


# ------------------------------------------------------------- table, picture


def draw(results: Results, path: Path) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(12, 7), sharex=True, layout="constrained")
    for axis, (case, (_, _, paper)) in zip(axes.flat, CASES.items(), strict=True):
        axis.plot(COLUMNS, gaps(paper["eps_sigma_ap2"]), "k--", label="the paper, trained on CIFAR-10, fitted")
        for index, state in enumerate(("untrained", "trained")):
            row = results["table3"][f"{case} | {state}"]
            for label, style in (("exact", "-"), ("fitted", ":")):
                axis.plot(COLUMNS, gaps(row[f"eps_sigma_{label}"]), style, color=f"C{index}", label=f"{state}, {label}")
        axis.axhline(1, color="gray", linewidth=0.8)
        axis.set(title=case, ylabel="ε_σ")
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=90)


def gaps(values: list[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--width", type=float, default=0.5, help="times the paper's depths of 96 and 192")
    parser.add_argument("--train", type=int, default=10_240, help="training images, seen once")
    parser.add_argument("--samples", type=int, default=2000, help="Monte Carlo samples an image")
    parser.add_argument("--inputs", type=int, default=5, help="test images to propagate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, to see that it runs")
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run's results")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "nine_layer.json")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.width, arguments.train, arguments.samples, arguments.inputs = 0.1, 128, 20, 2
    console = wide_console()
    images = enlarged(mnist(arguments.data, console))
    wanted = ("width", "train", "samples", "inputs", "seed")
    settings = {"data": images.source, **{name: getattr(arguments, name) for name in wanted}}
    results = Results(arguments.out, settings, ("table3",), arguments.fresh, console)
    for case, (kind, _, _) in CASES.items():
        if f"{case} | trained" not in results["table3"]:
            started = time.perf_counter()
            for state, net in trained(kind, images, arguments, console).items():
                row = table3(case, net, images, arguments)
                results.keep("table3", f"{case} | {state}", {**row, "seconds": time.perf_counter() - started})
    for case, (_, _, paper) in CASES.items():
        rows = {state: results["table3"][f"{case} | {state}"] for state in ("untrained", "trained")}
        shares = ", ".join(f"{state} {row['accuracy']:.3f}" for state, row in rows.items())
        console.print(f"{case}: share of right answers, {shares}", highlight=False)
        show_case(case, COLUMNS, paper, rows, console)
    draw(results, arguments.out.with_suffix(".png"))
    results.say_where(arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
