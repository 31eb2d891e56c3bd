"""ELU of a normal input, alpha = 1."""

from sympy import Piecewise, exp

from momentgen.rule import Accuracy, Rule, x

rule = Rule(
    "elu",
    f=Piecewise((x, x > 0), (exp(x) - 1, True)),
    accuracy=Accuracy(moments=True),
    citation="Clevert, Unterthiner & Hochreiter 2016, Fast and Accurate Deep Network Learning by ELUs",
    doc="Exponential linear unit: x for x > 0, else exp(x) - 1.",
)
