"""What the default costs on networks whose plain pass takes less than a millisecond, beside an earlier checkout's.

    python benchmarks/small_networks.py --before CHECKOUT

Costs are processor time of a call over that of a plain pass, medians, one thread; ``before`` is the other checkout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import console, environment, save, taking_turns
from torch import nn

import momentgen
from momentgen import noisy


def mlp(inputs: int, width: int, outputs: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, outputs)
    )


#: network, shape of its inputs
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "table, one row: 10-64-64-1": (lambda: mlp(10, 64, 1), (1, 10)),
    "table, 100 rows: 10-64-64-1": (lambda: mlp(10, 64, 1), (100, 10)),
    "few inputs, 100 rows: 4-64-64-1, tanh": (lambda: mlp(4, 64, 1, nn.Tanh), (100, 4)),
    "digits, 16 images: 64-100-100-10": (lambda: mlp(64, 100, 10), (16, 64)),
    "convolution, 16 images of 8 x 8": (
        lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10)),
        (16, 1, 8, 8),
    ),
}


def _median(run: Callable[[], object], times: int) -> float:
    found = []
    for _ in range(times):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return statistics.median(found)


def measured() -> dict[str, dict[str, Any]]:
    """Cost, rows and stated error of each network, by the momentgen that is imported."""
    torch.set_num_threads(1)
    found = {}
    for name, (make, shape) in NETWORKS.items():
        torch.manual_seed(0)
        net, x = make().eval().requires_grad_(False), torch.randn(shape)
        ours, given = momentgen.convert(net), noisy(x, std=0.1)
        out = ours(given)
        ours(given)
        plain = _median(lambda net=net, x=x: net(x), 400)
        found[name] = {
            "plain_us": 1e6 * plain,
            "cost": _median(lambda ours=ours, given=given: ours(given), 20) / plain,
            "rows": out.rows,
            "stated": float((out.std_error / out.std).median()),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--json", action="store_true", help="print the figures alone")
    args = parser.parse_args()
    if args.json:
        sys.stdout.write(json.dumps(measured()) + "\n")
        return
    turns = taking_turns(__file__, [], args.before, 5)
    results = {
        name: {
            key: {what: statistics.median(turn[name][what] for turn in found) for what in found[0][name]}
            for key, found in (("after" if which == "present" else "before", found) for which, found in turns.items())
        }
        for name in NETWORKS
    }
    save("small_networks", {"environment": environment(), "networks": results})
    console.print_json(data=results)


if __name__ == "__main__":
    main()
