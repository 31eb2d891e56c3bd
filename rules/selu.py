"""SELU of a normal input: torch's constants, which are float64 numbers."""

from sympy import Float, Piecewise, Rational, exp

from momentgen.rule import Accuracy, Rule, x

alpha = Rational(Float("1.6732632423543772848170429916717", 17))
scale = Rational(Float("1.0507009873554804934193349852946", 17))

rule = Rule(
    "selu",
    f=Piecewise((scale * x, x > 0), (scale * alpha * (exp(x) - 1), True)),
    accuracy=Accuracy(moments=True),
    citation="Klambauer, Unterthiner, Mayr & Hochreiter 2017, Self-Normalizing Neural Networks",
    doc="Scaled exponential linear unit: scale times ELU of alpha = 1.6733, scale = 1.0507.",
)
