"""Which certified bounds are higher than those of an earlier commit, and whether those held.

A certificate's bounds are maxima over sampled and searched points: they understate, by how much depends on the search.
Where a bound is higher now, the kernel of the earlier commit is searched as `long_search.py` searches. If that finds an
error above the earlier bound, that bound was wrong; the error found is given beside the present bound.  It takes half a
minute a variant, so that what the results say already of that commit is taken from them.  Where it finds none above,
eight times as many points are screened.

    python benchmarks/certificates.py [--since 996421d] [--seeds 16] [--points 400000]
    python benchmarks/certificates.py --stated --since 3516bb3

With ``--stated`` nothing is searched: bounds and operations of the certificates that changed stand beside the former
ones, in ``results/certificates_stated.json``.

The earlier certificates and kernels come from the repository's history.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from _common import RESULTS, console, environment, results_table, save
from long_search import ROOT, search
from rich.table import Table

from momentgen.build.built import Built, read_built
from momentgen.commands.verify import stables_of
from momentgen.rule import Rule, load_rules

#: the last landed commit before the errors of float64, of ranges and of the runtime were mended
_SINCE = "996421d"
#: a bound that is higher by less is the same
_SAME = 1e-3
_LONGER = 8  # times the points, where a search finds no error above the earlier bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--since", default=_SINCE, help="a commit")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--points", type=int, default=400_000, help="screened for each seed and setting")
    parser.add_argument("--stated", action="store_true", help="compare what certificates state, and search nothing")
    arguments = parser.parse_args()
    rules = {rule.name: rule for rule in load_rules(ROOT / "rules")}
    if arguments.stated:
        found = [row for rule in rules for row in stated(rule, arguments.since)]
        save("certificates_stated", {"since": arguments.since, "variants": found})
        return
    with tempfile.TemporaryDirectory() as folder:
        counts, rows, table = compared(rules.values(), arguments.since, arguments.seeds, arguments.points, Path(folder))
    console.print(table)
    wrong = sum(row["was_wrong"] for row in rows)
    console.print(f"{counts}; of those that are higher, {wrong} were wrong")
    settings = {"since": arguments.since, "seeds": arguments.seeds, "points": arguments.points}
    found = {"bounds": counts, "results": rows}
    save("certificates", {"environment": environment(), **settings, **found})


def stated(rule: str, commit: str) -> Iterator[dict[str, Any]]:
    """Bounds and operations (forward, backward) of the certificates that are others than a commit's."""
    for path in sorted((ROOT / "generated" / rule).glob("*.json")):
        text = _shown(commit, f"generated/{rule}/{path.name}")
        if path.stem == "manifest" or text is None:
            continue
        was, now = (
            {
                "goal": certificate["goal"],
                "bounds": {
                    name: bound[next(iter(certificate["goal"]))] for name, bound in certificate["bounds"].items()
                },
                "operations": [sum(counts.values()) for counts in certificate["operations"].values()],
            }
            for certificate in map(json.loads, (text, path.read_text()))
        )
        if was != now:
            yield {"rule": rule, "variant": path.stem, "was": was, "is": now}


def known_errors(commit: str, seeds: int, points: int) -> dict[tuple[str, str, str], tuple[float, dict[str, float]]]:
    """What the results say that the commit's kernels err by, where they were searched as long; and where."""
    path = RESULTS / "certificates.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    if (results.get("since"), results.get("seeds"), results.get("points")) != (commit, seeds, points):
        return {}
    return {(r["rule"], r["variant"], r["output"]): (r["former_kernel"], r["at"]) for r in results["results"]}


def compared(
    rules: Iterable[Rule], commit: str, seeds: int, points: int, folder: Path
) -> tuple[dict[str, int], list[dict[str, Any]], Table]:
    """How many bounds are lower, the same and higher than those of a commit, and what its kernels are found to err by.

    Raises:
        SystemExit: if a goal is another.
    """
    known = known_errors(commit, seeds, points)
    counts = dict.fromkeys(("lower", "same", "higher"), 0)
    rows: list[dict[str, Any]] = []
    table = results_table("rule", "variant", "output", "was", "is", "the former kernel", "goal")
    for rule in rules:
        stables: Mapping[str, Any] = {}
        variants = read_built(ROOT / "generated", rule.name)
        for built in variants:
            former = earlier(built, commit, folder)
            if former is None:
                continue
            if (former.unit, former.goal) != (built.unit, built.goal):
                raise SystemExit(
                    f"{rule.name} {built.variant}: the goal was {former.goal} {former.unit}, and is another"
                )
            higher = []
            for output, was in former.bounds.items():
                now = built.bounds[output]
                change = "higher" if now > was * (1 + _SAME) else "same" if now >= was * (1 - _SAME) else "lower"
                counts[change] += 1
                higher += [output] if change == "higher" else []
            if not higher:
                continue
            found = {output: known.get((rule.name, built.variant, output)) for output in higher}
            if None in found.values():
                stables = stables or stables_of(rule, variants)
                found = dict(search(former, stables[built.variant], seeds, points))
            if any(found[output][0] <= former.bounds[output] for output in higher):
                stables = stables or stables_of(rule, variants)
                longer = search(former, stables[built.variant], seeds, _LONGER * points)
                found = {output: max(found[output], longer[output], key=lambda one: one[0]) for output in higher}
            for output in higher:
                was, now, (error, at) = former.bounds[output], built.bounds[output], found[output]
                row = {"rule": rule.name, "variant": built.variant, "output": output}
                row |= {"unit": built.unit, "goal": built.goal, "was": was, "is": now}
                rows.append(row | {"former_kernel": float(f"{error:.4g}"), "at": at, "was_wrong": error > was})
                shown = (f"{number:.4g}" for number in (was, now, error, built.goal))
                table.add_row(rule.name, built.variant, output, *shown)
    return counts, rows, table


def earlier(built: Built, commit: str, folder: Path) -> Built | None:
    """The same variant as it was at a commit, its Python code in ``folder``; None if there was none."""
    texts = {
        suffix: _shown(commit, f"generated/{built.rule}/{built.variant}{suffix}")
        for suffix in (".json", ".c", "_torch.py")
    }
    if texts[".json"] is None or texts[".c"] is None:
        return None
    own = folder / built.rule
    own.mkdir(exist_ok=True)
    if code := texts["_torch.py"]:
        (own / f"{built.variant}_torch.py").write_text(code)
    return replace(built, certificate=json.loads(texts[".json"]), source=texts[".c"], folder=own)


def _shown(commit: str, path: str) -> str | None:
    shown = subprocess.run(["git", "show", f"{commit}:{path}"], capture_output=True, text=True, cwd=ROOT)
    return shown.stdout if shown.returncode == 0 else None


if __name__ == "__main__":
    main()
