"""Threshold of a normal input."""

from sympy import Piecewise, Rational

from momentgen.rule import Accuracy, Parameter, Rescaled, Rule, x

threshold = Parameter("threshold", default=Rational(1, 10), low=-8, high=8, doc="x above it stays")
value = Parameter("value", default=20, low=-32, high=32, doc="what all else becomes")
t = threshold.symbol

rule = Rule(
    "threshold",
    f=Piecewise((x, x > t), (value.symbol, True)),
    parameters=(threshold, value),
    rescaled=Rescaled(of=Piecewise((x, x > 0), (value.symbol - t, True)), centre=t, offset=t),
    accuracy=Accuracy(moments=True),
    doc="Threshold: x above threshold, else value.",
)
