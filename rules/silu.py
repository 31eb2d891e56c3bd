"""SiLU (swish) of a normal input."""

from momentgen.rule import Accuracy, Rule, S, x

rule = Rule("silu", f=x * S(x), accuracy=Accuracy(moments=True), doc="Sigmoid linear unit x/(1 + exp(-x)).")
