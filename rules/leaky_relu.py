"""Leaky ReLU, max(x, negative_slope*x), of a normal input."""

from sympy import Heaviside, Max, Rational

from momentgen.rule import Formula, Parameter, Phi, Rule, S, a, mu, phi, sigma, v, x

slope = Parameter("negative_slope", default=0.01, low=0, high=1, doc="slope for negative inputs")
al, t = slope.symbol, Rational("0.3757590329")
positive = Heaviside(mu, 0)
R = a * phi(a) + (a**2 + 1) * Phi(a) - (a * Phi(a) + phi(a)) ** 2

rule = Rule(
    "leaky_relu",
    f=Max(x, al * x),
    parameters=(slope,),
    mean=mu * (al + (1 - al) * Phi(a)) + sigma * (1 - al) * phi(a),
    var=v * (al**2 + 2 * al * (1 - al) * Phi(a) + (1 - al) ** 2 * R),
    variants={
        "fitted": Formula(
            mean=None,
            var=v * (al**2 + (1 - al**2) * S(a / t)),
            citation="Shekhovtsov & Flach 2018, (51), D.1",
            doc="at a slope of 0.01 t = 0.37576 makes the largest KL(N(m, exact var) || N(m, var)) over |a| <= 10 "
            "least: 0.0334",
        ),
        "identity_delta": Formula(
            mean=mu * (al + (1 - al) * positive),
            var=v * (al**2 + (1 - al**2) * positive),
            citation="after Haussmann, Hamprecht & Kandemir 2019, Sampling-free Variational Inference of Bayesian "
            "Neural Networks by Variance Backpropagation, Propositions 1 and 2, which have ReLU",
            doc="f = x (c + (1 - c) z) with c the slope and q(z) = [E x > 0], 0 at E x = 0; of the exact moments the "
            "mean falls short by at most (1 - c) sigma/sqrt(2 pi), at mu = 0",
        ),
    },
    citation="Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, (48)-(50)",
    doc="Leaky rectified linear unit max(x, negative_slope*x).",
)
