"""Mish of a normal input."""

from sympy import exp, log, tanh

from momentgen.rule import Accuracy, Rule, x

rule = Rule(
    "mish",
    f=x * tanh(log(1 + exp(x))),
    accuracy=Accuracy(moments=True),
    citation="Misra 2020, Mish: A Self Regularized Non-Monotonic Activation Function",
    doc="Mish x tanh(log(1 + exp(x))).",
)
