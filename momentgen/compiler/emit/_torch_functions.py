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
