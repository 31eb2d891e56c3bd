"""SELU of a normal input."""

from sympy import Piecewise, Rational, exp

from momentgen.rule import Accuracy, Rule, x

scale = Rational("1.0507009873554804934193349852946")
alpha = Rational("1.6732632423543772848170429916717")

rule = Rule(
    "selu",
    f=Piecewise((scale * x, x > 0), (scale * alpha * (exp(x) - 1), True)),
    accuracy=Accuracy(moments=True),
    citation="Klambauer et al. 2017, Self-Normalizing Neural Networks",
    doc="Scaled exponential linear unit.",
)
