"""Calibration of a regressor: the law of its standardised errors, as rows that it did not see show it.

An error z is (target - mean) / σ, both as predicted.  Were the predictions right, all z would be standard normal.  The
law that is fitted to held-out z is a Student t about 0.  Its scale may depend on where a row lies:

    scale²(x) = c (mean z² of the k nearest held-out rows / mean z² of all rows)^λ

Nearest is meant among features, or among predicted means.  Degrees of freedom, k, λ and the space are those of the
largest likelihood, each row left out of its own neighbours.  A law with more parameters than a normal one of one scale
must gain a nat for each (Akaike).

Intervals are conformal (Lei et al. 2018, section 5.2): |z| / scale has the empirical quantiles of the held-out rows.
Fewer than 60 rows have intervals of the Student law, with the rows as further degrees of freedom: 1/f + 1/rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats
from sklearn.neighbors import NearestNeighbors

#: held-out rows from which their errors alone make an interval; a quantile of fewer is an accident
_CONFORMAL_ROWS = 60
#: degrees of freedom of any law, which has a variance
_LEAST_FREEDOM = 2.5
_FREEDOM = (math.inf, 10.0, 5.0, 3.0)
_NEIGHBOURS = (10, 20, 40, 80)
_SHARES = (0.4, 0.7, 1.0)
#: rows for which a scale that depends on the place is tried, and parameters of such a scale
_LOCAL_ROWS, _LOCAL_PARAMETERS = 50, 3
#: bounds of z² over its mean: one outlier does not make its neighbours uncertain
_LEAST, _MOST = 1e-6, 25.0
_STEPS = 15
#: rows that speak for the model's own σ beside known noise, which may leave the others next to nothing to say
_ROWS_OF_ONE = 10.0


class ErrorLaw(NamedTuple):
    """The law of one target's standardised errors.

    Attributes:
        freedom: degrees of freedom of the Student t; infinite for a normal law.
        size: root of c, the scale where it does not depend on the place.
        share: λ, how far the scale depends on the place; 0 where it does not.
        space: where neighbours are looked for: ``features`` or ``mean``.
        squares: z² of the held-out rows over their mean.
        weights: how often each of these rows counts.
        nearest: finds the neighbours, or None.
        errors: |z| over the scale, in order.
        counts: how many held-out rows have an error up to each of these.
        root_mean_square: of z.
    """

    freedom: float
    size: float
    share: float
    space: str
    squares: NDArray[Any]
    weights: NDArray[Any]
    nearest: Any
    errors: NDArray[Any]
    counts: NDArray[Any]
    root_mean_square: float

    def scale(self, features: NDArray[Any], mean: NDArray[Any]) -> NDArray[Any]:
        """Scale of z for rows of these features ``(n, d)`` and predicted means ``(n,)``, shape ``(n,)``."""
        if self.nearest is None:
            return np.full(len(mean), self.size)
        places = self.nearest.kneighbors(_places(self.space, features, mean), return_distance=False)
        return self.size * np.average(self.squares[places], 1, self.weights[places]) ** (0.5 * self.share)

    @property
    def deviation(self) -> float:
        """Standard deviation of z over its scale."""
        return float(self.law.std())

    @property
    def law(self) -> Any:
        """Of z over its scale, a law of scipy: a Student t, whose tails say too how few rows its scale is from."""
        freedom = 1 / (1 / self.freedom + 1 / float(self.counts[-1]))
        return stats.t(max(freedom, _LEAST_FREEDOM))

    def reach(self, coverage: float) -> float:
        """Half of the width of intervals, over the scale."""
        count = float(self.counts[-1])
        shown = (count + 1) * coverage <= count
        largest = float(self.errors[np.searchsorted(self.counts, (count + 1) * coverage)] if shown else self.errors[-1])
        if shown and count >= _CONFORMAL_ROWS:
            return largest
        wide = float(self.law.ppf(0.5 + 0.5 * coverage))
        return wide if shown else max(wide, largest)


def fit_error_law(
    z: NDArray[Any], features: NDArray[Any], mean: NDArray[Any], weights: NDArray[Any] | None = None
) -> ErrorLaw:
    """The law of errors ``(n,)`` of held-out rows, with their features ``(n, d)`` and predicted means ``(n,)``.

    Features and means should be about in standard units.  ``weights`` ``(n,)`` is how often each row counts, None for
    once.

    >>> import numpy as np
    >>> draw = np.random.default_rng(0)
    >>> x = draw.uniform(-1, 1, (400, 1))
    >>> law = fit_error_law(np.where(x[:, 0] > 0, 3.0, 0.3) * draw.normal(size=400), x, np.zeros(400))
    >>> (law.scale(np.array([[-0.5], [0.5]]), np.zeros(2)) * law.deviation).round(1).tolist()
    [0.3, 3.0]
    """
    weights = np.ones(len(z)) if weights is None else weights
    mean_square = float(np.average(z**2, weights=weights))
    if not mean_square > 1e-12:  # targets that are all alike leave no error
        return ErrorLaw(math.inf, 1.0, 0.0, "mean", z, weights, None, *_ordered(np.abs(z), weights), 1.0)
    squares = (z**2 / mean_square).clip(_LEAST, _MOST)
    found: list[tuple[float, float, float, float, str, int, NDArray[Any]]] = []

    def consider(local: NDArray[Any], share: float, space: str, count: int) -> None:
        ratio = z / np.sqrt(local)
        for freedom in _FREEDOM[share > 0 :]:  # a scale of few rows is uncertain, and tails are long
            size, likelihood = _size(ratio, freedom, weights)
            likelihood -= 0.5 * float(weights @ np.log(local))
            parameters = _LOCAL_PARAMETERS if share else not math.isinf(freedom)
            found.append((likelihood - parameters, freedom, size, share, space, count, local))

    consider(np.ones(len(z)), 0.0, "mean", 0)
    if len(z) >= _LOCAL_ROWS:
        for space in ("mean", "features"):
            places = _places(space, features, mean)
            near = NearestNeighbors(n_neighbors=min(_NEIGHBOURS[-1], len(z) // 3)).fit(places)
            around = near.kneighbors(return_distance=False)  # a row is none of its own neighbours
            for count in _NEIGHBOURS:
                if count <= around.shape[1]:
                    chosen = around[:, :count]
                    local = np.average(squares[chosen], 1, weights[chosen])
                    for share in _SHARES:
                        consider(local**share, share, space, count)
    _, freedom, size, share, space, count, local = max(found, key=lambda one: one[0])
    nearest = NearestNeighbors(n_neighbors=count).fit(_places(space, features, mean)) if share else None
    errors, counts = _ordered(np.abs(z) / (size * np.sqrt(local)), weights)
    return ErrorLaw(freedom, size, share, space, squares, weights, nearest, errors, counts, math.sqrt(mean_square))


def beside_known_noise(
    off: NDArray[Any], std: NDArray[Any], known: NDArray[Any], weights: NDArray[Any]
) -> tuple[float, NDArray[Any]]:
    """Factor on σ ``(n,)`` where errors ``off`` have noise of ``known`` standard deviation besides, and new weights.

    The factor is that of the largest likelihood of normal errors; some rows without error of their own ask for 1.  A
    row counts as far as its error tells of σ (its Fisher information), and all as their effective number.

    >>> import numpy as np
    >>> draw, known = np.random.default_rng(0), np.tile([0.1, 2.0], 500)
    >>> factor, weights = beside_known_noise(np.hypot(0.5, known) * draw.normal(size=1000), 1.0, known, np.ones(1000))
    >>> round(factor, 1), weights[:2].round(2).tolist(), round(weights.sum())
    (0.5, [1.0, 0.0], 504)
    """
    others = (known / std) ** 2
    excess = (off / std) ** 2 - others

    def slope(log: float) -> float:  # of the likelihood in the logarithm of the factor's square
        square = math.exp(log)
        return float(weights @ ((excess - square) * square / (square + others) ** 2)) + _ROWS_OF_ONE * (1 / square - 1)

    least, most = math.log(_LEAST), math.log(max(1.0, float(excess.max()))) + 1e-9
    square = math.exp(optimize.brentq(slope, least, most)) if slope(least) > 0 else _LEAST
    share = (square / (square + others)) ** 2
    return math.sqrt(square), weights * share * (weights @ share) / (weights @ share**2)


def _ordered(errors: NDArray[Any], weights: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    order = np.argsort(errors)
    return errors[order], np.cumsum(weights[order])


def _places(space: str, features: NDArray[Any], mean: NDArray[Any]) -> NDArray[Any]:
    return features if space == "features" else mean[:, None]


def _size(z: NDArray[Any], freedom: float, weights: NDArray[Any]) -> tuple[float, float]:
    """The scale of a Student t of the largest likelihood, by its EM steps, and the log likelihood."""
    squares, count = z**2, float(weights.sum())
    found = float(np.average(squares, weights=weights))
    if math.isinf(freedom):
        return math.sqrt(found), -0.5 * count * (1 + math.log(2 * math.pi * found))
    for _ in range(_STEPS):
        found = float(np.average(squares * ((freedom + 1) / (freedom + squares / found)), weights=weights))
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi * found)
    tails = float(weights @ np.log1p(squares / (freedom * found)))
    return math.sqrt(found), count * constant - (freedom + 1) / 2 * tails
