"""How often estimators fail at their defaults on small data, and whether they say so.

    python benchmarks/failures.py [--models PBP EBP] [--rows 60] [--seeds 10] [--out failures.json]
    python benchmarks/failures.py --table     # the table of docs/results/tables.md, from the results on disk

A fit fails if it predicts 500 new rows no better than a constant, or worse than Bayesian or logistic regression, in the
mean log density: by 0.02 nats, since equals differ by chance.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

import numpy as np
import torch
from _common import RESULTS, console, write
from tables import measured

#: nats by which a line may be better: it is fitted to the same rows, and wins by chance where there is only noise
CHANCE = 0.02
MODELS, ROWS, NEW = ("PBP", "EBP", "VBP"), (20, 30, 60, 100), 500


def draw(shape: str, rows: int, seed: int) -> tuple[Any, Any]:
    """Rows of a shape: a curve with noise of a tenth, or two arms of a spiral."""
    random = np.random.default_rng(seed)
    if shape == "spiral":
        label, turn = random.integers(0, 2, rows), 0.5 + 2 * math.pi * random.uniform(0, 1, rows) ** 0.5
        angle = turn + math.pi * label
        x = turn[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.15 * random.normal(size=(rows, 2))
        return x, label
    x = random.uniform(-3, 3, (rows, 1))
    curve = np.sin(2 * x[:, 0]) if shape == "sin(2x)" else np.sign(x[:, 0])
    return x, curve + 0.1 * random.normal(size=rows)


def run(shape: str, rows: int, seed: int, models: list[str]) -> dict[str, Any]:
    x, y = draw(shape, rows, seed)
    new, targets = draw(shape, NEW, 1000 + seed)
    classes = 2 if shape == "spiral" else 0
    rivals = ("Constant", "Logistic" if classes else "BayesianRidge")
    return {name: measured(name, classes, x, y, new, targets) for name in (*rivals, *models)}


def failed(row: dict[str, Any], model: str) -> bool:
    """Whether the fit predicts no better than a constant, or worse than a line."""
    if "nll" not in row[model]:  # refused: no silence
        return True
    line = row["Logistic" if "Logistic" in row else "BayesianRidge"]["nll"]
    return bool(row[model]["nll"] >= row["Constant"]["nll"] or row[model]["nll"] > line + CHANCE)


def table() -> str:
    found = json.loads((RESULTS / "failures.json").read_text(encoding="utf-8"))
    lines = ["| shape, rows | estimator | seeds | failed | of these in silence |", "|" + " --- |" * 5]
    groups: dict[tuple[str, str], list[tuple[bool, bool]]] = {}
    for key, row in found.items():
        shape, rows, _ = key.split(" | ")
        for model in MODELS:
            if model in row:
                silent = not row[model].get("warnings") and "failed" not in row[model]
                groups.setdefault((f"{shape}, {rows}", model), []).append((failed(row, model), silent))
    for (name, model), rows in sorted(groups.items()):
        bad = [silent for fails, silent in rows if fails]
        lines.append(f"| {name} | {model} | {len(rows)} | {len(bad)} | {sum(bad)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["sin(2x)", "step", "spiral"])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", default="failures.json")
    parser.add_argument("--table", action="store_true", help="print the table of the page, and measure nothing")
    arguments = parser.parse_args()
    if arguments.table:
        sys.stdout.write(table())
        return
    torch.set_num_threads(1)
    path = RESULTS / arguments.out
    for seed in range(arguments.seeds):
        for shape in arguments.shapes:
            for rows in arguments.rows:
                key = f"{shape} | {rows:03d} | {seed}"
                found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
                own = found.get(key, {})
                if missing := [model for model in arguments.models if model not in own]:
                    found[key] = own | run(shape, rows, seed, missing)
                    console.print(key, {name: row.get("nll", row) for name, row in found[key].items()})
                    write(path, dict(sorted(found.items())))


if __name__ == "__main__":
    main()
