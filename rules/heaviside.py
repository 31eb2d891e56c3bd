"""Heaviside step, 1 where x >= 0 and 0 elsewhere, of a normal input."""

from sympy import Heaviside

from momentgen.rule import Phi, Rule, a, x

rule = Rule(
    "heaviside",
    f=Heaviside(x, 1),
    mean=Phi(a),
    var=Phi(a) * (1 - Phi(a)),
    citation="Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, C.2",
    doc="Heaviside step [x >= 0].",
)
