"""Hardtanh of a normal input."""

from sympy import Max, Min

from momentgen.rule import Accuracy, Rule, x

rule = Rule("hardtanh", f=Max(-1, Min(1, x)), accuracy=Accuracy(moments=True), doc="Hardtanh: x clipped to [-1, 1].")
