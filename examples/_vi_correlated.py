"""What both examples of correlated parameters have: training, and what they show.

They show learnt tau and rho, certain and uncertain predictions, and pictures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from _data import Images
from _vi import Training, share_wrong
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from momentgen.inference import (
    BayesianNetwork,
    Categorical,
    Prediction,
    Tridiagonal,
    credible_prediction,
    elbo,
    sampled_outputs,
)

__all__ = ["draw", "fit", "row_of", "show"]

KINDS = ("right certain", "right uncertain", "wrong certain", "wrong uncertain")
#: at most so many images that were certainly wrong are kept for the picture
WRONG = 24


def _table(found: Prediction, y: Tensor) -> dict[str, int]:
    """How many predictions of labels ``(batch,)`` are right or wrong, quite certain or uncertain."""
    right = found.label == y
    return {
        f"{truth} {word}": int((own & sure).sum())
        for truth, own in (("right", right), ("wrong", ~right))
        for word, sure in (("certain", found.certain), ("uncertain", ~found.certain))
    }


def fit(
    network: Any,
    optimizer: torch.optim.Optimizer,
    images: Images,
    options: dict[str, Any],
    path: Path,
    console: Console,
    *,
    batch: int,
    steps: int,
    kl_weight: float,
    schedule: Any = None,
) -> Training:
    """Train by the bound, or a plain network by cross entropy, and look at the test error every so often."""
    likelihood = Categorical("bound")  # outputs of drawn parameters are certain, for which the bound is the value
    parts = {"network": network, "optimizer": optimizer} | ({} if schedule is None else {"schedule": schedule})
    training = Training(path, parts, options, options["seed"], console)
    for x, y in training.batches(images, batch, steps, path.stem):
        if isinstance(network, BayesianNetwork):
            loss = -elbo(network, likelihood, x, y, size=len(images.x_train), kl_weight=kl_weight)
        else:
            loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        training.add(loss)
        if training.step % options["every"] == 0 or training.step == steps:
            training.note(error=lambda: share_wrong(network, images))
    return training


def row_of(
    network: nn.Module, training: Training, images: Images, samples: int, levels: tuple[float, ...], console: Console
) -> dict[str, Any]:
    """All that is kept of a network."""
    row: dict[str, Any] = {"history": training.history, "ms a step": 1e3 * training.seconds / training.step}
    if isinstance(network, BayesianNetwork):
        row.update(predict(network, images, samples, levels, console))
        row["layers"] = layers(network)
    else:
        row["error"] = share_wrong(network, images)
    return row


def layers(network: BayesianNetwork) -> dict[str, list[float]]:
    """Layer -> learnt tau of weights, tau of biases, rho of weights, rho of biases."""
    found: dict[str, list[float]] = {}
    for name in dict.fromkeys(key.split("/")[0] for key in network.posteriors):
        pair = [network.posteriors[f"{name}/{kind}"] for kind in ("weight", "bias")]
        if not all(isinstance(one, Tridiagonal) for one in pair):
            raise TypeError(f"expected tridiagonal posteriors, got {[type(one).__name__ for one in pair]}")
        found[name] = [*(one.tau.item() for one in pair), *(one.rho.item() for one in pair)]
    return found


def predict(
    network: BayesianNetwork, images: Images, samples: int, levels: tuple[float, ...], console: Console
) -> dict[str, Any]:
    """Test error of the mean probabilities, how many predictions are certain, and draws of three images as boxes."""
    network.eval()
    parts = list(images.x_test.split(500))
    draws = [
        sampled_outputs(network, part, samples).softmax(-1).cpu()
        for part in track(parts, f"{samples} draws of the parameters", console=console, transient=True)
    ]
    y = images.y_test.cpu()
    row: dict[str, Any] = {"samples": samples}
    for level in levels:
        found = [credible_prediction(part, level) for part in draws]
        tables = [_table(one, labels) for one, labels in zip(found, y.split(500), strict=True)]
        row[f"{level:.0%}"] = {kind: sum(table[kind] for table in tables) for kind in KINDS}
        if level == levels[0]:
            probabilities = torch.cat([one.probabilities for one in found])
            certain = torch.cat([one.certain for one in found])
    label = probabilities.argmax(1)
    row["error"] = (label != y).double().mean().item()
    wrong = (certain & (label != y)).nonzero()[:WRONG, 0]
    row["certainly wrong"] = [[int(k), int(y[k]), int(label[k])] for k in wrong]
    row["boxes"] = {
        words: {"image": k, "label": int(y[k]), "quantiles": _quantiles(draws[k // 500][:, k % 500])}
        for words, k in _chosen(probabilities, certain, label, y).items()
    }
    return row


def _chosen(probabilities: Tensor, certain: Tensor, label: Tensor, y: Tensor) -> dict[str, int]:
    """Three images: one that is right and certain, one wrong between two classes, one wrong among many."""
    own = probabilities.gather(1, y[:, None])[:, 0]
    entropy = torch.special.entr(probabilities).sum(1)
    wrong = label != y
    chosen = {}
    if (certain & ~wrong).any():
        chosen["right"] = int((certain & ~wrong).nonzero()[0, 0])
    if wrong.any():
        # most probability on the two classes, divided most evenly
        chosen["wrong, between two classes"] = int(torch.where(wrong, own, -1.0).argmax())
        chosen["wrong, among many classes"] = int(torch.where(wrong, entropy, -1.0).argmax())
    return chosen


def _quantiles(draws: Tensor) -> list[list[float]]:
    """Least, quartiles and largest of each class's draws, shape (samples, classes)."""
    ends = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=draws.dtype)
    return torch.quantile(draws, ends, dim=0).T.tolist()


