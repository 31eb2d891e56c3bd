"""The code of a page runs, in order, in one namespace; what it prints and draws stands below it.

=============  =========================================================================================
block          what becomes of it
=============  =========================================================================================
``python``     runs; a ``text`` block right after it must hold the numbers printed, to 2 %; without one,
               what is printed, and figures of matplotlib that are open, are inserted
``console``    lines that begin with ``$ `` run in a shell; the output of each is inserted
``sh``         is shown only: lines that install or download
=============  =========================================================================================

A page has a working directory of its own, from which ``python`` blocks can import.
"""

from __future__ import annotations

import base64
import contextlib
import io
import math
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

__all__ = ["PageError", "run_page"]

_BLOCK = re.compile(
    r"^```(?P<kind>\w+)\n(?P<code>.*?)^```\n(?:\n^```text\n(?P<text>.*?)^```\n)?", re.DOTALL | re.MULTILINE
)
_NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")


class PageError(Exception):
    """A block of a page failed, or printed other numbers than the page has."""


def run_page(markdown: str, name: str) -> str:
    """Run a page's blocks.

    Args:
        markdown: the page.
        name: of the page, for messages.

    Returns:
        The page, with outputs and figures inserted.

    Raises:
        PageError: if a block fails, or prints other numbers than the ``text`` block below it.

    >>> print(run_page("no code", "page"))
    no code
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}

    def run(found: re.Match[str]) -> str:
        kind, code, expected = found["kind"], found["code"], found["text"]
        line = markdown.count("\n", 0, found.start()) + 1
        if kind == "console":
            return f"```console\n{_console(code, f'{name}:{line}')}```\n"
        if kind != "python":
            return found[0]
        try:
            printed, figures = _python(code, f"{name}:{line}", namespace)
        except Exception as error:
            raise PageError(f"{name}:{line}: {type(error).__name__}: {error}") from error
        if expected is not None and not _same_numbers(printed, expected):
            raise PageError(f"{name}:{line}: the page has\n{expected}printed is\n{printed}")
        shown = f"\n```text\n{printed.rstrip()}\n```\n" if printed.strip() and expected is None else ""
        return found[0] + shown + "".join(f"\n{figure}\n" for figure in figures)

    with _own_directory():
        return _BLOCK.sub(run, markdown)


def _python(code: str, place: str, namespace: dict[str, Any]) -> tuple[str, list[str]]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(code, place, "exec"), namespace)
    return out.getvalue(), list(_figures()) if "matplotlib.pyplot" in sys.modules else []


def _figures() -> Iterator[str]:
    """The open figures of matplotlib as images within the page; they are closed."""
    import matplotlib.pyplot as plt

    for number in plt.get_fignums():
        figure, buffer = plt.figure(number), io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130, bbox_inches="tight")
        alt = figure.get_suptitle() or (figure.axes[0].get_title() if figure.axes else "") or "figure"
        plt.close(figure)
        yield f"![{alt}](data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()})"


def _console(code: str, place: str) -> str:
    shown = ""
    # `momentgen` is that of this interpreter, on PATH or not.
    environment = os.environ | {"PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', '')}"}
    environment |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    for line in code.splitlines():
        shown += line + "\n"
        if not line.startswith("$ "):
            continue
        done = subprocess.run(line[2:], shell=True, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise PageError(f"{place}: {line[2:]}: exit code {done.returncode}: {done.stderr or done.stdout}")
        shown += done.stdout
    return shown


def _same_numbers(printed: str, expected: str) -> bool:
    found, wanted = ([float(number) for number in _NUMBER.findall(text)] for text in (printed, expected))
    return len(found) == len(wanted) and all(
        math.isclose(a, b, rel_tol=0.02, abs_tol=2e-4) for a, b in zip(found, wanted, strict=True)
    )


@contextlib.contextmanager
def _own_directory() -> Iterator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)
            os.chdir(before)
