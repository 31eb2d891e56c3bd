r"""The truncated normal moments, the Mills ratio among them, to any accuracy.

.. math:: J_n(t) = \frac{1}{n!} \int_0^\infty x^n e^{-tx - x^2/2} \, dx

so that ``J_0`` is the Mills ratio (1 - Phi(t)) / phi(t), ``J_0' = -J_1`` and in general
``J_n' = -(n+1) J_{n+1}``, ``n J_n = J_{n-2} - t J_{n-1}`` with ``J_{-1} = 1``.  These are the
quantities in which the moments of piecewise polynomial activations do not cancel; they are what
:func:`~momentgen.compiler.fit.remez` fits.

Every function here takes mpmath numbers and is correct to the working precision.  They and python-flint balls are
converted into each other exactly.
"""

from __future__ import annotations

from typing import TypeAlias

from flint import arb, ctx
from mpmath import mp, mpf
from mpmath.libmp import MPZ, from_man_exp

#: What an interval end or a centre may be given as; strings keep decimal fractions exact to the working precision.
Number: TypeAlias = int | float | str | mpf


def to_ball(value: mpf) -> arb:
    """The ball of radius zero at a finite mpf.

    >>> to_ball(mpf(0.1)).is_exact()
    True
    """
    sign, man, exp, _ = value._mpf_
    if not man and exp:
        raise ValueError(f"expected a finite number, got {value}")
    return arb((-int(man) if sign else int(man), int(exp)))


def midpoint(ball: arb) -> mpf:
    """The midpoint of a finite ball, exactly."""
    man, exp = ball.mid().man_exp()
    return mp.make_mpf(from_man_exp(MPZ(int(man)), int(exp)))


_MAX_BITS = 1 << 20
_FAR = 64


def _forward(count: int, t: arb) -> list[arb]:
    """J_0(t) .. J_{count-1}(t); up to _FAR by the recurrence, which loses about 2 n log2(t) bits."""
    if t > _FAR:
        # Confluent hypergeometric: its asymptotic series neither cancels nor overflows.
        z = t * t / 2
        return [z.hypgeom_u(arb(n + 1) / 2, arb(0.5)) / arb(2) ** (arb(n + 1) / 2) for n in range(count)]
    values = [(t * t / 2).exp() * (t / arb(2).sqrt()).erfc() * (arb.pi() / 2).sqrt()]
    before = arb(1)
    for n in range(1, count):
        before, after = values[-1], (before - t * values[-1]) / n
        values.append(after)
    return values


def _values(count: int, t: arb, bits: int) -> list[arb]:
    """J_0(t) .. J_{count-1}(t) at an exact ``t``, each to at least ``bits`` relative bits."""
    work = bits + 32
    while work <= _MAX_BITS:
        with ctx.workprec(work):
            values = _forward(count, t)
        if all(v.rel_accuracy_bits() >= bits for v in values):
            return values
        work *= 2
    raise OverflowError(f"J_{count - 1}({t}) needs more than {_MAX_BITS} bits")


def J(n: int, t: Number) -> mpf:  # noqa: N802 - the name in use for this integral
    r"""J_n(t) to the working precision of mpmath, for any real t.

    Args:
        n: order, 0 or more.
        t: real number.

    Returns:
        The integral, an mpf; positive and decreasing in ``t``.

    Raises:
        ValueError: for a negative order or a t that is not finite.

    >>> from mpmath import mp
    >>> with mp.workdps(20):
    ...     print(J(0, 0), J(2, 30))
    1.2533141373155002512 0.000036792159994628531715
    """
    if n < 0:
        raise ValueError(f"expected an order n >= 0, got {n}")
    return +midpoint(_values(n + 1, to_ball(mp.convert(t)), mp.prec + 8)[n])
