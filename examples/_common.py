"""What the examples share: results on disk that a later run goes on from, a console, a first point for training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import momentgen
from momentgen import Moments, nn

__all__ = ["Results", "flat", "initialise_by_batch", "wide_console"]


def wide_console() -> Console:
    """A console in which the tables fit, also where the output is no terminal."""
    return Console(width=None if Console().is_terminal else 160)


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
        text = json.dumps(self.data, indent=2)
        # A list of numbers on one line.
        text = re.sub(r"\[([^\[\]{}\"]*)\]", lambda found: f"[{' '.join(found[1].split())}]", text)
        self.path.write_text(text + "\n")

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
