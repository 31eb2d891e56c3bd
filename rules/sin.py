"""Sine of a normal input."""

from sympy import sin

from momentgen.rule import Accuracy, Rule, x

rule = Rule("sin", f=sin(x), accuracy=Accuracy(moments=True), doc="Sine sin(x).")
