"""Thirty published formulas with uncertain inputs: metrology, physics, engineering, biology.

The list was written before any of them was tried.  A formula takes one tensor per input, with any batch in front.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributions as td
from torch import Tensor

__all__ = ["FORMULAS", "Formula", "Given"]


@dataclass(frozen=True)
class Given:
    """An uncertain input: mean and standard deviation, or a distribution in their place."""

    mean: float
    std: float = 0.0
    law: td.Distribution | None = None

    def draws(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws, float64."""
        if self.law is None:
            return self.mean + self.std * torch.randn(count, generator=generator, dtype=torch.float64)
        return self.law.icdf(torch.rand(count, generator=generator, dtype=torch.float64))


def normal(mean: float, std: float) -> Given:
    return Given(mean, std)


def uniform(low: float, high: float) -> Given:
    return Given((low + high) / 2, law=td.Uniform(torch.tensor(low).double(), torch.tensor(high).double()))


@dataclass(frozen=True)
class Formula:
    """A formula with its inputs.

    Attributes:
        name: of the quantity.
        source: where formula and uncertainties are from.
        function: of the inputs.
        inputs: by the name of the argument.
    """

    name: str
    source: str
    function: Callable[..., Tensor]
    inputs: dict[str, Given]


sin, cos, exp, log, sqrt = torch.sin, torch.cos, torch.exp, torch.log, torch.sqrt

