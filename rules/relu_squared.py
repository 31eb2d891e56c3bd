"""Squared ReLU, max(x, 0)^2, of a normal input."""

from sympy import Max

from momentgen.rule import Phi, Rule, a, mu, phi, sigma, v, x

rule = Rule(
    "relu_squared",
    f=Max(x, 0) ** 2,
    mean=(mu**2 + v) * Phi(a) + mu * sigma * phi(a),
    citation="So et al. 2021, Primer: Searching for Efficient Transformers for Language Modeling, section 3",
    doc="Squared rectified linear unit max(x, 0)^2.",
)
