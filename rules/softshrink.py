"""Softshrink of a normal input, lambda = 1/2."""

from sympy import Max, Min, Rational

from momentgen.rule import Accuracy, Rule, x

half = Rational(1, 2)

rule = Rule(
    "softshrink",
    f=Max(x - half, 0) + Min(x + half, 0),
    accuracy=Accuracy(moments=True),
    doc="Softshrink: x moved towards 0 by 1/2, and 0 in between.",
)
