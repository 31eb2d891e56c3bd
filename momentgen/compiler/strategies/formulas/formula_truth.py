"""Exact values of a formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import sympy as sp
from flint import arb

from momentgen.compiler.exact import BallForm, ball_function, evaluate
from momentgen.compiler.strategies.formulas.expressions import exponent_of
from momentgen.compiler.strategies.formulas.rewrite import Written
from momentgen.compiler.toolchain.arrays import F32, F64
from momentgen.rule.symbols import Phi

_TINY_VARIANCE = 1e-300  # stands for v = 0 in exact values: what differs from the limit is below 1e-140
_DIVERGES = 1e100  # and what is larger there is a term in 1/sigma, which counts as 0 at v = 0


class Tilted(BallForm):
    """exp(g)·Phi(z), of g, z and g - z²/2; by confluent hypergeometric functions, as erfc is not tight beyond 10^5."""

    nargs = 3

    @staticmethod
    def ball(*args: Any) -> arb:
        """Its value at balls."""
        g, z, combined = args
        if z < -64:  # J_0(-z) = U(1/2, 1/2, z²/2)/sqrt(2)
            return combined.exp() * (z * z / 2).hypgeom_u(arb(0.5), arb(0.5)) / (2 * arb.pi().sqrt())
        return g.exp() * (-z / arb(2).sqrt()).erfc() / 2


def _tilted(product: sp.Expr) -> sp.Expr:
    """A product with its exponentials and its one Phi, if it has such, as one function."""
    exponents = [(f, g) for f in product.args if (g := exponent_of(f)) is not None]
    cdfs = [f for f in product.args if isinstance(f, Phi)]
    if not exponents or len(cdfs) != 1:
        return product
    g, z = sp.expand(sum(g for _, g in exponents)), cdfs[0].args[0]
    used = {cdfs[0], *(f for f, _ in exponents)}
    return sp.Mul(Tilted(g, z, sp.expand(g - z**2 / 2)), *(f for f in product.args if f not in used))


def _of_balls(expr: sp.Expr) -> sp.Expr:
    return expr.replace(lambda e: isinstance(e, sp.Mul), _tilted)


class FormulaTruth:
    """Exact values of a formula, from rigorous balls; at v = 0 its limits, terms in 1/sigma counting as 0.

    Where ``floored`` says so, a variance below 0 counts as 0, and so do its partials.  Survives pickling.
    """

    def __init__(self, written: Written, parameters: tuple[str, ...], *, floored: bool) -> None:
        self.names, self.floored = tuple(written.outputs), floored
        symbols = ["mu", "v", *parameters]
        self.sides = [
            ball_function([_of_balls(written.plain(name, mirrored=side)) for name in self.names], symbols)
            for side in (False, True)
        ]
        self.arguments = [ball_function(z, symbols) for z in written.arguments]

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        v_exact = np.where(var == 0, _TINY_VARIANCE, var.astype(np.float64))
        scalars = {name: np.full(mean.shape, value) for name, value in params.items()}
        values: dict[str, F64] = {"mu": mean.astype(np.float64), "v": v_exact, **scalars}
        upper = np.full(mean.shape, bool(self.arguments))
        for z in self.arguments:
            upper &= evaluate(z, values).value[0] > 0
        rows = np.empty((len(self.names), mean.size))
        for side, chosen in zip(self.sides, (~upper, upper), strict=True):
            if chosen.any():
                rows[:, chosen] = evaluate(side, {name: value[chosen] for name, value in values.items()}).value
        rows[:, (var == 0)] = np.where(np.abs(rows[:, var == 0]) > _DIVERGES, 0.0, rows[:, var == 0])
        exact = dict(zip(self.names, rows, strict=True))
        if self.floored:
            below = exact["var"] < 0
            exact |= {name: np.where(below, 0.0, exact[name]) for name in ("var", "dvar_dmu", "dvar_dvar")}
        return exact
