"""Hyperbolic tangent of a normal input."""

from sympy import tanh

from momentgen.rule import Accuracy, Rule, x

rule = Rule("tanh", f=tanh(x), accuracy=Accuracy(moments=True), doc="Hyperbolic tangent tanh(x).")