# ---------------------------------------------------------------------- tables


def show(
    title: str,
    rows: dict[str, dict[str, Any]],
    errors: dict[str, float],
    parameters: dict[str, dict[str, list[float]]],
    certain: dict[str, dict[str, list[int]]],
    console: Console,
) -> None:
    """The networks beside the paper's test errors, learnt parameters and certain predictions."""
    table = Table(title=title)
    for column in ("network", "here", "paper", "ms a step"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for name, row in rows.items():
        paper = f"{100 * errors[name]:.2f}" if name in errors else ""
        table.add_row(name, f"{100 * row['error']:.2f}", paper, f"{row['ms a step']:.0f}")
    console.print(table)
    correlated = {name: row for name, row in rows.items() if "layers" in row}
    show_layers({name: row["layers"] for name, row in correlated.items()}, parameters, console)
    show_certain(correlated, certain, console)


def show_layers(
    rows: dict[str, dict[str, list[float]]], paper: dict[str, dict[str, list[float]]], console: Console
) -> None:
    table = Table(title="Learnt parameters of the posteriors, by layer")
    for column in ("network", "layer", "τ", "τ of biases", "ρ", "ρ of biases"):
        table.add_column(column, justify="left" if column in ("network", "layer") else "right")
    for name, found in rows.items():
        for layer, values in found.items():
            table.add_row(name, layer, *(f"{value:.2f}" for value in values))
            if layer in paper.get(name, {}):
                table.add_row("", "paper", *(f"{value:.2f}" for value in paper[name][layer]), style="dim")
        table.add_section()
    console.print(table)


def show_certain(rows: dict[str, dict[str, Any]], paper: dict[str, dict[str, list[int]]], console: Console) -> None:
    table = Table(title="Quite certain and uncertain predictions, of all test images")
    for column in ("network", "level", *KINDS):
        table.add_column(column, justify="left" if column == "network" else "right")
    for name, row in rows.items():
        for level in (key for key in row if key.endswith("%")):
            table.add_row(name, level, *(str(row[level][kind]) for kind in KINDS))
            if level in paper.get(name, {}):
                table.add_row("", "paper", *(str(value) for value in paper[name][level]), style="dim")
    console.print(table)


# -------------------------------------------------------------------- pictures


def draw(rows: dict[str, dict[str, Any]], shown: list[str], images: Images, out: Path) -> list[Path]:
    """Training of all networks, and boxes of the first and wrong predictions of the last of ``shown`` that is there."""
    pictures = [out.with_name(f"{out.stem}_{what}.png") for what in ("training", "boxes", "wrong")]
    draw_training({name: {**row["history"], "final": [row["error"]]} for name, row in rows.items()}, pictures[0])
    own = [rows[name] for name in shown if name in rows]
    if not own:
        return pictures[:1]
    draw_boxes(own[0], images, pictures[1])
    draw_wrong(own[-1], images, pictures[2])
    return pictures


def draw_training(rows: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Training loss and test error of each network (the papers' figures 1, 2, 7 and 8)."""
    figure, axes = plt.subplots(1, len(rows), figsize=(4.2 * len(rows), 3.6), layout="constrained", squeeze=False)
    for axis, (name, row) in zip(axes[0], rows.items(), strict=True):
        axis.plot(row["step"], row["loss"], "C0", label="training loss")
        axis.set(xlabel="iteration", ylabel="training loss", title=name, yscale="log")
        right = axis.twinx()
        right.plot(row["step"], [100 * value for value in row["error"]], "C1", label="test error")
        right.set(ylabel="test error, %", yscale="log")
        right.axhline(100 * row["final"][0], color="C1", linestyle=":", linewidth=1)
        axis.legend(handles=[*axis.lines, right.lines[0]], loc="upper right")
    figure.savefig(path, dpi=90)
    plt.close(figure)


def draw_boxes(row: dict[str, Any], images: Images, path: Path) -> None:
    """Class probabilities of chosen images over draws of the parameters (figures 3 to 5); whiskers are all draws."""
    chosen = row["boxes"]
    figure, axes = plt.subplots(1, len(chosen), figsize=(4 * len(chosen), 3.4), layout="constrained", squeeze=False)
    for axis, (words, box) in zip(axes[0], chosen.items(), strict=True):
        names = ("whislo", "q1", "med", "q3", "whishi")
        stats = [dict(zip(names, values, strict=True), fliers=[]) for values in box["quantiles"]]
        axis.bxp(stats, positions=range(len(stats)), showfliers=False)
        axis.set(title=f"{words}; true class {box['label']}", xlabel="class", ylabel="probability", ylim=(-0.02, 1.02))
        inset = axis.inset_axes((0.74, 0.7, 0.28, 0.28))
        inset.imshow(_picture(images.x_test[box["image"]]), cmap="gray_r")
        inset.set_axis_off()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def draw_wrong(row: dict[str, Any], images: Images, path: Path) -> None:
    """Test images of which the network was certain, and wrong (figure 6)."""
    found = row["certainly wrong"]
    if not found:
        return
    columns = min(8, len(found))
    lines = -(-len(found) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(1.3 * columns, 1.7 * lines), layout="constrained", squeeze=False
    )
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (index, label, taken) in zip(axes.flat, found, strict=False):
        axis.imshow(_picture(images.x_test[index]), cmap="gray_r")
        axis.set_title(f"{label}, taken for {taken}", fontsize=7)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _picture(x: Tensor) -> Tensor:
    return x.cpu().permute(1, 2, 0).squeeze(-1)
