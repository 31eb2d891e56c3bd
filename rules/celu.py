"""CELU of a normal input, alpha = 1, where it is ELU."""

from sympy import Piecewise, exp

from momentgen.rule import Accuracy, Rule, x

rule = Rule(
    "celu",
    f=Piecewise((x, x > 0), (exp(x) - 1, True)),
    accuracy=Accuracy(moments=True),
    citation="Barron 2017, Continuously Differentiable Exponential Linear Units",
    doc="Continuously differentiable exponential linear unit: x for x > 0, else exp(x) - 1.",
)
