"""The parameters of a rule in which f is affine, all together: its mean is affine in them, its variance quadratic."""

from __future__ import annotations

import itertools

import sympy

from momentgen.compiler.function.pieces import PiecesError, split
from momentgen.rule import Rule
from momentgen.rule.inputs import MEAN_AND_VARIANCE

__all__ = ["affine_parameters"]


def affine_parameters(rule: Rule) -> tuple[str, ...]:
    """Their names; none of a rule of two inputs, of a covariance, or of an output that is random beyond its input.

    >>> from momentgen.rule import Parameter, x
    >>> slope = Parameter("slope", default=0.1, low=0, high=1)
    >>> affine_parameters(Rule("leaky", f=sympy.Max(x, slope.symbol * x), parameters=(slope,)))
    ('slope',)
    """
    plain = len(rule.inputs) == 1 and rule.outputs == MEAN_AND_VARIANCE and rule.noise is None and not rule.bernoulli
    if not rule.parameters or not plain or rule.conditional_var is not None or rule.input != "normal":
        return ()
    try:
        pieces = split(rule.f, rule.parameters)
    except PiecesError:
        return ()
    moving = set().union(*(kink.free_symbols for kink in pieces.kinks)) if pieces.kinks else set()
    found = [p for p in rule.parameters if p.symbol not in moving and _bilinear(pieces, p.symbol, p.symbol)]
    if not all(_bilinear(pieces, p.symbol, q.symbol) for p, q in itertools.combinations(found, 2)):
        return ()
    return tuple(p.name for p in found)


def _bilinear(pieces: object, p: sympy.Symbol, q: sympy.Symbol) -> bool:
    """Whether no branch has a second derivative in p and q."""
    return all(sympy.expand(sympy.diff(piece.expr, p, q)) == 0 for piece in pieces)  # type: ignore[attr-defined]
