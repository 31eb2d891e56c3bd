"""Softplus of a normal input."""

from sympy import exp, log

from momentgen.rule import Accuracy, Rule, x

rule = Rule("softplus", f=log(1 + exp(x)), accuracy=Accuracy(moments=True), doc="Softplus log(1 + exp(x)).")
