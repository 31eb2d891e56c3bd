"""Pages of committed results: the gallery of ``examples/``, a page for each example, and the benchmarks."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["result_files", "result_pages"]

ROOT = Path(__file__).parents[2]
EXAMPLES, BENCHMARKS = ROOT / "examples", ROOT / "benchmarks" / "results"


@functools.cache
def result_pages() -> dict[str, str]:
    """The pages: uri -> Markdown."""
    scripts = sorted(EXAMPLES.glob("[a-z]*.py"))
    return {"gallery/index.md": _gallery(scripts), "benchmarks.md": _benchmarks()} | {
        f"gallery/{script.stem}.md": _example(script) for script in scripts
    }


def result_files() -> list[Path]:
    """What the examples left: pictures, which pages show, and figures, to which they lead."""
    return sorted(path for path in (EXAMPLES / "results").iterdir() if path.suffix in (".png", ".json"))


def _about(script: Path) -> tuple[str, str, list[str]]:
    """The docstring of a script: its title, the rest of its first paragraph, and the other paragraphs."""
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    first, *others = text.split("\n\n")
    title, sign, rest = re.split(r"(: |\? | (?=\()|\.$)", first.replace("\n", " "), maxsplit=1)
    rest = rest.strip()
    return title + sign.strip(" :."), rest[:1].upper() + rest[1:], others


def _results(script: Path, kind: str) -> list[Path]:
    return sorted((EXAMPLES / "results").glob(f"{script.stem.removesuffix('_figure')}*{kind}"))


def _caption(script: Path, picture: Path) -> str:
    """What a picture shows, in words: the title, and what its name has more than the script's.

    >>> _caption(EXAMPLES / "vi_vbp.py", Path("vi_vbp_mlp-400_seed-0.png"))
    'Variance back-propagation against sampling: mlp 400, seed 0'
    """
    more = picture.stem.removeprefix(script.stem.removesuffix("_figure")).strip("_").replace("_", ", ")
    return ": ".join(part for part in (_about(script)[0], more.replace("-", " ")) if part)


def _shown(paragraph: str) -> list[str]:
    r"""A paragraph of a docstring as Markdown: commands and formulas as blocks, keys and texts as a list.

    >>> _shown("    AP1    means\n    AP2    means and\n           variances")
    ['- **AP1**: means', '- **AP2**: means and variances', '']
    """
    lines = paragraph.splitlines()
    if not all(line.startswith("    ") for line in lines):
        return [_plain(paragraph), ""]
    entries = [re.match(r"    (\S.*?[^\s,])\s{2,}([^\s=].*)", line) for line in lines]
    if lines[0].startswith("    python ") or not entries[0]:
        kind = "sh" if lines[0].startswith("    python ") else "text"
        return [f"```{kind}", *(line[4:] for line in lines), "```", ""]
    items: list[str] = []
    for line, entry in zip(lines, entries, strict=True):
        if entry:
            items.append(f"- **{_plain(entry[1])}**: {_plain(entry[2])}")
        else:
            items[-1] += f" {_plain(line.strip())}"
    return [*items, ""]


def _plain(text: str) -> str:
    """Text without code in which nothing is Markdown."""
    return re.sub(r"(`+[^`]+`+)|([*_<])", lambda found: found[1] or f"\\{found[2]}", text)


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
        title, rest, _ = _about(script)
        shown = f"[![{title}](../examples/results/{pictures[0].name})]({script.stem}.md)" if pictures else ""
        lines += [
            "<div markdown>",
            "",
            f"### [{title}]({script.stem}.md)",
            "",
            shown,
            "",
            _plain(rest),
            "",
            "</div>",
            "",
        ]
    return "\n".join([*lines, "</div>", ""])


def _example(script: Path) -> str:
    title, rest, paragraphs = _about(script)
    lines = [f"# {title}", "", _plain(rest), ""]
    for picture in _results(script, ".png"):
        caption = _caption(script, picture)
        lines += ['<figure markdown="span">', f"![{caption}](../examples/results/{picture.name})"]
        lines += [f"<figcaption>{caption}</figcaption>", "</figure>", ""]
    for paragraph in paragraphs:
        lines += _shown(paragraph)
    if results := _results(script, ".json"):
        links = [f"[{result.name}](../examples/results/{result.name})" for result in results]
        lines += [f"Results: {', '.join(links)}.", ""]
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
            *table(["method", *networks], rows),
            "",
            "With random weights:",
            "",
            *table(["step", "over plain"], vi),
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
    return ["## Ops", "", said, meaning, "", *table(["op", "variant", "pass", *ways], rows), ""]


def _builds() -> list[str]:
    data = _read("build_time")
    rows = [
        ["all rules, from nothing", f"{data['cold_seconds']:.0f} s"],
        ["nothing to do", f"{data['idle_seconds']:.1f} s"],
    ]
    said = f"`momentgen build` of {len(data['rules'])} rules on {data['cores']} cores ({data['environment']['cpu']})."
    return ["## Builds", "", said, "", *table(["build", "time"], rows), ""]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [lines[0], "|" + " --- |" * len(head), *lines[1:]]
