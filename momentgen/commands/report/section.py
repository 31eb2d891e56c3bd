"""What is shown of one rule, in the report and on the site: texts, tables and pictures.

Pictures and comparisons exist for functions of one random variable.  For two inputs, and for reductions
over an axis, the section says so and shows the certificates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from momentgen.build.built import Built, check_source, is_deterministic, read_built
from momentgen.commands.derive_text import derived
from momentgen.commands.report import figures
from momentgen.commands.report.formula import mathml
from momentgen.commands.report.measurements import compare, compare_curves, moment_curves, relative_errors
from momentgen.commands.report.subject import EXACT, Subject, subject_of
from momentgen.promise import promise, tolerance_in_a_line
from momentgen.rule import Rule

_CURVES_SIGMA = 1.0
#: headings of pictures
MOMENTS, ERRORS, VARIANTS = "Mean and standard deviation", "Accuracy", "Variants"
_F_OF_X = '<mi>f</mi><mo stretchy="false">(</mo><mi>x</mi><mo stretchy="false">)</mo>'


@dataclass(frozen=True)
class TableData:
    """A table: column heads and rows of printable cells."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def filled(self) -> TableData:
        """The table without the columns in which no cell says anything.

        >>> TableData(["rule", "time"], [["relu", ""], ["abs", ""]]).filled()
        TableData(head=['rule'], rows=[['relu'], ['abs']])
        """
        kept = [k for k in range(len(self.head)) if any(row[k] for row in self.rows)]
        return TableData([self.head[k] for k in kept], [[row[k] for k in kept] for row in self.rows])


@dataclass(frozen=True)
class Figure:
    """A picture as a data URI, what it shows, and whether it is as wide as the page."""

    uri: str
    caption: str
    wide: bool = False


