"""Normal distribution function Phi(x) of a normal input."""

from sympy import sqrt

from momentgen.rule import Accuracy, Phi, Rule, mu, v, x

rule = Rule(
    "normal_cdf",
    f=Phi(x),
    mean=Phi(mu / sqrt(v + 1)),
    accuracy=Accuracy(moments=True),
    citation="Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, C.8",
    doc="Normal distribution function Phi(x).",
)
