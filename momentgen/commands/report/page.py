"""What is shown of a rule, as blocks; blocks to the report's HTML, or to the Markdown of the site."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from momentgen import __version__
from momentgen.commands.report.section import ERRORS, MOMENTS, VARIANTS, Figure, Section, TableData
from momentgen.errors import MomentgenError

#: the hyphen of an exponent, after which a browser may break the line
_EXPONENT_HYPHEN = re.compile(r"(?<=\d[e^])-(?=\d)")

_WIDE = 48  # characters of a cell that may be broken into lines


@dataclass(frozen=True)
class Costs:
    """What exact kernels cost, from ``benchmarks/layer_share.py``.

    Attributes:
        over_copy, share: (rule, direction) -> times a memory copy, and share of the layer.
        layer: the layer's width and batch.
        environment: the machine that measured.
    """

    over_copy: Mapping[tuple[str, str], float]
    share: Mapping[tuple[str, str], float]
    layer: Mapping[str, Any]
    environment: Mapping[str, Any]

    def cells(self, rule: str) -> list[str]:
        """Over a copy and share of the layer, forward and backward, as cells; empty where not measured."""
        ways = [(rule, direction) for direction in ("forward", "backward")]
        copies = [f"{self.over_copy[way]:.1f}" for way in ways if way in self.over_copy]
        shares = [f"{100 * self.share[way]:.1f} %" for way in ways if way in self.share]
        return [" / ".join(copies), " / ".join(shares)]


def read_results(path: Path) -> Any:
    """A benchmark's results; None where the file is not there.

    Raises:
        MomentgenError: if it is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise MomentgenError(f"expected benchmark results in {path}, but they do not read: {error}") from error


