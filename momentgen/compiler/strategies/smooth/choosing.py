"""Which atoms: the cheapest of several choices whose fits are within what is allowed to them.

A choice is a number of variances and a highest order; for each there are several ways to spread the variances.  A plain
least squares, a few times worse than the reweighted fit and as much quicker, tells which spread is worth that fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from momentgen.compiler.fit.atoms import AtomFit
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.strategies.smooth.atom_graph import AtomSum
from momentgen.compiler.toolchain.arrays import F64
from momentgen.errors import BuildError

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
    fit: Callable[[Taus, int, int], Iterable[AtomFit]],
    *,
    promising: float,
) -> Chosen:
    """The first of ``choices`` whose fits are within 1; the best where none is.

    Args:
        choices: (number of variances, highest order), cheap first; at least one.
        spreads: sets of that many variances to try.
        fit: (variances, highest order, rounds of reweighting) -> a fit for each target; one that is far off ends it.
        promising: a plain fit within this much of what is allowed is worth reweighting.
    """

    def tried(taus: Taus, high: int, rounds: int, most: float = math.inf) -> Chosen:
        """The fits, up to the first whose share is above ``most``."""
        fits: list[AtomFit] = []
        share = 0.0
        for one in fit(taus, high, rounds):
            fits.append(one)
            share = max(share, one.share)
            if share > most:
                break
        return Chosen(taus, tuple(fits), share)

    best = Chosen((), (), math.inf)
    for count, high in choices:
        last = not best.taus and (count, high) == choices[-1]
        rough = Chosen((), (), math.inf if last else promising)
        for taus in spreads(count):
            rough = min(rough, tried(taus, high, 1, rough.share), key=lambda chosen: (chosen.share, chosen.taus))
        if not rough.taus:
            continue
        best = min(best, tried(rough.taus, high, _ROUNDS), key=lambda chosen: chosen.share)
        if best.share <= 1.0:
            break
    return best


@dataclass(frozen=True, eq=False)
class Found:
    """Atoms found for an activation, of its mean and mostly of its square, with the fits they come from.

    ``share`` is the largest error of these over what is allowed to them.
    """

    atoms: AtomSum
    mean: AtomFit
    second: tuple[AtomFit, ...]
    share: float


def found_atoms(f: Activation, chosen: Chosen, switch: float, terms: int) -> Found:
    """The atoms chosen, with what else their form is made of."""
    if f.left is None or f.right is None:
        raise BuildError(f.name, "strategies", "expected f to follow a line on either side", f.pieces)
    if not chosen.taus:
        raise BuildError(
            f.name, "strategies", "expected a tolerance that is nowhere 0, as that of steps is far out", f.pieces
        )
    mean, second = chosen.fits[0], (chosen.fits[1], chosen.fits[-1])
    tables = [_without_dust(fit.coefficients) for fit in (mean, *second)]
    lows = mean.low, second[0].low
    atoms = AtomSum(f.centre, f.left, f.right, chosen.taus, tables[0], (tables[1], tables[2]), lows, switch, terms)
    return Found(atoms, mean, second, chosen.share)


def _without_dust(table: F64) -> F64:
    """Coefficients that symmetry makes zero, exactly so."""
    cleaned = table.copy()
    for column in range(table.shape[1]):
        if np.abs(table[:, column]).max() < 1e-13:
            cleaned[:, column] = 0.0
    return cleaned


def atom_facts(found: Found, fine: Found | None = None) -> dict[str, Any]:
    """What the certificate says of f's atoms, and of those for float64 where these are others."""
    facts = {"switch": found.atoms.switch, "atoms": _atom_facts(found)}
    return facts | ({"atoms_float64": _atom_facts(fine)} if fine else {})


def _atom_facts(found: Found) -> dict[str, Any]:
    return {
        "variances": list(found.atoms.taus),
        "mean": found.mean.coefficients.tolist(),
        "sup_error_of_derivatives": [float(f"{e:.3g}") for e in found.mean.errors],
        "second": [fit.coefficients.tolist() for fit in dict.fromkeys(found.second)],
        "second_sup_error_of_derivatives": [[float(f"{e:.3g}") for e in fit.errors] for fit in found.second],
    }
