"""Tables 2 and 3 of the paper: a network's units, the errors of its propagation against Monte Carlo, a table of a case.

    eps_mu    = mean |mu - mu*| / mean sigma*        0 is perfect
    eps_sigma = geometric mean of sigma / sigma*     1 is perfect

Source: Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks with
Categorical and Max Layers, section 4, appendix D.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import momentgen
from momentgen import Moments, nn
from momentgen.nn import functional

__all__ = ["ACTIVATIONS", "compare", "eps_mu", "eps_sigma", "show_case", "training_method"]

#: the four kinds of network.
ACTIVATIONS = {
    "lrelu": nn.LeakyReLU,
    "dropout": nn.LeakyReLU,
    "bernoulli": nn.LogisticBernoulli,
    "transform": nn.Sigmoid,
}
#: the paper's own approximations (appendix D.1).
FITTED = {"lrelu": "fitted", "dropout": "fitted", "bernoulli": "ap2b", "transform": "practical"}


def training_method(kind: str) -> str:
    """Stochastic units are trained by AP2, others as ever."""
    return "ap2" if kind in ("dropout", "bernoulli") else "ap1"


def set_approximation(net: torch.nn.Module, kind: str, fitted: bool) -> None:
    for part in net.modules():
        if isinstance(part, ACTIVATIONS[kind]):
            part.variant = FITTED[kind] if fitted else None


def eps_mu(mean: Tensor, truth: Moments) -> float | None:
    """Mean |mu - mu*| over mean sigma*; None where nothing varies."""
    spread = truth.var.sqrt().mean()
    return ((mean.double() - truth.mean).abs().mean() / spread).item() if spread > 0 else None


def eps_sigma(var: Tensor, truth: Moments) -> float | None:
    """Geometric mean of sigma / sigma*; None where nothing varies."""
    # A unit that hardly ever moves in the samples has no sigma* to compare with.
    std = truth.var.sqrt()
    measured = (std > 0.01 * std.mean()) & (var > 0)
    if not measured.any():
        return None
    return (0.5 * (var.double()[measured].log() - truth.var[measured].log())).mean().exp().item()


def kl(truth: Tensor, log_q: Tensor) -> float:
    """Mean Kullback-Leibler divergence of class posteriors from the true ones, shape (N, classes)."""
    tiny = torch.finfo(torch.float64).tiny
    return (truth * (truth.clamp_min(tiny).log() - log_q.double())).sum(1).mean().item()


def logits(x: Moments) -> Moments:
    """In float64: some of the divergences are near float32's rounding."""
    return Moments(x.mean.flatten(1).double(), x.var.flatten(1).double())


def compare(
    net: nn.Sequential, kind: str, given: Moments | Tensor, columns: Sequence[str], samples: int, rows: int = 4096
) -> dict[str, Any]:
    """Errors of AP1, AP2 by the paper's approximations and AP2 by the certified ops, at the layers ``columns``.

    Args:
        net: a network of this kind, in evaluation, or in training where its dropout counts.
        kind: a key of :data:`ACTIVATIONS`.
        given: the images, with noise or without.
        columns: names of layers of ``net``; the last is its output.
        samples: of Monte Carlo, an image.
        rows: inputs at once in Monte Carlo.
    """
    truth = momentgen.monte_carlo(
        net, given, samples, rows=rows, seed=1, functions={"q": lambda out: out.flatten(1).double().softmax(1)}
    )
    posterior = truth.expected["q"].mean
    row: dict[str, Any] = {}
    with torch.no_grad():
        layers = nn.moments(net, given, method="ap1")
    row["eps_mu_ap1"] = [eps_mu(layers[c].mean, truth.layers[c]) for c in columns]
    row["kl_ap1"] = kl(posterior, logits(layers["output"]).mean.log_softmax(1))
    for label in ("fitted", "exact"):
        set_approximation(net, kind, label == "fitted")
        with torch.no_grad():
            layers = nn.moments(net, given, method="ap2")
        row[f"eps_mu_{label}"] = [eps_mu(layers[c].mean, truth.layers[c]) for c in columns]
        row[f"eps_sigma_{label}"] = [eps_sigma(layers[c].var, truth.layers[c]) for c in columns]
        for approximation in ("simplified", "logistic"):
            row[f"kl_{label}_{approximation}"] = kl(
                posterior, functional.log_class_posterior(logits(layers["output"]), 1, approximation)
            )
    set_approximation(net, kind, False)
    return row


def show_case(
    title: str,
    columns: Sequence[str],
    paper: Mapping[str, Sequence[float | None]],
    rows: Mapping[str, Mapping[str, Any]],
    console: Console,
) -> None:
    """Print the paper's rows of a case and ours, a network each, beneath."""
    table = Table(title=title, padding=(0, 0 if len(columns) > 10 else 1))
    table.add_column("")
    for column in (*columns, "KL / KL'"):
        table.add_column(column, justify="right")

    def add(label: str, values: Sequence[float | None], divergence: float, digits: int, style: str = "") -> None:
        cells = ("–" if value is None else f"{value:.{digits}f}" for value in values)
        table.add_row(label, *cells, f"{divergence:.2g}", style=style)

    add("paper: ε_μ AP1", paper["eps_mu_ap1"], paper["kl"][0], 2, "dim")
    add("paper: ε_μ AP2", paper["eps_mu_ap2"], paper["kl"][1], 2, "dim")
    add("paper: ε_σ AP2", paper["eps_sigma_ap2"], paper["kl"][2], 2, "dim")
    digits = 2 if len(columns) > 10 else 3
    for net, row in rows.items():
        table.add_section()
        add(f"{net}: ε_μ AP1", row["eps_mu_ap1"], row["kl_ap1"], digits)
        for label in ("fitted", "exact"):
            add(f"{net}: ε_μ AP2 {label}", row[f"eps_mu_{label}"], row[f"kl_{label}_simplified"], digits)
            add(f"{net}: ε_σ AP2 {label}", row[f"eps_sigma_{label}"], row[f"kl_{label}_logistic"], digits)
    console.print(table)
