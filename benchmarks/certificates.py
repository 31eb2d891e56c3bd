"""Which certified bounds are higher than those of an earlier commit, and whether those held; float64 then and now.

A certificate's bounds are maxima over sampled and searched points: they understate, by how much depends on the search.
Where a bound is higher now, the kernel of the earlier commit is searched as `long_search.py` searches. If that finds an
error above the earlier bound, that bound was wrong; the error found is given beside the present bound.  It takes half a
minute a variant, so that what the results say already of that commit is taken from them.  Where it finds none above,
eight times as many points are screened.

    python benchmarks/certificates.py [--since 996421d] [--seeds 16] [--points 400000]
    python benchmarks/certificates.py --stated --since 3516bb3

With ``--stated`` nothing is searched: bounds and operations of the certificates that changed stand beside the former
ones, in ``results/certificates_stated.json``.

Certificates say how float64 is computed and what errors it is allowed. Where it is by polynomials of two variables,
the errors of the earlier PyTorch code, which float64 was, and of the C that it is now are measured at some thousand
points: of a mean over max(1, |mean|), of a variance over L² v or (range/2)², of partials over their largest value at a
variance.

Facts that certificates state as proven are compared as well.

The earlier certificates, kernels and PyTorch code come from the repository's history.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from _common import RESULTS, console, environment, results_table, save
from long_search import ROOT, search
from rich.table import Table
from sympy import Rational

import momentgen.generated
from momentgen.build.built import Built, read_built
from momentgen.commands.verify import stables_of
from momentgen.compiler.derive import derive
from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.function.activation import analyse
from momentgen.rule import Rule, load_rules
from momentgen.runtime import Op

#: the last landed commit before the errors of float64, of ranges and of the runtime were mended
_SINCE = "996421d"
FLOAT64 = ("mean", "var", "dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar")
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
    float64 = [row for rule in rules.values() if (row := in_float64(rule, arguments.since))]
    table = results_table("rule", *FLOAT64)
    for row in float64:
        pairs = [(row["was"][output], row["is"][output]) for output in FLOAT64]
        table.add_row(row["rule"], *(f"{was:.0e} {'<' if now > was else '>'} {now:.0e}" for was, now in pairs))
    console.print(table)
    proven = [row for rule in rules.values() for row in proven_facts(rule, arguments.since)]
    table = results_table("rule", "proven", "was", "is")
    for row in proven:
        shown = "none" if row["is"] is None else f"{row['is']:.3g}"
        table.add_row(row["rule"], row["fact"], f"{row['was']:.3g}", shown)
    console.print(table)
    less = sum(row["is"] is None or row["is"] > row["was"] for row in proven)
    console.print(f"{len(proven)} proven bounds of that commit, {less} of them higher now")
    settings = {"since": arguments.since, "seeds": arguments.seeds, "points": arguments.points}
    found = {"bounds": counts, "results": rows, "float64": float64, "proven": proven}
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


def proven_facts(rule: Rule, commit: str) -> Iterator[dict[str, Any]]:
    """What the certificate of a commit stated as proven, and what it states now; None where that is nothing."""
    path, text = (
        ROOT / "generated" / rule.name / "exact.json",
        _shown(commit, f"generated/{rule.name}/exact.json"),
    )
    if text is None or not path.exists():
        return
    former, now = (json.loads(each).get("facts", {}) for each in (text, path.read_text()))
    there = dict(_leaves(now))
    for fact, was in _leaves(former):
        yield {"rule": rule.name, "fact": fact, "was": was, "is": there.get(fact)}


def _leaves(facts: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, float]]:
    """Proven numbers by name."""
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{where}{key}.")
        elif key.endswith("_proven") and value is not None:
            several = value if isinstance(value, list) else [value]
            yield from ((f"{where}{key}" + (f"[{k}]" if len(several) > 1 else ""), v) for k, v in enumerate(several))


def in_float64(rule: Rule, commit: str) -> dict[str, Any] | None:
    """The largest errors of each output, by the PyTorch code of a commit and by C now; None without polynomials."""
    path = ROOT / "generated" / rule.name / "exact.json"
    code = _shown(commit, f"generated/{rule.name}/exact_torch.py")
    if code is None or not path.exists() or not json.loads(path.read_text()).get("facts", {}).get("surfaces_float64"):
        return None
    former = ModuleType(rule.name)
    exec(code, former.__dict__)
    op: Op = getattr(momentgen.generated, rule.name)
    forward, backward = (op.kernel(which, variant="exact", backend="c") for which in ("forward", "backward"))
    setting = {p.name: 1.0 if p.default is None else p.default for p in op.parameters}
    values = {s: Rational(setting[s.name]) for s in rule.f.free_symbols if s.name in setting}
    f = analyse(rule.name, derive(rule).pieces, values)
    truth = GeneralTruth(f) if f.algebraic else QuadratureTruth(f)
    was, now = dict.fromkeys(FLOAT64, 0.0), dict.fromkeys(FLOAT64, 0.0)
    for v in f.length**2 * np.exp(np.linspace(-10, 14, 49)):
        mean = f.centre + np.sqrt(v + f.length**2) * np.linspace(-7, 7, 113)
        exact = truth.outputs(mean, np.full_like(mean, v))
        size = {name: np.abs(values).max() for name, values in exact.items()}
        size |= {"mean": np.maximum(1.0, np.abs(exact["mean"])), "var": min(f.lipschitz**2 * v, (f.span / 2) ** 2)}
        at = torch.from_numpy(mean), torch.full((mean.size,), v, dtype=torch.float64)
        one, zero = torch.ones_like(at[0]), torch.zeros_like(at[0])
        for worst, outputs, gradients in ((was, former.forward, former.backward), (now, forward, backward)):
            of_mean, of_var = gradients(*at, one, zero, **setting), gradients(*at, zero, one, **setting)
            found = (*outputs(*at, **setting), *of_mean, *of_var)
            for name, values in zip(FLOAT64, found, strict=True):
                worst[name] = max(worst[name], float(np.max(np.abs(values.numpy() - exact[name]) / size[name])))
    return {"rule": rule.name, "was": was, "is": now}


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
