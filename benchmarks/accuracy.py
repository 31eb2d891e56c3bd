"""The certificates of generated/ as tables: benchmarks/results/accuracy.json, docs/accuracy.md and docs/accuracy.png.

Nothing is measured here; the numbers are those that `momentgen build` certified, and for relative errors those of
benchmarks/relative_error.py.

    python benchmarks/accuracy.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from _common import RESULTS, console, save

from momentgen.promise import promise

ROOT = Path(__file__).parents[1]
OUTPUTS = ("mean", "var", "dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar")
#: bins of the certificates' histograms that share a column here
COLUMNS = {
    "≤ ½": ("<= 0.5",),
    "≤ 1": ("<= 1",),
    "≤ 2": ("<= 1.5", "<= 2"),
    "≤ 4": ("<= 3", "<= 4"),
    "≤ 8": ("<= 6", "<= 8"),
    "> 8": ("<= 16", "> 16"),
}

INTRODUCTION = """\
# Accuracy

Errors of the float32 kernels against exact values, from the certificates in `generated/` (written by
`momentgen build`). Regenerate this page with `python benchmarks/accuracy.py` (or `make accuracy`).

An error in *ulp* is |computed − exact| / ulp(exact), with ulp(x) = 2^(max(exponent(x), −126) − 23), wherever the exact
value is a normal float32 number; *below normal* is the largest absolute error where it is not (2⁻¹²⁶ ≈ 1.2e-38).
Every error is a maximum over points from all of float32, around the worst of which more are tried. Where a variant
is marked *exhaustive*, its outputs were also run on all 2³² means at variance 1
(`python benchmarks/exhaust.py`), and the histograms count all of them; the worst inputs are kept in `rules/evidence/`.
A sampled maximum is not a bound on what it did not sample.

## What one unit is

- **ulp**, as above: a relative promise, down to the smallest normal number.
- **ulp of the terms**: ulp of the sum of the magnitudes of the terms that an output is the sum of. Where they
  cancel, and next to a zero, the relative error is larger. The papers' approximations are measured so, against
  their own formulas.
- **tolerance**: what an activation's error may be, from how steep it is and how far it ranges. With m the exact
  mean, v the input's variance, sigma its root, L the largest |f'|, range = max f − min f, and for each jump of f
  its height J and its distance a from the mean in sigmas, errors are at most
  - of the mean, 1e-6 max(1, |m|) + 1e-9 min(L sigma, range),
  - of the variance, 1e-5 (min(L² v, (range/2)²) + Σ J² Φ(a) Φ(−a)),
  - of a partial derivative, 1e-4 of the largest value that it takes over all means at that variance,

  and no less than 2⁻¹²⁶. Where f's values are of a size beyond 1/16 to 4, the 1 in the mean's is a power of two of
  that size. `exp`, `square`, `sin`, `cos`, `normal_cdf`, the logistic transform and functions in other
  units (`celu`, `softplus`, `hardtanh`, ...) have forms of their own. Each certificate states its own in full,
  with the numbers; `help(op)` and `print(op.certificate())` show it, and so does this page below.

**A tolerance does not bound the relative error.** Far out in a tail, where the exact value is below what is
allowed, no digit of a result need be right: the variance of `tanh` at (5, 0.01) may come out as 0 for 3.5e-10, and
that of `softplus` at (−9, 0.04) as 5e-8 for 6.5e-10. Where a loss takes standard deviations, `Moments.std` has
derivative 0 where the variance is 0. The section on relative errors shows where digits end.

Results in bfloat16 and float16 are those of float32, rounded once more. Results in float64, rounded to float32,
keep the same bounds, and need not be better. Those of smooth activations are polynomials, others in each of a few
cells of mean and variance, whose errors, at thousands of points, are at most 1e-10 in the mean, 1e-8 min(L² v,
(range/2)²) in the variance, and of the largest value of a partial at a variance 2e-9 (dmean_dmu) and 3e-8 (the
others), times `error_over_allowed` of `surfaces_float64` below. Between two cells an output steps by as much.
Those of functions with kinks between polynomials (`hardtanh`, `relu6`, `hardswish`, ...) are closed forms below the
variance `switch_float64`, and from there on such polynomials. Covariances are within 1e-8 of what their tolerance is
relative to. An exponential in the C code is 0 where it is below 1e-307.
"""

RELATIVE = """\
## Relative errors