FORMULAS = [
    Formula(
        "end gauge", "GUM H.1 (JCGM 100)",
        lambda ls, d, al, th, da, dt: ls + d - ls * (da * th + al * dt),
        {"ls": normal(50.000623e6, 25), "d": normal(215, 9.7), "al": uniform(9.5e-6, 13.5e-6),
         "th": normal(-0.1, 0.41), "da": uniform(-1e-6, 1e-6), "dt": uniform(-0.05, 0.05)},
    ),
    Formula(
        "resistance", "GUM H.2, without correlation",
        lambda U, J, phi: U / J * cos(phi),
        {"U": normal(4.999, 0.0032), "J": normal(19.661e-3, 9.5e-6), "phi": normal(1.04446, 0.00075)},
    ),
    Formula(
        "thermometer correction", "GUM H.3", lambda a, b, t: a + b * (t - 20),
        {"a": normal(-0.1712, 0.0029), "b": normal(0.00218, 0.00067), "t": normal(30, 0.05)},
    ),
    Formula(
        "sum of four rectangles", "GUM-S1 9.2.3 (JCGM 101)", lambda a, b, c, d: a + b + c + d,
        {name: uniform(-math.sqrt(3), math.sqrt(3)) for name in "abcd"},
    ),
    Formula(
        "mass calibration", "GUM-S1 9.3",
        lambda m, dm, a, rw, rr: (m + dm) * (1 + (a - 1.2) * (1 / rw - 1 / rr)) - 1e5,
        {"m": normal(100000, 0.05), "dm": normal(1.234, 0.02), "a": uniform(1.1, 1.3), "rw": uniform(7e3, 9e3),
         "rr": uniform(7950, 8050)},
    ),
    Formula(
        "mismatch of power meters", "GUM-S1 9.4", lambda x, y: 1 - x * x - y * y,
        {"x": normal(0.05, 0.005), "y": normal(0, 0.005)},
    ),
    Formula(
        "pendulum", "Taylor, An Introduction to Error Analysis, 3.9", lambda x, T: 4 * math.pi**2 * x / T**2,
        {"x": normal(92.95, 0.1), "T": normal(1.936, 0.004)},
    ),
    Formula(
        "refractive index", "Taylor, 3.10: Snell's law", lambda i, r: sin(i) / sin(r),
        {"i": normal(math.radians(20), math.radians(1)), "r": normal(math.radians(13), math.radians(1))},
    ),
    Formula(
        "lens equation", "Taylor, problem 3.41", lambda p, q: p * q / (p + q),
        {"p": normal(45, 1.5), "q": normal(62, 2)},
    ),
    Formula(
        "charge of the electron", "Millikan's drop, viscous form",
        lambda d, v, eta, U, s: 6 * math.pi * eta * s / U * sqrt(9 * eta * v / (2 * 9.81 * d)) * v * 1e15,
        {"d": normal(886, 2), "v": normal(5e-5, 1e-6), "eta": normal(1.82e-5, 2e-7), "U": normal(500, 3),
         "s": normal(6e-3, 5e-5)},
    ),
    Formula(
        "decay age", "radiocarbon, Libby", lambda r, t: -t / math.log(2) * log(r),
        {"r": normal(0.35, 0.02), "t": normal(5730, 40)},
    ),
    Formula(
        "Arrhenius rate", "physical chemistry", lambda A, E, T: A * exp(-E / (8.314 * T)) * 1e3,
        {"A": normal(1e10, 1e9), "E": normal(8e4, 600), "T": normal(320, 1)},
    ),
    Formula(
        "Nernst potential", "electrochemistry", lambda T, a, b: 8.314 * T / 96485 * log(a / b) * 1e3,
        {"T": normal(310, 1), "a": normal(145, 5), "b": normal(12, 1.5)},
    ),
    Formula(
        "Henderson and Hasselbalch", "blood gas", lambda pK, h, p: pK + torch.log10(h / (0.03 * p)),
        {"pK": normal(6.1, 0.01), "h": normal(24, 1.2), "p": normal(40, 2.5)},
    ),
    Formula(
        "Michaelis and Menten", "enzyme kinetics", lambda V, K, S: V * S / (K + S),
        {"V": normal(10, 0.6), "K": normal(2.5, 0.5), "S": normal(3, 0.3)},
    ),
    Formula(
        "creatinine clearance", "Cockcroft and Gault", lambda age, w, c: (140 - age) * w / (72 * c),
        {"age": normal(60, 0.3), "w": normal(72, 1.5), "c": normal(1.1, 0.08)},
    ),
    Formula(
        "flow through an orifice", "ISO 5167, simplified",
        lambda C, d, D, p, rho: C / sqrt(1 - (d / D) ** 4) * math.pi / 4 * d**2 * sqrt(2 * p * rho),
        {"C": normal(0.61, 0.003), "d": normal(0.05, 5e-5), "D": normal(0.1, 2e-4), "p": normal(2e4, 200),
         "rho": normal(998, 1)},
    ),
    Formula(
        "Reynolds number", "fluid dynamics", lambda rho, v, D, mu: rho * v * D / mu,
        {"rho": normal(998, 2), "v": normal(1.2, 0.06), "D": normal(0.05, 5e-4), "mu": normal(1e-3, 3e-5)},
    ),
    Formula(
        "friction factor", "Swamee and Jain",
        lambda e, D, Re: 0.25 / torch.log10(e / (3.7 * D) + 5.74 / Re**0.9) ** 2,
        {"e": uniform(1e-5, 9e-5), "D": normal(0.1, 5e-4), "Re": normal(1.2e5, 1e4)},
    ),
    Formula(
        "cantilever", "Rao and Swamee; tip displacement",
        lambda E, X, Y: 4 * 100**3 / (E * 2 * 4) * sqrt((Y / 16) ** 2 + (X / 4) ** 2),
        {"E": normal(2.9e7, 1.45e6), "X": normal(500, 100), "Y": normal(1000, 100)},
    ),
    Formula(
        "wing weight", "Forrester et al.; four of its inputs",
        lambda S, A, q, W: 0.036 * S**0.758 * 252**0.0035 * A**0.6 * q**0.006 * (12 / 0.99) ** -0.3
        * (2.5 * W) ** 0.49,
        {"S": uniform(150, 200), "A": uniform(6, 10), "q": uniform(16, 45), "W": uniform(1700, 2500)},
    ),
    Formula(
        "borehole", "Harper and Gupta",
        lambda rw, r, Tu, Hu, Tl, Hl, L, K: 2 * math.pi * Tu * (Hu - Hl) / (
            log(r / rw) * (1 + 2 * L * Tu / (log(r / rw) * rw**2 * K) + Tu / Tl)
        ),
        {"rw": normal(0.1, 0.0161812), "r": uniform(100, 50000), "Tu": uniform(63070, 115600), "Hu": uniform(990, 1110),
         "Tl": uniform(63.1, 116), "Hl": uniform(700, 820), "L": uniform(1120, 1680), "K": uniform(9855, 12045)},
    ),
    Formula(
        "circuit without transformer", "Ben-Ari and Steinberg; four of its inputs",
        lambda R1, R2, Rf, B: (12 * R2 / (R1 + R2) + 0.74) * B * 9.14 / (B * 9.14 + Rf)
        + 11.35 * Rf / (B * 9.14 + Rf) + 0.74 * Rf * B * 9.14 / ((B * 9.14 + Rf) * 1.8),
        {"R1": uniform(50, 150), "R2": uniform(25, 70), "Rf": uniform(0.5, 3), "B": uniform(50, 300)},
    ),
    Formula(
        "flood level", "Iooss and Lemaitre",
        lambda Q, Ks, Zv, Zm: Zv + (Q.clamp(min=10) / (300 * Ks.clamp(min=5) * sqrt((Zm - Zv) / 5000))) ** 0.6,
        {"Q": normal(1000, 250), "Ks": normal(30, 4), "Zv": uniform(49, 51), "Zm": uniform(54, 56)},
    ),
    Formula(
        "radar range", "radar equation",
        lambda P, G, lam, s: (P * G**2 * lam**2 * s / ((4 * math.pi) ** 3 * 1e-13)) ** 0.25,
        {"P": normal(1e5, 5e3), "G": normal(1000, 120), "lam": normal(0.03, 1e-4), "s": uniform(0.5, 3)},
    ),
    Formula(
        "luminosity distance modulus", "astronomy", lambda m, M, A: 10 ** ((m - M - A + 5) / 5),
        {"m": normal(15.2, 0.05), "M": normal(-19.3, 0.1), "A": normal(0.3, 0.05)},
    ),
    Formula(
        "orbital mass", "Kepler's third law", lambda a, P: 4 * math.pi**2 * a**3 / (6.674e-11 * P**2) / 1.9885e30,
        {"a": normal(1.5e11, 4e9), "P": normal(3.16e7, 2e5)},
    ),
    Formula(
        "option price", "Black and Scholes",
        lambda S, s, r: S * torch.special.ndtr((log(S / 100) + r + s**2 / 2) / s)
        - 100 * exp(-r) * torch.special.ndtr((log(S / 100) + r - s**2 / 2) / s),
        {"S": normal(100, 5), "s": normal(0.25, 0.04), "r": normal(0.03, 0.005)},
    ),
    Formula(
        "net present value", "finance, five flows",
        lambda c, g, r: sum(c * (1 + g) ** k / (1 + r) ** k for k in range(1, 6)) - 400,
        {"c": normal(100, 12), "g": normal(0.02, 0.01), "r": uniform(0.05, 0.09)},
    ),
    Formula(
        "position of an arm", "two links, forward kinematics", lambda a, b: cos(a) + 0.8 * cos(a + b),
        {"a": normal(0.4, 0.05), "b": normal(0.9, 0.08)},
    ),
]  # fmt: skip
