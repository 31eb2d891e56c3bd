"""GELU of a normal input, by the normal distribution function."""

from momentgen.rule import Accuracy, Phi, Rule, x

rule = Rule(
    "gelu",
    f=x * Phi(x),
    accuracy=Accuracy(moments=True),
    citation="Hendrycks & Gimpel 2016, Gaussian Error Linear Units",
    doc="Gaussian error linear unit x Phi(x).",
)
