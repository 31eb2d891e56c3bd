"""LeNet on MNIST: how near analytic propagation comes to Monte Carlo, layer by layer (tables 2 and 4 of the paper).

Table 2. Four networks are trained (leaky ReLU; leaky ReLU with dropout; logistic Bernoulli units; logistic
transform), each plain and with the paper's analytic normalisation, and asked for means and standard deviations:

    AP1           means only, the ordinary network
    AP2, fitted   means and variances, by the paper's approximations
    AP2, exact    means and variances, by the certified ops
    Monte Carlo   the truth, mu* and sigma*

    eps_mu    = mean |mu - mu*| / mean sigma*        0 is perfect
    eps_sigma = geometric mean of sigma / sigma*     1 is perfect

Table 4. Statistics of the data set a channel, one pixel's mean and variance propagated, against measured ones, for
networks initialised three ways.

    python examples/lenet_mnist.py --data DIR        # DIR holds mnist.npz

Results are written after every case; a run that was interrupted goes on where it stopped (--fresh starts anew).
Source: Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks with
Categorical and Max Layers, tables 2 and 4, appendix D.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from _common import Results, flat, initialise_by_batch, wide_console
from _data import Images, mnist
from _tables import ACTIVATIONS, compare, eps_mu, eps_sigma, show_case, training_method
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import momentgen
from momentgen import Moments, nn
from momentgen.nn import functional

COLUMNS = ("A1", "C2", "A2", "C3", "A3", "F")
#: case -> network, variance of the pixels' noise, the paper's rows: eps_mu AP1, eps_mu AP2, eps_sigma AP2, KLs.
CASES: dict[str, tuple[str, float, dict[str, list[float]]]] = {
    "LReLU, noise 1e-4": ("lrelu", 1e-4, {
        "eps_mu_ap1": [0.02, 0.04, 0.04, 0.06, 0.05, 0.08],
        "eps_mu_ap2": [0.02, 0.02, 0.02, 0.03, 0.02, 0.03],
        "eps_sigma_ap2": [1.01, 0.88, 0.87, 0.64, 0.63, 0.63],
        "kl": [1.4e-6, 4.5e-7, 3.8e-7],
    }),
    "LReLU, noise 0.01": ("lrelu", 0.01, {
        "eps_mu_ap1": [0.14, 0.29, 0.24, 0.60, 0.45, 0.67],
        "eps_mu_ap2": [0.02, 0.03, 0.03, 0.05, 0.05, 0.08],
        "eps_sigma_ap2": [1.07, 0.91, 0.91, 0.68, 0.58, 0.69],
        "kl": [0.03, 0.003, 0.002],
    }),
    "LReLU, noise 0.1": ("lrelu", 0.1, {
        "eps_mu_ap1": [0.31, 0.74, 0.51, 1.47, 1.11, 1.60],
        "eps_mu_ap2": [0.03, 0.04, 0.05, 0.06, 0.07, 0.10],
        "eps_sigma_ap2": [1.12, 0.99, 1.09, 0.75, 0.65, 0.79],
        "kl": [5.09, 0.07, 0.03],
    }),
    "LReLU, dropout 0.2": ("dropout", 0.0, {
        "eps_mu_ap1": [0.01, 0.02, 0.04, 0.17, 0.06, 0.10],
        "eps_mu_ap2": [0.01, 0.02, 0.01, 0.03, 0.02, 0.03],
        "eps_sigma_ap2": [1.00, 1.00, 1.01, 0.95, 0.98, 0.95],
        "kl": [0.02, 9.5e-3, 2.9e-3],
    }),
    "Logistic Bernoulli": ("bernoulli", 0.0, {
        "eps_mu_ap1": [0.02, 0.02, 0.13, 0.20, 0.20, 0.17],
        "eps_mu_ap2": [0.02, 0.02, 0.03, 0.04, 0.08, 0.07],
        "eps_sigma_ap2": [1.09, 1.00, 1.00, 0.69, 0.95, 0.93],
        "kl": [6.0, 0.06, 1.2e-2],
    }),
    "Logistic transform, noise 0.1": ("transform", 0.1, {
        "eps_mu_ap1": [0.06, 0.17, 0.17, 0.40, 0.38, 0.53],
        "eps_mu_ap2": [0.03, 0.05, 0.05, 0.12, 0.12, 0.17],
        "eps_sigma_ap2": [1.00, 1.10, 1.09, 0.72, 0.72, 0.90],
        "kl": [0.01, 2.6e-3, 1.4e-2],
    }),
}  # fmt: skip
#: activation, initialisation -> the paper's table 4: errors of mean, ratio of standard deviations, C A C A C A F.
TABLE4 = {
    ("lrelu", "none"): ([0.10, 0.27, 0.23, 0.22, 0.39, 0.33, 0.41], [0.89, 1.32, 0.85, 1.01, 0.92, 1.03, 0.93]),
    ("lrelu", "BN"): ([0.10, 0.49, 0.13, 0.36, 0.29, 0.52, 0.49], [0.89, 1.20, 1.04, 1.22, 1.28, 1.47, 1.49]),
    ("lrelu", "AP2"): ([0.10, 0.20, 0.26, 0.25, 0.38, 0.37, 0.38], [0.89, 1.23, 0.92, 1.17, 1.08, 1.37, 1.21]),
    ("transform", "none"): ([0.10, 0.09, 0.24, 0.24, 0.36, 0.36, 0.27], [0.89, 0.91, 0.76, 0.76, 0.76, 0.77, 0.75]),
    ("transform", "BN"): ([0.10, 0.04, 0.20, 0.19, 0.34, 0.34, 0.25], [0.93, 1.06, 1.02, 1.10, 1.15, 1.16, 1.16]),
    ("transform", "AP2"): ([0.10, 0.04, 0.17, 0.15, 0.37, 0.37, 0.28], [0.89, 1.15, 1.02, 1.13, 1.16, 1.22, 1.21]),
}


def lenet(kind: str, normalised: bool) -> nn.Sequential:
    """The paper's LeNet (D.4) without its last LogSoftmax; names are those of the tables' columns."""
    net = nn.Sequential()
    sizes = [(1, 32, 5, 2), (32, 64, 5, 2), (64, 50, 4, 1), (50, 10, 1, 1)]
    for index, (inputs, outputs, kernel, stride) in enumerate(sizes):
        label = f"C{index + 1}" if index < 3 else "F"
        conv = nn.Conv2d(inputs, outputs, kernel, stride, bias=not normalised)
        if normalised:
            net.add_module(f"{label}_conv", conv)
            net.add_module(label, nn.Normalize(outputs))
        else:
            net.add_module(label, conv)
        if index < 3:
            if kind == "dropout":
                net.add_module(f"A{index + 1}_function", ACTIVATIONS[kind]())
                net.add_module(f"A{index + 1}", nn.Dropout(0.2))
            else:
                net.add_module(f"A{index + 1}", ACTIVATIONS[kind]())
    return net


def train(kind: str, normalised: bool, images: Images, arguments: argparse.Namespace, console: Console) -> nn.Module:
    """Train by Adam, batch 128, rate 1e-3·0.96^epoch; stochastic units by AP2, with the paper's loss.

    The plain network starts from the point that analytic normalisation gives it, and is not normalised in training.
    """
    torch.manual_seed(arguments.seed)
    net = lenet(kind, normalised)
    model: torch.nn.Module = net
    mean, var = images.x_train.mean().view(1), images.x_train.var().view(1)
    if normalised:
        model = nn.AnalyticNormalization(net, mean, var)
    else:
        nn.initialise_analytically(net, mean, var)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    rate = torch.optim.lr_scheduler.ExponentialLR(adam, 0.96)
    method = training_method(kind)
    x, y = images.x_train[: arguments.train], images.y_train[: arguments.train]
    batches = [b for _ in range(arguments.epochs) for b in torch.randperm(len(x)).split(128)]
    label = f"training {kind}{', normalised' if normalised else ''}"
    for step, batch in enumerate(track(batches, label, console=console, transient=True)):
        with momentgen.method(method):
            loss = functional.nll_loss(flat(model(x[batch])), y[batch])
        adam.zero_grad()
        loss.backward()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"{label}: the loss is {loss.item()} at step {step}")
        adam.step()
        if (step + 1) % (len(batches) // arguments.epochs) == 0:
            rate.step()
    if normalised:
        model.refresh()
    return net


def table2(case: str, net: nn.Sequential, images: Images, arguments: argparse.Namespace) -> dict[str, object]:
    """Errors of the three propagations against Monte Carlo."""
    kind, noise, _ = CASES[case]
    net.train(kind == "dropout")
    x = images.x_test[: arguments.inputs]
    given = Moments(x, torch.tensor(noise).expand_as(x)) if noise else x
    row = compare(net, kind, given, COLUMNS, arguments.samples)
    with torch.no_grad(), momentgen.method("ap1"):
        right = net.eval()(images.x_test).mean.flatten(1).argmax(1) == images.y_test
    row["accuracy"] = right.double().mean().item()
    return row


def initialised(kind: str, how: str, x: Tensor) -> nn.Sequential:
    """A fresh network, as torch initialises it, or rescaled by batch or by analytic statistics."""
    torch.manual_seed(0)
    net = lenet(kind, False)
    if how == "AP2":
        nn.initialise_analytically(net, x.mean().view(1), x.var().view(1))
    if how == "BN":
        initialise_by_batch(net, x)
    return net


def table4(kind: str, how: str, images: Images, arguments: argparse.Namespace) -> dict[str, object]:
    """Statistics a channel over the data set: propagated against measured."""
    x = images.x_train[: arguments.statistics]
    net = initialised(kind, how, x)
    found, measured = Moments(x.mean().view(1), x.var().view(1)), x
    row: dict[str, list[float]] = {"mu": [], "sigma": []}
    with torch.no_grad():
        for part in net:
            found = nn.propagate_statistics(part, *found)
            with momentgen.method("ap1"):
                measured = part(measured).mean
            var, mean = torch.var_mean(measured.double(), (0, 2, 3))
            row["mu"].append(eps_mu(found.mean, Moments(mean, var)))
            row["sigma"].append(eps_sigma(found.var, Moments(mean, var)))
    return dict(row)


def show(results: Results, console: Console) -> None:
    for case, (_, _, paper) in CASES.items():
        found = {net: results["table2"].get(f"{case} | {net}") for net in ("plain", "normalised")}
        show_case(case, COLUMNS, paper, {net: row for net, row in found.items() if row}, console)
    table = Table(title="Table 4: statistics of the data set")
    for column in ("activation, initialisation", "", *["C", "A", "C", "A", "C", "A", "F"]):
        table.add_column(column, justify="left" if not column or len(column) > 1 else "right")
    for (kind, how), paper in TABLE4.items():
        row = results["table4"].get(f"{kind} | {how}")
        for key, values in zip(("mu", "sigma"), paper, strict=True):
            table.add_row(f"{kind}, {how}", f"paper {key}", *(f"{v:.2f}" for v in values), style="dim")
            if row:
                table.add_row(f"{kind}, {how}", key, *(f"{v:.2f}" for v in row[key]))
        table.add_section()
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--samples", type=int, default=4000, help="Monte Carlo samples an image")
    parser.add_argument("--inputs", type=int, default=5, help="test images to propagate")
    parser.add_argument("--train", type=int, default=60_000, help="training images to use")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--statistics", type=int, default=2000, help="images whose statistics are measured, table 4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run's results")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "lenet_mnist.json")
    arguments = parser.parse_args()
    console = wide_console()
    images = mnist(arguments.data, console)
    wanted = ("samples", "inputs", "train", "epochs", "statistics", "seed")
    settings = {"data": images.source, **{name: getattr(arguments, name) for name in wanted}}
    results = Results(arguments.out, settings, ("table2", "table4"), arguments.fresh, console)
    for kind, how in TABLE4:
        if f"{kind} | {how}" not in results["table4"]:
            results.keep("table4", f"{kind} | {how}", table4(kind, how, images, arguments))
    trained: dict[tuple[str, bool], nn.Sequential] = {}
    for case, (kind, _, _) in CASES.items():
        for normalised in (False, True):
            key = f"{case} | {'normalised' if normalised else 'plain'}"
            if key in results["table2"] or (arguments.only and arguments.only not in key):
                continue
            started = time.perf_counter()
            if (kind, normalised) not in trained:
                trained[kind, normalised] = train(kind, normalised, images, arguments, console)
            row = table2(case, trained[kind, normalised], images, arguments)
            results.keep("table2", key, {**row, "seconds": time.perf_counter() - started})
    show(results, console)
    results.say_where()


if __name__ == "__main__":
    main()
