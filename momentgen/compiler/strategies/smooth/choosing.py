"""Which atoms: the cheapest of several choices whose fits are within what is allowed to them.

A choice is a number of variances and a highest order; for each there are several ways to spread the variances.  A plain
least squares, a few times worse than the reweighted fit and as much quicker, tells which spread is worth that fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from momentgen.compiler.fit.atoms import AtomFit

__all__ = ["Chosen", "choose_atoms"]

Taus = tuple[float, ...]
_ROUNDS = 8  # of a fit that looks promising


@dataclass(frozen=True, eq=False)
class Chosen:
    """Variances, a fit for each target, and the largest share of what is allowed that one of them takes."""

    taus: Taus
    fits: tuple[AtomFit, ...]
    share: float


def choose_atoms(
    choices: Sequence[tuple[int, int]],
    spreads: Callable[[int], Sequence[Taus]],
    fit: Callable[[Taus, int, int], Sequence[AtomFit]],
    *,
    promising: float,
) -> Chosen:
    """The first of ``choices`` whose fits are within 1; the best where none is.

    Args:
        choices: (number of variances, highest order), cheap first; at least one.
        spreads: sets of that many variances to try.
        fit: (variances, highest order, rounds of reweighting) -> a fit for each target.
        promising: a plain fit within this much of what is allowed is worth reweighting.
    """

    def tried(taus: Taus, high: int, rounds: int) -> Chosen:
        fits = tuple(fit(taus, high, rounds))
        return Chosen(taus, fits, max(one.share for one in fits))

    best = Chosen((), (), math.inf)
    for count, high in choices:
        rough = min((tried(taus, high, 1) for taus in spreads(count)), key=lambda chosen: (chosen.share, chosen.taus))
        if rough.share > promising and (best.taus or (count, high) != choices[-1]):
            continue
        best = min(best, tried(rough.taus, high, _ROUNDS), key=lambda chosen: chosen.share)
        if best.share <= 1.0:
            break
    return best
