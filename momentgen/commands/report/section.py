"""What is shown of one rule, in the report and on the site: texts, tables and pictures.

Pictures and comparisons exist for functions of one random variable.  For two inputs the section says so and shows the
certificates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from momentgen.build.built import Built, check_source, read_built
from momentgen.commands.derive_text import derived
from momentgen.commands.report import figures
from momentgen.commands.report.formula import mathml
from momentgen.commands.report.measurements import compare, moment_curves, relative_errors
from momentgen.commands.report.subject import EXACT, Subject, subject_of
from momentgen.promise import promise, tolerance_in_a_line
from momentgen.rule import Rule
from momentgen.rule.symbols import x

#: headings of pictures
MOMENTS, ERRORS, VARIANTS = "Mean and standard deviation", "Accuracy", "Variants"
_F_OF_X = '<mi>f</mi><mo stretchy="false">(</mo><mi>x</mi><mo stretchy="false">)</mo>'


@dataclass(frozen=True)
class TableData:
    """A table: column heads and rows of printable cells."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


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
        variants: names.
        certificates: variant -> table.
        methods: variant -> what its certificate promises, and how it was obtained and certified, in words.
        comparison: the variants side by side.
        pictures: of moments and errors, by heading.
        notes: what is not shown, and why.
        worst: the exact variant's largest error as a share of its goal.
        unit, goal: of the exact variant.
        tolerance: what its goal is, in a line; empty for goals in ulp.
        operations: float32 operations of the exact variant, forward and backward.
    """

    name: str
    doc: str
    citation: str
    inputs: str
    formulas: Sequence[str]
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
    pictures: dict[str, list[Figure]] = {MOMENTS: [], ERRORS: []}
    comparison: TableData | None = None
    formulas = [formula] if (formula := mathml(_F_OF_X, rule.f)) else []
    univariate = all(built.is_univariate for built in variants) and first.variant == EXACT
    if univariate and rule.f.free_symbols <= {x, *(p.symbol for p in rule.parameters)}:
        subject = subject_of(rule, package)
        moments, remarks = _moments(subject)
        formulas += moments
        notes += remarks
        pictures[MOMENTS].append(_curves(subject))
        pictures[ERRORS].append(_relative(subject))
        if len(variants) > 1:
            comparison = _compared(subject)
    elif univariate:
        notes.append("f has a random factor of its own: no pictures of a function.")
    else:
        notes.append("A function of two inputs: no pictures over one mean and one variance.")
    sums = {way: sum(ops.values()) for way, ops in first.certificate.get("operations", {}).items()}
    return Section(
        name=rule.name,
        doc=rule.doc,
        citation=rule.citation,
        inputs=", ".join(first.inputs),
        formulas=formulas,
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
    )


def _moments(subject: Subject) -> tuple[list[str], list[str]]:
    """MathML of mean and variance, and remarks: on symbols, or where they are not closed or too long."""
    if subject.derivation.var is None:
        return [], ["f² is outside the closed algebra; the certificate says how its moments are computed."]
    outputs = derived(subject.rule).outputs
    formulas = [mathml(f"<mi>{left}</mi>", outputs[name]) for name, left in (("mean", "m"), ("var", "Var"))]
    remarks = ["Here a is μ/σ, m is the mean, and σ² = v."]
    if not all(formulas):
        remarks.append(f"The moments are long: momentgen derive {subject.rule.name} prints them.")
    return [formula for formula in formulas if formula], remarks


def _compared(subject: Subject) -> TableData:
    """The extremes of each variant beside the exact moments."""
    rows = [
        [
            c.variant,
            _with_place(*c.mean),
            f"{shown(c.ratio[0])} – {shown(c.ratio[1])}",
            _with_place(*c.var),
            _with_place(*c.kl),
        ]
        for c in compare(subject)
    ]
    head = ["variant", "|mean − exact| / exact σ′", "σ′ / exact σ′", "|var / exact − 1|", "KL(exact ‖ variant), nats"]
    return TableData(head, rows)


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


def _setting(subject: Subject) -> str:
    setting = ", ".join(f"{name} = {value:g}" for name, value in subject.setting.items())
    return f" at {setting}" if setting else ""


def _with_place(value: float, at: tuple[float, float]) -> str:
    return f"{shown(value)} at ({at[0]:.3g}, {at[1]:.3g})"


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
