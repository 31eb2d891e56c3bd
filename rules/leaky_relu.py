"""Leaky ReLU, max(x, negative_slope*x), of a normal input."""

from sympy import Heaviside, Max, Symbol

from momentgen.rule import Fitted, Formula, LogisticInput, Parameter, Phi, Rule, S, a, mu, phi, sigma, v, x

slope = Parameter("negative_slope", default=0.01, low=0, high=1, doc="slope for negative inputs")
al, t = slope.symbol, Symbol("t", positive=True)
positive = Heaviside(mu, 0)
R = a * phi(a) + (a**2 + 1) * Phi(a) - (a * Phi(a) + phi(a)) ** 2

rule = Rule(
    "leaky_relu",
    f=Max(x, al * x),
    parameters=(slope,),
    mean=mu * (al + (1 - al) * Phi(a)) + sigma * (1 - al) * phi(a),
    var=v * (al**2 + 2 * al * (1 - al) * Phi(a) + (1 - al) ** 2 * R),
    variants={
        "fitted": Fitted(
            var=v * (al**2 + (1 - al**2) * S(a / t)),
            free={"t": (0.1, 1.0)},
            at={"negative_slope": 0.01},
            citation="Shekhovtsov & Flach 2018, (51), D.1",
        ),
        "identity_delta": Formula(
            mean=mu * (al + (1 - al) * positive),
            var=v * (al**2 + (1 - al**2) * positive),
            citation="after Haussmann, Hamprecht & Kandemir 2019, Sampling-free Variational Inference of Bayesian "
            "Neural Networks by Variance Backpropagation, Propositions 1 and 2, which have ReLU",
            doc="f = x (c + (1 - c) z) with c the slope and q(z) = [E x > 0], 0 at E x = 0; of the exact moments the "
            "mean falls short by at most (1 - c) sigma/sqrt(2 pi), at mu = 0",
        ),
        "logistic_input": LogisticInput(citation="Shekhovtsov & Flach 2018, C.1, for max(x, c x)"),
    },
    citation="Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, (48)-(50)",
    doc="Leaky rectified linear unit max(x, negative_slope*x).",
)
