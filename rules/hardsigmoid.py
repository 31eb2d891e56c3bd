"""Hardsigmoid of a normal input."""

from sympy import Max, Min, Rational

from momentgen.rule import Accuracy, Rule, x

rule = Rule(
    "hardsigmoid",
    f=Max(0, Min(1, x / 6 + Rational(1, 2))),
    accuracy=Accuracy(moments=True),
    doc="Hardsigmoid: x/6 + 1/2 clipped to [0, 1].",
)
