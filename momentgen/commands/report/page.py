"""What is shown of a rule, as blocks of HTML: for the report, and for the site, whose headings are its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from momentgen import __version__
from momentgen.commands.report.section import ERRORS, MOMENTS, VARIANTS, Figure, Section, TableData

#: the hyphen of an exponent, after which a browser may break the line
_EXPONENT_HYPHEN = re.compile(r"(?<=\d[e^])-(?=\d)")

_WIDE = 48  # characters of a cell that may be broken into lines


class Block(NamedTuple):
    """HTML, or the text of a heading of ``level`` 2 or 3."""

    content: str
    level: int = 0


def blocks_of(section: Section) -> Iterator[Block]:
    """The document of one rule, without its title."""
    yield paragraph(section.doc if section.doc.endswith(".") else f"{section.doc}.")
    yield paragraph(section.citation)
    if section.formulas:
        yield Block("Formula", 2)
        yield from map(Block, section.formulas)
    yield from map(paragraph, section.notes)
    if section.pictures[MOMENTS]:
        yield Block(MOMENTS, 2)
        yield from map(_figure, section.pictures[MOMENTS])
    first, *others = section.variants
    yield Block(ERRORS, 2)
    yield from _of_variant(section, first)
    yield from map(_figure, section.pictures[ERRORS])
    if others:
        yield Block(VARIANTS, 2)
    if section.comparison:
        yield paragraph(
            "Largest differences from the exact moments, over |μ| ≤ 6 and 0.1 ≤ σ ≤ 10, at (μ, σ). "
            "Points where the exact σ′ is below 1e-4 σ are left out. "
            "A divergence is infinite (∞) where a variant has a variance of 0 and the exact one is not 0."
        )
        yield table(section.comparison)
    for variant in others:
        yield Block(variant, 3)
        yield from _of_variant(section, variant)


def _of_variant(section: Section, variant: str) -> Iterator[Block]:
    yield Block(f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in section.methods[variant])}</ul>")
    yield table(section.certificates[variant])


def paragraph(text: str) -> Block:
    """A text that is no HTML."""
    return Block(f"<p>{escape(text)}</p>")


def _figure(picture: Figure) -> Block:
    return Block(
        f'<figure class="{"wide" if picture.wide else ""}"><div class="scrolls"><img src="{picture.uri}" '
        f'alt="{picture.caption}"></div><figcaption>{picture.caption}</figcaption></figure>'
    )


def table(data: TableData, links: bool = False) -> Block:
    """A table; with ``links`` the first column links to anchors of that name."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in data.head)
    rows = []
    for row in data.rows:
        cells = [escape(cell) for cell in row]
        if links:
            cells[0] = f'<a href="#{cells[0]}">{cells[0]}</a>'
        classes = [' class="prose"' if len(cell) > _WIDE else "" for cell in row]
        rows.append("".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(classes, cells, strict=True)))
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return Block(
        f'<div class="scrolls"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'
    )


_ABOUT = """Goal and worst error are those of the exact variant, over outputs and partials. A goal of 1 tolerance is the
error in the cell: m is the exact mean, V the exact variance, L the largest |f′|, range = max f − min f, sigma² = v the
input's variance. It does not bound the relative error. Operations: float32, forward / backward."""


def render_page(sections: Sequence[Section]) -> str:
    """The whole report of some rules, in their order; the title of each is a heading of the second level."""
    head = ["rule", "inputs", "variants", "goal (exact)", "worst, share of goal", "operations"]
    overview = [
        [
            section.name,
            section.inputs,
            ", ".join(section.variants),
            f"{section.goal:g} {section.unit}" + (f": {section.tolerance}" if section.tolerance else ""),
            f"{100 * section.worst:.0f} %",
            section.operations,
        ]
        for section in sections
    ]
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>momentgen: rules and certificates</title>",
        f"<style>\n{Path(__file__).with_name('report.css').read_text(encoding='utf-8')}</style>\n</head>\n<body>",
        f'<h1>momentgen</h1>\n<p class="dim">Rules and certificates, by version {__version__}.</p>',
        table(TableData(head, overview), links=True).content,
        f'<p class="dim">{escape(_ABOUT)}</p>',
    ]
    for section in sections:
        parts.append(f'<h2 id="{section.name}">{section.name}</h2>')
        for content, level in blocks_of(section):
            parts.append(f"<h{level + 1}>{escape(content)}</h{level + 1}>" if level else content)
    return _EXPONENT_HYPHEN.sub("-\N{WORD JOINER}", "\n".join([*parts, "</body>\n</html>\n"]))
