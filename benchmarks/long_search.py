"""How far beyond its certificate a kernel goes when one looks for longer.

The certificates of the one-kink rules are maxima over sampled and searched points: they understate.  Here the committed
C is searched again, from fresh points and for longer, and what is found is measured against balls.

    python benchmarks/long_search.py [--rules relu,abs] [--seeds 12] [--points 400000]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from _common import console, results_table, save
from rich.progress import track

from momentgen.build.built import Built, CommittedKernel, read_built
from momentgen.commands.verify import stables_of
from momentgen.compiler.certify.joint_points import screened
from momentgen.compiler.certify.points import worst_points
from momentgen.compiler.ir.stable import Stable
from momentgen.rule import load_rules

ROOT = Path(__file__).parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", default="relu,leaky_relu,abs,heaviside", help="comma-separated")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--points", type=int, default=400_000, help="screened for each seed and setting")
    arguments = parser.parse_args()
    rules = {rule.name: rule for rule in load_rules(ROOT / "rules")}
    rows: list[dict[str, object]] = []
    table = results_table("rule", "variant", "output", "certified", "found", "goal")
    for name in arguments.rules.split(","):
        variants = read_built(ROOT / "generated", name)
        stables = stables_of(rules[name], variants)
        for built in variants:
            if built.unit != "ulp":
                continue
            found = search(built, stables[built.variant], arguments.seeds, arguments.points)
            for output, (error, at) in found.items():
                rows.append(
                    {"rule": name, "variant": built.variant, "output": output, "goal": built.goal}
                    | {"certified": built.bounds[output], "found": round(error, 4), "at": at}
                )
                table.add_row(
                    name, built.variant, output, f"{built.bounds[output]:.2f}", f"{error:.2f}", f"{built.goal:g}"
                )
    console.print(table)
    settings = {"seeds": arguments.seeds, "points": arguments.points}
    save("long_search", {**settings, "unit": "ulp", "results": rows})


def search(built: Built, stable: Stable, seeds: int, points: int) -> dict[str, tuple[float, dict[str, float]]]:
    """Output -> the largest error found, and where."""
    worst: dict[str, tuple[float, dict[str, float]]] = dict.fromkeys(stable.outputs, (0.0, {}))
    for seed in track(range(1000, 1000 + seeds), f"{built.rule} {built.variant}", console=console):
        for setting in stable.settings:
            kernel = CommittedKernel(built, setting)
            at = (worst_points if built.is_univariate else screened)(stable, kernel, setting, points=points, seed=seed)
            computed, exact = kernel(*at), stable.truth(*at, setting)
            for output, values in exact.items():
                error = stable.measure(output, computed[output], values, *at)
                i = int(np.argmax(error))
                if error[i] > worst[output][0]:
                    point = {name: float(array[i]) for name, array in zip(built.inputs, at, strict=True)}
                    worst[output] = float(error[i]), {**point, **setting}
    return worst


if __name__ == "__main__":
    main()
