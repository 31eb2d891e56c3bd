"""What a call of the default holds on a large network, over a plain forward pass: ViT-B/16, images of 224 pixels.

    python benchmarks/memory.py [--batches 1 4]

Weights are random: memory does not depend on them, and hardly on the number of rows.  Figures are peaks of what torch
allocates within a call.  ``memory`` is what a call may hold: by default 8 plain passes or 256 MB, whichever is more.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from _common import allocated, console, environment, save
from torch import Tensor, nn

import momentgen
from momentgen import noisy

METHODS = {"32 rows": {"max_rows": 32}, "16 rows": {"max_rows": 16}, "ap2": {"method": "ap2"}}


class ViT(nn.Module):
    """ViT-B/16 by torch's own layers: 12 of width 768, 12 heads, 196 patches and a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, 768)), nn.Parameter(0.02 * torch.randn(1, 197, 768))
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 12, nn.LayerNorm(768), enable_nested_tensor=False)
        self.head = nn.Linear(768, 1000)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.places
        return self.head(self.layers(tokens)[:, 0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = ViT().eval()
    found: dict[str, Any] = {"environment": environment(), "cells": {}}
    for batch in arguments.batches:
        mean = torch.randn(batch, 3, 224, 224)
        x = noisy(mean, std=0.1)
        with torch.no_grad():
            plain = allocated(lambda mean=mean: net(mean))
            row = {"plain": plain}
            for name, options in {
                "32 rows": {"max_rows": 32},
                "16 rows": {"max_rows": 16},
                "ap2": {"method": "ap2"},
            }.items():
                converted = momentgen.convert(net, **options)
                row[name] = allocated(lambda converted=converted, x=x: converted(x))
        found["cells"][f"ViT-B/16, batch of {batch}"] = row
        console.print(batch, {name: f"{value / 1e6:.0f} MB" for name, value in row.items()})
    save("memory", found)


if __name__ == "__main__":
    main()
