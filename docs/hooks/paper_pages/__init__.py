"""What the pages of the papers are made of: result files, scripts of the examples, tables and numbers as text."""

from __future__ import annotations

import functools
import importlib
import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "ROOT",
    "between",
    "example",
    "exists",
    "listed",
    "percent",
    "plus_minus",
    "read",
    "signed",
    "standard_error",
    "table",
]

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"


def _path(name: str, folder: str) -> Path:
    return ROOT / folder / "results" / f"{name}.json"


def exists(name: str) -> bool:
    """Whether the examples have a result file of this name."""
    return _path(name, "examples").exists()


def read(name: str, folder: str = "examples") -> Any:
    """A result file of the examples, or of the benchmarks."""
    return json.loads(_path(name, folder).read_text(encoding="utf-8"))


@functools.cache
def example(name: str) -> Any:
    """A script of the examples, as a module; names of its folder stay free, since benchmarks have the same ones."""
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    aside = {other: sys.modules.pop(other) for other in names & sys.modules.keys()}
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))
        for other in names & sys.modules.keys():
            del sys.modules[other]
        sys.modules.update(aside)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (head, *rows)]
    return "\n".join([lines[0], "|" + " --- |" * len(head), *lines[1:]])


def percent(value: float | None, digits: int = 2) -> str:
    """A share in percent; empty for None."""
    return "" if value is None else f"{100 * value:.{digits}f} %"


def signed(value: float, digits: int) -> str:
    """A number with the typographic minus."""
    return f"{value:.{digits}f}".replace("-", "−")


def plus_minus(values: Sequence[float]) -> str:
    """Mean ± standard error; of one value, the value."""
    error = f" ± {standard_error(values):.3f}" if len(values) > 1 else ""
    return f"{signed(statistics.fmean(values), 3)}{error}"


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of at least two values."""
    return statistics.stdev(values) / math.sqrt(len(values))


def between(values: Iterable[float], form: str) -> str:
    """Least and largest; where both read alike, one of them."""
    found = list(values)
    ends = dict.fromkeys(f"{end:{form}}".replace("-", "−") for end in (min(found), max(found)))
    return " to ".join(ends)


def listed(words: Sequence[str], nothing: str = "none") -> str:
    """Words with commas and an “and”.

    >>> listed(["yacht", "energy", "wine"])
    'yacht, energy and wine'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words or [nothing])
