"""What the examples share: results on disk that a later run goes on from, the paper's errors, a first point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import momentgen
from momentgen import Moments, nn

__all__ = ["Results", "eps_mu", "eps_sigma", "flat", "initialise_by_batch", "kl", "logits", "wide_console"]


def wide_console() -> Console:
    """A console in which the tables fit, also where the output is no terminal."""
    return Console(width=None if Console().is_terminal else 120)


class Results:
    """Rows of numbers by section and key, written after each, so that an interrupted run goes on where it stopped.

    Args:
        path: of the JSON file.
        settings: what the numbers depend on; results of other settings are replaced, which is said.
        sections: names of the tables.
        fresh: forget what is there.
    """

    def __init__(
        self, path: Path, settings: dict[str, object], sections: tuple[str, ...], fresh: bool, console: Console
    ) -> None:
        self.path, self.console = path, console
        self.data: dict[str, Any] = {"settings": settings, **{section: {} for section in sections}}
        if path.exists() and not fresh:
            earlier = json.loads(path.read_text())
            if earlier["settings"] == settings:
                self.data = earlier
            else:
                console.print("the results on disk were made with other settings and are replaced")

    def __getitem__(self, section: str) -> dict[str, Any]:
        return self.data[section]

    def keep(self, section: str, key: str, row: object) -> None:
        """Add a row, five digits a number, and write all."""
        self.data[section][key] = _rounded(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.data, indent=1) + "\n")

    def say_where(self, *others: Path) -> None:
        self.console.print(f"numbers: {', '.join(map(str, (self.path, *others)))}", soft_wrap=True, highlight=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def flat(x: Moments) -> Moments:
    """One row of numbers an image."""
    return Moments(x.mean.flatten(1), x.var.flatten(1))


def logits(x: Moments) -> Moments:
    """In float64: some of the divergences are near float32's rounding."""
    return Moments(x.mean.flatten(1).double(), x.var.flatten(1).double())


def eps_mu(mean: Tensor, truth: Moments) -> float:
    """Mean |mu - mu*| over mean sigma*: 0 is perfect."""
    return ((mean.double() - truth.mean).abs().mean() / truth.var.sqrt().mean()).item()


def eps_sigma(var: Tensor, truth: Moments) -> float:
    """Geometric mean of sigma / sigma*: 1 is perfect."""
    # A unit that hardly ever moves in the samples has no sigma* to compare with.
    std = truth.var.sqrt()
    measured = (std > 0.01 * std.mean()) & (var > 0)
    return (0.5 * (var.double()[measured].log() - truth.var[measured].log())).mean().exp().item()


def kl(truth: Tensor, log_q: Tensor) -> float:
    """Mean Kullback-Leibler divergence of class posteriors from the true ones, shape (N, classes)."""
    tiny = torch.finfo(torch.float64).tiny
    return (truth * (truth.clamp_min(tiny).log() - log_q.double())).sum(1).mean().item()


@torch.no_grad()
def initialise_by_batch(net: nn.Sequential, x: Tensor) -> None:
    """Rescale each convolution so that its output has mean 0 and variance 1 a channel over the images ``x``."""
    with momentgen.method("ap1"):
        for part in net:
            if isinstance(part, nn.Conv2d):
                var, mean = torch.var_mean(part(x).mean, (0, 2, 3))
                part.weight.div_(var.sqrt().view(-1, 1, 1, 1))
                part.bias.sub_(mean).div_(var.sqrt())
            x = part(x).mean
