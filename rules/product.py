"""Product of two independent inputs."""

from momentgen.rule import Accuracy, Rule, mu1, mu2, v1, v2, x1, x2

rule = Rule(
    "product",
    f=x1 * x2,
    inputs=("x1", "x2"),
    mean=mu1 * mu2,
    var=v1 * v2 + v1 * mu2**2 + mu1**2 * v2,
    accuracy=Accuracy(ulp={"exact": 8.0}),
    citation="Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, (8)",
    doc="Product x1*x2 of two independent inputs.",
)
