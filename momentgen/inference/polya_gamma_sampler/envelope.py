"""The constants of the sampler's envelopes; the head of ``polya_gamma.c`` derives them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

__all__ = ["ENVELOPE", "Envelope"]

_EDGE = 1.25
_RATE = (_EDGE + math.sqrt(_EDGE**2 + 4)) / 2


@dataclass(frozen=True)
class Envelope:
    """What lies above the density of J*(1, h).

    Attributes:
        split: x up to which the series in exp(-4/x) is used, and beyond which the one in exp(-π²x).
        edge: 1/√split.
        rate: α, of the exponential above the normal tail on n = 1/√x ≥ edge.
        left_mass: of that exponential, 2√(2/π) exp(α²/2 - α edge)/α.
        right_mass: of the exponential (π/2) exp(-Kx) beyond the split, times K exp(K split).
        switch: h from which one inverse Gaussian serves.
        beyond: the factor (π/2)^(3/2) of f(x)/a(x) beyond the split.
    """

    split: float = 0.64
    edge: float = _EDGE
    rate: float = _RATE
    left_mass: float = 2 * math.sqrt(2 / math.pi) * math.exp(_RATE**2 / 2 - _RATE * _EDGE) / _RATE
    right_mass: float = math.pi / 2
    switch: float = 0.9
    beyond: float = (math.pi / 2) ** 1.5

    def defines(self) -> str:
        """The constants as macros of C, to the last bit."""
        return "".join(f"#define {each.name.upper()} {getattr(self, each.name).hex()}\n" for each in fields(self))


ENVELOPE = Envelope()
