"""Covariance of the steps [x1 >= 0] and [x2 >= 0] of two dependent normal inputs."""

from sympy import Heaviside

from momentgen.rule import Accuracy, Rule, x

rule = Rule(
    "heaviside_covariance",
    f=Heaviside(x, 1),
    inputs=("x1", "x2"),
    covariance=True,
    outputs=("covariance",),
    accuracy=Accuracy(moments=True),
    citation="Wright, Nakahira & Moura 2024, An Analytic Solution to Covariance Propagation in Neural Networks",
    doc="Covariance of the steps [x1 >= 0] and [x2 >= 0] of two jointly normal inputs with covariance cov.",
)
