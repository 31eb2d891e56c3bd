"""What the machinery around the ops costs: small layers, where arithmetic takes no time, and one large linear map.

Small: a network of three layers of 32 units, batch 32 (1,024 values), in evaluation mode without gradients, plain and
over moments; and single layers of 1,000 values.  Large: a linear map from 25088 to 4096 at batch 1, whose weights
are squared at each call.  The committed result compares with squares that are cached.

    python benchmarks/dispatch.py [--rounds 200] [--against DIR]

``--against DIR`` measures another checkout of momentgen beside this one, in processes that take turns, and compares.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import console, environment, interleaved_medians, save, taking_turns
from rich.table import Table

import momentgen
from momentgen import Moments, nn

__all__ = ["main"]


def contestants() -> dict[str, Callable[[], Any]]:
    """Name -> what is timed."""
    torch.manual_seed(0)
    plain = torch.nn.Sequential(
        torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32)
    ).eval()
    x = torch.randn(32, 32)
    noisy = Moments(x, torch.full_like(x, 0.1))
    converted = momentgen.convert(plain, "ap2")
    layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).eval()
    nn.set_method(layers, "ap2")
    small = Moments(torch.randn(8, 125), torch.rand(8, 125))
    relu, linear, norm = nn.ReLU(), nn.Linear(125, 8), nn.BatchNorm1d(125).eval()
    return {
        "plain network": lambda: plain(x),
        "converted network": lambda: converted(noisy),
        "network of layers": lambda: layers(noisy),
        "ReLU": lambda: relu(small),
        "Linear": lambda: linear(small),
        "BatchNorm1d": lambda: norm(small),
    }


def large() -> dict[str, Callable[[], Any]]:
    """The large linear map, plain and over moments."""
    plain = torch.nn.Linear(25088, 4096).eval()
    x = torch.randn(1, 25088)
    noisy, converted = Moments(x, torch.rand_like(x)), momentgen.convert(plain, "ap2")
    return {"plain": lambda: plain(x), "moments": lambda: converted(noisy)}


def microseconds(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Processor time of one thread, medians over rounds in which all take turns."""
    with torch.no_grad():
        seconds = interleaved_medians(runs, rounds=rounds, clock=time.process_time)
    return {name: 1e6 * value for name, value in seconds.items()}


def measured(rounds: int) -> dict[str, dict[str, float]]:
    """Of the momentgen that is imported."""
    return {"small": microseconds(contestants(), rounds), "large": microseconds(large(), 7)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--against", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--json", action="store_true", help="print the numbers of one process, and no more")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.json:
        print(json.dumps(measured(arguments.rounds)))
        return
    turns = taking_turns(__file__, ["--rounds", str(arguments.rounds)], arguments.against, 3)
    results: dict[str, Any] = {}
    table = Table("what", *[f"{name}, µs" for name in turns], *(["over other"] if len(turns) > 1 else []))
    for group in ("small", "large"):
        for what in turns["present"][0][group]:
            numbers = {n: statistics.median(turn[group][what] for turn in found) for n, found in turns.items()}
            results[f"{group}: {what}"] = {n: round(value, 2) for n, value in numbers.items()}
            ratio = [f"{numbers['present'] / numbers['other']:.2f} ×"] if "other" in numbers else []
            table.add_row(f"{group}: {what}", *[f"{value:.1f}" for value in numbers.values()], *ratio)
    console.print(table)
    save("dispatch", {"environment": environment(), "rounds": arguments.rounds, "microseconds": results})


if __name__ == "__main__":
    main()
