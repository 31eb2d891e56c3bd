"""Log-softmax of independent normal logits, in the three approximations of the literature."""

from sympy import log, pi, sqrt

from momentgen.rule import Phi, Reduction, Score, mu1, mu2, v1, v2

paper = "Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks"
var_s = pi**2 / 3  # variance of the standard logistic distribution

rule = Reduction(
    "log_softmax",
    log=True,
    variants={
        "logistic": Score(
            term=(mu2 - mu1) / sqrt((v1 + v2) / var_s + 1),
            reduce="negative_logsumexp",
            citation=f"{paper}, (61), (62): a multivariate logistic distribution function",
        ),
        "normal": Score(
            term=log(Phi((mu1 - mu2) / sqrt(v1 + v2 + var_s))),
            reduce="sum",
            citation=f"{paper}, (58), (59): a product of normal distribution functions",
        ),
        "simplified": Score(
            term=mu1 / sqrt(v1 / var_s + 1),
            citation=f"{paper}, (64): a softmax of scaled means",
        ),
    },
    citation=f"{paper}, 3.3, C.7",
    doc="Log of the class probabilities E softmax(X).",
)
