"""How long to filter: as held-out rows say.

Networks that were begun without a part of the rows go on by stages, all parts side by side, and predict their rows
after each.  The passes of the best predictions are taken.  A stage has half as many passes again as the one
before; two stages without a gain are the last.

Scores have a first plateau, on which networks predict hardly better than a constant or a line.  How long it lasts is a
matter of updates, rows times passes: a few thousand.  Stages without a gain do not count on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from momentgen.progress import progress_bar

#: passes of the first stage, how stages grow, how many without a gain are waited for, and what a gain is, in nats
_FIRST, _GROWTH, _PATIENCE, _GAIN = 5, 1.5, 2, 0.005
#: nats over a line with which the first plateau is left, and updates of a network after which there is none
_LEFT, _PLATEAU = 0.1, 20_000
#: updates of single weights that a choice and its fit may cost, and passes that it may take at least and at most
_UPDATES, _LEAST, _MOST = 8_000_000_000, 15, 1000


class Chosen(NamedTuple):
    """The passes of some widths that predict held-out rows best.

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
    hidden: tuple[int, ...],
    passes: int | None,
    work: int,
    networks: Any,
    predict: Callable[[Any, int], Any],
    score: Callable[[Any], float],
    rows: int,
    floor: float = -math.inf,
    progress: bool = False,
) -> Chosen:
    """The best passes of networks of these widths.

    Args:
        hidden: widths of the hidden layers.
        passes: a number of passes, or None to choose it.
        work: of one pass of all networks, in updates of a weight.
        networks: those of the parts.
        predict: lets the networks go on for so many passes and returns their predictions of held-out rows.
        score: mean log density of predictions.  ``predict`` and ``score`` may raise FloatingPointError, where networks
            have diverged: then these passes are too many.
        rows: that each network is given.
        floor: score of a constant or a line.
        progress: show a bar.
    """
    best: Chosen | None = None
    plan = list(stages(work)) if passes is None else [passes]
    done, stale = 0, 0
    with progress_bar(f"choosing passes of widths {hidden}", len(plan), progress) as advance:
        for stage, total in enumerate(plan):
            advance(stage)
            try:
                predictions = predict(networks, total - done)
                level = score(predictions)
            except FloatingPointError:
                if best is None:
                    raise
                break
            done, own = total, -math.inf if best is None else best.score
            if level > own:
                best = Chosen(hidden, total, level, predictions)
            left = max(own, level) > floor + _LEFT or total * rows >= _PLATEAU
            stale = stale + 1 if left and level <= own + _GAIN else 0
            if stale == _PATIENCE:
                break
        advance(len(plan))
    assert best is not None
    return best
