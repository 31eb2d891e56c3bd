"""Softplus of a normal input.

torch switches to x itself for beta x > threshold, by default 20, where the two are 2.1e-9/beta apart; this is softplus
on the whole line.
"""

from sympy import exp, log

from momentgen.rule import Accuracy, Parameter, Rule, x

beta = Parameter("beta", default=1, low=1 / 16, high=128, doc="steepness of the bend; its width is 1/beta")

rule = Rule(
    "softplus",
    f=log(1 + exp(beta.symbol * x)) / beta.symbol,
    parameters=(beta,),
    accuracy=Accuracy(moments=True),
    doc="Softplus log(1 + exp(beta x))/beta.",
)
