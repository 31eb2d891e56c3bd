"""Heaviside step, 1 where x >= 0 and 0 elsewhere, of a normal input."""

from sympy import Heaviside

from momentgen.rule import LogisticInput, Phi, Rule, a, x

rule = Rule(
    "heaviside",
    f=Heaviside(x, 1),
    mean=Phi(a),
    var=Phi(a) * (1 - Phi(a)),
    variants={"logistic_input": LogisticInput(citation="Shekhovtsov & Flach 2018, C.1, C.2")},
    citation="Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, C.2",
    doc="Heaviside step [x >= 0].",
)
