"""Cosine of a normal input."""

from sympy import cos

from momentgen.rule import Accuracy, Rule, x

rule = Rule("cos", f=cos(x), accuracy=Accuracy(moments=True), doc="Cosine cos(x).")
