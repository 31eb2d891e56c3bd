"""Tanhshrink of a normal input."""

from sympy import tanh

from momentgen.rule import Accuracy, Rule, x

rule = Rule("tanhshrink", f=x - tanh(x), accuracy=Accuracy(moments=True), doc="Tanhshrink x - tanh(x).")
