"""From moments in closed form to a graph of real operations in which nothing cancels.

Here are the list of strategies, tried in order, and what they share:

================  ===================================================================
``tolerance``     f measured by a tolerance: what is asked of a rule, exact values and measures at each setting of its
                  parameters, and the variant
``finish``        the variances and means up to which a variant holds, where that is not all of float32; outputs of a
                  steep f, beyond range; the value of f at a jump itself
``rescaled``      f as another function in other units: its base's graphs with inputs and outputs mapped
``conditional``   outputs that are random beyond their input: the mean of the variance given x is added to that of f
================  ===================================================================

The strategies:

===============  ===================================================================
``homogeneous``  polynomials of one degree on either side of a kink at 0: ``kink`` has their variants, ``kink_graph``
                 writes graphs
``smooth``       f that follow a line on either side: ``polynomials``, by polynomials of two variables, also of
                 a draw of 0 or 1
``surfaces``     polynomials of two variables: ``surface``, ``surface_search`` (in which frame) and ``surface_graph``
                 (at v = 0 f itself, ``point``); in float64 ``fine_surface``, of outputs in cells (``fine_output``), and
                 ``fine_surface_graph``
``kinks``        f with kinks or jumps: ``piecewise``, power series about the kinks and another form above v*, on
                 ``branch_series``; ``halves``, a line right of a kink and an exponential or a constant left of it
                 (ELU); each with its graph
``quadrature``   any f with a second moment, by sums over nodes in float64: ``strategy``, the last
``elementary``   x, x², exp(b x), sin(b x) and cos(b x), times and plus constants
``joint``        rules of two inputs
``formulas``     approximations of the literature as they are: ``expressions`` and ``functions`` (sympy to graph)
===============  ===================================================================

What several of them write into their graphs is :mod:`momentgen.compiler.ir.kit`; moments without cancellation are
:mod:`momentgen.compiler.derive.forms` and :mod:`momentgen.compiler.derive.rewrite`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

import sympy

from momentgen.compiler.derive import Derivation, in_units
from momentgen.compiler.derive.existence import check_second_moment
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.strategies import elementary
from momentgen.compiler.strategies.conditional import expected_conditional, with_conditional_variance
from momentgen.compiler.strategies.finish import restricted, saturated, with_jumps
from momentgen.compiler.strategies.formulas import formula
from momentgen.compiler.strategies.homogeneous import kink
from momentgen.compiler.strategies.kinks import halves, piecewise
from momentgen.compiler.strategies.quadrature import strategy as quadrature
from momentgen.compiler.strategies.rescaled import rescaled_variant
from momentgen.compiler.strategies.smooth import polynomials
from momentgen.compiler.strategies.tolerance import Parametric
from momentgen.errors import BuildError
from momentgen.rule import Rescaled

__all__ = ["approximations", "stabilise", "ways"]

#: the range of sizes of f that needs no rescaling
_SIZES = (1 / 16, 4.0)


@dataclass(frozen=True)
class _Strategy:
    """A way to a stable form: what it is for, why it does not serve a rule (None if it does), and the form.

    ``lines``: whether its outputs grow as the lines of f do, and are to be held where these are steep; ``absolute``:
    whether it serves absolute goals; ``sized``: whether it is asked for an f of about 1 in size; ``relative``: whether
    it serves goals relative to sigma, and is asked for f itself, not for its base.
    """

    what: str
    why_not: Callable[[Derivation], str | None]
    variants: Callable[[Derivation], Iterable[Stable]]
    lines: bool = False
    absolute: bool = False
    sized: bool = False
    relative: bool = False

    def made(self, derivation: Derivation) -> Iterator[Stable]:
        """Its variants, and what is written on after every strategy."""
        for stable in self.variants(derivation):
            held = saturated(derivation, stable) if self.lines else stable
            yield replace(with_jumps(held, derivation), way=self.what)


#: tried in this order
_STRATEGIES = (
    _Strategy("homogeneous", kink.why_not, kink.stable_variants),
    _Strategy("draw of 0 or 1", formula.why_not, lambda derivation: [formula.exact_variant(derivation)]),
    _Strategy("halves", halves.why_not, halves.stable_variants, lines=True),
    _Strategy("elementary", elementary.why_not, elementary.stable_variants),
    _Strategy(
        "smooth, by polynomials",
        polynomials.why_not,
        polynomials.stable_variants,
        lines=True,
        absolute=True,
        sized=True,
    ),
    _Strategy("draw, by polynomials", polynomials.why_no_draw, polynomials.draw_variants, absolute=True),
    _Strategy("with kinks, by power series", piecewise.why_not, piecewise.stable_variants, lines=True, sized=True),
    _Strategy("quadrature", quadrature.why_not, quadrature.stable_variants, relative=True),
)


def stabilise(derivation: Derivation, way: str = "") -> tuple[Stable, ...]:
    """All variants of a derived rule, ``exact`` first: by the first way that serves, or by the one named ``way``.

    Raises:
        BuildError: if no strategy covers the rule; with the reason of each among ``others``.
    """
    return (*next(ways(derivation, way)), *approximations(derivation))


def approximations(derivation: Derivation) -> Iterator[Stable]:
    """The variants of a derived rule that approximate its moments."""
    yield from (restricted(stable, derivation.rule.domain) for stable in formula.stable_variants(derivation))


#: a derivation that strategies are asked for, and what makes of their variants those of the rule
_Asked = tuple[Derivation, Callable[[tuple[Stable, ...]], tuple[Stable, ...]]]


def ways(derivation: Derivation, way: str = "") -> Iterator[tuple[Stable, ...]]:
    """The variants that are a derived rule's own moments, by every strategy that serves, the cheapest kernels first.

    A strategy that serves by what f is may still miss the accuracy asked, which only lowering and certifying shows.
    With ``way``, by the strategy of that name alone.

    Raises:
        BuildError: if no strategy covers the rule; with the reason of each among ``others``.
    """
    given = derivation.conditional
    #: the mean of the variance given x, where there is one: made once, for all ways to f
    expected = None if given is None else cache(partial(expected_conditional, given))

    def whole(stables: tuple[Stable, ...]) -> tuple[Stable, ...]:
        if expected is not None:
            stables = tuple(with_conditional_variance(derivation, stable, expected()) for stable in stables)
        return tuple(restricted(stable, derivation.rule.domain) for stable in stables)

    def asked(of: Derivation) -> _Asked:
        """For f itself, or for its base where it is rescaled."""
        if of.base is None:
            return of, whole

        def mapped_back(stables: tuple[Stable, ...]) -> tuple[Stable, ...]:
            (base,) = (stable for stable in stables if stable.variant == "exact")
            return whole((saturated(of, rescaled_variant(of, base)),))

        return of.base, mapped_back

    usual, sized = asked(derivation), cache(lambda: asked(_of_size_one(derivation)))
    if usual[0].mean is None or usual[0].second is None:
        check_second_moment(usual[0])
    refusals: list[tuple[str, str, bool]] = []
    served = False
    for strategy in (s for s in _STRATEGIES if way in ("", s.what)):
        tried, made = False, tuple[Stable, ...]()
        try:
            of, finish = sized() if strategy.sized else (derivation, whole) if strategy.relative else usual
            cause = _why_not_goals(derivation, strategy) or strategy.why_not(of)
            if not cause:
                tried, cause = True, "the accuracy that the rule asks for is of none of its variants"
                if found := tuple(strategy.made(of)):
                    made = finish(found)
        except BuildError as error:
            cause = error.cause if error.expression is None else f"{error.cause} in `{error.expression}`"
        if made:
            served = True
            yield made
        else:
            refusals.append((strategy.what, str(cause), tried))
    if not served:
        what, cause = _nearest(derivation, refusals)
        others = tuple((name, why) for name, why, _ in refusals if name != what)
        raise BuildError(derivation.rule.name, "strategies", f"{cause} ({what})", derivation.rule.f, others)


def _of_size_one(derivation: Derivation) -> Derivation:
    """Write an f whose size is far from 1 as a power of two times another; return any other derivation unchanged.

    The size of a bounded f is half its range, that of any other its change over the length on which it bends.
    """
    rule, goal = derivation.rule, derivation.rule.accuracy
    itself = derivation.units is None and derivation.conditional is None and derivation.degree is None
    absolute = goal.mean_abs is not None or goal.var_abs is not None
    if not itself or absolute or rule.bernoulli:
        return derivation
    f = Parametric.of(rule).at({})
    if f.left is None or f.right is None:
        return derivation
    bounded = math.isfinite(f.span)
    size = f.span / 2 if bounded else f.lipschitz * f.length
    if size <= _SIZES[1] and not (bounded and 0 < size < _SIZES[0]):
        return derivation
    scale = sympy.Integer(2) ** round(math.log2(size))
    return in_units(derivation, Rescaled(rule.f / scale, scale=scale))


def _nearest(derivation: Derivation, refusals: list[tuple[str, str, bool]]) -> tuple[str, str]:
    """The strategy that came nearest to f, and why it does not serve: tried last, or else made for such an f."""
    tried = [(what, cause) for what, cause, attempted in refusals if attempted]
    if tried:
        return tried[-1]
    kind = "with kinks" if derivation.kinks else "smooth"
    fitting = [(what, cause) for what, cause, _ in refusals if what.startswith(kind)]
    return (fitting or [(what, cause) for what, cause, _ in refusals])[-1]


def _why_not_goals(derivation: Derivation, strategy: _Strategy) -> str | None:
    """Why the goals of a rule are not those of a strategy; None if they are."""
    goal = derivation.rule.accuracy
    if goal.relative and not strategy.relative:
        return "expected goals by moments or in ulp, got relative"
    if strategy.absolute or goal.mean_abs is goal.var_abs is None:
        return None
    return "expected goals in ulp or by moments, got mean_abs or var_abs"
