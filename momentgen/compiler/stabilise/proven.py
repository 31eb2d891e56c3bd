r"""What is proven of the atoms that stand for an activation: the differences looked at, and a certificate's facts.

A smooth f is compared as it is; one with kinks, whose atoms serve from a variance v* on, as f smoothed by N(0, v*).
Where its pieces are polynomials that is again a sum of atoms, about the kinks:

    f * N(0, v*) = left piece + Σ_kinks Σ_j J_j T_-j(x - k; v*),     J_j the jump of the j-th derivative at k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flint import arb, ctx

from momentgen.compiler.stabilise.activation import Activation
from momentgen.compiler.stabilise.atom_balls import AtomGroup, exact
from momentgen.compiler.stabilise.fine_surface import FineSurfaces
from momentgen.compiler.stabilise.moments_measure import MEAN, PARTIAL
from momentgen.compiler.stabilise.piece_jumps import jumps_of, number
from momentgen.compiler.stabilise.sup_error import Difference, prove_sup_error
from momentgen.compiler.stabilise.surface import Surface, lines_of
from momentgen.compiler.stabilise.surface_error import (
    PROVABLE,
    lift_of,
    prove_fine,
    prove_fine_kink,
    prove_kink,
    prove_surface,
)
from momentgen.compiler.stabilise.surrogate_graph import AtomSum
from momentgen.errors import BuildError
from momentgen.symbols import x

__all__ = ["difference", "proven_facts", "proven_fine", "proven_outputs"]

_BITS = 192
_FLOOR = 2.0**-36  # of the errors that a proof should come near to: a thousandth of it is left out


def proven_facts(f: Activation, atoms: AtomSum, measured: tuple[float, float, float]) -> dict[str, Any]:
    """For the certificate: proven bounds of |f - g|, |f' - g'|, |f'' - g''| over all of R, or why there are none.

    Args:
        f: the activation.
        atoms: g; its ``mean`` is what is looked at.
        measured: the same three errors at the points of the fit.
    """
    try:
        e = difference(f, atoms, measured)
        proven = prove_sup_error(e)
    except BuildError as error:
        return {"sup_error_proven": None, "sup_error_unproven_because": error.cause}
    slope, offset = _two_forms(atoms)
    value, first, second = proven.bounds
    facts: dict[str, Any] = {
        "sup_error_proven": [_up(value + offset), _up(first + slope), _up(second)],
        "sup_error_drift": _up(proven.drift + slope),
    }
    if e.relative:
        facts["sup_error_over_max_1_f_proven"] = _up(proven.relative + offset + slope)
    if f.kinks:
        facts["sup_error_of_f_smoothed_by"] = atoms.switch
    return facts


def proven_outputs(
    f: Activation, surfaces: Mapping[str, Surface], atoms: AtomSum, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """For the certificate: what the float32 mean and its partials are off by at most, for all mu and v >= 0.

    In real arithmetic.  The sum of ``constant_proven``, of ``times_w_proven`` times w and of ``over_w_proven``, or
    ``over_w2_proven``, over w or w²; w² = v + c with the output's c.  The output's polynomial is compared with the
    atoms, these with f; an error that grows with w is that of the kink between f's lines.

    Args:
        f: the activation.
        surfaces: by output, polynomials in two variables.
        atoms: that are compared with f and with the polynomials.
        facts: of :func:`proven_facts` for these atoms.
    """
    if facts["sup_error_proven"] is None:
        return {}
    slope, _, other, _ = lines_of(f)
    outputs: dict[str, Any] = {}
    for name, (derivative, factor) in PROVABLE.items():
        if name not in surfaces:
            continue
        frame, lift = surfaces[name].frame, lift_of(f, name)
        width = math.sqrt(frame.c)
        expected = MEAN / 3 if name == "mean" else PARTIAL / 10 * f.lipschitz * width ** (lift + 1 - derivative)
        rest = factor * facts["sup_error_proven"][derivative]
        try:
            own, _ = prove_surface(f, surfaces[name], atoms, name, expected)
            kinked = name == "mean" and slope != other
            growing = abs(other - slope) * prove_kink(frame, slope * other > 0) if kinked else 0.0
        except BuildError as error:
            outputs[name] = {"unproven_because": error.cause}
            continue
        parts = {"constant_proven": rest if lift else rest + own, "times_w_proven": growing}
        if lift:
            parts["over_w_proven" if lift == 1 else "over_w2_proven"] = own
        outputs[name] = {key: _up(part) for key, part in parts.items() if part}
    return outputs


def proven_fine(
    f: Activation, fine: FineSurfaces | None, atoms: AtomSum | None, facts: Mapping[str, Any] | None
) -> dict[str, Any]:
    """For the certificate: as :func:`proven_outputs`, of float64, whose partials are the mean's derivatives.

    w² = v + c with the c of the polynomials' frame; of f with kinks for v >= v*, where c is 0.  A mean that grows
    beyond its own tolerance's 1 is off by ``times_max_w_u_proven`` times max(w, |mu - centre|), and by
    ``times_max_1_f_proven`` times E max(1, abs(f)).

    Args:
        f: the activation.
        fine: its polynomials; of None nothing is stated.
        atoms: that are compared with f and with the polynomials; None where f, of polynomial pieces, is so itself.
        facts: of :func:`proven_facts` for these atoms.
    """
    if fine is None or "mean" not in fine.outputs or (facts is not None and facts["sup_error_proven"] is None):
        return {}
    slope, _, other, _ = lines_of(f)
    width = math.sqrt(fine.frame.least)
    outputs: dict[str, dict[str, Any]] = {}
    for name, (derivative, factor) in PROVABLE.items():
        lift = lift_of(f, name)
        size = 1.0 if name == "mean" else f.lipschitz * width ** (lift + 1 - derivative)
        rest = factor * facts["sup_error_proven"][derivative] if facts else 0.0
        try:
            own, _ = prove_fine(f, fine, atoms, name, fine.goals[name] / 3 * size)
            kinked = slope != other and derivative < 2
            kink = abs(other - slope) * prove_fine_kink(1 - derivative) if kinked else 0.0
        except BuildError as error:
            outputs[name] = {"unproven_because": error.cause}
            continue
        parts = {"constant_proven": rest, "times_w_proven": kink if name == "mean" else 0.0}
        if name == "dmean_dmu":
            parts["constant_proven"] += kink
        if lift < 0:
            del parts["constant_proven"]
            parts |= {"times_max_w_u_proven": own}
            parts |= {"times_max_1_f_proven": facts["sup_error_over_max_1_f_proven"] if facts else 0.0}
        elif lift:
            parts["over_w_proven" if lift == 1 else f"over_w{lift}_proven"] = own
        else:
            parts["constant_proven"] += own
        outputs[name] = {key: _up(part) for key, part in parts.items() if part}
    return outputs


def _up(value: float) -> float:
    """Three digits, never rounded down.

    >>> _up(1.2301e-9), _up(0.0)
    (1.24e-09, 0.0)
    """
    shown = float(f"{value:.2e}")
    if shown < value:
        shown = float(f"{shown + 10.0 ** (math.floor(math.log10(value)) - 2):.2e}")
    return shown


def difference(f: Activation, atoms: AtomSum, measured: tuple[float, float, float]) -> Difference:
    """f less its atoms as seen from the left, to be bounded.

    Raises:
        BuildError: stage ``approximate``: if f has kinks and pieces that are not polynomials of low degree.
    """
    start = atoms.switch if f.kinks else 0.0
    groups = [
        AtomGroup(atoms.centre, tau + start, atoms.lows[0], tuple(row))
        for tau, row in zip(atoms.taus, atoms.mean.tolist(), strict=True)
    ]
    size = f.lipschitz * f.length
    floors = (size, f.lipschitz, f.bend or f.lipschitz / f.length)
    scales = [max(error, _FLOOR * least) for error, least in zip(measured, floors, strict=True)]
    relative = f.algebraic and not math.isfinite(f.span)
    three = scales[0], scales[1], scales[2]
    left = atoms.left
    if not f.kinks:
        return Difference(f.name, f, left.slope, left.offset, tuple(groups), three, f.centre, f.length, relative)
    first = f.pieces.pieces[0].expr
    with ctx.workprec(_BITS):
        slope, offset = (exact(w) - number(first.diff(x, k).subs(x, 0)) for k, w in ((1, left.slope), (0, left.offset)))
        groups += _smoothed(f, atoms.switch)
    return Difference(f.name, None, slope, offset, tuple(groups), three, f.centre, f.length)


def _smoothed(f: Activation, start: float) -> list[AtomGroup]:
    """The atoms about the kinks of f smoothed by ``start``, to be subtracted: with the opposite sign.

    Raises:
        BuildError: as :func:`difference`.
    """
    return [AtomGroup(jump.kink, start, -jump.order, (-jump.size,)) for jump in jumps_of(f)]


def _two_forms(atoms: AtomSum) -> tuple[float, float]:
    """How the atoms seen from the right differ from those seen from the left: by a line, its |slope| and |offset|.

    Both would be 0 if the coefficients of orders -1 and 0 summed to what the lines ask for to the last bit.
    """
    with ctx.workprec(_BITS):
        left, right, low = atoms.left, atoms.right, atoms.lows[0]
        slope = arb(right.slope) - arb(left.slope)
        offset = arb(right.offset) - arb(left.offset) + slope * arb(atoms.centre)
        for n in range(low, 1):
            total = sum((arb(c) for c in atoms.mean[:, n - low].tolist()), arb(0))
            if n == -1:
                slope -= total
            elif n == 0:
                offset -= total
        return float(abs(slope).upper()), float(abs(offset).upper())
