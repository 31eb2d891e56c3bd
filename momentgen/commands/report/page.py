"""Sections to one self-contained page, by the template ``report.html.j2``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from momentgen import __version__
from momentgen.commands.report.section import Section, TableData, shown
from momentgen.errors import MomentgenError

#: the hyphen of an exponent, after which a browser may break the line
_EXPONENT_HYPHEN = re.compile(r"(?<=\d[e^])-(?=\d)")


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


def softmax_table(results: Any, path: Path) -> TableData | None:
    """A list of dicts (or the ``results`` of a dict) as a table with a column a key; None for None or no rows.

    Raises:
        MomentgenError: if it is something else.

    >>> softmax_table([{"K": 2, "error": 0.25}, {"K": 10}], Path("softmax.json"))
    TableData(head=['K', 'error'], rows=[['2', '0.25'], ['10', '']])
    """
    rows = results.get("results") if isinstance(results, dict) else results
    if rows is None:
        return None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise MomentgenError(f"expected a list of objects in {path}, got {type(rows).__name__}")
    head = list(dict.fromkeys(key for row in rows for key in row))
    return TableData(head, [[shown(row.get(key, "")) for key in head] for row in rows]) if rows else None


def render_page(sections: Sequence[Section], *, costs: Costs | None = None, softmax: TableData | None = None) -> str:
    """The whole page.

    Args:
        sections: one per rule, in the order of the page.
        costs: for the overview; None where nothing was measured.
        softmax: the error table of the softmax variants, where there is one.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("momentgen.commands.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
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
    page = environment.get_template("report.html.j2").render(
        version=__version__,
        sections=sections,
        overview=TableData(head, overview),
        costs=costs,
        softmax=softmax,
    )
    return _EXPONENT_HYPHEN.sub("-\N{WORD JOINER}", page)
