"""The functions that generated PyTorch code is made of: text, of which the renderer takes what is called."""

from __future__ import annotations

__all__ = ["BOUNDS", "POLYNOMIAL"]

POLYNOMIAL = '''\
def _polynomial(coefficients: tuple[float, ...], x: Tensor, value: Tensor | float) -> Tensor | float:
    """``value`` times a power of x, and the polynomial of x with these coefficients, from high to low."""
    for coefficient in coefficients:
        value = value * x + coefficient
    return value
'''
# Not clamp: the derivative of clamp at its bound is 1 before torch 2.14 and 0 since.
BOUNDS = {
    "at_most": """\
def _at_most(x: Tensor, bound: float) -> Tensor:
    return torch.where(bound < x, min(bound, torch.finfo(x.dtype).max), x)
""",
    "at_least": """\
def _at_least(x: Tensor, bound: float) -> Tensor:
    return torch.where(x < bound, max(bound, torch.finfo(x.dtype).min), x)
""",
}
