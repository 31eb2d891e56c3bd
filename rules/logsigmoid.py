"""Logarithm of the logistic sigmoid of a normal input."""

from sympy import exp, log

from momentgen.rule import Accuracy, Rule, x

rule = Rule("logsigmoid", f=-log(1 + exp(-x)), accuracy=Accuracy(moments=True), doc="Log-sigmoid -log(1 + exp(-x)).")
