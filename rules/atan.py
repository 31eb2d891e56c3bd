"""Arc tangent of a normal input."""

from sympy import atan

from momentgen.rule import Accuracy, Rule, x

rule = Rule("atan", f=atan(x), accuracy=Accuracy(moments=True), doc="Arc tangent atan(x).")
