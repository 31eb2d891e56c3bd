"""Tables and sentences of the papers' pages and docs/momentgen-and.md, computed from the result files that they cite.

    python docs/hooks/paper_tables.py        # writes the tables anew into docs/*.md and docs/results/*.md

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``; so does a paragraph whose words depend on
the figures.  Other sentences with computed figures are written by hand; :data:`SENTENCES` computes the part with the
figures, and a test looks for it on the page.  ``paper_pages`` has a module for each paper.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import package_tables
from paper_pages import ROOT, bow_tie, correlated, example, feedforward, filtering, table, variance

__all__ = ["PAGES", "SENTENCES", "TABLES", "example", "unfounded", "written"]

PAGES = ROOT / "docs" / "results"
PAPERS = (feedforward, variance, correlated, filtering, bow_tie)


def overview(paper: str) -> str:
    """Every table and figure of a paper."""
    papers = example("papers")
    rows = []
    for item in papers.ITEMS[paper]:
        *cells, file, name = (cell or "–" for cell in item.cells())
        rows.append([*cells, *(f"`{cell}`" if cell != "–" else cell for cell in (file, name))])
    *head, name = papers.COLUMNS
    return table([*head, f"`{name}`"], rows)


#: name -> table or paragraph, each on one page
TABLES: dict[str, Callable[[], str]] = {
    **{name: write for paper in PAPERS for name, write in paper.TABLES.items()},
    **{
        f"overview {paper}": functools.partial(overview, paper)
        for paper in ("ff", "vbp", "correlated", "adf", "bow-tie")
    },
    **package_tables.TABLES,
}
#: page -> computed parts of its sentences
SENTENCES: dict[str, Callable[[], list[str]]] = {
    **{page: said for paper in PAPERS for page, said in paper.SENTENCES.items()},
    **package_tables.SENTENCES,
}

_PLACE = re.compile(r"(<!-- table: (?P<name>[^>]*) -->\n\n).*?(\n\n<!-- end of table -->)", re.DOTALL)


def written(page: str) -> str:
    """A page with its tables computed anew.

    Raises:
        KeyError: for a table that is not in :data:`TABLES`.
    """
    return _PLACE.sub(lambda place: place[1] + TABLES[place["name"]]() + place[3], page)


_FIGURE = re.compile(r"(?<![\w.,-])−?(\d+\.(\d+))(?: %)?(?![\w])")


def unfounded(name: str) -> list[str]:
    """Figures with a decimal point in a page's prose that no file which it cites has, and no computed sentence."""
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    cited = set(re.findall(r"`(?:[\w/]*/)?([\w-]+\.json)`", page))
    files = [path for folder in ("examples", "benchmarks") for path in (ROOT / folder / "results").glob("*.json")]
    known = {value for path in files if path.name in cited for value in _numbers(json.loads(path.read_text()))}
    prose = re.sub(r"^\|.*?$|^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    for sentence in SENTENCES.get(name, list)():
        prose = prose.replace(sentence, "")
    return [
        found[0]
        for found in _FIGURE.finditer(prose)
        if found[1] not in {f"{abs(value) * scale:.{len(found[2])}f}" for value in known for scale in (1, 100)}
    ]


def _numbers(value: Any) -> Iterable[float]:
    """Every number of a result, also in keys and words."""
    if isinstance(value, dict | list):
        for inside in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from _numbers(inside)
    elif isinstance(value, str):
        yield from map(float, re.findall(r"\d+\.\d+", value))
    elif isinstance(value, int | float):
        yield value


if __name__ == "__main__":
    for path in sorted([*PAGES.glob("*.md"), *PAGES.parent.glob("*.md")]):
        text = path.read_text(encoding="utf-8")
        if (new := written(text)) != text:
            path.write_text(new, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")
