"""Hardshrink of a normal input, lambda = 1/2."""

from sympy import Piecewise, Rational

from momentgen.rule import Accuracy, Rule, x

half = Rational(1, 2)

rule = Rule(
    "hardshrink",
    f=Piecewise((x, x > half), (x, x < -half), (0, True)),
    accuracy=Accuracy(moments=True),
    doc="Hardshrink: x where |x| > 1/2, else 0.",
)
