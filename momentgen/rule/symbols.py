"""The vocabulary of rule files: the symbols and special functions that formulas are written in.

``x`` is the activation's input; a random input has mean ``mu`` and variance
``v``, ``sigma = sqrt(v)`` and ``a = mu/sigma``.  ``Phi`` and ``phi`` are the
standard normal distribution function and density, ``S`` the logistic sigmoid.
Rules of two inputs have ``x1``, ``x2``, ``mu1``, ``v1``, ``mu2``, ``v2`` and, where
they are dependent, their covariance ``cov``.
They are sympy functions with a derivative, a value and a printed form.
Otherwise they stay as written: a formula in ``Phi(-a)`` keeps it.
"""

from __future__ import annotations

from typing import Any

import sympy
from sympy import Expr, Function, Integer, Rational, Symbol

__all__ = ["Phi", "S", "a", "cov", "mu", "mu1", "mu2", "phi", "sigma", "sigmoid", "v", "v1", "v2", "x", "x1", "x2"]

x = Symbol("x", real=True)
mu = Symbol("mu", real=True)
v = Symbol("v", positive=True)
sigma: Expr = sympy.sqrt(v)
a: Expr = mu / sigma

x1, x2, mu1, mu2, cov = (Symbol(name, real=True) for name in ("x1", "x2", "mu1", "mu2", "cov"))
v1, v2 = (Symbol(name, positive=True) for name in ("v1", "v2"))


class _Special(Function):
    """A function of one argument whose value comes from its form in elementary functions."""

    nargs = 1
    _tex = ""

    def _form(self) -> Expr:
        raise NotImplementedError

    def _eval_evalf(self, prec: int) -> Any:
        return self._form()._eval_evalf(prec) if self.args[0].is_number else None

    def _latex(self, printer: Any, exp: str | None = None) -> str:
        power = f"^{{{exp}}}" if exp else ""
        return rf"{self._tex}{power}\left({printer._print(self.args[0])}\right)"

    def _eval_is_extended_real(self) -> bool | None:
        return self.args[0].is_extended_real


class Phi(_Special):
    """Standard normal distribution function.

    >>> Phi(0), Phi(1).evalf(10)
    (1/2, 0.8413447461)
    """

    _tex = r"\Phi"

    @classmethod
    def eval(cls, z: Any) -> Expr | None:
        if z.is_zero:
            return Rational(1, 2)
        return {sympy.oo: Integer(1), -sympy.oo: Integer(0)}.get(z)

    def fdiff(self, argindex: int = 1) -> Expr:
        return phi(self.args[0])

    def _form(self) -> Expr:
        return sympy.erfc(-self.args[0] / sympy.sqrt(2)) / 2

    def _eval_rewrite_as_erfc(self, z: Expr, **_: Any) -> Expr:
        return sympy.erfc(-z / sympy.sqrt(2)) / 2

    def _eval_rewrite_as_erf(self, z: Expr, **_: Any) -> Expr:
        return (1 + sympy.erf(z / sympy.sqrt(2))) / 2

    def _eval_is_nonnegative(self) -> bool | None:
        return self.args[0].is_extended_real


class phi(_Special):  # noqa: N801 - the name of the field
    """Standard normal density; even, so that ``phi(-z)`` becomes ``phi(z)``.

    >>> phi(-a), phi(0)
    (phi(mu/sqrt(v)), sqrt(2)/(2*sqrt(pi)))
    """

    _tex = r"\phi"

    @classmethod
    def eval(cls, z: Any) -> Expr | None:
        if z.is_zero:
            return 1 / sympy.sqrt(2 * sympy.pi)
        if z in (sympy.oo, -sympy.oo):
            return Integer(0)
        return cls(-z) if z.could_extract_minus_sign() else None

    def fdiff(self, argindex: int = 1) -> Expr:
        return -self.args[0] * phi(self.args[0])

    def _form(self) -> Expr:
        return sympy.exp(-(self.args[0] ** 2) / 2) / sympy.sqrt(2 * sympy.pi)

    def _eval_rewrite_as_exp(self, z: Expr, **_: Any) -> Expr:
        return sympy.exp(-(z**2) / 2) / sympy.sqrt(2 * sympy.pi)

    def _eval_is_nonnegative(self) -> bool | None:
        return self.args[0].is_extended_real


class S(_Special):
    """Logistic sigmoid 1/(1 + exp(-z)).

    >>> S(0), S(x).diff(x)
    (1/2, S(-x)*S(x))
    """

    _tex = r"\mathcal{S}"

    @classmethod
    def eval(cls, z: Any) -> Expr | None:
        if z.is_zero:
            return Rational(1, 2)
        return {sympy.oo: Integer(1), -sympy.oo: Integer(0)}.get(z)

    def fdiff(self, argindex: int = 1) -> Expr:
        # S(-z) is 1 - S(z) without the cancellation.
        return self * S(-self.args[0])

    def _form(self) -> Expr:
        return 1 / (1 + sympy.exp(-self.args[0]))

    def _eval_rewrite_as_exp(self, z: Expr, **_: Any) -> Expr:
        return 1 / (1 + sympy.exp(-z))

    def _eval_is_positive(self) -> bool | None:
        return self.args[0].is_extended_real


#: the logistic sigmoid under a name that sympy does not have
sigmoid = S
