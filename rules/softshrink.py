"""Softshrink of a normal input."""

from sympy import Max, Min, Rational

from momentgen.rule import Accuracy, Parameter, Rule, x

lambd = Parameter("lambd", default=Rational(1, 2), low=1 / 64, high=16, doc="half of the width of the level part")
w = lambd.symbol

rule = Rule(
    "softshrink",
    f=Max(x - w, 0) + Min(x + w, 0),
    parameters=(lambd,),
    accuracy=Accuracy(moments=True),
    doc="Softshrink: x moved towards 0 by lambd, and 0 in between.",
)
