"""UCI regression sets for the examples, in the splits that the papers share (90 % training, 10 % test)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["SETS", "Split", "splits"]

#: short name -> stem of the file ``FOLDER/uci/NAME.npz``
SETS = {
    "boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
    "yacht": "yacht",
}


@dataclass(frozen=True)
class Split:
    """One division of a set, in the data's own units: features ``(n, d)``, targets ``(n,)``, float64."""

    x_train: NDArray[np.float64]
    y_train: NDArray[np.float64]
    x_test: NDArray[np.float64]
    y_test: NDArray[np.float64]


def splits(folder: Path, name: str) -> Iterator[Split]:
    """All splits of a set, in order.

    Args:
        folder: has ``uci/NAME.npz``: ``X``, ``y`` and, a split a row, ``train_idx`` and ``test_idx`` (-1: no row).
        name: a key of :data:`SETS`.
    """
    if name not in SETS:
        raise SystemExit(f"expected a set of {', '.join(SETS)}, got {name}")
    path = folder / "uci" / f"{SETS[name]}.npz"
    if not path.exists():
        raise SystemExit(f"expected the data in {path}, which does not exist")
    with np.load(path) as arrays:
        x, y, train, test = (arrays[key] for key in ("X", "y", "train_idx", "test_idx"))
    for one, other in zip(train, test, strict=True):
        one, other = one[one >= 0], other[other >= 0]
        yield Split(x[one], y[one], x[other], y[other])
