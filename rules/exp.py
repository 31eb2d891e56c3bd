"""Exponential of a normal input: a log-normal output."""

from sympy import exp

from momentgen.rule import Accuracy, Rule, x

rule = Rule("exp", f=exp(x), accuracy=Accuracy(moments=True), doc="Exponential exp(x).")