Where the outputs of the rules that promise a tolerance are relatively wrong by 1 %, 10 % and 100 % or more, at the
default parameters, against balls of f itself: the runs of means between {low:g} and {high:g}, in steps of {step:g},
at three variances of the input. Rows that nowhere reach 1 % are left out{none}. Exact values below 2⁻¹²⁶ are not
looked at. 100 % is mostly a variance of 0. From `benchmarks/relative_error.py`.

![Relative errors of mean and variance over mean and variance of the input](relative_error.png)
"""

_SHOWN = 8  # numbers of a list in the page; the certificate has them all


def main() -> None:
    certificates = list(read())
    result = [
        {key: c.get(key) for key in ("rule", "variant", "goal", "tolerance", "bounds", "method", "facts")}
        for c in certificates
    ]
    save("accuracy", result)
    page = ROOT / "docs" / "accuracy.md"
    page.write_text(render(certificates), encoding="utf-8")
    draw([c for c in certificates if unit_of(c) == "ulp"], page.with_suffix(".png"))
    console.print(
        f"{len(certificates)} certificates: {page.relative_to(ROOT)}, its .png, benchmarks/results/accuracy.json"
    )


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


def render(certificates: Sequence[Mapping[str, Any]]) -> str:
    lines = [INTRODUCTION, "## All variants", "", *summary(certificates), "", *relative_errors()]
    rule = None
    for c in certificates:
        if c["rule"] != rule:
            rule = c["rule"]
            lines += ["", f"## {rule}", "", f"f(x) = `{c['f']}`. {c['citation']}".rstrip()]
        lines += ["", f"### {rule}, {c['variant']}", "", *variant(c)]
    lines += ["", "## Histograms", "", "![Share of inputs by error in ulp](accuracy.png)", *histograms(certificates)]
    return "\n".join(lines) + "\n"


def summary(certificates: Sequence[Mapping[str, Any]]) -> list[str]:
    rows, joint = [], []
    for c in certificates:
        unit = unit_of(c)
        errors = {name: c["bounds"][name][unit] for name in c["bounds"]}
        goal = f"{number(c['goal'][unit])} {unit}"
        if set(errors) == set(OUTPUTS):
            rows.append([c["rule"], c["variant"], *(number(errors[n]) for n in OUTPUTS), goal, checked(c)])
        else:
            largest = [max(e for n, e in errors.items() if n.startswith(f"d{of}_d")) for of in ("mean", "var")]
            shown = [number(e) for e in (errors["mean"], errors["var"], *largest)]
            joint.append([c["rule"], c["variant"], *shown, goal])
    lines = table(["rule", "variant", *OUTPUTS, "goal", "means at variance 1"], rows)
    if joint:
        columns = ["rule of two inputs", "variant", "mean", "var", "mean's partials", "var's partials", "goal"]
        lines += ["", *table(columns, joint)]
    return lines


def relative_errors() -> list[str]:
    """The section on tails, from benchmarks/results/relative_error.json."""
    found = json.loads((RESULTS / "relative_error.json").read_text(encoding="utf-8"))
    low, high, step = found["grid"]["means"]
    levels = [f"{level:g}" for level in found["grid"]["levels"]]
    rows = [row for row in found["results"] if row["where"][levels[0]]]
    well = sorted(set(found["rules"]) - {row["rule"] for row in rows})
    none = f": all of {', '.join(well)}" if well else ""
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
    return [RELATIVE.format(low=low, high=high, step=step, none=none), *table(head, cells)]


def run(first: float, last: float, low: float, high: float) -> str:
    """Means from one to another; open where the grid ends."""
    if first == last:
        return number(first)
    if first == low:
        return f"≤ {number(last)}" if last != high else "all"
    return f"≥ {number(first)}" if last == high else f"{number(first)} to {number(last)}"


def variant(c: Mapping[str, Any]) -> list[str]:
    unit, method = unit_of(c), c["method"]
    lines = [f"{sentence(method['how'])}.", f"{method['points']:,} points at {len(method['settings'])} setting(s)."]
    if method["univariate"] != "sampled":
        lines.append(f"{sentence(method['univariate'])}.")
    operations = {way: sum(counts.values()) for way, counts in c["operations"].items()}
    lines.append("Operations per element: " + ", ".join(f"{n} {way}" for way, n in operations.items()) + ".")
    rows = []
    for name in c["bounds"]:
        bound = c["bounds"][name]
        at = ", ".join(f"{key} = {value:.9g}" for key, value in bound["at"].items())
        extra = [number(bound["ulp"])] if unit != "ulp" and "ulp" in bound else []
        rows.append([name, number(bound[unit]), *extra, at, number(bound["absolute_below_normal"])])
    has_ulp = unit != "ulp" and all("ulp" in bound for bound in c["bounds"].values())
    lines += ["", *promise(c)]
    lines += [
        "",
        *table(["output", f"error ({unit})", *(["ulp"] if has_ulp else []), "worst at", "below normal"], rows),
    ]
    for key, value in sorted(c["facts"].items()):
        lines.append(f"- {key}: {fact(value)}")
    if c["facts"]:
        lines.insert(-len(c["facts"]), "")
    return lines


def histograms(certificates: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for c in certificates:
        for name in c["bounds"]:
            shares, count = histogram(c, name)
            if count:
                cells = [share(s) for s in shares.values()]
                rows.append([c["rule"], c["variant"], name, f"{count:,}", *cells, checked(c)])
    return ["", *table(["rule", "variant", "output", "inputs", *COLUMNS, "means at variance 1"], rows)]


def histogram(c: Mapping[str, Any], name: str) -> tuple[dict[str, float], int]:
    """Share of the inputs in each column, and how many there are: all means where they were run, else the sample."""
    runs = c.get("exhaustive") or [{"outputs": c["bounds"]}]
    counts = runs[0]["outputs"][name].get("histogram_ulp", {})
    total = sum(counts.values())
    return {label: sum(counts.get(b, 0) for b in bins) / max(total, 1) for label, bins in COLUMNS.items()}, total


def draw(certificates: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One panel an output and rule: the share of inputs in each bin, on a logarithmic scale."""
    rules = sorted({c["rule"] for c in certificates})
    if not rules:
        return
    figure, axes = plt.subplots(len(rules), len(OUTPUTS), figsize=(15, 2.3 * len(rules)), squeeze=False, sharey=True)
    floor = 1e-10
    for row, rule in zip(axes, rules, strict=True):
        drawn = [c for c in certificates if c["rule"] == rule]
        width = 0.8 / len(drawn)
        for panel, name in zip(row, OUTPUTS, strict=True):
            for k, c in enumerate(drawn):
                shares, _ = histogram(c, name)
                at = [i + (k - (len(drawn) - 1) / 2) * width for i in range(len(shares))]
                panel.bar(at, [max(s, floor) for s in shares.values()], width, label=c["variant"], color=f"C{k}")
            panel.set(yscale="log", ylim=(floor, 2), title=f"{rule}: {name}")
            panel.set_xticks(range(len(COLUMNS)), list(COLUMNS))
            panel.title.set_size(9)
            panel.tick_params(labelsize=7)
        row[0].set_ylabel("share of inputs", fontsize=8)
    axes[0][0].legend(fontsize=8)
    figure.supxlabel("error, ulp", fontsize=9)
    figure.tight_layout()
    # Without the version of the library and the time, the same certificates give the same bytes.
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)


def checked(c: Mapping[str, Any]) -> str:
    return "exhaustive" if c.get("exhaustive") else "sampled"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def number(value: float) -> str:
    return f"{value:.4g}"


def share(value: float) -> str:
    return "0" if value == 0 else f"{100 * value:.3g} %" if value > 1e-4 else f"{100 * value:.1e} %"


def fact(value: object) -> str:
    """A fact of a certificate in a line; of long lists only how long they are."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {fact(one)}" for key, one in value.items())
    if isinstance(value, list):
        flat = list(numbers(value))
        return ", ".join(map(fact, flat)) if len(flat) <= _SHOWN else f"{len(flat)} numbers"
    return str(value)


def numbers(value: object) -> Iterator[object]:
    """What lists within lists hold."""
    if isinstance(value, list):
        for one in value:
            yield from numbers(one)
    else:
        yield value


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


if __name__ == "__main__":
    main()
