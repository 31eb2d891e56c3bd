"""ELU of a normal input."""

from sympy import Piecewise, exp

from momentgen.rule import Accuracy, Parameter, Rule, x

alpha = Parameter("alpha", default=1, low=0, high=4, doc="the limit for negative inputs is -alpha")

rule = Rule(
    "elu",
    f=Piecewise((x, x > 0), (alpha.symbol * (exp(x) - 1), True)),
    parameters=(alpha,),
    accuracy=Accuracy(moments=True),
    citation="Clevert, Unterthiner & Hochreiter 2016, Fast and Accurate Deep Network Learning by ELUs",
    doc="Exponential linear unit: x for x > 0, else alpha (exp(x) - 1).",
)
