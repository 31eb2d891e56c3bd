"""From moments in closed form to a graph of real operations in which nothing cancels.

Here are the list of strategies, tried in order, and what they share:

================  ===================================================================
``tolerated``     f measured by a tolerance: what is asked of a rule, and the variant
``settled``       exact values and measures of an f with parameters, at each setting
``kit``           what several strategies write into their graphs, as integrals of the normal distribution, and what a
                  graph is for: float32 or float64, and how close its fits must be
``finish``        outputs of a steep f, beyond range; the value of f at a jump itself
``rescaled``      f as another function in other units: its base's graphs with inputs and outputs mapped
``conditional``   outputs that are random beyond their input: the mean of the variance given x is added to that of f
``domain``        the variances and means up to which a variant holds, where that is not all of float32
``logistic_input``  max(x, c x) of a logistic input
================  ===================================================================

The strategies:

===============  ===================================================================
``homogeneous``  polynomials of one degree on either side of a kink at 0: ``kink`` has their variants, ``kink_graph``
                 and ``kink_powers`` write graphs, on ``forms`` (moments without cancellation)
``smooth``       f that follow a line on either side: ``polynomials``, by polynomials of two variables, also of
                 a draw of 0 or 1
``surfaces``     polynomials of two variables: ``surface``, ``surface_search`` (in which frame) and ``surface_graph``
                 (at v = 0 f itself, ``point``); in float64 ``fine_surface``, of outputs (``fine_output``) in cells
                 (``fine_cells``), and ``fine_surface_graph``
``kinks``        f with kinks or jumps: ``piecewise``, power series about the kinks and another form above v*, on
                 ``branch_series``; ``halves``, a line right of a kink and an exponential or a constant left of it
                 (ELU); each with its graph
``quadrature``   any f with a second moment, by sums over nodes in float64: ``strategy``, the last
``elementary``   x, x², exp(b x), sin(b x) and cos(b x), times and plus constants: ``entire``
``joint``        rules of two inputs: ``joint``, ``maximum_graph``
``formulas``     approximations of the literature as they are: ``rewrite`` (sympy to sympy), ``expressions`` and
                 ``functions`` (sympy to graph)
===============  ===================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import sympy

from momentgen.compiler.derive import Derivation, JointDerivation, in_units
from momentgen.compiler.derive.existence import check_second_moment
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.strategies import logistic_input
from momentgen.compiler.strategies.conditional import expected_conditional, with_conditional_variance
from momentgen.compiler.strategies.domain import restricted
from momentgen.compiler.strategies.elementary import entire
from momentgen.compiler.strategies.finish import saturated, with_jumps
from momentgen.compiler.strategies.formulas import formula
from momentgen.compiler.strategies.homogeneous import kink
from momentgen.compiler.strategies.joint.joint import stabilise_joint
from momentgen.compiler.strategies.kinks import halves, piecewise
from momentgen.compiler.strategies.quadrature import strategy as quadrature
from momentgen.compiler.strategies.rescaled import rescaled_variant
from momentgen.compiler.strategies.settled import Settled
from momentgen.compiler.strategies.smooth import polynomials
from momentgen.errors import BuildError
from momentgen.rule import Rescaled

__all__ = ["Way", "approximate_ways", "joint_way", "plans", "stabilise", "ways"]


_UP_TO = ", up to var = "  # between a strategy's name and the largest variance, in the name of a way
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


def _unless(applies: Callable[[Derivation], bool], expected: str) -> Callable[[Derivation], str | None]:
    return lambda derivation: None if applies(derivation) else f"expected {expected}"


class Way:
    """A way to variants of a rule: making them may take long, so it is done when they are asked for.

    Attributes:
        what: its name.
        refusal: why it does not serve after all, once that is known; empty as long as it does.
    """

    def __init__(self, what: str, make: Callable[[], Iterable[Stable]]) -> None:
        self.what, self.refusal = what, ""
        self._make = make

    def stables(self) -> tuple[Stable, ...]:
        """The variants; none where the way does not serve.

        Raises:
            BuildError: if one cannot be made, and there is no other way to it.
        """
        return tuple(self._make())

    def up_to(self, var: float) -> Way:
        """The same on the domain of variances up to ``var``, a power of ten."""
        return Way(f"{self.what}{_UP_TO}{var:g}", lambda: _up_to(self.stables(), var))


def _up_to(stables: tuple[Stable, ...], var: float) -> tuple[Stable, ...]:
    return tuple(replace(restricted(one, {"var": var}), way=f"{one.way}{_UP_TO}{var:g}") for one in stables)


class _Plan(Way):
    """A way by one of several strategies: where it does not serve, the next one may."""

    def __init__(
        self,
        strategy: _Strategy,
        asked: _Asked,
    ) -> None:
        derivation = asked.derivation

        def held(stable: Stable) -> Stable:
            return saturated(derivation, stable) if strategy.lines else stable

        super().__init__(
            strategy.what,
            lambda: [with_jumps(held(stable), derivation) for stable in strategy.variants(derivation)],
        )
        self._finish = asked.finish

    def stables(self) -> tuple[Stable, ...]:
        try:
            if made := tuple(replace(stable, way=self.what) for stable in self._make()):
                return self._finish(made)
            self.refusal = "the accuracy that the rule asks for is of none of its variants"
        except BuildError as error:
            self.refusal = _cause(error)
        return ()


#: tried in this order
_STRATEGIES = (
    _Strategy(
        "homogeneous",
        _unless(kink.applies, "polynomials of one degree on either side of a kink at 0"),
        kink.stable_variants,
    ),
    _Strategy(
        "draw of 0 or 1",
        _unless(formula.applies, "a draw of 0 or 1 with a mean in closed form"),
        lambda derivation: [formula.exact_variant(derivation)],
    ),
    _Strategy(
        "halves",
        _unless(halves.applies, "a line right of a kink, and an exponential or a constant left of it"),
        halves.stable_variants,
        lines=True,
    ),
    _Strategy(
        "elementary",
        _unless(entire.applies, "x, x², exp(b x), sin(b x) or cos(b x), times and plus constants, without parameters"),
        entire.stable_variants,
    ),
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
    _Strategy(
        "with kinks, by power series and closer polynomials",
        piecewise.why_not,
        piecewise.closer_variants,
        lines=True,
        sized=True,
    ),
    _Strategy(
        "smooth, by polynomials without a reach",
        polynomials.why_not_without_reach,
        polynomials.without_reach,
        lines=True,
        absolute=True,
        sized=True,
    ),
    _Strategy("quadrature", quadrature.why_not, quadrature.stable_variants, relative=True),
)


def stabilise(derivation: Derivation, way: str = "") -> tuple[Stable, ...]:
    """All variants of a derived rule, ``exact`` first: by the first way that serves, or by the one named ``way``.

    Raises:
        BuildError: if no strategy covers the rule; with the reason of each among ``others``.
    """
    what, _, most = way.partition(_UP_TO)
    stables = next(ways(derivation, what))
    if most:
        stables = _up_to(stables, float(most))
    return (*stables, *(stable for each in approximate_ways(derivation) for stable in each.stables()))


def ways(derivation: Derivation, way: str = "") -> Iterator[tuple[Stable, ...]]:
    """The variants that are a derived rule's own moments, by every strategy that serves, the cheapest kernels first.

    A strategy that serves by what f is may still miss the accuracy asked, which only lowering and certifying shows.
    With ``way``, by the strategy of that name alone.

    Raises:
        BuildError: if no strategy covers the rule; with the reason of each among ``others``.
    """
    for plan in plans(derivation, way):
        if stables := plan.stables():
            yield stables


def approximate_ways(derivation: Derivation) -> list[Way]:
    """A way to each kind of approximation that a rule may have."""
    made: list[Callable[[Derivation], Iterable[Stable]]] = [formula.stable_variants]
    if derivation.base is None:
        made.append(logistic_input.stable_variants)

    def limited(make: Callable[[Derivation], Iterable[Stable]]) -> Iterable[Stable]:
        return [_on_domain(derivation, stable) for stable in make(derivation)]

    return [Way(make.__module__, partial(limited, make)) for make in made]


def joint_way(derivation: JointDerivation) -> Way:
    """The way to all variants of a rule of two inputs, or of one and a noise."""
    return Way("joint", lambda: stabilise_joint(derivation))


def plans(derivation: Derivation, way: str = "") -> Iterator[Way]:
    """The strategies that serve a derived rule by what f is, in their order; nothing is made until it is asked for.

    With ``way``, the strategy of that name alone.

    Raises:
        BuildError: if no strategy covers the rule; with the reason of each among ``others``.
    """
    known: list[Stable] = []

    def all_of_it(stables: tuple[Stable, ...]) -> tuple[Stable, ...]:
        """With the variance given x, where there is one; its mean is made once, for all ways to f."""
        if derivation.conditional is not None:
            if not known:
                known.append(expected_conditional(derivation.conditional))
            stables = tuple(with_conditional_variance(derivation, stable, known[0]) for stable in stables)
        return tuple(_on_domain(derivation, stable) for stable in stables)

    def asked(of: Derivation) -> _Asked:
        """The request for f itself, or for its base where it is rescaled."""
        if of.base is None:
            return _Asked(of, all_of_it)

        def mapped_back(stables: tuple[Stable, ...]) -> tuple[Stable, ...]:
            (base,) = (stable for stable in stables if stable.variant == "exact")
            return all_of_it((saturated(of, rescaled_variant(of, base)),))

        return _Asked(of.base, mapped_back)

    itself = _Asked(derivation, all_of_it)
    yield from _exact(asked(derivation), cache(lambda: asked(_of_size_one(derivation))), itself, way)


def _on_domain(derivation: Derivation, stable: Stable) -> Stable:
    """A variant, on the domain that the rule states, if it states one."""
    most = derivation.rule.domain
    return restricted(stable, most) if most else stable


class _Asked(NamedTuple):
    """A request to strategies: the derivation, and what finishes its forms."""

    derivation: Derivation
    finish: Callable[[tuple[Stable, ...]], tuple[Stable, ...]]


def _of_size_one(derivation: Derivation) -> Derivation:
    """Write an f whose size is far from 1 as a power of two times another; return any other derivation unchanged.

    The size of a bounded f is half its range, that of any other its change over the length on which it bends.
    """
    rule, goal = derivation.rule, derivation.rule.accuracy
    itself = derivation.units is None and derivation.conditional is None and derivation.degree is None
    absolute = goal.mean_abs is not None or goal.var_abs is not None
    if not itself or absolute or rule.bernoulli or rule.input != "normal":
        return derivation
    f = Settled.of(rule).at({})
    if f.left is None or f.right is None:
        return derivation
    bounded = math.isfinite(f.span)
    size = f.span / 2 if bounded else f.lipschitz * f.length
    if size <= _SIZES[1] and not (bounded and 0 < size < _SIZES[0]):
        return derivation
    scale = sympy.Integer(2) ** round(math.log2(size))
    return in_units(derivation, Rescaled(rule.f / scale, scale=scale))


def _exact(asked: _Asked, sized: Callable[[], _Asked], itself: _Asked, way: str) -> Iterator[Way]:
    derivation = asked.derivation
    if derivation.mean is None or derivation.second is None:
        check_second_moment(derivation)
    refusals: list[tuple[str, str, bool]] = []
    served = False
    for strategy in (s for s in _STRATEGIES if way in ("", s.what)):
        try:
            at = sized() if strategy.sized else itself if strategy.relative else asked
            cause = _why_not_goals(itself.derivation, strategy) or strategy.why_not(at.derivation)
        except BuildError as error:
            cause = _cause(error)
        tried = not cause
        if not cause:
            plan = _Plan(strategy, at)
            yield plan
            if not plan.refusal:
                served = True
                continue
            cause = plan.refusal
        refusals.append((strategy.what, cause, tried))
    if not served:
        what, cause = _nearest(derivation, refusals)
        others = tuple((name, why) for name, why, _ in refusals if name != what)
        raise BuildError(derivation.rule.name, "strategies", f"{cause} ({what})", derivation.rule.f, others)


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


def _cause(error: BuildError) -> str:
    return error.cause if error.expression is None else f"{error.cause} in `{error.expression}`"
