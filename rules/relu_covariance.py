"""Covariance of max(x1, 0) and max(x2, 0) of two dependent normal inputs."""

from sympy import Max

from momentgen.rule import Accuracy, Rule, x

rule = Rule(
    "relu_covariance",
    f=Max(x, 0),
    inputs=("x1", "x2"),
    covariance=True,
    outputs=("covariance",),
    accuracy=Accuracy(moments=True),
    citation="Wright, Nakahira & Moura 2024, An Analytic Solution to Covariance Propagation in Neural Networks",
    doc="Covariance of max(x1, 0) and max(x2, 0) of two jointly normal inputs with covariance cov.",
)
