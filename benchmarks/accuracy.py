"""The certificates of generated/ as tables: docs/accuracy.md, docs/relative-errors.md, results/accuracy.json.

Nothing is measured here; the numbers are those that `momentgen build` certified, and for relative errors those of
benchmarks/relative_error.py.  The site's page of an op has the details of its certificates.

    python benchmarks/accuracy.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _common import RESULTS, console, save

ROOT = Path(__file__).parents[1]
OUTPUTS = ("mean", "var", "dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar")

INTRODUCTION = """\
# Accuracy

Each op carries certificates: the largest errors found against exact values, over all of float32.
This page has the largest of each variant; `make accuracy` writes it from [generated/](../generated).
The page of an op tells what it promises, where each output is worst, and how its errors are distributed.
[Relative errors](relative-errors.md) shows where digits end.

## What one unit is

- **ulp**: |computed − exact| / ulp(exact), with ulp(x) = 2^(max(exponent(x), −126) − 23).
  This is a relative promise, down to the smallest normal number.
- **ulp of the terms**: ulp of the sum of the magnitudes of an output's terms.
  Where terms cancel, and next to a zero, the relative error is larger.
  The papers' approximations are measured so, against their own formulas.
- **tolerance**: the largest error allowed, from how steep the activation f is and how far it ranges.
  It is no less than 2⁻¹²⁶.

Here m is the exact mean, v the input's variance, σ its root, L the largest |f′|, and range = max f − min f.
A jump of f has the height J, and the distance a from the mean in σ.
Most activations have these tolerances:

| output | largest error allowed |
| --- | --- |
| mean | 1e-6 max(1, abs(m)) + 1e-9 min(L σ, range) |
| variance | 1e-5 (min(L² v, (range/2)²) + Σ J² Φ(a) Φ(−a)) |
| a partial derivative | 1e-4 of the largest value that it takes over all means at that variance |

Where f is far from 1 in size, a power of two of that size replaces the 1 of the mean.
`exp`, `square`, `sin`, `cos`, `normal_cdf`, the logistic transform and functions in other units have their own.
Each certificate states its tolerance with all numbers: `print(op.certificate())`, `help(op)`, and the op's page.

**A tolerance does not bound the relative error.**
Far out in a tail, no digit may be correct: the variance of `tanh` at (5, 0.01) may be 0 for 3.5e-10.
Where a loss takes standard deviations, `Moments.std` has derivative 0 where the variance is 0.

## What was searched

An error is the largest over points from all of float32; around the worst, more points are tried.
A search does not bound what it did not try.
*Exhaustive* variants also ran on all 2³² float32 means at variance 1 (`benchmarks/exhaust.py`).
Their worst inputs are in `rules/evidence/`.

## Other types

- bfloat16 and float16: the float32 results, rounded once more.
- float64, rounded to float32: within the same bounds, and not always closer.
- float64 of smooth activations: polynomials in cells of mean and variance.
  Errors of the mean are at most 1e-10, those of the variance 1e-8 min(L² v, (range/2)²).
  Errors of partials are at most 2e-9 (dmean_dmu) and 3e-8 (the others) of their largest value at that variance.
  These were found at thousands of points, and are multiplied by `error_over_allowed` of the certificate.
  Between two cells an output steps by as much.
- float64 of functions with kinks between polynomials (`hardtanh`, `relu6`, `hardswish`, ...): closed forms at first.
  From the variance `switch_float64` of the certificate on, such polynomials.
- Covariances are within 1e-8 of what their tolerance is relative to.
- An exponential in the C code is 0 where it is below 1e-307.

## All variants

"""

RELATIVE = """\
# Relative errors

A rule with a tolerance may be relatively wrong where its outputs are small.
The table has the runs of means where a relative error reaches 1 %, 10 % and 100 %.
They are at the default parameters, against balls of f itself, at three variances of the input.
Means are those between {low:g} and {high:g}, in steps of {step:g}; exact values below 2⁻¹²⁶ are left out.
An error of 100 % is mostly a variance of 0.
{none}`benchmarks/relative_error.py` measures, and `make accuracy` writes this page.

![Relative errors of mean and variance over mean and variance of the input](relative_error.png)

