"""Error function of a normal input."""

from sympy import erf

from momentgen.rule import Accuracy, Rule, x

rule = Rule("erf", f=erf(x), accuracy=Accuracy(moments=True), doc="Error function erf(x).")
