"""What a rule is made of beside its inputs: goals, variants that approximate, and units of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy
from sympy import Expr


@dataclass(frozen=True)
class Accuracy:
    """The goals of the generated float32 code.

    There are three kinds:

    - goals in ulp, one per variant, for outputs and partials alike;
    - with ``moments``, goals that follow from how steep f is and how far it
      ranges: see :mod:`momentgen.compiler.measure.moments`;
    - beside these, absolute goals for ``mean`` and ``var``, which hold where they are stricter.
      They are for a smooth f of one normal input without parameters.
      Partials are then within 1e-5 of their largest value over all means at that variance.

    With ``relative``, sigma keeps its digits in the tails of f.
    Its error is at most 1e-5 of itself, and 2e-11 of how much f changes within 13 sigma of the mean.
    Kernels are then sums over nodes, which take some 20 times as long as those of ``moments``.

    By default a homogeneous f has goals in ulp, and any other has ``moments``.
    """

    ulp: Mapping[str, float] = field(default_factory=dict, hash=False)
    mean_abs: float | None = None
    var_abs: float | None = None
    moments: bool = False
    relative: bool = False


USUAL_ACCURACY = Accuracy(ulp={"exact": 8.0, "tight": 2.0}, moments=True)


@dataclass(frozen=True)
class Formula:
    """A variant in closed form: mean and variance in ``mu``, ``v`` and the parameters.

    Max(mu, 0) and Heaviside(mu, 0) or (mu, 1) may occur in it; to partials they are constants, at the step too.

    Args:
        mean, var: the formulas; a mean of None is the exact one.
        citation: where they come from.
        doc: what they are as an approximation of the exact moments, for the certificate.
    """

    mean: Expr | None
    var: Expr
    citation: str = ""
    doc: str = ""


@dataclass(frozen=True)
class Rescaled:
    """f in units of its own: f(x) = scale·of((x - centre)/width) + offset; the compiler checks it.

    The code for ``of`` then serves f at every value of the parameters, with its accuracy in f's units.  The error
    allowed to the mean of f is ``scale`` times that allowed to the mean of ``of``.

    Args:
        of: the base, in ``x``; parameters may occur in it too.
        centre, width, scale, offset: rational functions of the parameters; ``width`` and ``scale`` positive.
    """

    of: Expr
    centre: Expr = sympy.S.Zero
    width: Expr = sympy.S.One
    scale: Expr = sympy.S.One
    offset: Expr = sympy.S.Zero
