"""How many nodes, about which features, up to which variance: the cheapest sums that reach the widest domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.measure.words import missed
from momentgen.compiler.strategies.quadrature.function import Branches
from momentgen.compiler.strategies.quadrature.resolution import Resolution, features
from momentgen.compiler.strategies.quadrature.sums import Kink, Moments, Nodes, rows_of
from momentgen.compiler.strategies.quadrature.truth import Exact, Shares, errors, in_float64
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


@dataclass(frozen=True)
class Domain:
    """The largest |mean| and variance."""

    mean: float
    var: float


@dataclass(frozen=True, eq=False)
class Setting:
    """f with its parameters set, and what was found out about it."""

    params: Mapping[str, float]
    f: Branches
    resolution: Resolution


def drawn(
    setting: Setting, domain: Domain, draw: np.random.Generator, count: int, *, small: bool = False
) -> tuple[F64, F64]:
    """Means and variances in a domain, all float32: half of them near what f bends about, half anywhere."""
    low, high = (-15.0, np.log10(_LEAST_SIGMA)) if small else (np.log10(_LEAST_SIGMA), np.log10(domain.var) / 2)
    sigma = 10 ** draw.uniform(low, high, count)
    inner = setting.resolution.edges
    inner = inner[np.abs(inner) <= min(50.0, domain.mean)]
    centres = np.concatenate([[0.0], setting.f.kinks, inner])
    near = draw.choice(centres, count) + sigma * draw.uniform(-7, 7, count)
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


class Search:
    """Tries nodes for one f.

    Args:
        f: its pieces, with parameters.
        settings: f at settings of these.
        most: ``mean`` -> the largest |mean|, ``var`` -> the largest variance of the domain; either may be missing.
    """

    def __init__(
        self, f: Branches, settings: Sequence[Setting], most: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        self.f, self.settings = f, tuple(settings)
        self.even = 1
        # Of an f that bends everywhere intervals are known up to there.
        reach = min(setting.resolution.reach for setting in settings)
        variances = [10.0**k for k in _VARS if _SIGMAS * 10 ** (k / 2) <= reach or k == _VARS[-1]]
        tried = [(10.0**k, var) for means in _MEANS for var in variances for k in means]
        most_mean, most_var = (float(np.float32(most.get(name, np.inf))) for name in ("mean", "var"))
        held = [Domain(min(mean, most_mean), min(var, most_var)) for mean, var in tried]
        self.domains = list(dict.fromkeys(held))  # from the widest on

    @property
    def most(self) -> Domain:
        """The widest domain that is tried."""
        return self.domains[0]

    @cached_property
    def points(self) -> list[tuple[F64, F64, Exact]]:
        """Points on the widest domain, with exact values, by setting."""
        domain = self.most
        found = []
        for k, setting in enumerate(self.settings):
            mean, var = drawn(setting, domain, np.random.default_rng(k), _SCREENED)
            found.append((mean, var, in_float64(setting.f, setting.resolution, mean, var)))
        return found

    def nodes(self, choice: Choice, share: Shares) -> tuple[Nodes, list[Kink]]:
        """The features for a coarseness, those at kinks apart."""
        coarse, count, even = choice
        every = [setting.resolution for setting in self.settings]
        fixed = self.settings[0].f.kinks
        moving = any(kink.free_symbols for kink in self.f.pieces.kinks)
        if moving:  # their lengths at the first setting; others' intervals are about other places
            made, most = features(every[:1], fixed, coarse)
        else:
            made, most = features(every, fixed, coarse)
        at_kinks = [next(one for one in made if one.at == at) for at in fixed.tolist()]
        kinks = [
            Kink(at, _power_at(self.settings[0].f, one.at), one.length)
            for at, one in zip(self.f.pieces.kinks, at_kinks, strict=True)
        ]
        rest = tuple(one for one in made if one not in at_kinks)
        rates = [max(rates) for rates in zip(*(setting.f.growth.rates for setting in self.settings), strict=True)]
        return Nodes(count, _REACH[share], rest, most, (rates[0], rates[1]), even), kinks

    def share(self, choice: Choice, share: Shares) -> tuple[int, list[F64]]:
        """Terms of a choice of nodes, and its largest error over what is allowed, at the points of each setting."""
        terms, found = self._errors(choice, share)
        return terms, [np.max(list(of.values()), axis=0) for of in found]

    def _errors(self, choice: Choice, share: Shares) -> tuple[int, list[dict[str, F64]]]:
        nodes, kinks = self.nodes(choice, share)
        terms = rows_of(nodes, len(kinks)) * choice.nodes
        if terms > _MOST_ROWS * _COUNTS[-1]:
            return terms, []
        moments = Moments(self.f, kinks, nodes)
        graphs = moments.graph(OUTPUTS), moments.graph(PARTIALS)
        found = []
        for setting, (mean, var, exact) in zip(self.settings, self.points, strict=True):
            got: dict[str, F64] = {}
            for graph in graphs:
                got |= outputs_float64(graph, {"mean": mean, "var": var, **setting.params})
            found.append(errors(got, exact, var, share))
        return terms, found

    def holds(self, found: Sequence[F64], domain: Domain, most: float) -> bool:
        """Whether errors are at most ``most`` on a domain."""
        for (mean, var, _), error in zip(self.points, found, strict=True):
            inside: Bools = (np.abs(mean) <= domain.mean) & (var <= domain.var)
            if not (error[inside] <= most).all():
                return False
        return bool(found)

    def widest(self, found: Sequence[F64]) -> Domain | None:
        """The widest domain on which errors are small enough: of two with equal variances that of the larger mean."""
        return next((domain for domain in self.domains if self.holds(found, domain, _AIM)), None)

    def chosen(self) -> tuple[Nodes, list[Kink], Domain] | None:
        """The cheapest nodes for float32 that reach the widest domain; None where none reaches any.

        Fresh points that miss are among those of the next choice.
        """
        for attempt in range(_ATTEMPTS):
            if (best := self._best()) is None:
                return None
            choice, domain = best
            if self._holds_afresh(choice, domain, attempt + 1):
                self.even = choice.even
                return *self.nodes(choice, FLOAT32), domain
        return None

    def _holds_afresh(self, choice: Choice, domain: Domain, seed: int) -> bool:
        """Whether a choice holds at points that it was not chosen by; these are added to the others."""
        known = self.points
        fresh = []
        for k, setting in enumerate(self.settings):
            mean, var = drawn(setting, domain, np.random.default_rng((seed, k)), _FRESH)
            fresh.append((mean, var, in_float64(setting.f, setting.resolution, mean, var)))
        self.points = fresh
        _, found = self.share(choice, FLOAT32)
        holds = self.holds(found, domain, _AFRESH)
        self.points = [_joined(a, b) for a, b in zip(known, fresh, strict=True)]
        return holds

    def _best(self) -> tuple[Choice, Domain] | None:
        best: tuple[tuple[int, int], Choice, Domain] | None = None
        for even in _EVEN:
            if best is not None and best[2].var >= min(_ENOUGH, self.most.var):
                break
            for coarse in _COARSE if even == 1 else _COARSE[:1]:
                for count in _COUNTS if even == 1 else _COUNTS[2::2]:
                    choice = Choice(coarse, count, even)
                    terms, found = self.share(choice, FLOAT32)
                    domain = self.widest(found) if found else None
                    if domain is None:
                        continue
                    rank = self.domains.index(domain), terms
                    if best is None or rank < best[0]:
                        best = rank, choice, domain
                    if domain == self.most:
                        break  # more nodes cost more
        return best and best[1:]

    def missed(self) -> str:
        """Where the most nodes miss most on the smallest domain, in words."""
        least = self.domains[-1]
        every = [self._errors(Choice(coarse, _COUNTS[-1], self.even), FLOAT32)[1] for coarse in _COARSE]
        furthest: list[tuple[float, str, float, float]] = []
        for found in filter(None, every):
            rows = []
            for (means, variances, _), of in zip(self.points, found, strict=True):
                inside = (np.abs(means) <= least.mean) & (variances <= least.var)
                for name, error in of.items():
                    at = int(np.where(inside, error, -1.0).argmax())
                    rows.append((float(error[at]), name, float(means[at]), float(variances[at])))
            furthest.append(max(rows))
        if not furthest:
            return f"f bends at too many places; {ADVICE}"
        worst, output, at_mean, at_var = min(furthest)
        return f"{missed(worst, output, {'mean': at_mean, 'var': at_var}, _AIM, 'tolerance')}; {ADVICE}"

    def finer(self, domain: Domain) -> tuple[Nodes, list[Kink]]:
        """The cheapest nodes for float64 that hold on a domain; where none do, those with the least error."""
        best: tuple[tuple[float, int], Choice] | None = None
        for coarse in _COARSE[1:]:
            for count in _COUNTS[2:]:
                choice = Choice(coarse, count, self.even)
                terms, found = self.share(choice, FLOAT64)
                if not found:
                    continue
                error = max(
                    float(error[(np.abs(mean) <= domain.mean) & (var <= domain.var)].max(initial=0.0))
                    for (mean, var, _), error in zip(self.points, found, strict=True)
                )
                rank = (max(error, 1.0), terms)
                if best is None or rank < best[0]:
                    best = rank, choice
                if error <= 1.0:
                    break
        return self.nodes(best[1] if best else Choice(_COARSE[1], _COUNTS[-1], self.even), FLOAT64)


def _joined(a: tuple[F64, F64, Exact], b: tuple[F64, F64, Exact]) -> tuple[F64, F64, Exact]:
    """Two sets of points as one."""
    values = {name: np.concatenate([a[2].values[name], b[2].values[name]]) for name in a[2].values}
    fourth, change, size = (
        np.concatenate([getattr(of, name) for of in (a[2], b[2])]) for name in ("fourth", "change", "size")
    )
    return np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]]), Exact(values, fourth, change, size)


def _power_at(f: Branches, at: float) -> float:
    """q with f(at ± h) - f(at) about h^q on the side where that is larger: 0 at a jump, 1 at a kink."""
    steps = np.array([1e-7, 1e-6]) * max(1.0, abs(at))
    (here,) = f.values(np.array([at]))
    sizes = []
    for side in (-1, 1):
        values = f.values(at + side * steps)
        sizes.append(np.abs(values - here))
    small, large = np.max(sizes, axis=0)
    if not small > 1e-13 * max(1.0, abs(here)):
        return 1.0
    return float(np.clip(np.log10(large / small), 0.0, 2.0).round(2))


__all__ = ["FLOAT32", "FLOAT64", "Domain", "Search", "Setting", "drawn"]
