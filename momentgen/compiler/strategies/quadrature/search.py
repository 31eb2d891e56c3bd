"""How many nodes, about which features, up to which variance: the cheapest sums that reach the widest domain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from momentgen.compiler.exact.by_panels import Exact, Shares, in_float64
from momentgen.compiler.function.branches import NEAREST, Branches, Resolution
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.measure.ulp import missed
from momentgen.compiler.strategies.finish import DomainEdge
from momentgen.compiler.strategies.quadrature.sums import Feature, Kink, Moments, Nodes
from momentgen.compiler.toolchain.arrays import F64, Bools

#: what float32 is held to, and what errors of float64 are stated in
FLOAT32 = Shares(mean=1e-6, sigma=1e-5, partial=1e-4, floor=2e-11)
FLOAT64 = Shares(mean=1e-9, sigma=1e-9, partial=1e-8, floor=1e-12)
_COARSE = (8.0, 4.0, 2.0, 1.0)
_COUNTS = (12, 16, 24, 32, 48, 64)
_REACH = {FLOAT32: 10.0, FLOAT64: 12.0}
_EVEN, _ENOUGH = (1, 4, 10), 1e4  # tried in turn, until a domain has such a variance
_MOST_ROWS = 60
_SCREENED, _FRESH, _AIM, _AFRESH, _ATTEMPTS = 240, 800, 0.5, 0.7, 5  # as many fresh points as certificates have
#: largest |mean| and variance of a domain, in tens; means below 100 where no others hold
_MEANS, _VARS = ((4, 3, 2), (1, 0)), tuple(range(6, -3, -1))
_LEAST_SIGMA, _SIGMAS = 1e-4, 20.0  # sigmas that intervals are to be known for
_FEATURES = 10  # beside kinks


def drawn(
    f: Branches, domain: DomainEdge, draw: np.random.Generator, count: int, *, small: bool = False
) -> tuple[F64, F64]:
    """Means and variances in a domain, all float32: half of them near what f bends about, half anywhere."""
    low, high = (-15.0, np.log10(_LEAST_SIGMA)) if small else (np.log10(_LEAST_SIGMA), np.log10(domain.var) / 2)
    sigma = 10 ** draw.uniform(low, high, count)
    inner = f.resolution.edges
    inner = inner[np.abs(inner) <= min(50.0, domain.mean)]
    near = draw.choice(np.concatenate([[0.0], f.kinks, inner]), count) + sigma * draw.uniform(-7, 7, count)
    far = draw.choice([-1, 1], count) * 10 ** draw.uniform(-3, np.log10(domain.mean), count)
    mean = np.where(draw.random(count) < 0.6, near, far).clip(-domain.mean, domain.mean)
    var = np.minimum(sigma**2, domain.var)
    if not small:  # the corners, where sums reach furthest
        mean[:2], var[:2] = (domain.mean, -domain.mean), domain.var
    return mean.astype(np.float32).astype(np.float64), var.astype(np.float32).astype(np.float64)


#: to the author of an f that sums over nodes miss
ADVICE = "state a smaller `domain`, or write f without sharp bends and differences of large numbers"


class Choice(NamedTuple):
    """How coarse features are, how many nodes each half of an interval has, and into how many each side is cut."""

    coarse: float
    nodes: int
    even: int


#: errors over what is allowed, by output, at the points of each setting
_Found = list[dict[str, F64]]


class Search:
    """Tries nodes for one f.

    Args:
        f: its pieces, with parameters.
        settings: f at settings of these.
        most: ``mean`` -> the largest |mean|, ``var`` -> the largest variance of the domain; either may be missing.
    """

    def __init__(
        self, f: Branches, settings: Sequence[Branches], most: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        self.f, self.settings = f, tuple(settings)
        self.even = 1
        # Of an f that bends everywhere intervals are known up to there.
        reach = min(setting.resolution.reach for setting in settings)
        variances = [10.0**k for k in _VARS if _SIGMAS * 10 ** (k / 2) <= reach or k == _VARS[-1]]
        tried = [(10.0**k, var) for means in _MEANS for var in variances for k in means]
        most_mean, most_var = (float(np.float32(most.get(name, np.inf))) for name in ("mean", "var"))
        held = [DomainEdge(min(mean, most_mean), min(var, most_var)) for mean, var in tried]
        self.domains = list(dict.fromkeys(held))  # from the widest on: of two with equal variances the larger mean
        self.points = [self._points(k, _SCREENED, self.domains[0]) for k in range(len(settings))]

    def _points(self, k: int, count: int, domain: DomainEdge, *seed: int) -> Exact:
        """Points on a domain, with exact values, at a setting."""
        draw = np.random.default_rng((*seed, k) if seed else k)
        return in_float64(self.settings[k], *drawn(self.settings[k], domain, draw, count))

    def nodes(self, choice: Choice, share: Shares) -> Nodes:
        """The nodes of a choice."""
        coarse, count, even = choice
        first, every = self.settings[0], [setting.resolution for setting in self.settings]
        if any(kink.free_symbols for kink in self.f.pieces.kinks):
            every = every[:1]  # others' intervals are about other places
        made, most = features(every, first.kinks, coarse)
        at_kinks = [next(one for one in made if one.at == at) for at in first.kinks.tolist()]
        kinks = tuple(
            Kink(at, _power_at(first, one.at), one.length)
            for at, one in zip(self.f.pieces.kinks, at_kinks, strict=True)
        )
        rest = tuple(one for one in made if one not in at_kinks)
        down, up = (max(rates) for rates in zip(*(setting.growth.rates for setting in self.settings), strict=True))
        return Nodes(count, _REACH[share], kinks, rest, most, (down, up), even)

    def errors(self, choice: Choice, share: Shares) -> tuple[int, _Found]:
        """Terms of a choice of nodes, and errors at the points of each setting; none where terms are too many."""
        nodes = self.nodes(choice, share)
        if nodes.terms > _MOST_ROWS * _COUNTS[-1]:
            return nodes.terms, []
        graphs = [Moments(self.f, nodes).graph(outputs) for outputs in (OUTPUTS, PARTIALS)]
        found = []
        for setting, exact in zip(self.settings, self.points, strict=True):
            given = {"mean": exact.mean, "var": exact.var, **setting.setting}
            got = {name: values for graph in graphs for name, values in outputs_float64(graph, given).items()}
            found.append(exact.errors(got, share))
        return nodes.terms, found

    def largest(self, found: _Found, domain: DomainEdge) -> float:
        """The largest error on a domain."""
        inside = [domain.inside(exact.mean, exact.var) for exact in self.points]
        return max(
            float(error[where].max(initial=0.0))
            for of, where in zip(found, inside, strict=True)
            for error in of.values()
        )

    def widest(self, found: _Found) -> int | None:
        """The number of the widest domain on which errors are small enough."""
        return next((k for k, domain in enumerate(self.domains) if self.largest(found, domain) <= _AIM), None)

    def chosen(self) -> tuple[Nodes, DomainEdge] | None:
        """The cheapest nodes for float32 that reach the widest domain; None where none reaches any.

        Fresh points that miss are among those of the next choice.
        """
        for attempt in range(_ATTEMPTS):
            if (best := self._best()) is None:
                return None
            choice, domain = best
            known, count = self.points, len(self.settings)
            self.points = [self._points(k, _FRESH, domain, attempt + 1) for k in range(count)]
            holds = self.largest(self.errors(choice, FLOAT32)[1], domain) <= _AFRESH
            self.points = [one.and_of(other) for one, other in zip(known, self.points, strict=True)]
            if holds:
                self.even = choice.even
                return self.nodes(choice, FLOAT32), domain
        return None

    def _cheapest(
        self, choices: Iterable[Iterable[Choice]], share: Shares, rank: Callable[[_Found], float | None], perfect: float
    ) -> tuple[float, int, Choice] | None:
        """The choice of the least rank, and of these of the fewest terms; more nodes than are perfect cost more."""
        tried: list[tuple[float, int, Choice]] = []
        for row in choices:
            for choice in row:
                terms, found = self.errors(choice, share)
                of = rank(found) if found else None
                if of is not None:
                    tried.append((of, terms, choice))
                if of == perfect:
                    break
        return min(tried, key=lambda one: one[:2], default=None)

    def _best(self) -> tuple[Choice, DomainEdge] | None:
        best: list[tuple[float, int, Choice]] = []
        for even in _EVEN:
            coarses, counts = (_COARSE, _COUNTS) if even == 1 else (_COARSE[:1], _COUNTS[2::2])
            choices = ((Choice(coarse, count, even) for count in counts) for coarse in coarses)
            found = self._cheapest(choices, FLOAT32, self.widest, 0)
            best = sorted([*best, *([found] if found else [])], key=lambda one: one[:2])
            if best and self.domains[int(best[0][0])].var >= min(_ENOUGH, self.domains[0].var):
                break
        return (best[0][2], self.domains[int(best[0][0])]) if best else None

    def finer(self, domain: DomainEdge) -> Nodes:
        """The cheapest nodes for float64 that hold on a domain; where none do, those with the least error."""
        choices = ((Choice(coarse, count, self.even) for count in _COUNTS[2:]) for coarse in _COARSE[1:])
        best = self._cheapest(choices, FLOAT64, lambda found: max(self.largest(found, domain), 1.0), 1.0)
        return self.nodes(best[2] if best else Choice(_COARSE[1], _COUNTS[-1], self.even), FLOAT64)

    def missed(self) -> str:
        """Where the most nodes miss most on the smallest domain, in words."""
        furthest: list[tuple[float, str, float, float]] = []
        for coarse in _COARSE:
            _, found = self.errors(Choice(coarse, _COUNTS[-1], self.even), FLOAT32)
            rows = []
            for exact, of in zip(self.points, found, strict=False):
                inside = self.domains[-1].inside(exact.mean, exact.var)
                for name, error in of.items():
                    at = int(np.where(inside, error, -1.0).argmax())
                    rows.append((float(error[at]), name, float(exact.mean[at]), float(exact.var[at])))
            furthest += [max(rows)] if rows else []
        if not furthest:
            return f"f bends at too many places; {ADVICE}"
        worst, output, at_mean, at_var = min(furthest)
        return f"{missed(worst, output, {'mean': at_mean, 'var': at_var}, _AIM, 'tolerance')}; {ADVICE}"


def _power_at(f: Branches, at: float) -> float:
    """q with f(at ± h) - f(at) about h^q on the side where that is larger: 0 at a jump, 1 at a kink."""
    steps = np.array([1e-7, 1e-6]) * max(1.0, abs(at))
    (here,) = f.values(np.array([at]))
    small, large = np.max([np.abs(f.values(at + side * steps) - here) for side in (-1, 1)], axis=0)
    if not small > 1e-13 * max(1.0, abs(here)):
        return 1.0
    return float(np.clip(np.log10(large / small), 0.0, 2.0).round(2))


def features(found: Sequence[Resolution], fixed: F64, coarse: float) -> tuple[list[Feature], float]:
    """Few features with which near each interval of some resolutions the length is at most ``coarse`` times its own.

    Args:
        found: of f at settings of its parameters.
        fixed: places where there is a feature in any case: kinks.
        coarse: as above.

    Returns:
        The features from left to right, and the largest length that there may be where they end: infinite where
        they cover all intervals, and not where they would be too many.
    """
    low = np.concatenate([of.low for of in found])
    high = np.concatenate([of.high for of in found])
    middle, half = (low + high) / 2, (high - low) / 2
    needed = half > NEAREST
    reach = max(of.reach for of in found)
    while True:
        within = np.abs(middle) <= reach
        made, rest = _chosen(low, high, needed & within, fixed, coarse)
        if not rest or reach < 1:
            beyond = half[needed & ~within]
            return sorted(made, key=lambda feature: feature.at), coarse * float(beyond.min(initial=np.inf))
        reach /= 2


def _chosen(low: F64, high: F64, needed: Bools, fixed: F64, coarse: float) -> tuple[list[Feature], bool]:
    """The features, and whether some intervals are left."""
    middle, half = (low + high) / 2, (high - low) / 2
    edges = [np.abs(middle - at) <= 1.001 * half for at in fixed]
    lengths = [float(half[near].min()) if near.any() else 1.0 for near in edges]  # a kink may be beyond all intervals
    made = [Feature(at, length) for at, length in zip(fixed.tolist(), lengths, strict=True)]
    left = needed.copy()

    def covered(at: float, length: float) -> Bools:
        return np.hypot(length, middle - at) <= coarse * half

    for feature in made:
        left &= ~covered(feature.at, feature.length)
    while left.any() and len(made) < _FEATURES + len(fixed):
        least = half[left].min()
        small = left & (half <= 2 * least)
        candidates = np.unique(np.concatenate([low[small], high[small], middle[small]]))
        candidates = candidates[:: max(1, candidates.size // 60)]
        counts = [int((covered(at, least) & left).sum()) for at in candidates]
        best = max(range(len(counts)), key=lambda k: (counts[k], -abs(candidates[k])))
        made.append(Feature(float(candidates[best]), float(least)))
        now = covered(made[-1].at, made[-1].length) & left
        left &= ~(now if now.any() else left & (half <= least))
    return made, bool(left.any())
