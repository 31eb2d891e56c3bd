"""Pages of committed results: the gallery of ``examples/``, a page for each example, and the benchmarks."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["result_pages"]

ROOT = Path(__file__).parents[2]
EXAMPLES, BENCHMARKS = ROOT / "examples", ROOT / "benchmarks" / "results"


@functools.cache
def result_pages() -> dict[str, str]:
    """The pages: uri -> Markdown."""
    scripts = sorted(EXAMPLES.glob("[a-z]*.py"))
    return {"gallery/index.md": _gallery(scripts), "benchmarks.md": _benchmarks()} | {
        f"gallery/{script.stem}.md": _example(script) for script in scripts
    }


def _about(script: Path) -> list[str]:
    """The docstring of a script: its first paragraph, and the rest."""
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    first, _, rest = text.partition("\n\n")
    return [first.replace("\n", " "), rest]


def _results(script: Path, kind: str) -> list[Path]:
    return sorted((EXAMPLES / "results").glob(f"{script.stem.removesuffix('_figure')}*{kind}"))


def _gallery(scripts: Iterable[Path]) -> str:
    lines = [
        "# Gallery",
        "",
        "Each script of `examples/` with what it draws.",
        "",
        '<div class="gallery" markdown>',
        "",
    ]
    for script in sorted(scripts, key=lambda script: not _results(script, ".png")):
        pictures = _results(script, ".png")
        shown = f"[![{script.stem}](../examples/results/{pictures[0].name})]({script.stem}.md)" if pictures else ""
        title = f"### [{script.stem.replace('_', ' ')}]({script.stem}.md)"
        lines += ["<div markdown>", "", title, "", shown, "", _about(script)[0], "", "</div>", ""]
    return "\n".join([*lines, "</div>", ""])


def _example(script: Path) -> str:
    first, rest = _about(script)
    lines = [f"# {script.stem.replace('_', ' ')}", "", first, ""]
    for picture in _results(script, ".png"):
        lines += [f"![{picture.stem}](../examples/results/{picture.name})", ""]
    lines += ["```text", rest.rstrip(), "```", ""]
    for result in _results(script, ".json"):
        lines += _folded(result.name, "json", result.read_text(encoding="utf-8"))
    source = script.read_text(encoding="utf-8")
    return "\n".join([*lines, *_folded(f"examples/{script.name}", "python", source), ""])


def _folded(title: str, language: str, text: str) -> list[str]:
    block = [f"```{language}", *text.rstrip().splitlines(), "```"]
    return [f'??? note "{title}"', "", *(f"    {line}" for line in block), ""]


def _benchmarks() -> str:
    lines = ["# Benchmarks", "", "All figures are from `benchmarks/results/`; `make bench` measures again.", ""]
    lines += ["[What the default is worth](results/the-default.md) compares it with sampling, by network.", ""]
    lines += [*_networks(), *_ops(), *_builds()]
    return "\n".join(lines)


def _read(name: str) -> Any:
    return json.loads((BENCHMARKS / f"{name}.json").read_text(encoding="utf-8"))


def _where(environment: dict[str, Any]) -> str:
    threads = environment["threads"]
    return f"{environment['cpu']}, torch {environment['torch']}, {threads} thread{'s' if threads != 1 else ''}"


def _networks() -> list[str]:
    data = _read("networks_1_thread")
    networks = list(dict.fromkeys(row["network"] for row in data["results"]))
    ways = list(dict.fromkeys(row["propagation"] for row in data["results"]))
    over = {(row["network"], row["propagation"]): f"{row['over_plain']:.2f}" for row in data["results"]}
    rows = [[way, *(over.get((network, way), "") for network in networks)] for way in ways]
    steps = _read("vi_steps")
    vi = [
        [f"{network}: {way}", f"{found['over plain']:.2f}"]
        for network in ("mlp", "lenet")
        for way, found in steps[network].items()
    ]
    return [
        *[
            "## Training steps",
            "",
            f"Time of a step over a plain one, batch {data['batch']} ({_where(data['environment'])}).",
        ],
        *[
            "",
            *_table(["method", *networks], rows),
            "",
            "With random weights:",
            "",
            *_table(["step", "over plain"], vi),
            "",
        ],
    ]


def _ops() -> list[str]:
    data = _read("cpu_ops")
    ways = ("kernel", "op", "eager")
    largest = max(row["elements"] for row in data["results"])
    rows = [
        [f"[{row['rule']}](ops/{row['rule']}.md)", row["variant"], row["direction"]]
        + [f"{row['over_copy'][way]:.1f}" if way in row["over_copy"] else "" for way in ways]
        for row in data["results"]
        if row["elements"] == largest
    ]
    said = f"Time over a copy of the same bytes, {largest:,} elements ({_where(data['environment'])})."
    meaning = "`kernel` is the C alone, `op` the call from torch, `eager` the same formula in PyTorch."
    return ["## Ops", "", said, meaning, "", *_table(["op", "variant", "pass", *ways], rows), ""]


def _builds() -> list[str]:
    data = _read("build_time")
    rows = [
        ["all rules, from nothing", f"{data['cold_seconds']:.0f} s"],
        ["with lowering and certification cached", f"{data['kept_seconds']:.0f} s"],
        ["nothing to do", f"{data['idle_seconds']:.1f} s"],
    ]
    said = f"`momentgen build` of {len(data['rules'])} rules on {data['cores']} cores ({data['environment']['cpu']})."
    return ["## Builds", "", said, "", *_table(["build", "time"], rows), ""]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [lines[0], "|" + " --- |" * len(head), *lines[1:]]
