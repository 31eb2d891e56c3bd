"""Threshold of a normal input: x above 1/10, else 20."""

from sympy import Integer, Piecewise, Rational

from momentgen.rule import Accuracy, Rule, x

rule = Rule(
    "threshold",
    f=Piecewise((x, x > Rational(1, 10)), (Integer(20), True)),
    accuracy=Accuracy(moments=True),
    doc="Threshold: x above 0.1, else 20 (the example of torch.nn).",
)
