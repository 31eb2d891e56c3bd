"""sqrt(1 + x²) - 1 of a normal input."""

from sympy import sqrt

from momentgen.rule import Accuracy, Rule, x

rule = Rule(
    "pseudo_huber",
    f=sqrt(1 + x**2) - 1,
    accuracy=Accuracy(moments=True),
    citation="Charbonnier, Blanc-Feraud, Aubert & Barlaud 1997, Deterministic Edge-Preserving Regularization",
    doc="Pseudo-Huber function sqrt(1 + x²) - 1: a parabola near 0, |x| - 1 far away.",
)
