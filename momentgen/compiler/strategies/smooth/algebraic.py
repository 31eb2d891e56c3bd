r"""Smooth activations that near a line on either side by a power of 1/x: atan, sqrt(1 + x²), x/sqrt(1 + x²).

For those that :mod:`momentgen.compiler.strategies.smooth.polynomials` cannot handle.  Below v* stands the Hermite
expansion of the variance, above it a second fit; both are of a ladder of atoms
(:mod:`momentgen.compiler.strategies.smooth.ladder`).  A function of this kind has singularities near the real line, so
that the expansion takes more terms; those of an order above 3 leave out what the atoms of large variance add to
nothing. In float64 there are polynomials in cells instead where
:mod:`momentgen.compiler.strategies.surfaces.fine_tails` has them. With kinks:
:mod:`momentgen.compiler.strategies.kinks.quadrature`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.smoothing import Side
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.fit.atoms import AtomFit
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.ir.graph import Graph, Real, madd, select
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.measure.moments import VARIANCE, measure_for
from momentgen.compiler.strategies.domain import up_to_its_reach
from momentgen.compiler.strategies.kit import NEAR32, NEAR64, Precision
from momentgen.compiler.strategies.smooth.atom_graph import AtomSum, SurrogateWriter
from momentgen.compiler.strategies.smooth.choosing import Found, atom_facts, choose_atoms, found_atoms
from momentgen.compiler.strategies.smooth.ladder import fit_ladder, grid, ladder, mean_target, outskirts, second_target
from momentgen.compiler.strategies.smooth.polynomials import fine_facts, fine_surfaces, in_words
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces, find_fine_surfaces
from momentgen.compiler.strategies.surfaces.fine_surface_graph import build_fine_graph
from momentgen.compiler.strategies.tolerated import exact_variant, unmet
from momentgen.compiler.toolchain.arrays import F64
from momentgen.errors import BuildError

#: (atoms, highest order), cheap first
_CHOICES = ((8, 4), (10, 4), (12, 4), (12, 5), (14, 5), (16, 5), (16, 6), (18, 6), (20, 6), (22, 6), (24, 6))
#: tried where the best of these is hopeless
_MORE = ((30, 6), (36, 6))
_FINE = ((22, 6),)
_QUICK = replace(NEAR64, lean=True)  # ladders are off by far more than by rounding
#: the smallest root in units of the length, or of sigma at v*; how much wider steps become; the largest, of the reach
_FIRST, _FIRST_SMOOTHED, _WIDENING, _LAST = (0.2, 0.35, 0.5, 0.8), (0.8, 1.0), (2.0, 3.0), (0.1, 0.3, 1.0)
_PROMISING, _HOPELESS = 3.0, 3.0
_ENDED = 7.0  # roots of its variance, where an atom has ended
_TERMS = 12
_SHARE = 0.15  # of the variance's tolerance, left to the local form's truncation
_SWITCHES = (2.0, 1.6, 1.3, 1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.1)  # in units of length²
_ORDERS = 30  # of the expansion that is looked at
_NEGLIGIBLE = 2e-9  # of L sigma, at v*


def why_not(derivation: Derivation) -> str | None:
    """Why this strategy cannot handle f, or None; it is for smooth f with a line on either side."""
    return unmet(derivation, kinks=False, exponentially=False)


def find_switch(f: Activation, truth: GeneralTruth, terms: int) -> tuple[float, float]:
    """v* and the share of the variance's scale that ``terms`` terms of the Hermite expansion leave out there.

    Raises:
        BuildError: if even the smallest v* tried leaves too much.
    """
    error = math.inf
    for share in _SWITCHES:
        v = share * f.length**2
        mu = f.centre + np.concatenate([-(w := np.geomspace(0.02, 30.0, 60) * f.length)[::-1], [0.0], w])
        here = truth.values(mu)

        def terms_of(points: F64, z: F64, index: F64, here: F64 = here) -> list[F64]:
            d = truth.values(points) - here[index][:, None]
            rows = [np.ones_like(z), z]  # He_k/sqrt(k!)
            for k in range(2, _ORDERS):
                rows.append((z * rows[-1] - math.sqrt(k - 1) * rows[-2]) / math.sqrt(k))
            return [d * row for row in rows]

        squares = truth.expectations(mu, np.full(mu.size, v), terms_of) ** 2
        error = float(squares[terms + 1 :].sum(axis=0).max()) / min(f.lipschitz**2 * v, (f.span / 2) ** 2)
        if error <= _SHARE * VARIANCE:
            return float(np.float32(v)), error
    cause = f"a local form of {terms} terms leaves {error:.2g} of the variance at v = {v:.3g}"
    raise BuildError(f.name, "strategies", cause, f.pieces)


def find_ladder(
    f: Activation, truth: GeneralTruth, choices: tuple[tuple[int, int], ...], switch: float, terms: int, start: float
) -> Found:
    """The cheapest ladder of ``choices`` whose fit is within the tolerance's share; the best where none is.

    Args:
        f: what to fit.
        truth: of f.
        choices: (number of variances, highest order), cheap first.
        switch: v*.
        terms: of the local form, for the record.
        start: the variance from where on the mean is used: 0, or v*.
    """
    sides = Side(f, 1), Side(f, -1)
    far = max(outskirts(f, side) for side in sides)
    unit, firsts = (math.sqrt(start), _FIRST_SMOOTHED) if start else (f.length, _FIRST)

    def spreads(count: int) -> list[tuple[float, ...]]:
        return [ladder(count, a * unit, far * c, b, start) for a in firsts for b in _WIDENING for c in _LAST]

    # Out to where the widest atom has ended as well: beyond the points atoms are free to oscillate.  A slow tail is
    # what wide atoms are there for, and holds them.
    widest = max(tau for count, _ in choices for taus in spreads(count) for tau in taus) + switch
    u = grid(f, 2 * far if f.algebraic else max(2 * far, _ENDED * math.sqrt(widest)))
    seconds = [second_target(f, truth, u, switch, sign) for sign in (1, -1)]
    even = np.allclose(seconds[0].values, seconds[1].values, rtol=1e-9, atol=1e-3 * float(seconds[0].allowed.min()))
    targets = [(mean_target(f, truth, u, start), start), *((t, switch) for t in (seconds[:1] if even else seconds))]

    lasting = None if f.algebraic else 1  # a slow tail needs several

    def fit(taus: tuple[float, ...], high: int, rounds: int) -> Iterator[AtomFit]:
        return (fit_ladder(target, tuple(tau + v for tau in taus), high, rounds, lasting) for target, v in targets)

    return found_atoms(f, choose_atoms(choices, spreads, fit, promising=_PROMISING), switch, terms)


class LadderWriter(SurrogateWriter):
    """Leaves out of the higher derivatives what is nothing beside the variance."""

    def __init__(self, graph: Graph, atoms: AtomSum, precision: Precision, lipschitz: float) -> None:
        self.lipschitz = lipschitz
        super().__init__(graph, atoms, precision)

    def mean(self) -> Real:
        """As for other atoms; where f runs from -oo to oo the line and D_0 cancel at large sigma: two words."""
        g, atoms = self.g, self.atoms
        if atoms.left.slope * atoms.right.slope <= 0:
            return super().mean()
        far = g.const(mpmath.mpf(2) ** 100)  # beyond, a second word would be lost in overflow
        low, high = self.mu < -far, far < self.mu
        held = select(low, -far, select(high, far, self.mu))
        d0 = self.d(0)
        if self.shrunk is not None:
            d0 = d0 * self.shrunk[1]
        slope = self.by_side(atoms.left.slope, atoms.right.slope)
        line = madd(slope, held, self.by_side(atoms.left.offset, atoms.right.offset))
        near = line + d0
        g.suspect(*g.behind(near))
        return near + slope * (self.mu - held)

    def total(self, coefficients: F64, low: int, shift: int, parity: int | None = None) -> Real | None:
        if shift < 4:  # these serve at any sigma
            return super().total(coefficients, low, shift, parity)
        kept = coefficients.copy()
        weight = self.atoms.switch ** (shift / 2) / math.sqrt(math.factorial(shift))
        least = self.lipschitz * math.sqrt(self.atoms.switch) * _NEGLIGIBLE
        for k, tau in enumerate(self.atoms.taus):
            for i in range(coefficients.shape[1]):
                m = low + i + shift  # sup |T_m| is at most sqrt((m-1)!)/tau^(m/2)
                bound = math.sqrt(math.factorial(max(m - 1, 0))) * tau ** (-m / 2)
                if abs(coefficients[k, i]) * bound * weight < least:
                    kept[k, i] = 0.0
        return super().total(kept, low, shift, parity)


def _surfaces(f: Activation, truth: GeneralTruth) -> FineSurfaces | None:
    """Polynomials for float64: a fifth of a ladder's time, and a hundred times as accurate; None if none are found."""
    try:
        found = find_fine_surfaces(f, truth, OUTPUTS) if f.algebraic else fine_surfaces(f)
    except BuildError:
        return None
    return found if found and found.error <= 1 else None


