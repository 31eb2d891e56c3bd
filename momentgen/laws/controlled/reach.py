"""Outputs that no row has moved: whether larger noise moves them, and how far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from momentgen.laws.controlled.estimate import away
from momentgen.laws.controlled.noise import InputNoise
from momentgen.laws.controlled.outputs import Outputs

__all__ = ["reach"]

#: how much larger the noise is
_FAR: Final = 3.0
#: in how many rows it is tried
_ROWS: Final = 16

#: runs the network on values of so many rows, which go together: leaves of its outputs
Run = Callable[[list[Tensor], int], list[Tensor]]


def reach(outputs: Outputs, noise: list[InputNoise] | None, together: int, run: Run) -> dict[int, Tensor]:
    """How far outputs that no row has moved go under three times the noise, by place, shape ``(batch, K)``.

    An output that stays even then is certain, 0.

    Args:
        outputs: of the rows so far.
        noise: of the inputs; None for noise that cannot be made larger: how far outputs go is not known, NaN.
        together: how many rows may go together.
        run: runs the network.
    """
    still = {place: _still(outputs.of(place)) for place in outputs.real()}
    places = [place for place, found in still.items() if bool(found.any())]
    unknown = {place: torch.where(still[place], torch.nan, 0.0).to(outputs.of(place).dtype) for place in places}
    if not places or not noise:
        return unknown
    count = min(_ROWS, len(outputs))
    found = {place: torch.zeros_like(outputs.of(place)[0]) for place in places}
    with torch.no_grad():
        for first in range(0, count, together):
            rows = range(first, min(first + together, count))
            means = [one.value.mean for one in noise]
            values = [mean + _FAR * (one.values(rows) - mean) for mean, one in zip(means, noise, strict=True)]
            try:
                leaves = run([value.flatten(0, 1) if len(rows) > 1 else value[0] for value in values], len(rows))
            except Exception:  # a network may refuse what is far off
                return unknown
            for place in places:
                flat = outputs.flat(place, leaves[place], *([len(rows)] if len(rows) > 1 else []))
                apart = away(flat.reshape(-1, *found[place].shape), outputs.of(place)[0]).abs().amax(0)
                found[place] = found[place].maximum(torch.where(apart.isfinite(), apart, torch.nan))
    return {place: torch.where(still[place], one, 0) for place, one in found.items()}


def _still(outputs: Tensor) -> Tensor:
    """Which outputs, shape ``(rows, batch, K)``, have one finite value in all rows."""
    return (outputs == outputs[0]).all(0) & outputs[0].isfinite()
