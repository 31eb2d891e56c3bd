"""Logistic Bernoulli unit: a draw of 1 with probability S(x), of a normal input; exact and approximated."""

from sympy import exp, log, pi, sqrt

from momentgen.rule import Accuracy, Formula, Phi, Rule, S, a, mu, sigma, v, x

paper = "Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks"
var_s = pi**2 / 3  # variance of the standard logistic distribution
c = log(2)

ap2a = Phi(mu / sqrt(v + var_s))
ap2b = S(mu / sqrt(v / var_s + 1))
pea = Phi(a) + exp(c**2 * v / 2) / 2 * (
    exp(c * mu) * Phi((-mu - c * v) / sigma) - exp(-c * mu) * Phi((mu - c * v) / sigma)
)


def draw(mean, source):
    """A draw of 0 or 1 with this mean."""
    return Formula(mean=mean, var=mean * (1 - mean), citation=f"{paper}, {source}")


rule = Rule(
    "logistic_bernoulli",
    f=S(x),
    bernoulli=True,
    accuracy=Accuracy(mean_abs=3e-7, var_abs=3e-7),
    variants={
        "ap1": draw(S(mu), "AP1: means only"),
        "ap2a": draw(ap2a, "(AP2a)"),
        "ap2b": draw(ap2b, "(AP2b)"),
        "pea": draw(pea, "(PEA)"),
    },
    citation=f"{paper}, 3.3, C.3",
    doc="Logistic Bernoulli unit: 1 with probability S(x), else 0.",
)
