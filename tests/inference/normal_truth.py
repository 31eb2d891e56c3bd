"""Expectations under a normal variable, by scipy on a fine grid."""

from typing import Any

import numpy as np
from scipy import integrate, stats


def _nodes(var: float) -> np.ndarray:
    return np.linspace(-30, 30, 60_001 if var < 10 else 600_001)


def over_normal(function: Any, mean: float, var: float) -> float:
    """E function(F), F ~ N(mean, var)."""
    z = _nodes(var)
    return float(integrate.simpson(function(mean + np.sqrt(var) * z) * stats.norm.pdf(z), x=z))


def log_over_normal(log_p: Any, mean: float, var: float) -> float:
    """log E exp(log_p(F)), in the tails too."""
    z = _nodes(var)
    logs = log_p(mean + np.sqrt(var) * z) + stats.norm.logpdf(z)
    return float(np.log(integrate.simpson(np.exp(logs - logs.max()), x=z)) + logs.max())
