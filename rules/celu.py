"""CELU of a normal input."""

from sympy import Piecewise, exp

from momentgen.rule import Accuracy, Parameter, Rule, x

alpha = Parameter("alpha", default=1, low=1 / 16, high=16, doc="the limit for negative inputs is -alpha")
a = alpha.symbol

rule = Rule(
    "celu",
    f=Piecewise((x, x > 0), (a * (exp(x / a) - 1), True)),
    parameters=(alpha,),
    accuracy=Accuracy(moments=True),
    citation="Barron 2017, Continuously Differentiable Exponential Linear Units",
    doc="Continuously differentiable exponential linear unit: x for x > 0, else alpha (exp(x/alpha) - 1).",
)
