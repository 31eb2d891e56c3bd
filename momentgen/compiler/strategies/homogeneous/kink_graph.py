r"""Homogeneous one-kink rules (relu, leaky_relu, abs, heaviside): the graph of real operations.

Takes the forms of :mod:`momentgen.compiler.derive.forms` and writes them over shared values

    t = min(|mu|/sigma, T),  E = exp(-t²/2),  Ĵ_n = J_n(t)/sqrt(2 pi),

where the highest J_n is a fitted polynomial in u = 1/(1 + t/4) and the others follow from it without
cancellation.  Three things keep the result accurate over all of float32:

- the power of two in E is applied last, in factors that stay normal numbers;
- an output that vanishes at a = 0 is fitted there as such (it is a^m times a polynomial in a²);
- a mean that changes sign at t0 is expanded about t0, which the host computes from the parameters.

Of degree 2 and higher (squared ReLU) C0's part is Σ c_k |mu|^k v^((p-k)/2).  Products of that size overflow; three
things keep what float32 holds:

- z meets the powers of the variance taken down by a power of two, which it gets back together with its share of 2^n;
- where C0's part may exceed the result, both are taken 2^-10 times as large and the result 2^10 times;
- what overflows even so is the largest number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import sympy as sp

from momentgen import sign_change
from momentgen.compiler.derive.forms import (
    LOSS,
    OutputForm,
    Side,
    T,
    changes_sign,
    near_zero,
    vanishing_order,
    without_t,
)
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import (
    Graph,
    Real,
    equal,
    exp_factor,
    exp_mantissa,
    half_square,
    horner,
    madd,
    over_one_plus,
    select,
    sqrt,
    square_difference,
    times_exp_mantissa,
)
from momentgen.compiler.ir.kit import (
    Precision,
    clamped,
    close_mills_ratio,
    largest,
    like,
    parameter_node,
    scaling,
    within,
)
from momentgen.compiler.ir.stable import OUTPUTS
from momentgen.compiler.toolchain.float32 import LARGEST
from momentgen.errors import BuildError

_SPARE = mpmath.mpf(2) ** 10
_SCALE = 72  # binary places that a variance above 2^40 is taken down by; a multiple of the factors over v's power


class Writer:
    """Writes the shared values once, and then output after output."""

    def __init__(self, graph: Graph, precision: Precision, degree: int) -> None:
        self.g, self.precision = graph, precision
        self.fits: list[Polynomial] = []
        g = graph
        self.mu, self.v = g.input("mean"), g.input("var")
        self.negative = self.mu < 0
        self.size = abs(self.mu)
        self.degenerate = equal(self.v, 0)
        c, back = scaling(self.v, precision.scaled)
        w, x = self.v * c * c, self.size * c
        if precision.scaled:
            tiny = self.v < mpmath.mpf(2) ** -40
            up, down = (select(tiny, mpmath.mpf(2) ** k, 1) for k in (96, -96))
            self.raised, self.lowered = self.v * up, down  # a variance with room for a second word
        self.roomy_variance = precision.scaled and not precision.lean
        # At var = 0 stand-ins with which every mean but 0 is beyond reach.  NaN stays NaN.
        self.w = select(self.degenerate, mpmath.mpf(2) ** -100, w)
        x = select(self.degenerate, self.size * mpmath.mpf(2) ** 126, x)
        if degree == 0:  # at mean = var = 0 a continuous f has a = 0; a step has the side that f(0) is on
            x = select(self.degenerate & equal(self.size, 0), 1, x)
        self.x = x
        self.s = sqrt(self.w).named("standard deviation, scaled")
        self.r = 1 / self.s
        reach = g.const(precision.reach)
        raw = self.x / self.s
        self.clamped = reach < raw
        self.t = select(self.clamped, reach, raw).named("t = min(|mean|/sigma, reach)")
        self.h = self.t * self.t
        self.exponent = half_square(self.t)
        self.e = exp_mantissa(self.exponent).named("exp(-t^2/2), mantissa")
        # Terms in 1/sigma are taken as 0 at sigma = 0: there t is 0 or at its reach, and gradients stay finite.
        inverse = self.r * c
        by_root = select(self.degenerate, 0, self.s * back)
        self.sigma = self.v * inverse if precision.lean else by_root
        self.inverse = select(self.degenerate, 0, inverse)
        # 1/v overflows below 2^-127; capped there, gradients that contain it stay finite.
        cap = g.const(mpmath.mpf(2) ** 63.5 * (1 + mpmath.mpf(2) ** -20))
        self.capped = select(cap < self.inverse, cap, self.inverse) if precision.scaled else self.inverse
        self.degree = degree
        self.j: dict[int, Real] = {-1: g.const(1 / mpmath.sqrt(2 * mpmath.pi))}

    # --- cores -----------------------------------------------------------------
    def need(self, orders: set[int]) -> None:
        """Make J_n/sqrt(2 pi) available for the orders given."""
        g = self.g
        orders = {n for n in orders if n >= 0}
        if not orders:
            return
        if len(orders) == 1 and max(orders) < 2:
            (n,) = orders
            self.j[n] = self.fit(n)
        elif max(orders) <= 2:
            # K (1 + t²) = 1 - 2 t J_2 and J_0 = 2 J_2 + t K: nothing cancels.
            two = g.const(2)
            self.j[2] = self.fit(2)
            top = madd(-(self.t * two), self.j[2], self.j[-1])
            one = g.const(1)
            lean = self.precision.lean
            self.j[1] = over_one_plus(top, self.h) if lean else top * (1 / (self.h + one))
            self.j[1].named("J_1/sqrt(2 pi)")
            self.j[0] = madd(self.t, self.j[1], self.j[2] * two).named("Mills ratio/sqrt(2 pi)")
        else:
            top_order = max(orders)
            for n in (top_order, top_order - 1):
                self.j[n] = self.fit(n)
            for n in range(top_order - 2, -1, -1):
                self.j[n] = madd(self.t, self.j[n + 1], self.j[n + 2] * (n + 2))

    def fit(self, order: int) -> Real:
        value, fitted = close_mills_ratio(self.precision, order, self.t, self.precision.reach)
        self.fits.append(fitted)
        return value

    # --- expressions -------------------------------------------------------------
    def expression(self, expr: sp.Expr) -> Real:
        """A polynomial in t and the parameters, as written."""
        return parameter_node(self.g, expr, "", {T: self.t})

    def combination(self, terms: Mapping[int, sp.Expr], start: Real | None = None) -> Real:
        """Σ b_n·J_n/sqrt(2 pi) and ``start``, those that vanish at t = 0 first: there the sum has to be right."""
        total = self.g.const(0) if start is None else start
        for n, b in sorted(terms.items(), key=lambda term: term[1].subs(T, 0) != 0):
            total = madd(self.expression(b), self.j[n], total)
        return total

    def product(self, side: Side) -> Real:
        """C2/(2 pi): the coefficient of E²."""
        if side.factor == 0:
            return self.g.const(0)
        negative = side.factor.could_extract_minus_sign()  # outside, so that both signs share the product
        factor = self.expression(-side.factor if negative else side.factor)
        value = factor * self.combination(side.left) * self.combination(side.right)
        return -value if negative else value

    def times_exponential(self, value: Real) -> Real:
        """value·E but for the exponential's power of two."""
        if self.precision.scaled:
            return times_exp_mantissa(value, self.exponent)
        return value * self.e  # one exp for all outputs

    def factors(self) -> list[Real]:
        count = self.precision.factors
        return [exp_factor(self.exponent, i, count) for i in range(count)] if self.precision.scaled else []

    def times_factors(self, value: Real) -> Real:
        """value·2^n, factor after factor."""
        return math.prod(self.factors(), start=value)

    def whole(self) -> Real:
        """The product of the factors."""
        return self.times_factors(self.g.const(1))

    # --- outputs -----------------------------------------------------------------
    def steep_variance(self, form: OutputForm, params: Mapping[str, Any]) -> Real:
        """The variance of an f that is steeper than x: of a part of sigma² where that is huge."""
        before = (self.v, self.raised)
        # A tail that is small beside sigma² has no room to be made smaller, and no need.
        slopes = [self.expression(side.plain) for side in (form.minus, form.plus)]
        steep = select(self.negative, *slopes) > 1
        near = steep | (self.t < 4)
        huge = (mpmath.mpf(2) ** 60 < self.v) & near
        down, up = (select(huge, mpmath.mpf(2) ** k, 1) for k in (-32, 32))
        self.v, self.raised = self.v * down, self.raised * down
        value = self.output(form, params) * up
        self.v, self.raised = before
        return within(value, LARGEST)

    def output(self, form: OutputForm, params: Mapping[str, Any]) -> Real:
        parity, sides = form.parity, form.sides
        if parity is not None and (rest := without_t(form.plus)) is not None:
            z = self.times_exponential(self.combination(rest))
            main = self.powers(form.power, 1, z, self.factors())
        else:
            main = self.assemble(form, sides, self.times_exponential(self.coefficient(sides)))
        bounded = form.plus.plain.is_number or self.degree > 1
        if parity is not None and bounded and form.plus.condition(mpmath.mpf("1e-3"), params) > LOSS:
            order = vanishing_order(form.plus, params)
            fit, edge = near_zero(form, order, params, self.precision.fit)
            self.fits.append(fit)
            series = horner(self.h, fit.coefficients)
            main = select(self.t < edge, self.powers(form.power, order, series), main)
        if parity == -1:
            main = select(self.negative, -main, main)
        return main

    def near_sign_change(self, main: Real, traits: Traits) -> Real:
        """sigma^p·d·P(d), d = t - t0, p the degree of f, on the side of the zero where |d| is small.

        See :mod:`momentgen.sign_change`.
        """
        g = self.g
        width, at, square, rest, *taylor = (g.param(name) for name in sign_change.NAMES)
        if traits.right:  # at is t0 for a zero at mu < 0, and -t0 for one at mu > 0
            side = select(self.negative, self.t, -self.t)
            near = (side * at > 0) & (abs(side - at) < width)
            at = abs(at)
        else:
            near = self.negative & (abs(self.t - at) < width)
        # x² - t0² w = (x - t0 s)(x + t0 s), and t - t0 = (x - t0 s)/s.
        gap = square_difference(self.x, self.w, square, rest)
        distance = (gap * (1 / (self.s * madd(at, self.s, self.x)))).named("t - t0")
        value = taylor[-1]
        for coefficient in reversed(taylor[:-1]):
            value = madd(value, distance, coefficient)
        return select(near, self.power(self.degree) * (distance * value), main)

    def powers(self, power: int, order: int, value: Real, factors: Sequence[Real] = ()) -> Real:
        """sigma^power·t^order·value·factors; |mu| stands for sigma·t where both occur, which cannot underflow."""
        g = self.g
        if power == 2 and order == 0 and not factors and self.roomy_variance:
            return self.raised * value * self.lowered
        inverse = self.capped if power <= -2 else self.inverse
        t, down = self.roomy(power) if order and power <= 0 and self.precision.scaled else (self.t, g.const(1))
        for _ in range(order):
            if power > 0:
                value, power = self.size * value, power - 1
            elif power < 0:
                value, power = t * inverse * value, power + 1
            else:
                value = t * value
            t = self.t
        half = len(factors) // 2
        value = math.prod(factors[:half], start=value)
        while power:
            value = (self.v if power > 1 else self.sigma if power > 0 else inverse) * value
            power -= 2 if power > 1 else 1 if power > 0 else -1
        return math.prod(factors[half:], start=value) * down

    def roomy(self, power: int) -> tuple[Real, Real]:
        """t times 2^32, and 2^-32: a t of the size of the smallest normal number has no room for a second word.

        Where 1/sigma is large so is t, and the result might overflow on the way: there 1 stands for both.
        """
        g = self.g
        up, down = (g.const(mpmath.mpf(2) ** k) for k in (32, -32))
        if power < 0:
            one = g.const(1)
            small = self.inverse <= mpmath.mpf(2) ** 20
            up, down = select(small, up, one), select(small, down, one)
        t = self.x * up * self.r
        return select(self.clamped, self.precision.reach, t), down

    def coefficient(self, sides: tuple[Side, ...]) -> Real:
        """C1 + E·C2 of the side that mu is on."""
        sums = []
        for side in sides:
            product = self.product(side)
            # E with its exponent, flushed to zero where it is negligible beside 1
            start = product if product.constant == 0 else self.e * self.whole() * product
            sums.append(self.combination(side.first, start))
        return self.on_side(sums)

    def on_side(self, values: Sequence[Real]) -> Real:
        """Of the values right and left of the kink, that of mu's side; one stands for both."""
        return values[0] if len(values) == 1 else select(self.negative, values[1], values[0])

    def assemble(self, form: OutputForm, sides: tuple[Side, ...], z: Real) -> Real:
        """sigma^p·(C0 + z·2^n).

        Lean, where C0 is not 0: one multiply-add, whose product is not rounded.  Else the power of two is applied last:
        sigma^p·2^n near the smallest number has no room for a second word, and none to spare where |z| > 1.  Nor has
        sigma² itself where it is small: there the sum is taken in 2^96 sigma².
        """
        p = form.power
        plains = [side.plain for side in sides]
        if self.degree > 1 and p > 0:
            return self.assemble_powers(p, plains, z)
        degrees = {sp.degree(e, T) if e.has(T) else 0 for e in plains if e != 0}
        lean = self.precision.lean
        if not degrees:
            return self.scaled(z, p)
        if degrees == {0}:
            values, unit = [self.expression(e) for e in plains], self.power(p)
        elif degrees == {1} and p == 1:
            values, unit = [self.expression(sp.cancel(e / T)) for e in plains], self.size
        else:
            raise BuildError("", "strategies", f"{form.name}: a leading term of this degree is not supported", plains)
        plain = self.on_side(values)
        if lean:
            return madd(self.scale(p), z, plain * unit)
        if p == 2 and self.roomy_variance:
            return madd(plain, self.raised, self.times_factors(z * self.raised)) * self.lowered
        return madd(plain, unit, self.scaled(z, p))

    def assemble_powers(self, power: int, plains: Sequence[sp.Expr], z: Real) -> Real:
        """sigma^power·(C0 + z·2^n), ``plains`` being C0 right of the kink, and left of it where it differs."""
        one = self.g.const(1)
        huge = mpmath.mpf(2) ** 40 < self.v
        wide = huge & (self.t < 4)  # further out 2^n makes the result smaller than 2^-4 leaves room for
        down = select(wide, 1 / _SPARE, one)
        lead = self.on_side([self.lead(power, plain, down) for plain in plains])
        count = power // 2
        scaled = self.v * select(huge, mpmath.ldexp(1, -_SCALE), one)
        steps = [scaled] * count + [self.sigma] * (power % 2)
        factors = self.factors() or [one]
        back = select(huge, mpmath.ldexp(1, _SCALE * count // len(factors)), one)
        # Evenly, so that z grows or shrinks all the way: what overflows before the end does so in the end.
        for i, step in enumerate(steps):
            for k in range(i * len(factors) // len(steps), (i + 1) * len(factors) // len(steps)):
                step = step * (factors[k] * back * (one if k else down))
            z = step * z
        total = (lead + z) * select(wide, _SPARE, one)
        # Where both terms overflow their sum is no number; the sign is C0's.
        top = largest(self.precision.scaled)
        beyond = select(lead < 0, -top, top)
        return select(abs(total) <= top, total, beyond)

    def lead(self, power: int, plain: sp.Expr, down: Real) -> Real:
        """Σ c_k |mu|^k v^((power-k)/2), times ``down``."""
        total = self.g.const(0)
        large = self.v > 1
        for (k,), coefficient in sp.Poly(plain, T).terms() if plain != 0 else ():
            steps = [self.v] * ((power - k) // 2) + [self.size] * k
            # A share below 1 goes to |mu|: where that has no room for it the result has none, or C0's part is small.
            number, share = coefficient.as_coeff_Mul()
            if abs(number) < 1:
                number, share = sp.Integer(1), coefficient
            steps[-1] = self.expression(share) * steps[-1]
            first, last = down, self.expression(number)
            if abs(number) > 1:  # last it would magnify the rounding of small products, first let large ones overflow
                first, last = select(large, down, last), select(large, last, 1)
            total = total + last * math.prod(steps[1:], start=steps[0] * first)
        return total

    def saturated(self, value: Real, *, output: bool) -> Real:
        """``value``, and the largest number of its sign where that overflows; an output is NaN where an input is."""
        value = clamped(value, largest(self.precision.scaled))
        return like(value, self.s, self.mu) if output else value

    def power(self, power: int) -> Real:
        inverse = self.capped if power <= -2 else self.inverse
        steps = [self.v] * (power // 2) + [self.sigma] * (power % 2) if power > 0 else [inverse] * -power
        return math.prod(steps, start=self.g.const(1))

    def scale(self, power: int) -> Real:
        """sigma^power·2^n: exact, or below the normal range, and then so is its product with any |z| <= 1."""
        return self.times_factors(self.power(power))

    def scaled(self, z: Real, power: int) -> Real:
        """z·sigma^power·2^n, in an order in which nothing overflows on the way."""
        factors = self.factors()
        if power > 0:  # |z| <= 1, so z·sigma^power cannot overflow; the factors would make z subnormal
            return self.times_factors(math.prod([self.v] * (power // 2) + [self.sigma] * (power % 2), start=z))
        inverse = self.capped if power <= -2 else self.inverse
        for i in range(max(-power, len(factors))):
            if i < -power:
                z = z * inverse
            if i < len(factors):
                z = z * factors[i]
        return z


@dataclass(frozen=True)
class Traits:
    """What f does at one setting of the parameters or another.

    Attributes:
        left, right: whether the mean, of a degree of at least 1, has a zero on that side of the kink.
        steep: whether f, of degree 1, is steeper than x: its moments may overflow where those of x do not.
    """

    left: bool = False
    right: bool = False
    steep: bool = False

    @staticmethod
    def of(forms: Mapping[str, OutputForm], settings: Sequence[Mapping[str, Any]]) -> Traits:
        """Of the forms of a rule."""
        form, spread = forms["mean"], forms["var"]
        left = right = False
        if form.power > 0 and form.parity is None:
            left, right = (any(changes_sign(side, at) for at in settings) for side in (form.minus, form.plus))
        steep = False
        if form.power == 1:
            plains = [sp.sympify(side.plain) for side in (spread.plus, spread.minus)]
            slopes = [plain.subs({s: at[s.name] for s in plain.free_symbols}) for plain in plains for at in settings]
            steep = any(bool(sp.Abs(slope) > 1) for slope in slopes)
        return Traits(left, right, steep)


PLAIN = Traits()


def build_graph(
    forms: Mapping[str, OutputForm],
    parameters: Mapping[str, Any],
    precision: Precision,
    outputs: tuple[str, ...],
    traits: Traits = PLAIN,
) -> tuple[Graph, tuple[Polynomial, ...]]:
    """The graph of the named outputs, and the polynomials fitted for it.

    Args:
        forms: from :func:`momentgen.compiler.derive.forms.output_forms`.
        parameters: the rule's parameters and a representative value of each (its default), for conditioning.
        outputs: which of the six, in the order of the signature.
        traits: what f does; float64 does without.
    """
    derived = sign_change.NAMES if precision.scaled and (traits.left or traits.right) else ()
    graph = Graph(("mean", "var"), (*parameters, *derived))
    writer = Writer(graph, precision, forms["mean"].power)
    sides = [side for name in outputs for side in forms[name].sides]
    writer.need({order for side in sides for order in (*side.first, *side.left, *side.right)})
    steep = traits.steep and precision.scaled
    for name in outputs:
        value = writer.steep_variance(forms[name], parameters) if steep and name == "var" else None
        value = writer.output(forms[name], parameters) if value is None else value
        if derived and name == "mean":
            value = writer.near_sign_change(value, traits)
        if writer.degree > 1:
            value = writer.saturated(value, output=name in OUTPUTS)
        elif steep and name == "mean":
            value = within(value, LARGEST)
        graph.output(name, value)
    return graph, tuple(writer.fits)