"""


def main() -> None:
    certificates = list(read())
    keys = ("rule", "variant", "goal", "tolerance", "bounds", "method", "facts")
    save("accuracy", [{key: c.get(key) for key in keys} for c in certificates])
    pages = {"accuracy": INTRODUCTION + "\n".join(summary(certificates)), "relative-errors": relative()}
    for name, page in pages.items():
        path = ROOT / "docs" / f"{name}.md"
        path.write_text(page + "\n", encoding="utf-8")
        console.print(f"written: {path.relative_to(ROOT)}", highlight=False)


def read() -> Iterator[dict[str, Any]]:
    """All certificates, rules and variants in order of name, but ``exact`` before ``tight`` before the papers'."""
    first = {"exact": 0, "tight": 1}
    paths = [path for path in (ROOT / "generated").glob("*/*.json") if path.name != "manifest.json"]
    for path in sorted(paths, key=lambda p: (p.parent.name, first.get(p.stem, 2), p.stem)):
        certificate = json.loads(path.read_text(encoding="utf-8"))
        if certificate["bounds"]:  # those of rules over an axis have none
            bins = certificate["histogram_bins"]
            for outputs in (certificate["bounds"], *(run["outputs"] for run in certificate["exhaustive"])):
                for found in outputs.values():
                    found["histogram_ulp"] = dict(zip(bins, found["histogram_ulp"], strict=True))
            yield certificate


def unit_of(certificate: Mapping[str, Any]) -> str:
    (unit,) = certificate["goal"]
    return str(unit)


def summary(certificates: Sequence[Mapping[str, Any]]) -> list[str]:
    rows, joint = [], []
    for c in certificates:
        unit = unit_of(c)
        errors = {name: c["bounds"][name][unit] for name in c["bounds"]}
        goal = f"{number(c['goal'][unit])} {unit}"
        if set(errors) == set(OUTPUTS):
            rows.append([link(c), c["variant"], *(number(errors[n]) for n in OUTPUTS), goal, checked(c)])
        else:
            largest = [max(e for n, e in errors.items() if n.startswith(f"d{of}_d")) for of in ("mean", "var")]
            shown = [number(e) for e in (errors["mean"], errors["var"], *largest)]
            joint.append([link(c), c["variant"], *shown, goal])
    lines = table(["rule", "variant", *OUTPUTS, "goal", "means at variance 1"], rows)
    if joint:
        columns = ["rule of two inputs", "variant", "mean", "var", "mean's partials", "var's partials", "goal"]
        lines += ["", *table(columns, joint)]
    return lines


def relative() -> str:
    """The page on tails, from benchmarks/results/relative_error.json."""
    found = json.loads((RESULTS / "relative_error.json").read_text(encoding="utf-8"))
    low, high, step = found["grid"]["means"]
    levels = [f"{level:g}" for level in found["grid"]["levels"]]
    rows = [row for row in found["results"] if row["where"][levels[0]]]
    well = sorted(set(found["rules"]) - {row["rule"] for row in rows})
    names = ", ".join(f"`{name}`" for name in well)
    none = f"These rules nowhere reach 1 %: {names}.\n" if well else ""
    cells = [
        [
            row["rule"],
            row["output"],
            number(row["var"]),
            *(", ".join(run(*ends, low, high) for ends in row["where"][level]) or "–" for level in levels),
            number(row["worst"]),
        ]
        for row in rows
    ]
    head = ["rule", "output", "variance", *(f"≥ {100 * float(level):g} % at means" for level in levels), "worst"]
    return RELATIVE.format(low=low, high=high, step=step, none=none) + "\n".join(table(head, cells))


def run(first: float, last: float, low: float, high: float) -> str:
    """Means from one to another; open where the grid ends."""
    if first == last:
        return number(first)
    if first == low:
        return f"≤ {number(last)}" if last != high else "all"
    return f"≥ {number(first)}" if last == high else f"{number(first)} to {number(last)}"


def link(c: Mapping[str, Any]) -> str:
    """To the certificates of a rule, whose place the op's page takes on the site."""
    return f"[{c['rule']}](../generated/{c['rule']})"


def checked(c: Mapping[str, Any]) -> str:
    return "exhaustive" if c.get("exhaustive") else "sampled"


def number(value: float) -> str:
    return f"{value:.4g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


if __name__ == "__main__":
    main()
