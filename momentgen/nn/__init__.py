"""Networks over moments: torch.nn's classes behind the border, and what torch has not.

A layer takes a tensor (variance 0) or :class:`~momentgen.Moments` and returns moments, by the method in force
(:func:`momentgen.method`): ``ap1``, ``ap2`` or ``sample``.  Inside :class:`Sequential`, a :class:`Module` or a
converted network it is torch's own layer, and runs on laws (:mod:`momentgen.laws`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn import ModuleDict, ModuleList

from momentgen.laws.border import set_method
from momentgen.nn import functional as functional
from momentgen.nn.layers import (
    LAYERS,
    BowTie,
    InjectedNoise,
    LogisticBernoulli,
    Module,
    ProbitBernoulli,
    Sequential,
    set_variant,
)
from momentgen.nn.monte_carlo import moments
from momentgen.nn.normalize import (
    AnalyticNormalization,
    Normalize,
    initialise_analytically,
    propagate_statistics,
)

globals().update(LAYERS)

__all__ = [
    "AnalyticNormalization", "BowTie", "InjectedNoise", "LogisticBernoulli", "Module", "ModuleDict", "ModuleList",
    "Normalize", "ProbitBernoulli", "Sequential", "functional", "initialise_analytically", "moments",
    "propagate_statistics", "set_method", "set_variant",
]  # fmt: skip
__all__.extend(LAYERS)

if TYPE_CHECKING:  # layers are made of torch's classes

    def __getattr__(name: str) -> Any: ...
