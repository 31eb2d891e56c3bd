"""Which certified bounds are higher than those of an earlier commit, and whether the earlier ones held.

A certificate's bounds are maxima over sampled and searched points: they understate, by how much depends on the search.
Where a bound is higher now, the kernel of the earlier commit is searched as `long_search.py` searches: is it worse than
its own certificate said, the bound was wrong, and not the kernel better.

    python benchmarks/certificates.py [--since 996421d] [--seeds 4] [--points 400000]

The earlier certificates and kernels come from the repository's history.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from _common import console, environment, save
from long_search import ROOT, search
from rich.box import SIMPLE_HEAD
from rich.table import Table

from momentgen.built import Built, read_built
from momentgen.compiler.derive import derive
from momentgen.compiler.stabilise import stabilise
from momentgen.rule import load_rules

#: the last landed commit before the errors of float64, of ranges and of the runtime were mended
_SINCE = "996421d"
#: a bound that is higher by less is the same
_SAME = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--since", default=_SINCE, help="a commit")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--points", type=int, default=400_000, help="screened for each seed and setting")
    arguments = parser.parse_args()
    rules = {rule.name: rule for rule in load_rules(ROOT / "rules")}
    counts = dict.fromkeys(("lower", "same", "higher"), 0)
    rows: list[dict[str, Any]] = []
    table = Table(
        "rule", "variant", "output", "was", "is", "the former kernel", "goal", box=SIMPLE_HEAD, pad_edge=False
    )
    for name, rule in rules.items():
        stables: Mapping[str, Any] = {}
        for built in read_built(ROOT / "generated", name):
            former = earlier(built, arguments.since)
            if former is None:
                continue
            if (former.unit, former.goal) != (built.unit, built.goal):
                raise SystemExit(f"{name} {built.variant}: the goal was {former.goal} {former.unit}, and is another")
            higher = []
            for output, was in former.bounds.items():
                now = built.bounds[output]
                change = "higher" if now > was * (1 + _SAME) else "same" if now >= was * (1 - _SAME) else "lower"
                counts[change] += 1
                higher += [output] if change == "higher" else []
            if not higher:
                continue
            stables = stables or {stable.variant: stable for stable in stabilise(derive(rule))}
            found = search(former, stables[built.variant], arguments.seeds, arguments.points)
            for output in higher:
                was, now, (error, at) = former.bounds[output], built.bounds[output], found[output]
                rows.append(
                    {"rule": name, "variant": built.variant, "output": output, "unit": built.unit, "goal": built.goal}
                    | {"was": was, "is": now, "former_kernel": round(error, 4), "at": at, "was_wrong": error > was}
                )
                table.add_row(
                    name, built.variant, output, f"{was:.4g}", f"{now:.4g}", f"{error:.4g}", f"{built.goal:g}"
                )
    console.print(table)
    wrong = sum(row["was_wrong"] for row in rows)
    console.print(f"{counts}; of those that are higher, {wrong} were wrong")
    settings = {"since": arguments.since, "seeds": arguments.seeds, "points": arguments.points}
    save("certificates", {"environment": environment(), **settings, "bounds": counts, "results": rows})


def earlier(built: Built, commit: str) -> Built | None:
    """The same variant as it was at a commit; None if there was none."""
    files = list(_files(built, commit))
    if None in files:
        return None
    certificate, source = files
    return replace(built, certificate=json.loads(certificate or ""), source=source or "")


def _files(built: Built, commit: str) -> Iterator[str | None]:
    for suffix in ("json", "c"):
        path = Path("generated") / built.rule / f"{built.variant}.{suffix}"
        shown = subprocess.run(["git", "show", f"{commit}:{path}"], capture_output=True, text=True, cwd=ROOT)
        yield shown.stdout if shown.returncode == 0 else None


if __name__ == "__main__":
    main()
