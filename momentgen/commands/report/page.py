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
from momentgen.commands.report.section import Section, TableData
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


def render_page(sections: Sequence[Section], *, costs: Costs | None = None) -> str:
    """The whole page.

    Args:
        sections: one per rule, in the order of the page.
        costs: for the overview; None where nothing was measured.
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
    )
    return _EXPONENT_HYPHEN.sub("-\N{WORD JOINER}", page)
