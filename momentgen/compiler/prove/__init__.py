r"""Proofs: what float64's polynomials in the place of a mean are off by at most, for every mean and variance.

They run after certification, and nothing but a certificate's facts depends on them.  A strategy hands on what may be
proven as data (:class:`momentgen.compiler.strategies.tolerated.Claim`).

============  ===================================================================
``moments``   E f in closed form, of an f of polynomial pieces or of normal tails; of others nothing is proven
``fitted``    polynomials in cells, and their derivatives, on a panel of all inputs
``panels``    the difference of the two on a panel, bounded
``bounds``    over all panels
============  ===================================================================
"""

from __future__ import annotations

import math
from typing import Any

from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.prove.bounds import KINK_BOUNDS, bound_of
from momentgen.compiler.prove.moments import PROVABLE, moments_of
from momentgen.compiler.strategies.surfaces.surface import lines_of
from momentgen.compiler.strategies.tolerated import Claim
from momentgen.errors import BuildError

__all__ = ["claimed", "proven_facts"]


def proven_facts(stable: Stable) -> dict[str, Any]:
    """What is proven of a variant, for its certificate: nothing without a claim."""
    return claimed(stable.claim) if isinstance(stable.claim, Claim) else {}


def claimed(claim: Claim) -> dict[str, Any]:
    """What float64's mean and its partials are off by at most, for all mu and v >= 0, in real arithmetic.

    The sum of ``constant_proven``, of ``times_w_proven`` times w and of ``over_w_proven``, ``over_w2_proven``, ... over
    w, w², ...; w² = v + c with the c of the polynomials' frame.  Of f with kinks from the variance v* on, where c is 0;
    below, the program is a closed form.  Nothing is stated of an f whose mean has no closed form.
    """
    if (moments := moments_of(claim.f)) is None:
        return {}
    slope, _, other, _ = lines_of(claim.f)
    stated: dict[str, dict[str, Any]] = {}
    for name, (derivative, _) in PROVABLE.items():
        try:
            own, lift, _ = bound_of(moments, claim.fine, name)
            kink = abs(other - slope) * KINK_BOUNDS[1 - derivative] if slope != other and derivative < 2 else 0.0
        except BuildError as error:
            stated[name] = {"unproven_because": error.cause}
            continue
        parts = {
            "constant_proven": (0.0 if lift else own) + (kink if name == "dmean_dmu" else 0.0),
            "times_w_proven": kink if name == "mean" else 0.0,
            f"over_w{lift if lift > 1 else ''}_proven": own if lift else 0.0,
        }
        stated[name] = {key: _up(part) for key, part in parts.items() if part}
    return {"float64": stated}


def _up(value: float) -> float:
    """Three digits, never rounded down.

    >>> _up(1.2301e-9), _up(0.0)
    (1.24e-09, 0.0)
    """
    shown = float(f"{value:.2e}")
    if shown < value:
        shown = float(f"{shown + 10.0 ** (math.floor(math.log10(value)) - 2):.2e}")
    return shown
