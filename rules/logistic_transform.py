"""Logistic transform S(x) = 1/(1 + exp(-x)) of a normal input, exact and in the literature's approximations."""

from sympy import Integer, exp, log, pi, sqrt

from momentgen.rule import Accuracy, Formula, Phi, Rule, S, a, mu, sigma, v, x

paper = "Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks"
var_s = pi**2 / 3  # variance of the standard logistic distribution
c = log(2)

ap2a = Phi(mu / sqrt(v + var_s))
ap2b = S(mu / sqrt(v / var_s + 1))
pea = Phi(a) + exp(c**2 * v / 2) / 2 * (
    exp(c * mu) * Phi((-mu - c * v) / sigma) - exp(-c * mu) * Phi((mu - c * v) / sigma)
)


def practical(mean):
    """(33): the slope's square at small v, 1/4 at large."""
    return 4 * v / (v + 4) * (mean * (1 - mean)) ** 2


rule = Rule(
    "logistic_transform",
    f=S(x),
    accuracy=Accuracy(mean_abs=3e-7, var_abs=3e-7),
    variants={
        "ap1": Formula(mean=S(mu), var=Integer(0), citation=f"{paper}, AP1: means only"),
        "ap2a": Formula(mean=ap2a, var=practical(ap2a), citation=f"{paper}, (AP2a), (33)"),
        "ap2b": Formula(mean=ap2b, var=practical(ap2b), citation=f"{paper}, (AP2b), (33)"),
        "pea": Formula(mean=pea, var=practical(pea), citation=f"{paper}, (PEA), (33)"),
        "practical": Formula(mean=ap2b, var=practical(ap2b), citation=f"{paper}, C.4, D.1: (AP2b), (33)"),
        "large_variance": Formula(
            mean=ap2a,
            var=Phi((mu - 1) / sqrt(v + var_s - 1)) - ap2a**2,
            citation=f"{paper}, (AP2a), (34); better than (33) for sigma >= 2",
        ),
    },
    citation=f"{paper}, 3.3, C.3, C.4",
    doc="Logistic sigmoid S(x).",
)
