"""What a strategy hands to proofs: float64's polynomials that stand for the mean of an f, with f."""

from __future__ import annotations

from dataclasses import dataclass

from momentgen.compiler.function.activation import Activation
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces

__all__ = ["Claim"]


@dataclass(frozen=True, eq=False)
class Claim:
    """Polynomials, of the mean among others, and the f whose moments they are."""

    f: Activation
    fine: FineSurfaces
