"""Hardshrink of a normal input."""

from sympy import Piecewise, Rational

from momentgen.rule import Accuracy, Parameter, Rule, x

lambd = Parameter("lambd", default=Rational(1, 2), low=1 / 64, high=16, doc="half of the width of the level part")
w = lambd.symbol

rule = Rule(
    "hardshrink",
    f=Piecewise((x, x > w), (x, x < -w), (0, True)),
    parameters=(lambd,),
    accuracy=Accuracy(moments=True),
    doc="Hardshrink: x where |x| > lambd, else 0.",
)
