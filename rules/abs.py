"""Absolute value of a normal input."""

from sympy import Abs

from momentgen.rule import Phi, Rule, a, mu, phi, sigma, v, x

mean = 2 * mu * Phi(a) + 2 * sigma * phi(a) - mu

rule = Rule(
    "abs",
    f=Abs(x),
    mean=mean,
    var=mu**2 + v - mean**2,
    citation="Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, C.1",
    doc="Absolute value |x|.",
)