def _graph(
    f: Activation, atoms: AtomSum, precision: Precision, outputs: tuple[str, ...]
) -> tuple[Graph, list[Polynomial]]:
    """The graph of a ladder, with its fits."""
    graph = Graph(("mean", "var"))
    writer = LadderWriter(graph, atoms, precision, f.lipschitz)
    writer.write(outputs)
    return graph, list(writer.fits)


def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``.

    Raises:
        BuildError: if no multi-scale expansion comes within the tolerance.
    """
    rule = derivation.rule
    f = analyse(rule.name, derivation.pieces, {})
    truth = GeneralTruth(f)
    switch, left_out = find_switch(f, truth, _TERMS)
    found = find_ladder(f, truth, _CHOICES, switch, _TERMS, 0.0)
    if found.share > _HOPELESS:
        found = min(found, find_ladder(f, truth, _MORE, switch, _TERMS, 0.0), key=lambda one: one.share)
    if found.share > _HOPELESS:
        cause = f"the best multi-scale expansion misses what is allowed to it {found.share:.3g}-fold"
        raise BuildError(rule.name, "strategies", cause, rule.f)
    surfaces = _surfaces(f, truth)
    fine = None if surfaces else find_ladder(f, truth, _FINE, switch, _TERMS + 2, 0.0)
    graphs: dict[str, Any] = {}
    fits: list[Any] = []
    for name, outputs in (("forward", OUTPUTS), ("partials", PARTIALS)):
        graphs[name], made = _graph(f, found.atoms, NEAR32, outputs)
        fits += made
        if fine:
            graphs[f"{name}64"], _ = _graph(f, fine.atoms, _QUICK, outputs)
        elif surfaces:
            graphs[f"{name}64"] = build_fine_graph(f, surfaces, outputs)
    in_float64 = "" if surfaces is None else f"; in float64 {in_words(surfaces)}, whose derivatives are the partials"
    wide = 40.0 * f.length
    exact = exact_variant(
        f,
        graphs,
        truth,
        measure_for(f, truth),
        box={"mu": (f.centre - wide, f.centre + wide), "a": (-20.0, 20.0), "log2_var": (-40.0, 40.0)},
        fits=fits,
        facts={
            **atom_facts(found, fine),
            **(fine_facts(surfaces) if surfaces else {}),
            "local_terms": _TERMS,
            "local_form_leaves_out": float(f"{left_out:.3g}"),
        },
        doc=(
            f"the general fallback: a multi-scale expansion, atoms of {len(found.atoms.taus)} variances; below "
            f"v = {switch:.4g} the Hermite expansion of the variance, {_TERMS} terms{in_float64}"
        ),
    )
    yield exact if rule.domain else up_to_its_reach(exact)
