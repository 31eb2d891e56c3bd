"""Tables that results print as: rich's, in a terminal and in plain text alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["plain", "range_of", "shown", "table"]

_WIDTH = 120


def table(columns: Sequence[str], words: int) -> Table:
    """An empty table; the first ``words`` columns are text, the others numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i < words else "right")
    return made


def plain(renderable: Any) -> str:
    """What rich prints, as text without colours."""
    from rich.console import Console

    console = Console(width=_WIDTH, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


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
