"""Softsign of a normal input."""

from sympy import Abs

from momentgen.rule import Accuracy, Rule, x

rule = Rule(
    "softsign",
    f=x / (1 + Abs(x)),
    accuracy=Accuracy(moments=True),
    citation="Bergstra, Desjardins, Lamblin & Bengio 2009, Quadratic Polynomials Learn Better Image Features",
    doc="Softsign x/(1 + |x|).",
)