def costs_from(results: Any, path: Path) -> Costs | None:
    """The results of ``layer_share.py`` that ``path`` holds, as the page needs them; None for None.

    Raises:
        MomentgenError: if they are something else.
    """
    if results is None:
        return None
    try:
        rows = {(row["rule"], row["direction"]): row for row in results["results"] if row["variant"] == "exact"}
        return Costs(
            {key: float(row["over_copy"]) for key, row in rows.items()},
            {key: float(row["share_of_layer"]) for key, row in rows.items()},
            results["layer"],
            results["environment"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MomentgenError(
            f"expected results of benchmarks/layer_share.py in {path}; missing or wrong: {error}"
        ) from error


class Block(NamedTuple):
    """A part of a document: ``h2``, ``h3``, ``p``, ``list``, ``html``, ``table`` or ``figures``, and what is in it."""

    kind: str
    content: Any


def blocks_of(section: Section, costs: Costs | None) -> list[Block]:
    """The document of one rule, without its title."""
    doc = section.doc if section.doc.endswith(".") else f"{section.doc}."
    blocks = [Block("p", doc), Block("p", section.citation)]
    if section.formulas:
        blocks += [Block("h2", "Formula"), *(Block("html", formula) for formula in section.formulas)]
    if section.legend:
        blocks.append(Block("html", f"<p>where {'; '.join(section.legend)}; m is the mean, σ² = v.</p>"))
    blocks += [Block("p", note) for note in section.notes]
    if section.pictures[MOMENTS]:
        blocks += [Block("h2", MOMENTS), Block("figures", section.pictures[MOMENTS])]
    first, *others = section.variants
    blocks += [Block("h2", ERRORS), Block("list", section.methods[first]), Block("table", section.certificates[first])]
    blocks.append(Block("figures", section.pictures[ERRORS]))
    if others:
        blocks += [Block("h2", VARIANTS), Block("figures", section.pictures[VARIANTS])]
    if section.comparison:
        said = "Largest differences from the exact moments, over |μ| ≤ 6 and 0.1 ≤ σ ≤ 10, at (μ, σ). "
        said += "Points where the exact σ′ is below 1e-4 σ are left out. "
        said += "A divergence is infinite (∞) where a variant has a variance of 0 and the exact one is not 0."
        blocks += [Block("p", said), Block("table", section.comparison)]
    for variant in others:
        blocks += [Block("h3", variant), Block("list", section.methods[variant])]
        blocks.append(Block("table", section.certificates[variant]))
    if section.counts.rows:
        blocks += [Block("h2", "Cost"), Block("p", "float32 operations per element:"), Block("table", section.counts)]
    copies, shares = costs.cells(section.name) if costs else ("", "")
    if costs and copies:
        layer, environment = costs.layer, costs.environment
        said = f"The exact kernel takes {copies} times a copy of the same bytes, forward / backward. "
        said += f"That is {shares} of a moment-linear layer of width {layer['width']} at batch {layer['batch']} "
        said += f"({environment['cpu']}, {environment['threads']} threads; benchmarks/results/layer_share.json)."
        blocks.append(Block("p", said))
    return blocks


def markdown(blocks: Iterable[Block]) -> str:
    """Blocks as Markdown, for a page of the site."""
    lines: list[str] = []
    for kind, content in blocks:
        if kind in ("h2", "h3"):
            lines += [f"{'#' * int(kind[1])} {content}", ""]
        elif kind == "table":
            head, *rows = ([cell.replace("|", "\\|") for cell in row] for row in [content.head, *content.rows])
            lines += [_row(head), "|" + " --- |" * len(head), *map(_row, rows), ""]
        elif kind == "list":
            lines += [*(f"- {_plain(item)}" for item in content), ""]
        elif kind == "figures":
            lines += [part for picture in content for part in (_figure(picture), "")]
        else:
            lines += [content if kind == "html" else _plain(content), ""]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Text that is no Markdown, in Markdown."""
    return re.sub(r"([*_])", r"\\\1", text).replace("<", "&lt;")


def _figure(picture: Figure) -> str:
    return (
        f'<figure class="{"wide" if picture.wide else ""}"><div class="scrolls"><img src="{picture.uri}" '
        f'alt="{picture.caption}"></div><figcaption>{picture.caption}</figcaption></figure>'
    )


def html(blocks: Iterable[Block]) -> str:
    """Blocks as HTML, for the report, where the title of a rule is a heading of the second level."""
    parts = []
    for kind, content in blocks:
        if kind in ("h2", "h3"):
            parts.append(f"<h{int(kind[1]) + 1}>{escape(content)}</h{int(kind[1]) + 1}>")
        elif kind == "table":
            parts.append(_html_table(content))
        elif kind == "list":
            parts.append(f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in content)}</ul>")
        elif kind == "figures":
            parts += map(_figure, content)
        else:
            parts.append(content if kind == "html" else f"<p>{escape(content)}</p>")
    return "\n".join(parts)


def _html_table(table: TableData, links: bool = False) -> str:
    data = table.filled()
    head = "".join(f"<th>{escape(cell)}</th>" for cell in data.head)
    rows = []
    for row in data.rows:
        cells = [escape(cell) for cell in row]
        if links:
            cells[0] = f'<a href="#{cells[0]}">{cells[0]}</a>'
        classes = [' class="prose"' if len(cell) > _WIDE else "" for cell in row]
        rows.append("".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(classes, cells, strict=True)))
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scrolls"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


_ABOUT = """Goal and worst error are those of the exact variant, over outputs and partials. A goal of 1 tolerance is the
error in the cell: m is the exact mean, V the exact variance, L the largest |f′|, range = max f − min f, sigma² = v the
input's variance. It does not bound the relative error. Operations: float32, forward / backward. × copy: time of the
exact kernel over a memory copy. Of a layer: its share of a moment-linear layer."""


def render_page(sections: Sequence[Section], *, costs: Costs | None = None) -> str:
    """The whole report.

    Args:
        sections: one per rule, in the order of the page.
        costs: of the exact kernels; None where nothing was measured.
    """
    head = ["rule", "inputs", "variants", "goal (exact)", "worst, share of goal", "operations", "× copy", "of a layer"]
    overview = [
        [
            section.name,
            section.inputs,
            ", ".join(section.variants),
            f"{section.goal:g} {section.unit}" + (f": {section.tolerance}" if section.tolerance else ""),
            f"{100 * section.worst:.0f} %",
            section.operations,
            *(costs.cells(section.name) if costs is not None else ["", ""]),
        ]
        for section in sections
    ]
    about = _ABOUT if costs else f"{_ABOUT} Times are not shown: there is no benchmarks/results/layer_share.json."
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>momentgen: rules and certificates</title>",
        f"<style>\n{Path(__file__).with_name('report.css').read_text(encoding='utf-8')}</style>\n</head>\n<body>",
        f'<h1>momentgen</h1>\n<p class="dim">Rules and certificates, by version {__version__}.</p>',
        _html_table(TableData(head, overview), links=True),
        f'<p class="dim">{escape(about)}</p>',
    ]
    parts += [f'<h2 id="{s.name}">{s.name}</h2>\n{html(blocks_of(s, costs))}' for s in sections]
    return _EXPONENT_HYPHEN.sub("-\N{WORD JOINER}", "\n".join([*parts, "</body>\n</html>\n"]))
