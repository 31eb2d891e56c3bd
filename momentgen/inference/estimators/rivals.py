"""What a fit must predict better than to be worth anything: the mean of the targets, and a line.

Rivals predict rows that they were not fitted to.  A model and its rivals have the same score: the mean log density of a
normal law.  Its σ is scaled as a whole to the errors of these rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from momentgen.inference.linear import LinearPosterior

#: rows to fit and rows to predict, of each part
Folds = Sequence[tuple[NDArray[Any], NDArray[Any]]]
#: errors of rows and the σ that was predicted, each ``(n, outputs)``
Predicted = tuple[NDArray[Any], NDArray[Any]]
#: standard errors by which a line must be ahead; the better of two equals is ahead by less
_AHEAD = 2.0


def rivals(x: Tensor, y: Tensor, folds: Folds, counts: NDArray[np.float64]) -> dict[str, Predicted]:
    """Errors and σ of the rivals, at the rows that each of the folds leaves out: name -> errors and σ.

    Args:
        x: features in standard units, ``(n, features)``.
        y: targets in standard units, ``(n, outputs)``.
        folds: rows to fit and rows to predict.
        counts: how often each row counts, ``(n,)``.
    """
    x, y, every = x.double().cpu(), y.double().cpu(), torch.as_tensor(counts)
    found: dict[str, list[Tensor]] = {"their mean": [], "a line": []}
    for train, test in folds:
        own, weights = y[train], every[train]
        basis = torch.linalg.qr(x[train].mT).Q if x.shape[1] > len(own) else torch.eye(x.shape[1], dtype=x.dtype)
        line = LinearPosterior().add(x[train] @ basis, own, weights)
        mean, var = line(x[test] @ basis)
        shares = weights / weights.sum()
        centre = shares @ own
        std = (shares @ (own - centre).square()).sqrt()
        found["their mean"].append(torch.stack([y[test] - centre, std.expand_as(mean)]))
        found["a line"].append(torch.stack([y[test] - mean, (var + line.noise).sqrt()]))
    return {name: tuple(torch.cat(parts, 1).numpy()) for name, parts in found.items()}


def log_densities(predicted: Predicted, weights: NDArray[Any] | None = None) -> NDArray[Any]:
    """Log density of each row's errors, ``(n,)``, with σ scaled to them as a whole, per target."""
    off, std = predicted
    z = off / std.clip(1e-9)
    scale = np.sqrt(np.average(z**2, axis=0, weights=weights)).clip(1e-6)
    return np.asarray(-(0.5 * (z / scale) ** 2 + np.log(scale * std.clip(1e-9)) + 0.5 * math.log(2 * math.pi)).sum(1))


def lead(own: NDArray[Any], other: NDArray[Any], weights: NDArray[Any] | None = None) -> tuple[float, float]:
    """Mean by which scores of rows ``(n,)`` exceed others, and how far behind counts as chance."""
    off = own - other
    mean = float(np.average(off, weights=weights))
    return mean, _AHEAD * float(np.std(off)) / math.sqrt(len(off))
