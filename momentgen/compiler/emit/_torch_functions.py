"""The functions that generated PyTorch code is made of: text, of which the renderer takes what is called."""

from __future__ import annotations

__all__ = ["BOUNDS", "POLYNOMIAL", "SURFACE", "SURFACE_SLOPES"]

POLYNOMIAL = '''\
def _polynomial(coefficients: tuple[float, ...], x: Tensor, value: Tensor | float) -> Tensor | float:
    """``value`` times a power of x, and the polynomial of x with these coefficients, from high to low."""
    for coefficient in coefficients:
        value = value * x + coefficient
    return value
'''
BOUNDS = {
    "at_most": """\
def _at_most(x: Tensor, bound: float) -> Tensor:
    return x.clamp(max=min(bound, torch.finfo(x.dtype).max))
""",
    "at_least": """\
def _at_least(x: Tensor, bound: float) -> Tensor:
    return x.clamp(min=max(bound, torch.finfo(x.dtype).min))
""",
}
SURFACE = '''\
def _powers(x: Tensor, count: int) -> list[Tensor]:
    found = [torch.ones_like(x)]
    for _ in range(count - 1):
        found.append(found[-1] * x)
    return found


def _table(rows: tuple[tuple[float, ...], ...], y: Tensor) -> Tensor:
    width = max(map(len, rows))
    return y.new_tensor([[*row, *[0.0] * (width - len(row))] for row in rows])


def _surface(rows: tuple[tuple[float, ...], ...], unit: float, y: Tensor, z: Tensor) -> Tensor:
    """The sum of z^j times the polynomials of y with these coefficients, times ``unit``."""
    table = _table(rows, y)
    of_y, of_z = (torch.stack(_powers(x, n)) for x, n in ((y, table.shape[1]), (z, table.shape[0])))
    return (torch.tensordot(table, of_y, 1) * of_z).sum(0) * unit
'''
SURFACE_SLOPES = '''\
def _slopes(powers: list[Tensor]) -> Tensor:
    return torch.stack([torch.zeros_like(powers[0]), *(k * x for k, x in enumerate(powers[:-1], 1))])


def _surface_slopes(
    rows: tuple[tuple[float, ...], ...], unit: float, y: Tensor, z: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and its derivatives in y and in z."""
    table = _table(rows, y)
    by_y, by_z = _powers(y, table.shape[1]), _powers(z, table.shape[0])
    of_z, of_y = torch.stack(by_z), torch.tensordot(table, torch.stack(by_y), 1)
    slope_y = (torch.tensordot(table, _slopes(by_y), 1) * of_z).sum(0)
    return (of_y * of_z).sum(0) * unit, slope_y * unit, (of_y * _slopes(by_z)).sum(0) * unit
'''