@dataclass(frozen=True)
class Section:
    """What a page shows of one rule.

    Attributes:
        name, doc, citation: of the rule.
        inputs: the kernel's inputs in words.
        formulas: MathML, of f and, where they are closed, of its moments; notes in words otherwise.
        legend: what the formulas' abbreviations stand for.
        variants: names.
        certificates: variant -> table.
        methods: variant -> what its certificate promises, and how it was obtained and certified, in words.
        comparison: the variants side by side.
        pictures: of moments, errors and approximations, by heading.
        notes: what is not shown, and why.
        worst: the exact variant's largest error as a share of its goal.
        unit, goal: of the exact variant.
        tolerance: what its goal is, in a line; empty for goals in ulp.
        operations: float32 operations of the exact variant, forward and backward.
        counts: float32 operations of every variant.
    """

    name: str
    doc: str
    citation: str
    inputs: str
    formulas: Sequence[str]
    legend: Sequence[str]
    variants: Sequence[str]
    certificates: Mapping[str, TableData]
    methods: Mapping[str, Sequence[str]]
    unit: str
    goal: float
    worst: float
    operations: str
    tolerance: str = ""
    comparison: TableData | None = None
    pictures: Mapping[str, Sequence[Figure]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    counts: TableData = TableData([], [])


def shown(value: object) -> str:
    """A number, or anything else, as a table cell.

    >>> shown(0.000123456), shown(float("inf")), shown(12), shown("x")
    ('0.0001235', '∞', '12', 'x')
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating)):
        return str(value)
    return "∞" if value == np.inf else f"{value:.4g}" if isinstance(value, (float, np.floating)) else f"{value:,}"


def section_of(rule: Rule, package: Path) -> Section:
    """All that the page shows of ``rule``.

    Args:
        rule: the rule.
        package: what it was built to.

    Raises:
        MomentgenError: if the rule is not built, or has changed since.
        BuildError: if it cannot be derived, or its C does not compile.
    """
    variants = read_built(package, rule.name)
    check_source(rule, variants)
    first = next((built for built in variants if built.variant == EXACT), variants[0])
    notes: list[str] = []
    pictures: dict[str, list[Figure]] = {MOMENTS: [], ERRORS: [], VARIANTS: []}
    comparison: TableData | None = None
    formulas = [formula] if (formula := mathml(_F_OF_X, rule.f)) else []
    legend: list[str] = []
    univariate = all(built.is_univariate for built in variants) and first.variant == EXACT
    if univariate and is_deterministic(rule):
        subject = subject_of(rule, package)
        moments, legend, remarks = _moments(subject)
        formulas += moments
        notes += remarks
        pictures[MOMENTS].append(_curves(subject))
        pictures[ERRORS].append(_relative(subject))
        if len(variants) > 1:
            pictures[VARIANTS], comparison = _compared(subject)
    elif univariate:
        notes.append("f has a random factor of its own: no pictures of a function.")
    elif first.inputs:
        count = {2: "two inputs", 3: "three inputs"}.get(len(first.inputs) // 2, f"inputs {', '.join(first.inputs)}")
        notes.append(f"A function of {count}: no pictures over one mean and one variance.")
    else:
        notes.append("A reduction over an axis: no pictures over one mean and one variance.")
    if histogram := _histogram(first):
        pictures[ERRORS].append(histogram)
    sums = {way: sum(ops.values()) for way, ops in first.certificate.get("operations", {}).items()}
    return Section(
        name=rule.name,
        doc=rule.doc,
        citation=rule.citation,
        inputs=", ".join(first.inputs) or "reduction",
        formulas=formulas,
        legend=legend,
        variants=[built.variant for built in variants],
        certificates={built.variant: certificate_table(built) for built in variants},
        methods={built.variant: _method(built) for built in variants},
        unit=first.unit,
        goal=first.goal,
        tolerance=tolerance_in_a_line(first.certificate),
        worst=max(first.bounds.values()) / first.goal,
        operations=" / ".join(str(sums[way]) for way in ("forward", "backward") if way in sums),
        comparison=comparison,
        pictures=pictures,
        notes=notes,
        counts=_counts(variants),
    )


_LEFT = {
    "mean": "<mi>m</mi>",
    "var": "<mi>Var</mi>",
}


def _moments(subject: Subject) -> tuple[list[str], list[str], list[str]]:
    """MathML of mean and variance, the legend, and remarks where they are not closed or too long."""
    derivation = subject.derivation
    if derivation.mean is None or derivation.second is None or derivation.var is None:
        return (
            [],
            [],
            ["f or its square is outside the closed algebra; the certificate says how its moments are computed."],
        )
    found = derived(subject.rule)
    formulas = [mathml(left, found.outputs[name]) for name, left in _LEFT.items()]
    used = set().union(*(found.outputs[name].free_symbols for name in _LEFT))
    legend = [
        mathml(f"<mi>{symbol}</mi>", meaning).replace(' display="block"', "")
        for symbol, meaning in found.where.items()
        if symbol in used
    ]
    if all(formulas):
        return formulas, legend, []
    return (
        [f for f in formulas if f],
        legend,
        [f"The moments are long: momentgen derive {subject.rule.name} prints them."],
    )


def _compared(subject: Subject) -> tuple[list[Figure], TableData]:
    """The approximations beside the exact moments: a picture if there are any, and the extremes of each variant."""
    rows = [
        [
            c.variant,
            _with_place(c.mean_error, c.mean_at),
            f"{shown(c.sigma_low)} – {shown(c.sigma_high)}",
            _with_place(c.var_error, c.var_at),
            _with_place(c.kl, c.kl_at),
        ]
        for c in compare(subject)
    ]
    head = ["variant", "|mean − exact| / exact σ′", "σ′ / exact σ′", "|var / exact − 1|", "KL(exact ‖ variant), nats"]
    approximate = {name: None for name in subject.kernels if name not in (EXACT, "tight")}
    found = []
    if approximate:
        mu = np.linspace(-6, 6, 97)
        curves = compare_curves(subject, mu, np.full_like(mu, _CURVES_SIGMA))
        found.append(
            Figure(
                figures.curves_figure({name: curves[name] for name in approximate}, _CURVES_SIGMA),
                f"The approximations beside the exact moments{_setting(subject)}; an infinite KL has no line.",
                wide=True,
            )
        )
    return found, TableData(head, rows)


def _curves(subject: Subject) -> Figure:
    return Figure(
        figures.moments_figure(moment_curves(subject)),
        f"f, mean and standard deviation of f(X) for X ~ N(μ, σ²){_setting(subject)}, by the committed kernel.",
        wide=True,
    )


def _relative(subject: Subject) -> Figure:
    return Figure(
        figures.relative_figure(relative_errors(subject)),
        f"Relative error of the float32 kernel against ball arithmetic{_setting(subject)}. Blue lines: 1 % and "
        "100 %; white: the exact value is below float32's normal numbers.",
        wide=True,
    )


def _counts(variants: Sequence[Built]) -> TableData:
    """float32 operations of every variant, and the most frequent kinds."""
    rows = []
    for built in variants:
        for way, counts in (built.certificate.get("operations") or {}).items():
            most = sorted(counts.items(), key=lambda item: -item[1])[:6]
            kinds = ", ".join(f"{count} {kind}" for kind, count in most)
            rows.append([built.variant, way, str(sum(counts.values())), kinds])
    return TableData(["variant", "pass", "operations", "most of them"], rows)


def _setting(subject: Subject) -> str:
    setting = ", ".join(f"{name} = {value:g}" for name, value in subject.setting.items())
    return f" at {setting}" if setting else ""


def _with_place(value: float, at: tuple[float, float]) -> str:
    return f"{shown(value)} at ({at[0]:.3g}, {at[1]:.3g})"


def _histogram(built: Built) -> Figure | None:
    """ulp histograms of a certificate in ulp: exhaustive where there is a run, else sampled."""
    if built.unit == "tolerance":  # most of its errors are many ulp, and that says nothing
        return None
    runs = built.certificate.get("exhaustive") or []
    outputs: Mapping[str, Any] = runs[0]["outputs"] if runs else built.certificate["bounds"]
    bins = built.certificate["histogram_bins"]
    counted = {name: found["histogram_ulp"] for name, found in outputs.items() if found.get("histogram_ulp")}
    histograms = {name: dict(zip(bins, counts, strict=True)) for name, counts in counted.items()}
    if not histograms:
        return None
    of = f"all {runs[0]['inputs']:,} means at variance {runs[0]['var']:g}" if runs else "the points of the certificate"
    return Figure(
        figures.histogram_figure(histograms, "error, ulp"),
        f"Errors of {built.variant} in ulp, where the exact value is normal: {of}.",
    )


def certificate_table(built: Built) -> TableData:
    """Every output's bound, and where it is reached."""
    rows = []
    for name, bound in built.certificate["bounds"].items():
        at = ", ".join(f"{key} = {shown(value)}" for key, value in bound.get("at", {}).items())
        below = shown(float(bound["absolute_below_normal"]))
        rows.append([name, shown(float(bound[built.unit])), shown(built.goal), at, below])
    return TableData(["output", f"bound, {built.unit}", "goal", "worst at", "largest error below 2⁻¹²⁶"], rows)


def _method(built: Built) -> list[str]:
    method = built.certificate["method"]
    lines = [*promise(built.certificate)]
    lines += [str(method["how"])] if method.get("how") else []
    if "points" in method:
        lines.append(f"{method['points']:,} points; univariate core: {method.get('univariate', 'sampled')}")
    if "truth" in method:
        lines.append(f"truth: {method['truth']}")
    promises = method.get("promises", {})
    if promises.get("checked"):
        lines.append(f"checked at {promises['points']:,} points: {'; '.join(promises['checked'])}")
    return lines
