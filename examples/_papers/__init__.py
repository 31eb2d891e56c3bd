"""What a row of the papers' list is: a table or figure, our figures, and the run that gives them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "Item", "Run", "minus", "percent"]

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Run:
    """A script with its settings, and the result that it writes.

    Args:
        name: for ``--run``; empty where nothing here runs it again.
        command: script and settings; ``RESULTS`` is the folder of results.
        file: the result in ``examples/results``, JSON or a picture.
        seeds: how many, or splits; a function reads them from the result.
        data: whether the script takes ``--data``.
        each: seeds that stand for ``SEED`` in ``command`` and ``file``, run one after the other.
    """

    name: str = ""
    command: str = ""
    file: str = ""
    seeds: Callable[[Any], str] | str = "–"
    data: bool = True
    each: tuple[int, ...] = ()

    @property
    def content(self) -> Any:
        """The result, or with ``each`` the list of results that are there; None without any."""
        files = [RESULTS / self.file.replace("SEED", str(seed)) for seed in self.each] or [RESULTS / self.file]
        found = [
            json.loads(file.read_text(encoding="utf-8")) for file in files if file.suffix == ".json" if file.exists()
        ]
        return (found or None) if self.each else next(iter(found), None)


@dataclass(frozen=True)
class Item:
    """A table or figure.

    Args:
        title: the paper's number of the item, and what it shows.
        printed: the paper's main figures; empty where it prints none.
        found: our figures, of the content of the run's file; text where they are a picture.
        scale: ours beside the paper's, or why the item is not repeated.
        run: what gives our figures.
        picture: the file of the row, where it is not the run's.
    """

    title: str
    printed: str = ""
    found: Callable[[Any], str] | str = ""
    scale: Callable[[Any], str] | str = ""
    run: Run = Run()
    picture: str = ""

    @property
    def file(self) -> str:
        """The name of the row's file; a star stands for seeds."""
        return Path(self.picture or self.run.file).name.replace("SEED", "*")

    @property
    def ours(self) -> str:
        """Our figures in words, read from the file; empty without it."""
        return self._told(self.found)

    def cells(self) -> list[str]:
        """The row: title, printed, ours, scale, seeds, file, name for ``--run``."""
        shown = self.ours or "not done"
        scale = self._told(self.scale) or "not run yet; the command does it"
        return [
            self.title,
            self.printed,
            shown,
            scale,
            self._told(self.run.seeds) or "–",
            self.file,
            self.run.name,
        ]

    def _told(self, what: Callable[[Any], str] | str) -> str:
        if isinstance(what, str):
            return what
        content = self.run.content
        return "" if content is None else what(content)


def minus(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f} %"
