"""A page for each op: what ``momentgen report`` shows of it, as Markdown, with a badge and code that runs.

Pages take seconds of ball arithmetic, so they are made in parallel and cached in ``.cache/``, by what they depend on.
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
import pickle
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from page_code import run_page

import momentgen.generated
from momentgen.commands.report.page import blocks_of
from momentgen.commands.report.section import Section, section_of
from momentgen.rule import load_rules

__all__ = ["BADGES", "badge", "op_pages", "op_uris"]

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "generated"
#: the modules of the report that a page depends on
_SHOWN = ("figures", "formula", "measurements", "section", "subject")
#: badge -> what it says
BADGES = {
    "exhaustive": "The kernel ran on all 2³² float32 means at variance 1, and was searched elsewhere.",
    "searched": "Errors are the largest that a search over all of float32 found.",
}


def badge(certificate: dict[str, Any]) -> str:
    """What a certificate rests on.

    >>> badge({"goal": {"ulp": 8}, "exhaustive": [{"var": 1.0}]})
    'exhaustive'
    """
    return "exhaustive" if certificate.get("exhaustive") else "searched"


def op_uris() -> list[str]:
    """The pages' names; the list of ops comes first."""
    return ["ops/index.md", *(f"ops/{name}.md" for name in sorted(momentgen.generated.__all__))]


def op_pages() -> dict[str, str]:
    """The pages: uri -> Markdown."""
    names = sorted(momentgen.generated.__all__)
    sys.path.append(str(Path(__file__).parent))  # for the workers; mkdocs takes it out after loading the hooks
    # Spawned, not forked: matplotlib and flint have threads and state of their own.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        sections = pool.map(_section, names)
        pages = [_page(name, section) for name, section in zip(names, sections, strict=True)]
    sys.path.remove(str(Path(__file__).parent))
    return dict(zip(op_uris(), [_index(names), *pages], strict=True))


def _section(name: str) -> Section:
    """What the report shows of a rule, from the cache if it is there."""
    rule = ROOT / "rules" / f"{name}.py"
    code = [
        ROOT / "momentgen" / "promise.py",
        *(ROOT / "momentgen" / "commands" / "report" / f"{module}.py" for module in _SHOWN),
    ]
    sources = [rule, *sorted((GENERATED / name).glob("*.json")), *code]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    path = ROOT / ".cache" / "ops" / f"{name}-{digest}.pickle"
    if path.is_file():
        section: Section = pickle.loads(path.read_bytes())
        return section
    section = section_of(load_rules(rule)[0], GENERATED)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(section))
    return section


def _page(name: str, section: Section) -> str:
    kind = badge(_certificates(name)[0])
    lines = [f"# {name}", "", f'<span class="badge {kind.split()[0]}">{kind}</span> {BADGES[kind]}', ""]
    for content, level in blocks_of(section):
        lines += [f"{'#' * level} {content}" if level else content, ""]
    lines += ["## Use", "", "```python", *_example(name), "```", ""]
    return run_page("\n".join(lines), name)


def _index(names: Sequence[str]) -> str:
    rows = []
    for name in names:
        certificates = _certificates(name)
        first = certificates[0]
        ((unit, goal),) = first["goal"].items()
        worst = max(bound[unit] for bound in first["bounds"].values())
        kind = badge(first)
        variants = ", ".join(certificate["variant"] for certificate in certificates)
        cell = f'<span class="badge {kind.split()[0]}">{kind}</span>'
        doc = getattr(momentgen.generated, name).__doc__.split("\n")[0]
        rows.append([f"[{name}]({name}.md)", doc, cell, f"{worst:.2g} of {goal:g} {unit}", variants])
    head = ["op", "moments of", "certificate", "largest error found", "variants"]
    about = [f"- **{kind}**: {text}" for kind, text in BADGES.items()]
    body = [head, ["---"] * len(head), *rows]
    return "\n".join(["# All ops", "", *(f"| {' | '.join(row)} |" for row in body), "", *about, ""])


@functools.cache
def _certificates(name: str) -> list[dict[str, Any]]:
    """The certificates of all variants, the default's first."""
    variants = json.loads((GENERATED / name / "manifest.json").read_text(encoding="utf-8"))["variants"]
    return [json.loads((GENERATED / name / f"{v['name']}.json").read_text(encoding="utf-8")) for v in variants]


def _example(name: str) -> list[str]:
    op = getattr(momentgen.generated, name)
    values = {"m": "torch.tensor([-1.0, 0.0, 1.0])", "v": "torch.ones(3)", "c": "torch.full((3,), 0.5)"}
    arguments = ", ".join(values[argument[0]] for argument in op.input_names)
    return ["import torch", f"from momentgen.generated import {name}", "", f"print({name}({arguments}))"]
