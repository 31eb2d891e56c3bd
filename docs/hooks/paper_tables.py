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
from pathlib import Path
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


_FIGURE = re.compile(r"(?<![\w.,-])−?(\d+\.\d+|\d{1,3}(?:,\d{3})+|\d+(?= %))(?![\w])")


def unfounded(name: str) -> list[str]:
    """Figures in a page's prose that neither a computed sentence has nor the settings of a file that it cites.

    They are numbers with a decimal point, with a comma, or in percent.
    """
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    cited = set(re.findall(r"`(?:[\w/]*/)?([\w-]+\.json)`", page))
    files = [path for folder in ("examples", "benchmarks") for path in (ROOT / folder / "results").glob("*.json")]
    known = {value for path in files if path.name in cited for value in _settings(path)}
    prose = re.sub(r"^\|.*?$|^```.*?^```|`[^`]*`", "", _PLACE.sub("", page), flags=re.DOTALL | re.MULTILINE)
    for sentence in SENTENCES.get(name, list)():
        prose = prose.replace(sentence, "")
    return [found[0] for found in _FIGURE.finditer(prose) if float(found[1].replace(",", "")) not in known]


def _settings(path: Path) -> Iterable[float]:
    """Numbers that a result has not found: its settings, those in its keys, and those in the script of its name."""
    script = path.parents[1] / f"{path.stem}.py"
    text = script.read_text(encoding="utf-8") if script.exists() else ""
    result = json.loads(path.read_text(encoding="utf-8"))
    given = f"{re.sub(r'(?<=[0-9])_(?=[0-9])', '', text)} {result.get('settings')} {' '.join(_keys(result))}"
    return map(float, re.findall(r"\d+(?:\.\d+)?", given))


def _keys(result: Any) -> Iterable[str]:
    if isinstance(result, dict):
        for key, value in result.items():
            yield from (key, *_keys(value))


if __name__ == "__main__":
    for path in sorted([*PAGES.glob("*.md"), *PAGES.parent.glob("*.md")]):
        text = path.read_text(encoding="utf-8")
        if (new := written(text)) != text:
            path.write_text(new, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")
