"""Variance back-propagation against sampling: error per epoch, final error, sparsity (tables 1 to 3, figure 2).

One network is trained for the same number of epochs, by Adam at a rate that falls linearly to 0, in these ways:

    plain                dropout 0.5 after each full hidden layer
    VBP                  mean-field posterior, bound and gradients without sampling (method ap2), normal or log-uniform
                         prior; through ReLU by the certified exact moments, or by the paper's identity-delta recursion
    VarOut n             variational dropout: log-uniform prior, n samples by local reparameterisation
    BBB                  Bayes by Backprop: one sample of the weights a batch, normal or mixture prior

Weights are random, biases are not, as in the paper's code.  The error on the way is that of the posterior's means.

    python examples/vi_vbp.py --data DIR                                  # MLP of 2 x 400 on MNIST
    python examples/vi_vbp.py --data DIR --network mlp-1200
    python examples/vi_vbp.py --data DIR --network conv                   # all-convolutional LeNet5
    python examples/vi_vbp.py --data DIR --network conv-32                # CIFAR-10 or SVHN in DIR, or MNIST
    python examples/vi_vbp.py --data DIR --epochs 10 --train 20000 --warm-up 8        # shorter

With fewer data or epochs than the paper's a log-uniform prior prunes all weights from the start; --warm-up lets the
divergence's weight rise from 0 to 1 over so many epochs.

A run that was interrupted goes on where it stopped, also in the middle of training (--fresh starts anew).  The paper's
text at hand has lost its numbers: what counts is the comparison within one run.
Source: Haussmann, Hamprecht & Kandemir, Sampling-Free Variational Inference of Bayesian Neural Networks by Variance
Backpropagation, section 4; Kingma et al. 2015; Molchanov et al. 2017; Blundell et al. 2015.
"""

from __future__ import annotations

import copy
import math
import shutil
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
import typer
from _common import Results, wide_console
from _data import Images, mnist
from _vi import Training, colour_images, first, scaled, share_wrong, to_device
from rich.console import Console
from rich.table import Table
from scipy.ndimage import gaussian_filter1d
from scipy.signal import find_peaks
from torch import nn

import momentgen
import momentgen.generated
from momentgen.errors import InputError
from momentgen.inference import (
    BayesianNetwork,
    Categorical,
    LogUniform,
    MeanField,
    Normal,
    NormalMixture,
    Prior,
    elbo,
    log_alpha,
    prune,
    randomise,
    sampled_outputs,
)
from momentgen.inference.pruning import FIXED_THRESHOLD

PAPER = {"epochs": 100, "train": 60_000, "warm_up": 0}
BATCH = 100
RATE = 1e-3
#: of the weights at the start: log variance -9, as in the paper's code; its normal prior has precision 10
STD, PRIOR_VAR = math.exp(-4.5), 0.1
DRAWS = 30


class Way(NamedTuple):
    """How a network is trained."""

    prior: Prior | None = None
    method: str = "ap1"
    variant: str = "exact"
    samples: int = 1


WAYS = {
    "plain": Way(),
    "VBP, normal, exact": Way(Normal(0.0, PRIOR_VAR), "ap2"),
    "VBP, normal, identity-delta": Way(Normal(0.0, PRIOR_VAR), "ap2", "identity_delta"),
    "VBP, log-uniform, exact": Way(LogUniform(), "ap2"),
    "VBP, log-uniform, identity-delta": Way(LogUniform(), "ap2", "identity_delta"),
    "VarOut 1": Way(LogUniform(), "local"),
    "BBB, normal": Way(Normal(0.0, PRIOR_VAR), "sample"),
    "BBB, mixture": Way(NormalMixture(0.5, 1.0, math.exp(-12.0)), "sample"),
    "VarOut 10": Way(LogUniform(), "local", samples=10),
    "VarOut 30": Way(LogUniform(), "local", samples=30),
}


# ---------------------------------------------------------------------- model


def mlp(inputs: int, units: int, drop: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(inputs, units), nn.ReLU(), nn.Dropout(drop)),
        *(nn.Linear(units, units), nn.ReLU(), nn.Dropout(drop)),
        nn.Linear(units, 10),
    )


