"""What generated PyTorch code calls: polynomials, of two values one for each cell of their plane.

In C the latter are functions of the generated file itself (``momentgen/compiler/emit``), with the coefficients in its
tables.  PyTorch code reads them from there, so that they are stated once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from momentgen.errors import MomentgenError

__all__ = ["Surface", "choice", "polynomial", "summed", "surface", "surface_slopes", "surfaces_beside"]

#: by cell, the number of its polynomial; of each polynomial unit, scale and shift of the first value, and of the
#: second; of each its coefficients in that unit, by power of the second value and of the first
Surface = tuple[
    tuple[int, ...], tuple[tuple[float, float, float, float, float], ...], tuple[tuple[tuple[float, ...], ...], ...]
]


_TABLE = re.compile(r"static const (?:double|uint8_t|Patch) (surface|terms|patches)(\d+)\[\d+\] = \{(.*?)\n\};", re.S)


def surfaces_beside(module: str) -> list[Surface]:
    """The polynomials in the C file for float64 beside a PyTorch module, by their numbers.

    Args:
        module: the path of ``VARIANT_torch.py``.

    Raises:
        MomentgenError: if that file is not there, or has no such tables.
    """
    path = Path(module).with_name(Path(module).name.replace("_torch.py", "_float64.c"))
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MomentgenError(f"{module}: expected the coefficients in {path.name} beside it: {error}") from error
    found: dict[int, dict[str, str]] = {}
    for kind, number, body in _TABLE.findall(text):
        found.setdefault(int(number), {})[kind] = body
    try:
        return [_surface_of(**found[number]) for number in range(len(found))]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise MomentgenError(f"{path}: expected tables of polynomials, got others: {error!r}") from error


def _surface_of(surface: str, terms: str, patches: str) -> Surface:
    """A polynomial by the texts of its tables: coefficients, how many each pair of rows has, and the patches."""
    values, counts = _numbers(surface), [int(count) for count in _numbers(terms)]
    rows = [tuple(_numbers(row)) for row in re.findall(r"\{(.*?)\}", patches)]
    distinct = list(dict.fromkeys(rows))
    tables = []
    for first, begin, pairs, *_ in distinct:
        at, table = int(first), []
        for count in counts[int(begin) : int(begin) + int(pairs)]:  # two rows take turns, from the highest power on
            taken = values[at : at + 2 * count]
            table += [tuple(taken[side::2][::-1]) for side in (0, 1)]
            at += 2 * count
        tables.append(tuple(reversed(table)))
    scales = tuple([(unit, y, y_shift, z, z_shift) for _, _, _, unit, y, y_shift, z, z_shift in distinct])
    return tuple([distinct.index(row) for row in rows]), scales, tuple(tables)


def _numbers(text: str) -> list[float]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    return [float.fromhex(word) if "0x" in word else float(word) for word in words]


class _Patches:
    """What serves each element: a table for all or one for each cell, its unit, its two values and their scales."""

    def __init__(self, of: Surface, cell: Tensor | int, y: Tensor, z: Tensor) -> None:
        of_cell, scales, tables = of
        self.number: Tensor | None = None
        numbers: tuple[Tensor | float, ...]
        if isinstance(cell, Tensor):
            at = cell.long()[..., None]  # vmap does not index by a tensor of no dimensions
            number = y.new_tensor(of_cell, dtype=torch.long)[at]
            self.number = number[..., 0]
            numbers = tuple([column[number][..., 0] for column in y.new_tensor(scales).T])
        else:
            numbers, tables = scales[of_cell[cell]], (tables[of_cell[cell]],)
        self.height, self.width = max(map(len, tables)), max(len(row) for table in tables for row in table)
        rows = [row for table in tables for row in (*table, *[()] * (self.height - len(table)))]
        table = y.new_tensor([[*row, *[0.0] * (self.width - len(row))] for row in rows])
        #: by cell, power of z and of y
        self.table = table.view(-1, self.height, self.width)
        self.unit, self.y_scale, y_shift, self.z_scale, z_shift = numbers
        self.y, self.z = y * self.y_scale + y_shift, z * self.z_scale + z_shift

    def rows(self, derived: bool) -> list[Tensor]:
        """By power of z, the polynomials of y of each element's cell; after them, their derivatives."""
        table = self.table
        if derived:
            slopes = table[..., 1:] * torch.arange(1.0, self.width, dtype=table.dtype, device=table.device)
            table = torch.cat([table, torch.cat([slopes, torch.zeros_like(table[..., :1])], -1)], 1)
        count = table.shape[1]
        every = torch.tensordot(table.flatten(0, 1), torch.stack(_powers(self.y, self.width)), 1)
        if self.number is None:
            return list(every.unbind())
        every = every.view(-1, count, *self.number.shape)
        return list(every.gather(0, self.number.expand(1, count, *self.number.shape))[0].unbind())


