"""Lowering: a graph of real operations to a float32 program.

Every real node is carried either as one float32 or as a *double-float*: an
unevaluated sum ``hi + lo`` with ``lo`` a correction of the order of the
rounding error of ``hi``.  Which nodes need the second word is not decided here
but by measurement, in :mod:`momentgen.compiler.lower.ablate`; this module only knows
how to carry out each choice with correctly rounded primitives.

Double-float products take their error from a fused multiply-add, sums from
Knuth's two-sum, or the shorter one of Dekker where measured magnitudes allow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mpmath

from momentgen.compiler.fit import remez
from momentgen.compiler.ir.graph import Graph, Node
from momentgen.compiler.ir.kinds import CONDITIONS
from momentgen.compiler.ir.program import Builder, Program
from momentgen.compiler.toolchain.float32 import round_float32, split_float32
from momentgen.rule.inputs import outputs_of, partial_names

_MAGIC = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer held in the low mantissa bits


@dataclass(frozen=True)
class _Carried:
    """A real value in the program: ``hi`` alone, or ``hi + lo``."""

    hi: int
    lo: int | None = None


@lru_cache
def _exp_polynomial(degree: int) -> tuple[float, ...]:
    """Q with exp(r) = 1 + r + r^2 Q(r) on |r| <= ln(2)/2 and a little beyond, weighted by what Q contributes."""

    def target(r: Any) -> Any:
        if abs(r) < mpmath.mpf("1e-6"):
            return mpmath.nsum(lambda k: r**k / mpmath.factorial(k + 2), [0, 12])
        return (mpmath.exp(r) - 1 - r) / r**2

    limit = mpmath.mpf("0.3475")
    fit = remez(target, (-limit, limit), degree, weight=lambda r: (r**2 + mpmath.mpf("1e-9")) / mpmath.exp(r))
    return tuple(round_float32(c) for c in fit.coefficients)


def words(graph: Graph) -> list[str]:
    """The program's parameters: two words for each of the graph's."""
    return [f"{p}_{part}" for p in graph.params for part in ("hi", "lo")]


class Lowering:
    """Writes a graph's nodes to a builder, each after its operands.

    Attributes:
        b: the builder.
        double: nodes to carry as double-floats; may change between nodes.
        carried, conditions: what was written of each real node and of each condition.  What a node gives depends on
            what its operands gave, and on whether it is in ``double``, alone.
    """

    def __init__(self, graph: Graph, builder: Builder, double: Collection[int], orders: Mapping[int, int]) -> None:
        self.graph, self.b, self.double, self.orders = graph, builder, double, orders
        self.carried: dict[int, _Carried] = {}
        self.conditions: dict[int, int] = {}

    # --- double-float arithmetic -------------------------------------------------
    def two_sum(self, a: int, c: int, order: int) -> tuple[int, int]:
        b = self.b
        if order == 2:
            a, c = c, a
        s = b.add(a, c)
        if order:
            return s, b.sub(c, b.sub(s, a))
        cc = b.sub(s, a)
        return s, b.add(b.sub(a, b.sub(s, cc)), b.sub(c, cc))

    def plus(self, *terms: int | None) -> int | None:
        """Sum of corrections, in single precision; None stands for zero."""
        total: int | None = None
        for term in terms:
            if term is not None:
                total = term if total is None else self.b.add(total, term)
        return total

    def product(self, x: _Carried, y: _Carried, exact: bool) -> tuple[int, int | None]:
        """hi and correction of x*y; ``exact`` says that the hi parts multiply without rounding."""
        b = self.b
        p = b.mul(x.hi, y.hi)
        e = None if exact else b.fma(x.hi, y.hi, b.neg(p))
        for word, other in ((x.lo, y.hi), (y.lo, x.hi)):
            if word is not None:
                e = b.mul(word, other) if e is None else b.fma(word, other, e)
        return p, e

    def single(self, index: int) -> int:
        """The value of a node as one float32."""
        value = self.carried[index]
        if value.lo is None or self.graph.nodes[index].kind in ("param", "const"):
            return value.hi
        return self.b.add(value.hi, value.lo)

    # --- nodes ---------------------------------------------------------------
    def run(self) -> None:
        """Write all nodes."""
        for index in self.graph.live():
            self.node(index)
            if index in self.graph.comments and index in self.carried:
                self.b.comment(self.carried[index].hi, self.graph.comments[index])

    def node(self, index: int) -> None:
        """Write one node, its operands being there: a condition, or a number in one or two words."""
        node = self.graph.nodes[index]
        if node.kind in CONDITIONS:
            self.conditions[index] = self.condition(node)
        else:
            self.carried[index] = self.real(index, node)

    def condition(self, node: Node) -> int:
        b = self.b
        if node.kind in ("and", "or", "not"):
            args = [self.conditions[a] for a in node.args]
            of_conditions: dict[str, Callable[..., int]] = {"and": b.both, "or": b.either, "not": b.invert}
            return of_conditions[node.kind](*args)
        # Of a difference that cancels the first word may be 0 and the second not: its sign is that of both.
        signed = node.kind == "lt" and self.graph.constant(node.args[1]) == 0
        x = self.single(node.args[0]) if signed else self.carried[node.args[0]].hi
        y = self.carried[node.args[1]].hi
        return {"lt": b.lt, "le": b.le, "eq": b.eq}[node.kind](x, y)

    def is_power_of_two(self, index: int) -> bool:
        node = self.graph.nodes[index]
        if node.kind == "exp_factor":
            return True
        if node.kind == "const":
            return node.payload == 0 or abs(mpmath.frexp(node.payload)[0]) == 0.5
        operands = {"select": node.args[1:], "mul": node.args}.get(node.kind, ())
        return bool(operands) and all(map(self.is_power_of_two, operands))

    def real(self, index: int, node: Node) -> _Carried:
        b, wide = self.b, index in self.double
        kind, args = node.kind, node.args
        if kind == "input":
            return _Carried(b.input(node.payload))
        if kind == "param":
            return _Carried(b.param(f"{node.payload}_hi"), b.param(f"{node.payload}_lo"))
        if kind == "const":
            hi, lo = split_float32(node.payload)
            return _Carried(b.f32(hi), b.f32(lo) if lo and wide else None)
        if kind == "exp_factor":
            return _Carried(self.exp_factor(args[0], *node.payload))
        if kind == "exp_mantissa":
            return self.exp_mantissa(args[0], wide)
        if kind == "times_exp_mantissa":
            return self.times_exp_mantissa(self.carried[args[0]], args[1], wide)
        if kind == "head":
            return _Carried(self.carried[args[0]].hi)
        if kind == "tail":
            word = self.carried[args[0]].lo
            return _Carried(b.f32(0.0) if word is None else word)
        if kind == "shifted_product" and (word := self.carried[args[3]].lo) is not None:
            moved = b.mul(self.single(args[2]), word)
            if not wide:
                return _Carried(b.fma(self.single(args[0]), self.single(args[1]), moved))
            p, e = self.product(self.carried[args[0]], self.carried[args[1]], False)
            return _Carried(p, self.plus(e, moved))
        if kind == "round":
            magic = b.f32(_MAGIC)
            return _Carried(b.sub(b.add(self.single(args[0]), magic), magic))
        if kind == "square_difference":
            return self.square_difference(*(self.carried[a] for a in args))
        if kind == "select":
            condition = self.conditions[args[0]]
            if not wide:
                return _Carried(b.select(condition, *(self.single(a) for a in args[1:])))
            x, y = (self.carried[a] for a in args[1:])
            if x.lo is None and y.lo is None:
                return _Carried(b.select(condition, x.hi, y.hi))
            zero = b.f32(0.0)
            lows = [zero if w.lo is None else w.lo for w in (x, y)]
            return _Carried(b.select(condition, x.hi, y.hi), b.select(condition, *lows))
        # 1/x of the first word of a square root is computed in any case.
        rooted = kind == "recip" and self.graph.nodes[args[0]].kind == "sqrt"
        if not wide and rooted and (word := self.carried[args[0]].lo) is not None:
            q = b.div(b.f32(1.0), self.carried[args[0]].hi)
            return _Carried(b.fma(b.neg(b.mul(q, word)), q, q))
        if not wide:
            return _Carried(self.rounded(kind, [self.single(a) for a in args]))
        return self.wide(index, kind, args)

    def rounded(self, kind: str, args: list[int]) -> int:
        b = self.b
        if kind == "recip":
            return b.div(b.f32(1.0), args[0])
        if kind == "over":
            return b.mul(args[0], b.div(b.f32(1.0), args[1]))
        if kind == "half_square":
            return b.mul(args[0], b.mul(args[0], b.f32(-0.5)))
        if kind == "shifted_product":
            return b.mul(args[0], args[1])
        if kind == "over_one_plus":
            return b.mul(args[0], b.div(b.f32(1.0), b.add(b.f32(1.0), args[1])))
        ops: dict[str, Callable[..., int]] = {
            "add": b.add,
            "sub": b.sub,
            "mul": b.mul,
            "madd": b.fma,
            "sqrt": b.sqrt,
            "neg": b.neg,
            "abs": b.abs,
        }
        return ops[kind](*args)

    def wide(self, index: int, kind: str, args: tuple[int, ...]) -> _Carried:
        b = self.b
        x = self.carried[args[0]]
        if kind == "neg":
            return _Carried(b.neg(x.hi), None if x.lo is None else b.neg(x.lo))
        if kind == "abs":
            if x.lo is None:
                return _Carried(b.abs(x.hi))
            negative = b.lt(x.hi, b.f32(0.0))
            return _Carried(b.abs(x.hi), b.select(negative, b.neg(x.lo), x.lo))
        if kind == "recip":
            q = b.div(b.f32(1.0), x.hi)
            residual = b.fma(b.neg(q), x.hi, b.f32(1.0))
            if x.lo is not None:
                residual = b.fma(b.neg(q), x.lo, residual)
            return _Carried(q, b.mul(residual, q))
        if kind == "sqrt":
            s = b.sqrt(x.hi)
            residual = b.fma(b.neg(s), s, x.hi)
            if x.lo is not None:
                residual = b.add(residual, x.lo)
            half = b.mul(b.f32(0.5), b.div(b.f32(1.0), s))
            return _Carried(s, b.mul(residual, half))
        if kind == "half_square":
            half = b.mul(x.hi, b.f32(-0.5))
            p = b.mul(x.hi, half)
            e = b.fma(x.hi, half, b.neg(p))
            return _Carried(p, e if x.lo is None else b.fma(b.neg(x.hi), x.lo, e))
        y = self.carried[args[1]]
        if kind in ("over", "over_one_plus"):
            return self.quotient(x, y, kind == "over_one_plus")
        if kind in ("mul", "shifted_product"):
            return _Carried(*self.product(x, y, any(self.is_power_of_two(a) for a in args)))
        if kind == "madd":
            exact = any(self.is_power_of_two(a) for a in args[:2])
            return self.multiply_add(x, y, self.carried[args[2]], exact, self.orders.get(index, 0))
        if kind == "add":
            s, f = self.two_sum(x.hi, y.hi, self.orders.get(index, 0))
            return _Carried(s, self.plus(f, self.plus(x.lo, y.lo)))
        if kind == "sub":
            s, f = self.two_sum(x.hi, b.neg(y.hi), self.orders.get(index, 0))
            low = None if y.lo is None else b.neg(y.lo)
            return _Carried(s, self.plus(f, self.plus(x.lo, low)))
        raise NotImplementedError(kind)

    def multiply_add(self, x: _Carried, y: _Carried, z: _Carried, exact: bool, order: int) -> _Carried:
        """x·y + z; ``exact`` says that the first words multiply without rounding, ``order`` which term is larger."""
        b = self.b
        if exact and order == 2:
            s = b.fma(x.hi, y.hi, z.hi)
            low = b.fma(x.hi, y.hi, b.neg(b.sub(s, z.hi)))
        else:
            p = b.mul(x.hi, y.hi)
            s, low = self.two_sum(p, z.hi, order)
            if not exact:
                low = b.add(low, b.fma(x.hi, y.hi, b.neg(p)))
        for word, other in ((x.lo, y.hi), (y.lo, x.hi)):
            if word is not None:
                low = b.fma(word, other, low)
        return _Carried(s, low if z.lo is None else b.add(low, z.lo))

    def quotient(self, x: _Carried, y: _Carried, one_plus: bool) -> _Carried:
        """x/y or x/(1 + y), with its remainder; 1 + y is rounded for the quotient alone."""
        b, one = self.b, self.b.f32(1.0)
        r = b.div(one, b.add(one, y.hi) if one_plus else y.hi)
        q = b.mul(x.hi, r)
        remainder = b.fma(b.neg(q), y.hi, b.sub(x.hi, q) if one_plus else x.hi)
        if y.lo is not None:
            remainder = b.fma(b.neg(q), y.lo, remainder)
        if x.lo is not None:
            remainder = b.add(remainder, x.lo)
        return _Carried(q, b.mul(remainder, r))

    def square_difference(self, x: _Carried, w: _Carried, square: _Carried, rest: _Carried) -> _Carried:
        """x² - T·w for exact x and w and T of 72 bits, as an expansion in which only the last sum rounds."""
        b = self.b
        p = b.mul(x.hi, x.hi)
        terms = [b.fma(x.hi, x.hi, b.neg(p))]
        words = [word for word in (square.hi, square.lo, rest.hi) if word is not None]
        q = b.mul(words[0], w.hi)
        terms.append(b.neg(b.fma(words[0], w.hi, b.neg(q))))
        small: int | None = None
        for word in words[1:]:
            part = b.mul(word, w.hi)
            if word is words[1]:
                small = b.neg(b.fma(word, w.hi, b.neg(part)))
                terms.append(b.neg(part))
            else:
                small = self.plus(small, b.neg(part))
        total = b.sub(p, q)  # exact where it cancels
        middle, lost = self.two_sum(terms[0], terms[1], 0)
        middle, more = self.two_sum(middle, terms[2], 0)
        total, last = self.two_sum(total, middle, 0)
        return _Carried(total, b.add(last, b.add(b.add(lost, more), small if small is not None else b.f32(0.0))))

    # --- exponential -----------------------------------------------------------
    def shifted(self, arg: int) -> int:
        """MAGIC + round(x / ln 2), the integer in the low bits."""
        return self.b.fma(self.carried[arg].hi, self.b.f32(round_float32(1 / mpmath.ln(2))), self.b.f32(_MAGIC))

    def exp_factor(self, arg: int, i: int, k: int) -> int:
        """2**floor((n+i)/k): the k factors multiply to 2**n (Hermite's identity), and each is a normal number."""
        b = self.b
        # The magic number's own bits lie above the nine that the last shift keeps.
        n = b.as_i32(self.shifted(arg))
        part = b.ishr(b.iadd(n, b.i32(i)) if i else n, k.bit_length() - 1)
        return b.as_f32(b.ishl(b.iadd(part, b.i32(127)), 23))

    def exp_mantissa(self, arg: int, wide: bool) -> _Carried:
        """exp(x)·2^-n with n = round(x/ln 2)."""
        b = self.b
        if not wide:
            return _Carried(b.add(b.f32(1.0), self.exp_less_one(arg)))
        r, r_rest, square, q = self.exp_terms(arg)
        s, e = self.two_sum(b.f32(1.0), r, 1)
        low = b.add(e, b.fma(square, q, b.mul(r_rest, s)))
        return _Carried(*self.two_sum(s, low, 1))  # r²·Q(r) is up to a tenth of the sum

    def exp_less_one(self, arg: int) -> int:
        """The mantissa less 1, rounded: at most 0.42 in size."""
        r, _, square, q = self.exp_terms(arg)
        return self.b.fma(square, q, r)

    def times_exp_mantissa(self, factor: _Carried, arg: int, wide: bool) -> _Carried:
        if not wide:
            a = factor.hi if factor.lo is None else self.b.add(factor.hi, factor.lo)
            return _Carried(self.b.fma(a, self.exp_less_one(arg), a))
        return _Carried(*self.product(factor, self.exp_mantissa(arg, True), False))

    def exp_terms(self, arg: int) -> tuple[int, int, int, int]:
        """The reduced argument r, what rounding it lost, r², and Q(r): exp(r) = 1 + r + r²·Q(r)."""
        b, x = self.b, self.carried[arg]
        n = b.sub(self.shifted(arg), b.f32(_MAGIC))
        # The head of ln 2 has 16 bits, so n*head is exact and so is the first subtraction.
        head = float(mpmath.nint(mpmath.ln(2) * 2**16) / 2**16)
        tail = round_float32(mpmath.ln(2) - mpmath.mpf(head))
        r_hi = b.fma(n, b.f32(-head), x.hi)
        r_lo = b.mul(n, b.f32(-tail)) if x.lo is None else b.fma(n, b.f32(-tail), x.lo)
        r = b.add(r_hi, r_lo)
        coefficients = _exp_polynomial(4)
        q = b.f32(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            q = b.fma(q, r, b.f32(c))
        return r, b.add(b.sub(r_hi, r), r_lo), b.mul(r, r), q


def lower(
    graph: Graph, name: str, double: Collection[int], orders: Mapping[int, int], *, backward: bool = False
) -> Program:
    """The float32 program that computes ``graph``, carrying the nodes in ``double`` as double-floats.

    With ``backward`` the graph's outputs must be the partials in every input; the
    program then has the two gradient inputs and returns a gradient an input.
    """
    outputs = outputs_of(graph.outputs) if backward else ()
    seeds = [f"grad_{output}" for output in outputs]
    b = Builder(name, (*graph.inputs, *seeds), words(graph))
    lowering = Lowering(graph, b, double, orders)
    lowering.run()
    if not backward:
        for output, index in graph.outputs.items():
            b.output(output, lowering.single(index))
        return b.build()
    for of, partials in partial_names(graph.inputs, outputs).items():
        slopes = [lowering.single(graph.outputs[partial]) for partial in partials]
        gradients = [b.input(seed) for seed in reversed(seeds)][::-1]
        total = b.mul(gradients[0], slopes[0])
        for gradient, slope in zip(gradients[1:], slopes[1:], strict=True):
            total = b.fma(gradient, slope, total)
        b.output(f"grad_{of}", total)
    return b.build()
