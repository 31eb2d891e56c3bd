"""Moments of the maximum of n independent normal values by one integral, in torch: of any device, differentiable.

The distribution function of the maximum is F(t) = Π Φ((t - m_i)/s_i), and with lo below and hi above all that matters,

    E max = lo + ∫ (1 - F) dt        Var max = 2 ∫ (t - lo)(1 - F) dt - (E max - lo)²        over [lo, hi]

``lo`` is the largest m_i - k s_i: below it that element alone makes F negligible.  For a certain element it is the
element itself.  ``hi`` is where the part above t is exp(-K²/2) of the part above ``lo``.  An element whose ``lo`` lies
z > 0 standard deviations above its mean needs √(z² + K²) of them.  So a maximum that is certain except for a far tail
has the right variance too.  For that 1 - F must be computed without cancellation, from the tails 1 - Φ.

An element much sharper than the interval is long has its rise within 2 k s of ``lo`` or does not matter.  So the nodes
crowd there: t = t0 + b sinh(y), with Gauss–Legendre nodes in y.  b is of the size of s, the smallest standard deviation
of an element that matters, and t0 lies some s above ``lo``.  Among many elements F is negligible far above ``lo``.  A
few more values of F then move ``lo`` up first.

Second of three parts: :mod:`momentgen.laws.numerics.maximum` is the function, and
:mod:`momentgen.laws.numerics.maximum` this integral in C, with the constants from here.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from momentgen.laws.numerics.maximum_rule import CONSTANTS
from momentgen.laws.numerics.maximum_rule import RULES as RULES_OF_C
from momentgen.laws.numerics.root import at_least, square_root
from momentgen.runtime.dynamo import constant_result

#: by dtype
RULES = {torch.float32: RULES_OF_C["float"], torch.float64: RULES_OF_C["double"]}
_RATIO, _MANY = CONSTANTS["RATIO"], CONSTANTS["MANY"]
_SCOUTS, _NEGLIGIBLE, _CERTAIN = int(CONSTANTS["SCOUTS"]), CONSTANTS["NEGLIGIBLE"], CONSTANTS["CERTAIN"]
_FAR = 12.0  # standard deviations; what is above them is 2e-33


@functools.cache
def _computed(nodes: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    places, weights = np.polynomial.legendre.leggauss(nodes)
    return tuple(((places + 1) / 2).tolist()), tuple((weights / 2).tolist())


@constant_result  # Python numbers by the shape alone: constants of a compiled graph
def legendre(nodes: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Gauss–Legendre nodes and weights on [0, 1]."""
    return _computed(nodes)


def moments_of(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of the maximum over the first dimension, by torch functions that autograd and transforms take.

    Args:
        m: means, shape ``(n, rows)``, float32 or float64, -inf allowed.
        v: *variances*, of the same shape.

    Returns:
        Mean and variance, each of shape ``(rows,)``; NaN where a variance is negative or a value not finite.
    """
    n, rule = len(m), RULES[m.dtype]
    reach_square = rule.reach_square(n)
    possible = m > -math.inf
    some = possible.any(0)
    valid = ((m < math.inf) & (v >= 0) & (v < math.inf)).all(0)
    # In units of the largest standard deviation, from the largest mean on: derivatives by a standard deviation
    # of 1e-20 are beyond float32 on the way, though not in the result.
    with torch.no_grad():
        unit = square_root(torch.where(possible, v, 0)).amax(0)
        unit = torch.where(unit > 0, unit, 1)
        origin = torch.where(some, m.amax(0), 0)
    m, v = (m - origin) / unit, v / unit / unit
    random = possible & (v > _CERTAIN)
    s = square_root(torch.where(random, v, 0))
    lo = torch.where(some, (m - rule.below * s).amax(0), 0)
    # Derivatives of what is all but certain and far off besides would be 0 · ∞.
    random = random & (m + CONSTANTS["BEYOND"] * s > lo)
    s = torch.where(random, s, 0)
    inverse = torch.where(random, 1 / torch.where(random, s, 1), 0)
    z = torch.where(random, (lo - torch.where(random, m, 0)) * inverse, _FAR)
    high = at_least(z, 0)
    nearest = torch.where(random, high, math.inf).amin(0)
    matters = random & (high.square() < nearest.square() + reach_square)
    reach = s * ((high.square() + reach_square).sqrt() - z)
    width = torch.where(matters, reach, 0).amax(0)
    sharpest = torch.where(matters, s, math.inf).amin(0)
    start, slope = z[:, None], inverse[:, None]
    nodes = _nodes(width, sharpest, 0.0, n > _MANY)
    if n > _MANY:
        with torch.no_grad():
            shares = torch.arange(1, _SCOUTS + 1, dtype=m.dtype, device=m.device)[:, None] / (_SCOUTS + 2)
            t, _ = _at(nodes, shares)
            moved = torch.where(_above(t, start, slope) > 1 - _NEGLIGIBLE, t, 0).amax(0)
        lo, start = lo + moved, start + moved * slope
        nodes = _nodes(width - moved, sharpest, moved, True)
    places, weights = torch.tensor(legendre(rule.nodes(n)), dtype=m.dtype, device=m.device)[..., None]
    t, grown = _at(nodes, places)
    f = _above(t, start, slope) * grown * weights
    first, second = f.sum(0), (t * f).sum(0)
    mean, var = origin + unit * (lo + first), at_least(2 * second - first * first, 0) * unit * unit
    mean, var = torch.where(some, mean, -math.inf), torch.where(some, var, 0)
    return torch.where(valid, mean, math.nan), torch.where(valid, var, math.nan)


_Nodes = tuple[Tensor, Tensor, Tensor, Tensor]


def _nodes(width: Tensor, sharpest: Tensor, moved: Tensor | float, many: bool) -> _Nodes:
    """t0, b, y at lo, and how much y grows to hi; t is measured from lo, which is ``moved`` up already."""
    suffix = "_OF_MANY" if many else ""
    b = torch.maximum(CONSTANTS["CROWDED" + suffix] * sharpest, width / _RATIO)
    # From four widths on the nodes are equally dense throughout.
    b = torch.where(width > 0, torch.minimum(b, 4 * width), 1)
    centre = torch.minimum(at_least(CONSTANTS["CENTRE" + suffix] * sharpest - moved, 0), width)
    first = torch.asinh(-centre / b)
    return centre, b, first, torch.asinh((width - centre) / b) - first


def _at(nodes: _Nodes, places: Tensor) -> tuple[Tensor, Tensor]:
    """t at places of shape (nodes, 1) on [0, 1], and its derivative by them."""
    centre, b, first, growth = nodes
    # Hyperbolic functions by one exponential: sinh's absolute error matters alone, and torch's own cost ten times more.
    grown = torch.exp(torch.addcmul(first, growth, places))
    shrunk = 0.5 / grown
    grown = 0.5 * grown
    return torch.addcmul(centre, b, grown - shrunk), b * growth * (grown + shrunk)


def _above(t: Tensor, start: Tensor, slope: Tensor) -> Tensor:
    """1 - F at ``t`` of shape (nodes, rows), measured from lo; ``start`` and ``slope`` have shape (n, 1, rows)."""
    tails = 0.5 * torch.erfc(math.sqrt(0.5) * torch.addcmul(start, t, slope))
    left = None
    while (n := tails.shape[0]) > 1:  # of halves: few operations
        if n % 2:
            left = tails[-1] if left is None else left + tails[-1] - left * tails[-1]
        first, second = tails[: n // 2], tails[n // 2 : n - n % 2]
        tails = first + second - first * second
    return tails[0] if left is None else left + tails[0] - left * tails[0]