def convolutional(channels: int, size: int, filters: tuple[int, int], units: int, drop: float) -> nn.Sequential:
    """LeNet5's size, with strides in place of pooling."""
    left = ((size - 3) // 2 - 3) // 2  # after two convolutions of 5 × 5 with stride 2
    return nn.Sequential(
        *(nn.Conv2d(channels, filters[0], 5, stride=2), nn.ReLU()),
        *(nn.Conv2d(filters[0], filters[1], 5, stride=2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(filters[1] * left * left, units), nn.ReLU(), nn.Dropout(drop)),
        nn.Linear(units, 10),
    )


def network_of(name: str, images: Images, drop: float) -> nn.Sequential:
    channels, size = images.x_train.shape[1:3]
    if name.startswith("mlp-"):
        return mlp(channels * size * size, int(name.removeprefix("mlp-")), drop)
    small = channels == 1
    return convolutional(channels, size, (20, 50) if small else (192, 192), 500 if small else 1000, drop)


# ------------------------------------------------------------------------ run


def prepared(name: str, way: Way, images: Images) -> nn.Module:
    """A plain network, or a Bayesian one that propagates as ``way`` says."""
    plain = network_of(name, images, 0.0 if way.prior else 0.5).to(images.x_train.device)
    if way.prior is None:
        return plain
    network = randomise(plain, MeanField(std=STD), only="*weight", prior=way.prior).set_method(way.method)
    if way.variant != "exact":
        momentgen.nn.set_variant(network.network, way.variant)
    return network


def train(
    name: str, key: str, images: Images, options: dict[str, Any], path: Path, console: Console
) -> tuple[nn.Module, Training]:
    """A network and how its training went."""
    way = WAYS[key]
    torch.manual_seed(options["seed"])
    network = prepared(name, way, images)
    steps = options["epochs"] * max(1, len(images.x_train) // BATCH)
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    likelihood = Categorical(options["expectation"])
    size = len(images.x_train)

    parts = {"network": network, "optimizer": optimizer, "schedule": schedule}
    training = Training(path, parts, {**options, "way": key}, options["seed"], console)
    rising = options["warm_up"] * max(1, size // BATCH)  # steps
    for x, y in training.batches(images, BATCH, steps, f"{name}, {key}"):
        if way.prior is None:
            loss = nn.functional.cross_entropy(network(x), y)
        else:
            weight = min(1.0, training.step / rising) if rising else 1.0
            loss = -elbo(network, likelihood, x, y, size=size, kl_weight=weight, samples=way.samples)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        training.add(loss)
        if training.step % max(1, size // BATCH) == 0:
            training.note(error=lambda: error_of_mean(network, images))
    return network, training


def error_of_mean(network: nn.Module, images: Images) -> float:
    with momentgen.method("ap1"):
        return share_wrong(network, images)


@torch.no_grad()
def predicted(network: BayesianNetwork, method: str, images: Images) -> dict[str, float]:
    """Test error and log loss of the class probabilities: propagated for VBP, else the mean over draws."""
    network.eval()
    parts = images.x_test.split(500)
    if method == "ap2":
        probabilities = [Categorical().predictive(network(part)) for part in parts]
    else:
        probabilities = [sampled_outputs(network, part, DRAWS).softmax(-1).mean(0) for part in parts]
    found, y = torch.cat(probabilities), images.y_test
    own = found.gather(1, y[:, None]).clamp_min(torch.finfo(found.dtype).tiny)
    return {"error": (found.argmax(1) != y).double().mean().item(), "log loss": -own.log().double().mean().item()}


def valley(network: BayesianNetwork, bins: int = 100) -> float:
    """The bottom of the deepest valley between two peaks of the histogram of log α, within 10 of the fixed threshold.

    The paper reads the threshold off the histogram by eye.  Dead weights, as of constant inputs, form a far peak of
    their own.  Counts are compared by their logarithm, since few weights in a hundred are needed: a valley is at least
    twice as deep as its peaks.
    """
    values = log_alpha(network).double().cpu().numpy()
    counts, edges = np.histogram(values, bins, (FIXED_THRESHOLD - 10, FIXED_THRESHOLD + 10))
    smooth = np.log1p(gaussian_filter1d(counts.astype(float), 2.0, mode="constant"))
    valleys, found = find_peaks(-smooth, prominence=0.7)
    if not len(valleys):
        raise InputError(f"valley: the histogram of log α of {counts.sum():,} weights has a single peak")
    deepest = valleys[found["prominences"].argmax()]
    return float((edges[deepest] + edges[deepest + 1]) / 2)


def pruned(network: BayesianNetwork, method: str, images: Images) -> dict[str, Any]:
    """Share of weights pruned and the errors of what remains, by both thresholds; the network stays as it is.

    ``error`` is that of the remaining means, as ``error of mean`` before pruning; ``predicted`` that of the predicted
    probabilities, as ``error`` before pruning.
    """
    row: dict[str, Any] = {}
    for name, threshold in (("fixed", lambda _: FIXED_THRESHOLD), ("histogram", valley)):
        state = copy.deepcopy(network.state_dict())
        try:
            found = prune(network, threshold(network))
            row[name] = {"threshold": found.threshold, "pruned": found.pruned, "error": error_of_mean(network, images)}
            row[name]["predicted"] = predicted(network, method, images)["error"]
        except InputError as error:  # a histogram of one peak separates nothing
            row[name] = {"none": str(error)}
        network.load_state_dict(state)
    return row


def row_of(
    name: str, key: str, images: Images, options: dict[str, Any], path: Path, console: Console
) -> dict[str, Any]:
    """All that is kept of a network."""
    network, training = train(name, key, images, options, path, console)
    row: dict[str, Any] = {
        "history": training.history,
        "error of mean": training.history["error"][-1],
        "seconds an epoch": training.seconds / options["epochs"],
    }
    if isinstance(network, BayesianNetwork):
        row.update(predicted(network, WAYS[key].method, images))
        row["pruning"] = pruned(network, WAYS[key].method, images)
    return row


# -------------------------------------------------------------------- show it


def show(name: str, rows: dict[str, dict[str, Any]], console: Console) -> None:
    table = Table(title=f"{name}: test error after training, %; what pruning leaves; seconds an epoch over plain's")
    for column in (
        "",
        "of the mean",
        "predicted",
        "log loss",
        "pruned, fixed",
        "error",
        "pruned, valley",
        "error",
        "time",
    ):
        table.add_column(column, justify="left" if not column else "right")
    for key, row in rows.items():
        cells = [f"{100 * row['error of mean']:.2f}"]
        cells += [f"{100 * row['error']:.2f}", f"{row['log loss']:.3f}"] if "error" in row else ["", ""]
        for kind in ("fixed", "histogram"):
            found = row.get("pruning", {}).get(kind, {})
            cells += [f"{found['pruned']:.1%}", f"{100 * found['error']:.2f}"] if "pruned" in found else ["", ""]
        if "plain" in rows:
            cells.append(f"{row['seconds an epoch'] / rows['plain']['seconds an epoch']:.1f}")
        table.add_row(key, *cells)
    console.print(table)


def draw(name: str, rows: dict[str, dict[str, Any]], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    for number, (key, row) in enumerate(rows.items()):
        errors = [100 * value for value in row["history"]["error"]]
        style = "--" if key.startswith("VarOut") else ":" if key.startswith("BBB") else "-"
        axis.plot(range(1, len(errors) + 1), errors, style, color=f"C{number}", label=key)
    axis.set(xlabel="epoch", ylabel="test error of the mean weights, %", yscale="log", title=name)
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=90)


def main(
    data: Annotated[Path | None, typer.Option(help="folder with mnist.npz, or with CIFAR-10 or SVHN")] = None,
    network: Annotated[str, typer.Option(help="mlp-UNITS, conv (28 × 28) or conv-32")] = "mlp-400",
    epochs: Annotated[int, typer.Option()] = PAPER["epochs"],
    train: Annotated[int, typer.Option(help="training images, from the set's start")] = PAPER["train"],
    warm_up: Annotated[
        int, typer.Option(help="epochs in which the divergence's weight rises from 0 to 1; the paper has none")
    ] = PAPER["warm_up"],
    expectation: Annotated[str, typer.Option(help="of log likelihoods: bound, quadrature, mean_predictor")] = "bound",
    only: Annotated[str, typer.Option(help="the way of this name, or those whose name contains it")] = "",
    seed: Annotated[int, typer.Option()] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    fresh: Annotated[bool, typer.Option("--fresh", help="forget an earlier run's results")] = False,
    out: Annotated[Path | None, typer.Option(help="default: results/vi_vbp_NETWORK.json")] = None,
) -> None:
    """Variance back-propagation against sampling."""
    console = wide_console()
    found = colour_images(data, console) if network == "conv-32" else mnist(data, console)
    images = to_device(first(found, train), device)
    options = {"epochs": epochs, "train": len(images.x_train), "warm_up": warm_up}
    options |= {"expectation": expectation, "seed": seed}
    of_all = {**PAPER, "train": min(len(found.x_train), PAPER["train"])}
    settings = {"network": network, "data": found.source, **options, "scaled": scaled(of_all, options)}
    out = out or Path(__file__).parent / "results" / f"vi_vbp_{network}.json"
    results = Results(out, settings, ("ways",), fresh, console)
    folder = out.with_suffix(".checkpoints")
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    for number, (key, way) in enumerate(WAYS.items()):
        if way.variant not in momentgen.generated.relu.variants:
            console.print(f"{key} is left out: this build's ReLU has no variant {way.variant!r}")
        elif key not in results["ways"] and (key == only if only in WAYS else only in key):
            path = folder / f"{number}.pt"
            results.keep("ways", key, row_of(network, key, images, options, path, console))
            path.unlink()
    rows = {key: results["ways"][key] for key in WAYS if key in results["ways"]}
    show(network, rows, console)
    draw(network, rows, out.with_suffix(".png"))
    results.say_where(out.with_suffix(".png"))


if __name__ == "__main__":
    typer.run(main)
