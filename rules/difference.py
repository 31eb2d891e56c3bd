"""Difference of two independent inputs: what injected noise makes of a pre-activation.

f(X - Z) with a noise Z of known mean and variance is ``f(*difference(*X, *Z))`` for any rule f, since X - Z is normal
where X and Z are.
"""

from momentgen.rule import Accuracy, Rule, mu1, mu2, v1, v2, x1, x2

rule = Rule(
    "difference",
    f=x1 - x2,
    inputs=("x1", "x2"),
    mean=mu1 - mu2,
    var=v1 + v2,
    accuracy=Accuracy(ulp={"exact": 8.0}),
    citation="Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, (9)",
    doc="Difference x1 - x2 of two independent inputs: a pre-activation with noise x2 injected.",
)
