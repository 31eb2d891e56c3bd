"""How right the default is where the answer is known: the table of tests/truth, each row over 40 seeds.

    python benchmarks/truth.py [--only "sum of x"] [--seeds 40] [--out truth.json]

Figures of a row are those of ``tests/truth/judge.py``.
"""

from __future__ import annotations

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--out", default="truth.json")
    args = parser.parse_args()
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
