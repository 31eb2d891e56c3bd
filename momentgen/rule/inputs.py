"""The random inputs and the parameters of a rule: what f is written in, and what the generated code takes.

One input ``x`` is given by ``mean`` and ``var``; several, ``x1``, ``x2``, ..., by ``mean1``, ``var1``, ``mean2``, and
so on, in formulas ``mu1``, ``v1``, ``mu2``.  Two inputs may be dependent: then ``cov``, their covariance, comes last.
A :class:`Noise` is a random factor that the caller does not give: its moments are formulas in the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sympy
from sympy import Expr, Symbol

from momentgen.rule.names import free_name
from momentgen.rule.symbols import cov, mu, v

__all__ = [
    "MEAN_AND_VARIANCE",
    "Noise",
    "Parameter",
    "input_symbols",
    "moment_names",
    "moment_symbols",
    "outputs_of",
    "partial_names",
]

#: what an op returns of f
MEAN_AND_VARIANCE = ("mean", "var")


@dataclass(frozen=True)
class Parameter:
    """A scalar parameter of an activation.

    Args:
        name: an identifier, used as the keyword argument of the generated op.
        default: value when the caller gives none; required.
        low, high: closed range of values allowed; infinite where unbounded.
        doc: one line for the op's documentation.

    >>> slope = Parameter("negative_slope", default=0.01, low=0, high=1)
    >>> slope.symbol.is_nonnegative
    True
    """

    name: str
    default: float | None = None
    low: float = -math.inf
    high: float = math.inf
    doc: str = ""

    @property
    def symbol(self) -> Symbol:
        """The parameter in formulas: real, and as positive as its range says; ``v`` is written as ``v_``."""
        name = free_name(self.name)
        if self.low > 0:
            return Symbol(name, positive=True)
        if self.low == 0:
            return Symbol(name, nonnegative=True)
        return Symbol(name, real=True)


@dataclass(frozen=True)
class Noise:
    """A random factor of f, independent of the inputs.

    Args:
        name: of its symbol in f.
        mean, var: its moments, in the parameters' symbols; ``var`` must not be negative.
        citation: where it comes from.
    """

    name: str
    mean: Expr
    var: Expr
    citation: str = ""

    @property
    def symbol(self) -> Symbol:
        """The noise in f."""
        return Symbol(self.name, real=True)


def input_symbols(inputs: Sequence[str]) -> tuple[Symbol, ...]:
    """The symbols that f is written in.

    >>> input_symbols(("x1", "x2"))
    (x1, x2)
    """
    return tuple(Symbol(name, real=True) for name in inputs)


def moment_names(inputs: int, covariance: bool = False) -> tuple[str, ...]:
    """What generated code takes for so many inputs, in order.

    >>> moment_names(1), moment_names(2, covariance=True)
    (('mean', 'var'), ('mean1', 'var1', 'mean2', 'var2', 'cov'))
    """
    if inputs == 1:
        return ("mean", "var")
    pairs = tuple(f"{moment}{i}" for i in range(1, inputs + 1) for moment in ("mean", "var"))
    return (*pairs, "cov") if covariance else pairs


def moment_symbols(inputs: int, covariance: bool = False) -> dict[str, Symbol]:
    """The same names, each with its symbol in formulas.

    >>> moment_symbols(2)
    {'mean1': mu1, 'var1': v1, 'mean2': mu2, 'var2': v2}
    """
    if inputs == 1:
        return {"mean": mu, "var": v}
    symbols: dict[str, Symbol] = {}
    for name in moment_names(inputs, covariance):
        if name == "cov":
            symbols[name] = cov
        elif name.startswith("mean"):
            symbols[name] = sympy.Symbol(f"mu{name.removeprefix('mean')}", real=True)
        else:
            symbols[name] = sympy.Symbol(f"v{name.removeprefix('var')}", positive=True)
    return symbols


def partial_names(moments: Sequence[str], outputs: Sequence[str] = MEAN_AND_VARIANCE) -> dict[str, tuple[str, ...]]:
    """For each name of :func:`moment_names`, the partials in it of each output.

    >>> partial_names(("mean", "var"))
    {'mean': ('dmean_dmu', 'dvar_dmu'), 'var': ('dmean_dvar', 'dvar_dvar')}
    """
    short = {name: f"mu{name.removeprefix('mean')}" if name.startswith("mean") else name for name in moments}
    return {name: tuple(f"d{output}_d{short[name]}" for output in outputs) for name in moments}


def outputs_of(partials: Iterable[str]) -> tuple[str, ...]:
    """The outputs that partials of these names are of, in their order.

    >>> outputs_of(["dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar"])
    ('mean', 'var')
    """
    return tuple(dict.fromkeys(name[1 : name.index("_d")] for name in partials))
