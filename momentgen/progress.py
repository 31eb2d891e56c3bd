"""A progress bar on stderr, for work that takes long; rich draws it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from momentgen.extras import has, require

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(what: str, total: int, shown: bool | None) -> Iterator[Callable[..., None]]:
    """A bar on stderr while the body runs.

    Args:
        what: text beside the bar.
        total: steps.
        shown: whether there is a bar, which stays; None shows one on a terminal, where rich is installed.

    Yields:
        A function of the steps done so far, and of a new text if there is one.

    Raises:
        MissingExtraError: if a bar is wanted and rich is not installed.
    """
    passing = shown is None
    if shown is None:
        shown = sys.stderr.isatty() and has("compiler")
    if not shown:
        yield lambda done, text=what: None
        return
    require("compiler", "A progress bar")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=passing) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, text=what: bar.update(task, completed=done, description=text)
