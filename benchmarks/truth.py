"""How right the default is where the answer is known: the table of tests/truth, each row over 40 seeds.

    python benchmarks/truth.py [--only "sum of x"] [--seeds 40] [--out truth.json]
    python benchmarks/truth.py --table     # the table of docs/results/truth.md, from the results on disk

Figures of a row are those of ``tests/truth/judge.py``.  ``truth_before.json`` has them of the code at f91b4eaf, before
examples had draws of their own; no run writes it again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from _common import RESULTS, console, environment, write

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from truth.cases import cases
from truth.judge import holds, judged


def table() -> str:
    """The table of the page, a row for each function."""
    before, after = (
        {row["name"]: row for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]}
        for name in ("truth_before", "truth")
    )
    heads = ["function, noisy values", "kind", "σ: held, z", "mean: held, z", "error of σ, stated", "passes"]
    heads.append("before: held, z, error")
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for name, row in after.items():
        old = before.get(name)
        former = "" if old is None else f"{_held(old['coverage'])}, {old['z']:.2g}, {old['error']:.1g}"
        lines.append(
            f"| {name.replace('|', chr(92) + '|')} | {row['kind']} | {_held(row['coverage'])}, {row['z']:.2f} "
            f"| {_held(row['mean_coverage'])}, {row['mean_z']:.2f} | {row['error']:.1g}, {row['stated']:.1g} "
            f"| {row['rows']:.0f} | {former} |"
        )
    return "\n".join(lines) + "\n"


def summary() -> str:
    """How many rows hold, before and after, and which fall short."""
    found = {name: json.loads((RESULTS / f"{name}.json").read_text())["rows"] for name in ("truth_before", "truth")}
    counts = {name: sum(holds(row, row["kind"]) for row in rows) for name, rows in found.items()}
    short = [row["name"] for row in found["truth"] if not holds(row, row["kind"])]
    after, before = (f"{counts[name]} of {len(found[name])}" for name in ("truth", "truth_before"))
    lines = [f"{after} rows hold; {before} did before."]
    lines += ["These fall short:", "", *(f"- {name}" for name in short)]
    return "\n".join(lines).replace("|", chr(92) + "|") + "\n"


def _held(share: float) -> str:
    return f"{share:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--out", default="truth.json")
    parser.add_argument("--table", action="store_true", help="print the table of the page, and measure nothing")
    args = parser.parse_args()
    if args.table:
        sys.stdout.write(f"{summary()}\n{table()}")
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for case in cases():
        if args.only not in case.name:
            continue
        start = time.perf_counter()
        row = {
            "name": case.name,
            "values": case.values,
            "kind": case.kind,
            "batch": case.batch,
            "dtype": str(case.dtype).removeprefix("torch."),
            **judged(case, args.seeds).row(),
        }
        rows.append(row)
        mark = "" if holds(row, case.kind) else "  <--"
        console.print(
            f"{case.name:45s} {case.kind:10s} cov {row['coverage']:.2f} {row['mean_coverage']:.2f} z {row['z']:.2f} "
            f"{row['mean_z']:.2f} err {row['error']:.2g} stated {row['stated']:.2g} ratio {row['ratio']:.3f} "
            f"rows {row['rows']:.0f} {time.perf_counter() - start:.1f}s{mark}",
            soft_wrap=True,
        )
    held = sum(holds(row, row["kind"]) for row in rows)
    console.print(f"{held} of {len(rows)} rows hold")
    if not args.only:
        path = RESULTS / args.out
        write(path, {"environment": environment(), "seeds": args.seeds, "rows": rows})


if __name__ == "__main__":
    main()
