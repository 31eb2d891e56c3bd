"""Tables that results print as, in plain text."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["Table", "range_of", "shown"]


class Table:
    """Text in columns: ``str(table)``.

    Args:
        columns: their headings; a line break begins a second line of the heading.
        words: how many columns at the left are text; the others are numbers, set to the right.
        title: a line above.

    >>> table = Table(["layer", "std"], words=1)
    >>> table.add_row("0", "0.25")
    >>> print(table)
    layer    std
    ────────────
    0       0.25
    """

    def __init__(self, columns: Sequence[str], words: int, title: str = "") -> None:
        heading = [column.split("\n") for column in columns]
        lines = max(map(len, heading))
        self._head = list(zip(*([""] * (lines - len(column)) + column for column in heading), strict=True))
        self._words, self._title, self._rows = words, title, list[tuple[str, ...]]()

    def add_row(self, *cells: str) -> None:
        """Append a row; cells that are left out at its end are empty."""
        self._rows.append(cells + ("",) * (len(self._head[0]) - len(cells)))

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self._head, *self._rows, strict=True)]

        def line(cells: Sequence[str]) -> str:
            sides = "<" * self._words + ">" * (len(widths) - self._words)
            cut = zip(cells, sides, widths, strict=True)
            return "   ".join(f"{cell:{side}{width}}" for cell, side, width in cut).rstrip()

        rule = "─" * (sum(widths) + 3 * (len(widths) - 1))
        title = [self._title, ""] if self._title else []
        return "\n".join([*title, *map(line, self._head), rule, *map(line, self._rows)])


def range_of(values: Tensor) -> tuple[float, float, float]:
    """Least, average and largest value; NaN of none."""
    if not values.numel():
        return (float("nan"),) * 3
    return values.min().item(), values.double().mean().item(), values.max().item()


def shown(values: Sequence[float]) -> list[str]:
    """Numbers in three digits.

    >>> shown((0.12345, 2000.0))
    ['0.123', '2e+03']
    """
    return [f"{value:.3g}" for value in values]
