"""Probit unit: a draw of 1 with probability Phi(x), of a normal input."""

from sympy import sqrt

from momentgen.rule import Phi, Rule, mu, v, x

mean = Phi(mu / sqrt(v + 1))

rule = Rule(
    "probit",
    f=Phi(x),
    bernoulli=True,
    mean=mean,
    var=mean * (1 - mean),
    citation="Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, C.8",
    doc="Probit unit: 1 with probability Phi(x), else 0.",
)
