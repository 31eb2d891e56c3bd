"""What a graph is for: the numbers that it is computed with, and how close its fits must be."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FLOAT64", "Precision"]


@dataclass(frozen=True)
class Precision:
    """What the graph is for.

    Attributes:
        fit: relative error allowed to each fitted polynomial.
        reach: the T at which t is clamped; beyond it every output has its limit or is below the smallest number.
        scaled: whether to normalise the variance by powers of two and keep exponents apart (float32), or not (float64).
        factors: in how many factors exp's power of two is applied; each must be a normal number.
        scale: c in u = 1/(1 + t/c), the variable of the fits; a power of two, so that t/c is exact.
        lean: whether to take the shorter of two ways where it costs a rounding: sigma as var·(1/sigma), and the
            remainder of a division by 1 + t² from a rounded difference.
    """

    fit: float
    reach: float
    scaled: bool
    factors: int = 2
    scale: float = 4.0
    lean: bool = False


FLOAT64 = Precision(fit=1e-16, reach=38.5, scaled=False)
