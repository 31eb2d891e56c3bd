"""The rule language: what a rule file imports.

A rule is an activation as data, and no algorithm lives here.  The compiler reads rules; rules import nothing of it.
The names load on first use: a build with nothing to do reads rule files as text, and needs no sympy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from momentgen.rule.rule import (
        Accuracy,
        Formula,
        Noise,
        Parameter,
        Phi,
        Rescaled,
        Rule,
        S,
        a,
        cov,
        load_rules,
        mu,
        mu1,
        mu2,
        phi,
        sigma,
        sigmoid,
        v,
        v1,
        v2,
        x,
        x1,
        x2,
    )

__all__ = [
    "Accuracy",
    "Formula",
    "Noise",
    "Parameter",
    "Phi",
    "Rescaled",
    "Rule",
    "S",
    "a",
    "cov",
    "load_rules",
    "mu",
    "mu1",
    "mu2",
    "phi",
    "sigma",
    "sigmoid",
    "v",
    "v1",
    "v2",
    "x",
    "x1",
    "x2",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("momentgen.rule.rule"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
