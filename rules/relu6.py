"""ReLU6 of a normal input."""

from sympy import Max, Min

from momentgen.rule import Accuracy, Rule, x

rule = Rule("relu6", f=Max(0, Min(6, x)), accuracy=Accuracy(moments=True), doc="ReLU6: x clipped to [0, 6].")
