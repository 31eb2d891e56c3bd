"""Stabilise: moments in closed form to a graph of real operations in which nothing cancels.

=============  ===================================================================
``stable``     what this stage hands on: :class:`Stable`, one variant of a rule
``forms``      moments of homogeneous one-kink functions in a basis without cancellation
``kink``       such functions: which they are, their variants; ``kink_graph`` writes their graphs, on ``kink_fits``
``mixture``    f replaced by a mixture of Gaussian-smoothed atoms (the logistic transform), with ``mixture_truth``
``owen``       Phi(x), its variance by Owen's integral
``logistic_input``  max(x, c x) of a logistic input
``joint``      rules of two inputs (the product, the maximum), with ``polynomial``, ``maximum_graph``, ``tails``
``surrogate``  smooth f that follows a line on either side, from f alone: in float32 polynomials of two variables
               (``surface``, ``surface_graph``), in float64 a sum of atoms (``surrogate_graph``)
``piecewise``  such f with kinks or jumps: power series about the kinks, atoms above v*; ``piecewise_graph``
``entire``     polynomials, exp, sin, cos: elementary moments
``activation`` what f is (lines, kinks, steepness, range); ``smoothing``, ``differences`` and ``surrogate_truth``: exact
               values; ``moments_measure``: the tolerance
``formula``    closed-form approximations, taken as they are (the papers' variants); it stands on
               ``rewrite`` (sympy to sympy), ``expressions`` and ``functions`` (sympy to graph), ``formula_truth``
=============  ===================================================================
"""

from __future__ import annotations

from momentgen.compiler.derive import Derivation
from momentgen.compiler.stabilise import entire, formula, kink, logistic_input, mixture, owen, piecewise, surrogate
from momentgen.compiler.stabilise.joint import stabilise_joint
from momentgen.compiler.stabilise.stable import OUTPUTS, PARTIALS, Stable
from momentgen.errors import BuildError

__all__ = ["OUTPUTS", "PARTIALS", "Stable", "stabilise", "stabilise_joint"]


def stabilise(derivation: Derivation) -> tuple[Stable, ...]:
    """All variants of a derived rule, ``exact`` first.

    Raises:
        BuildError: if no strategy covers the rule.
    """
    if kink.applies(derivation):
        variants = kink.stable_variants(derivation)
    elif mixture.applies(derivation):
        variants = mixture.stable_variants(derivation)
    elif owen.applies(derivation):
        variants = owen.stable_variants(derivation)
    elif formula.applies(derivation):
        variants = [formula.exact_variant(derivation)]
    elif entire.applies(derivation):
        variants = list(entire.stable_variants(derivation))
    elif surrogate.applies(derivation):
        variants = list(surrogate.stable_variants(derivation))
    elif piecewise.applies(derivation):
        variants = list(piecewise.stable_variants(derivation))
    else:
        raise BuildError(
            derivation.rule.name,
            "stabilise",
            "expected a homogeneous function with one kink at 0, an elementary one (polynomial, exp, sin, cos), or one "
            "without parameters that comes exponentially close to a line on either side; this is none of them",
            derivation.rule.f,
        )
    return (*variants, *formula.stable_variants(derivation), *logistic_input.stable_variants(derivation))
