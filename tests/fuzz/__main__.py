"""Many seeds: counts of networks, refusals, notes and faults, and every fault as a short network.

python -m fuzz --count 1000 --start 0 --out fuzz.json
python -m fuzz --show 17 --method adjoint
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from fuzz.generate import program
from fuzz.judge import METHODS, Verdict, judged, minimal


def counted(start: int, count: int, out: Path | None = None) -> dict[str, Any]:
    """Verdicts on the programs of ``count`` seeds, as numbers and a list of faults; written as it goes."""
    outcomes: dict[str, Counter[str]] = {method: Counter() for method in METHODS}
    faults: list[dict[str, Any]] = []
    functions: Counter[str] = Counter()
    found: dict[str, Any] = {}
    for seed in range(start, start + count):
        made = program(seed)
        functions.update(set(made.functions))
        for verdict in judged(made):
            name = f"{verdict.outcome}: {verdict.kind}" if verdict.outcome == "fault" else verdict.outcome
            outcomes[verdict.method][name] += 1
            if verdict.outcome == "fault":
                faults.append(_fault(seed, verdict))
                print(f"seed {seed}, {verdict.method}, {verdict.kind}: {faults[-1]['lines']}: {faults[-1]['found']}")
        found = {
            "torch": torch.__version__,
            "seeds": [start, seed],
            "networks": seed + 1 - start,
            "functions": len(functions),
            "outcomes": {method: dict(sorted(numbers.items())) for method, numbers in outcomes.items()},
            "faults": faults,
        }
        if out is not None:
            out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return found


def _fault(seed: int, verdict: Verdict) -> dict[str, Any]:
    least, found = minimal(program(seed), verdict)
    return {
        "seed": seed,
        "method": verdict.method,
        "kind": verdict.kind,
        "dtype": least.dtype,
        "takes": {given.name: given.same or given.text for given in least.given},
        "taken": least.taken,
        "lines": [line for step in least.steps for line in (*step.parts, *step.lines)],
        "returned": least.returned,
        **({} if least.randomised is None else {"randomised": least.randomised}),
        "found": found.text[:300],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, help="a JSON file for counts and faults")
    parser.add_argument("--show", type=int, help="print the network of one seed as a script, and run nothing")
    parser.add_argument("--method", default="adjoint", choices=METHODS, help="of the script")
    given = parser.parse_args()
    if given.show is not None:
        print(program(given.show).listing(given.method))
        return 0
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = counted(given.start, given.count, given.out)
    print(json.dumps({key: value for key, value in found.items() if key != "faults"}, indent=1))
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
