"""Maximum of two dependent normal inputs, their covariance given."""

from sympy import Max, sqrt

from momentgen.rule import Accuracy, Phi, Rule, cov, mu1, mu2, phi, v1, v2, x1, x2

s = sqrt(v1 + v2 - 2 * cov)
a = (mu1 - mu2) / s
R = a * phi(a) + (a**2 + 1) * Phi(a) - (a * Phi(a) + phi(a)) ** 2

rule = Rule(
    "maximum_correlated",
    f=Max(x1, x2),
    inputs=("x1", "x2"),
    covariance=True,
    mean=mu2 + s * (a * Phi(a) + phi(a)),
    var=v1 * Phi(a) + v2 * Phi(-a) + s**2 * (R - Phi(a)),
    accuracy=Accuracy(ulp={"exact": 8.0}),
    citation="Clark 1961, The greatest of a finite set of random variables",
    doc="Maximum max(x1, x2) of two jointly normal inputs with covariance cov.",
)
