"""Logistic sigmoid of a normal input, as torch.nn names it; ``logistic_transform`` has the papers' variants."""

from momentgen.rule import Accuracy, Rule, S, x

rule = Rule("sigmoid", f=S(x), accuracy=Accuracy(moments=True), doc="Logistic sigmoid 1/(1 + exp(-x)).")
