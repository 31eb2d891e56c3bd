"""Covariance of Phi(x1) and Phi(x2), the normal distribution function of two dependent normal inputs."""

from momentgen.rule import Accuracy, Phi, Rule, x

rule = Rule(
    "normal_cdf_covariance",
    f=Phi(x),
    inputs=("x1", "x2"),
    covariance=True,
    outputs=("covariance",),
    accuracy=Accuracy(moments=True),
    citation="Wright, Nakahira & Moura 2024, An Analytic Solution to Covariance Propagation in Neural Networks",
    doc="Covariance of Phi(x1) and Phi(x2) of two jointly normal inputs with covariance cov.",
)