def surface(of: Surface, cell: Tensor | int, y: Tensor, z: Tensor) -> Tensor:
    """The sum of z^j times polynomials of y.

    Args:
        of: the polynomials.
        cell: the number of each element's cell, or of all.
        y, z: the two values, of any shape.

    >>> line = ((0, 1), ((0.5, 1.0, 0.0, 1.0, 0.0), (1.0, 1.0, 0.0, 1.0, 0.0)), (((2.0, 4.0),), ((7.0,),)))
    >>> y = torch.tensor([1.0, 2.0])
    >>> surface(line, 0, y, y).tolist(), surface(line, torch.tensor([0.0, 1.0]), y, y).tolist()
    ([3.0, 5.0], [3.0, 7.0])
    """
    at = _Patches(of, cell, y, z)
    *rows, value = at.rows(derived=False)
    for row in reversed(rows):
        value = torch.addcmul(row, value, at.z)
    return value * at.unit


def surface_slopes(of: Surface, cell: Tensor | int, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and its derivatives in y and in z."""
    at = _Patches(of, cell, y, z)
    rows = at.rows(derived=True)
    values, slopes = rows[: at.height], rows[at.height :]
    value, by_y, by_z = values[-1], slopes[-1], torch.zeros_like(values[-1])
    for row, slope in zip(values[-2::-1], slopes[-2::-1], strict=True):
        by_z = torch.addcmul(value, by_z, at.z)
        value, by_y = torch.addcmul(row, value, at.z), torch.addcmul(slope, by_y, at.z)
    return value * at.unit, by_y * (at.unit * at.y_scale), by_z * (at.unit * at.z_scale)


def summed(
    term: Callable[..., tuple[Tensor, ...]],
    shared: tuple[Tensor, ...],
    rows: tuple[tuple[Tensor, ...], ...],
    table: tuple[tuple[float, ...], ...],
) -> tuple[Tensor, ...]:
    """The sums of the terms of all rows, over the numbers of a table.

    Args:
        term: of what is shared, what a row has, and the numbers of a row of the table.
        shared, rows: tensors of one shape.
        table: the numbers; all its rows are taken at once, in a dimension before those of the tensors.

    >>> x = torch.tensor([1.0, 2.0])
    >>> summed(lambda x, y, c: (x * y * c,), (x,), ((x,), (x,)), ((1.0,), (10.0,)))[0].tolist()
    [22.0, 88.0]
    """
    first = rows[0][0]
    numbers = first.new_tensor(table).T.reshape(len(table[0]), len(table), *[1] * first.dim())
    total: tuple[Tensor, ...] = ()
    for row in rows:
        terms = term(*shared, *row, *numbers.unbind())
        values = tuple([value.expand(len(table), *first.shape).sum(0) for value in terms])
        total = tuple([a + b for a, b in zip(total, values, strict=True)]) if total else values
    return total


def polynomial(x: Tensor, value: Tensor | float, coefficients: tuple[float, ...]) -> Tensor:
    """``value`` times a power of x, and the polynomial of x with these coefficients, from high to low.

    >>> polynomial(torch.tensor([2.0]), 1.0, (3.0, 5.0))
    tensor([15.])
    """
    first, *others = coefficients
    result = value * x + first
    for coefficient in others:
        result = result * x + coefficient
    return result


def choice(condition: Tensor, one: float, other: float) -> Tensor:
    """One of two numbers for each element, in float64; ``torch.where`` would make the default dtype of them.

    >>> choice(torch.tensor([True, False]), 1.0, 2.0)
    tensor([1., 2.], dtype=torch.float64)
    """
    return torch.where(condition, torch.full_like(condition, one, dtype=torch.float64), other)


def _powers(x: Tensor, count: int) -> list[Tensor]:
    found = [torch.ones_like(x)]
    for _ in range(count - 1):
        found.append(found[-1] * x)
    return found
