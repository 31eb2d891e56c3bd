"""How long to filter, and through how many layers: as held-out rows say.

Networks that were begun without a part of the rows go on by stages, all parts side by side, and predict their rows
after each.  The widths and passes of the best predictions are taken.  A stage has half as many passes again as the one
before; two stages without a gain are the last.

Scores have a first plateau, on which networks predict hardly better than a constant or a line.  How long it lasts is a
matter of updates, rows times passes: a few thousand.  Stages without a gain do not count on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from momentgen.progress import progress_bar

#: passes of the first stage, how stages grow, how many without a gain are waited for, and what a gain is, in nats
_FIRST, _GROWTH, _PATIENCE, _GAIN = 5, 1.5, 2, 0.005
#: nats over a line with which the first plateau is left, and updates of a network after which there is none
_LEFT, _PLATEAU = 0.1, 20_000
#: updates of single weights that a choice and its fit may cost, and passes that it may take at least and at most
_UPDATES, _LEAST, _MOST = 8_000_000_000, 15, 1000


class Chosen(NamedTuple):
    """Widths and passes that predict held-out rows best.

    Attributes:
        hidden: widths of the hidden layers.
        passes: passes over the rows.
        score: mean log density of held-out rows.
        held_out: what the best networks predicted, as the caller's ``predict`` gave it, per part.
    """

    hidden: tuple[int, ...]
    passes: int
    score: float
    held_out: Any


def stages(work: int) -> Iterator[int]:
    """Numbers of passes, growing; ``work`` is what one pass of all networks costs, in updates of a weight."""
    most, passes = min(max(_LEAST, _UPDATES // work), _MOST), float(_FIRST)
    while passes < most:
        yield round(passes)
        passes *= _GROWTH
    yield most


def choose(
    widths: Sequence[tuple[int, ...]],
    passes: int | None,
    work: Callable[[tuple[int, ...]], int],
    begin: Callable[[tuple[int, ...]], Any],
    predict: Callable[[Any, int], Any],
    score: Callable[[Any], float],
    rows: int,
    floor: float = -math.inf,
    progress: bool = False,
) -> Chosen:
    """The best of these widths, with its passes.

    Args:
        widths: of the hidden layers, those to compare.
        passes: a number of passes, or None to choose it.
        work: of one pass of all networks of these widths, in updates of a weight.
        begin: makes the parts' networks of these widths.
        predict: lets these networks go on for so many passes and returns their predictions of held-out rows.
        score: mean log density of predictions.  ``predict`` and ``score`` may raise FloatingPointError, where networks
            have diverged: then these passes are too many.
        rows: that each network is given.
        floor: score of a constant or a line.
        progress: show a bar.
    """
    best: Chosen | None = None
    failure: FloatingPointError | None = None
    plans = {hidden: list(stages(work(hidden))) if passes is None else [passes] for hidden in widths}
    begun = 0
    with progress_bar("choosing widths and passes", sum(map(len, plans.values())), progress) as advance:
        for hidden, plan in plans.items():
            networks, done, stale, own = begin(hidden), 0, 0, -math.inf
            for stage, total in enumerate(plan):
                advance(begun + stage, f"choosing: widths {hidden}, {total} passes")
                try:
                    predictions = predict(networks, total - done)
                    level = score(predictions)
                except FloatingPointError as reason:
                    failure = reason
                    break
                done = total
                if best is None or level > best.score:
                    best = Chosen(hidden, total, level, predictions)
                own, gains = max(own, level), level > own + _GAIN
                left = own > floor + _LEFT or total * rows >= _PLATEAU
                stale = stale + 1 if left and not gains else 0
                if stale == _PATIENCE:
                    break
            begun += len(plan)
        advance(begun)
    if best is None:
        assert failure is not None
        raise failure
    return best
