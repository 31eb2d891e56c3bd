"""Maximum of two independent normal inputs; max pooling and maxout are trees of it."""

from sympy import Max, sqrt

from momentgen.rule import Accuracy, Phi, Rule, mu1, mu2, phi, v1, v2, x1, x2

paper = "Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks"
s = sqrt(v1 + v2)
a = (mu1 - mu2) / s
R = a * phi(a) + (a**2 + 1) * Phi(a) - (a * Phi(a) + phi(a)) ** 2

rule = Rule(
    "maximum",
    f=Max(x1, x2),
    inputs=("x1", "x2"),
    mean=mu2 + s * (a * Phi(a) + phi(a)),
    var=v1 * Phi(a) + v2 * Phi(-a) + s**2 * (R - Phi(a)),
    accuracy=Accuracy(ulp={"exact": 8.0}),
    citation=f"{paper}, (45), (47); Clark 1961, The greatest of a finite set of random variables",
    doc="Maximum max(x1, x2) of two independent inputs.",
)
