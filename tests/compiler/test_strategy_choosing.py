"""The loop that chooses atoms: the first choice that is good enough, at the spread that a plain fit favours."""

from __future__ import annotations

import numpy as np

from momentgen.compiler.fit.atoms import AtomFit
from momentgen.compiler.strategies.smooth.choosing import choose_atoms

CHOICES = ((2, 3), (3, 4), (4, 5))


def fitter(shares: dict[tuple[int, ...], float], calls: list[tuple[int, int, int]]):  # type: ignore[no-untyped-def]
    """Two fits, the second with the share given; a plain fit is twice as bad."""

    def fit(taus: tuple[float, ...], high: int, rounds: int) -> list[AtomFit]:
        calls.append((len(taus), high, rounds))
        share = shares[len(taus), int(taus[0])] * (2 if rounds == 1 else 1)
        return [AtomFit(0, np.zeros((1, 1)), (0.0, 0.0, 0.0), w) for w in (share / 3, share)]

    return fit


def spreads(count: int) -> list[tuple[float, ...]]:
    return [(1.0,) * count, (2.0,) * count]


def test_the_first_choice_within_what_is_allowed_is_taken() -> None:
    calls: list[tuple[int, int, int]] = []
    shares = {(2, 1): 9.0, (2, 2): 8.0, (3, 1): 1.4, (3, 2): 0.9, (4, 1): 0.1, (4, 2): 0.1}
    chosen = choose_atoms(CHOICES, spreads, fitter(shares, calls), promising=4.0)
    assert (chosen.taus, chosen.share) == ((2.0, 2.0, 2.0), 0.9)
    assert [fit.share for fit in chosen.fits] == [0.3, 0.9]
    assert [call for call in calls if call[2] > 1] == [(3, 4, 8)]  # what does not look promising is not reweighted


def test_the_best_is_taken_where_none_is_within_what_is_allowed() -> None:
    calls: list[tuple[int, int, int]] = []
    shares = {(2, 1): 1.6, (2, 2): 1.9, (3, 1): 1.5, (3, 2): 1.2, (4, 1): 1.3, (4, 2): 5.0}
    assert choose_atoms(CHOICES, spreads, fitter(shares, calls), promising=4.0).share == 1.2
    hopeless = dict.fromkeys(shares, 50.0)
    assert choose_atoms(CHOICES, spreads, fitter(hopeless, calls), promising=4.0).share == 50.0  # the last, at least
