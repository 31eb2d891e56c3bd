"""Stabilise: moments in closed form to a graph of real operations in which nothing cancels.

=============  ===================================================================
``stable``     what this stage hands on: :class:`Stable`, one variant of a rule
``forms``      moments of homogeneous one-kink functions in a basis without cancellation
``kink``       such functions: which they are, their variants; ``kink_graph`` writes their graphs (of degree 2
               and higher by ``kink_powers``), on ``kink_fits``
``mixture``    f replaced by a mixture of Gaussian-smoothed atoms (the logistic transform), with ``mixture_truth``
``owen``       Phi(x), its variance by Owen's integral
``logistic_input``  max(x, c x) of a logistic input
``joint``      rules of two inputs (the product, the maximum), with ``polynomial``, ``maximum_graph``, ``tails``
``surrogate``  smooth f that follows a line on either side, from f alone: in float32 polynomials of two variables
               (``surface``, ``surface_graph``; at v = 0 f itself, ``point``), in float64 a sum of atoms
               (``surrogate_graph``)
``piecewise``  such f with kinks or jumps: power series about the kinks, atoms above v*; ``piecewise_graph``
``halves``     a line right of a kink and an exponential or a constant left of it (ELU); ``halves_graph``
``rescaled``   f as another function in other units: its base's graphs with inputs and outputs mapped
``settled``    exact values and measures of an f with parameters, at each setting
``mills``      repeated integrals of the normal distribution from one fit
``algebraic``  the fallback: smooth f that near a line by a power of 1/x, by a ``ladder`` of atoms
``quadrature`` the fallback with kinks: Gauss-Legendre panels below v*; ``quadrature_graph``, ``increments``
``entire``     sums of x^k exp(b x), x^k sin(b x), x^k cos(b x): elementary moments, in the algebra of
               ``exponentials``; ``entire_graph``, ``entire_sums``: graphs; ``entire_measure``: exact values, tolerance
``requirements`` what the last four ask of a rule; ``choosing``: the choice of atoms that they share
``activation`` what f is (lines, kinks, steepness, range); ``smoothing``, ``differences``, ``surrogate_truth`` and
               ``general_truth``: exact values; ``moments_measure``: the tolerance
``saturation`` outputs of a steep f, beyond range
``existence``  whether f is real and has a second moment
``formula``    closed-form approximations, taken as they are (the papers' variants); it stands on
               ``rewrite`` (sympy to sympy), ``expressions`` and ``functions`` (sympy to graph), ``formula_truth``
=============  ===================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from momentgen.compiler.derive import Derivation
from momentgen.compiler.stabilise import (
    algebraic,
    entire,
    formula,
    halves,
    kink,
    logistic_input,
    mixture,
    owen,
    piecewise,
    quadrature,
    surrogate,
)
from momentgen.compiler.stabilise.existence import check_second_moment
from momentgen.compiler.stabilise.joint import stabilise_joint
from momentgen.compiler.stabilise.rescaled import rescaled_variant
from momentgen.compiler.stabilise.saturation import saturated
from momentgen.compiler.stabilise.stable import OUTPUTS, PARTIALS, Stable, limits_of
from momentgen.errors import BuildError

__all__ = ["OUTPUTS", "PARTIALS", "Stable", "approximations", "limits_of", "stabilise", "stabilise_joint", "ways"]


@dataclass(frozen=True)
class _Strategy:
    """A way to a stable form: what it is for, why it does not serve a rule (None if it does), and the form.

    ``lines``: whether its outputs grow as the lines of f do, and are to be held where these are steep.
    """

    what: str
    why_not: Callable[[Derivation], str | None]
    variants: Callable[[Derivation], Iterable[Stable]]
    lines: bool = False


def _unless(applies: Callable[[Derivation], bool], expected: str) -> Callable[[Derivation], str | None]:
    return lambda derivation: None if applies(derivation) else f"expected {expected}"


#: tried in this order
_STRATEGIES = (
    _Strategy(
        "homogeneous",
        _unless(kink.applies, "polynomials of one degree on either side of a kink at 0"),
        kink.stable_variants,
    ),
    _Strategy("mixture", _unless(mixture.applies, "S(x), with a surrogate"), mixture.stable_variants),
    _Strategy("Owen's T", _unless(owen.applies, "Phi(x)"), owen.stable_variants),
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
        _unless(entire.applies, "a sum of x^k exp(b x), x^k sin(b x) and x^k cos(b x), without parameters"),
        entire.stable_variants,
    ),
    _Strategy("smooth, by polynomials", surrogate.why_not, surrogate.stable_variants, lines=True),
    _Strategy("with kinks, by power series", piecewise.why_not, piecewise.stable_variants, lines=True),
    _Strategy("smooth, by a ladder of atoms", algebraic.why_not, algebraic.stable_variants, lines=True),
    _Strategy("with kinks, by quadrature", quadrature.why_not, quadrature.stable_variants, lines=True),
)


def stabilise(derivation: Derivation, way: str = "") -> tuple[Stable, ...]:
    """All variants of a derived rule, ``exact`` first: by the first way that serves, or by the one named ``way``.

    Raises:
        BuildError: if no strategy covers the rule; says of each why it does not.
    """
    stables = next(ways(derivation, way))
    return (*stables, *approximations(derivation))


def ways(derivation: Derivation, way: str = "") -> Iterator[tuple[Stable, ...]]:
    """The variants that are a derived rule's own moments, by every strategy that serves, the cheapest kernels first.

    A strategy that serves by what f is may still miss the accuracy asked, which only lowering and certifying shows.
    With ``way``, by the strategy of that name alone.

    Raises:
        BuildError: if no strategy covers the rule; says of each why it does not.
    """
    if derivation.base is None:
        yield from _exact(derivation, way)
        return
    for stables in _exact(derivation.base, way):
        (base,) = (stable for stable in stables if stable.variant == "exact")
        yield (saturated(derivation, rescaled_variant(derivation, base)),)


def approximations(derivation: Derivation) -> list[Stable]:
    """The variants that approximate a derived rule's moments, or are of another input.

    Raises:
        BuildError: if one has no form in float32 primitives.
    """
    of_logistic = logistic_input.stable_variants(derivation) if derivation.base is None else []
    return [*formula.stable_variants(derivation), *of_logistic]


def _exact(derivation: Derivation, way: str) -> Iterator[tuple[Stable, ...]]:
    """The variants that each strategy gives that serves, one strategy after the other."""
    if derivation.mean is None or derivation.second is None:
        check_second_moment(derivation)
    refusals: list[str] = []
    served = False
    for strategy in (s for s in _STRATEGIES if way in ("", s.what)):
        try:
            cause = strategy.why_not(derivation)
            variants = [] if cause else list(strategy.variants(derivation))
        except BuildError as error:
            cause, variants = error.cause if error.expression is None else f"{error.cause} in `{error.expression}`", []
        if variants:
            served = True
            variants = [saturated(derivation, stable) if strategy.lines else stable for stable in variants]
            yield tuple(replace(stable, way=strategy.what) for stable in variants)
            continue
        refusal = f"{strategy.what}: {cause or 'the accuracy that the rule asks for is of none of its variants'}"
        if refusal not in refusals:
            refusals.append(refusal)
    if not served:
        shown = "".join(f"\n  {refusal}" for refusal in refusals)
        raise BuildError(
            derivation.rule.name,
            "stabilise",
            f"expected f to be served by one of these ways, got:{shown}\n ",
            derivation.rule.f,
        )
