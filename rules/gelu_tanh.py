"""GELU of a normal input in its approximation by tanh."""

from sympy import Rational, pi, sqrt, tanh

from momentgen.rule import Accuracy, Rule, x

rule = Rule(
    "gelu_tanh",
    f=x * (1 + tanh(sqrt(2 / pi) * (x + Rational(44715, 1000000) * x**3))) / 2,
    accuracy=Accuracy(moments=True),
    citation="Hendrycks & Gimpel 2016, Gaussian Error Linear Units",
    doc="Gaussian error linear unit, approximated by x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))/2.",
)
