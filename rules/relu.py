"""ReLU, max(x, 0), of a normal input."""

from sympy import Max, Symbol

from momentgen.rule import Fitted, LogisticInput, Phi, Rule, S, a, mu, phi, sigma, v, x

R = a * phi(a) + (a**2 + 1) * Phi(a) - (a * Phi(a) + phi(a)) ** 2
t = Symbol("t", positive=True)

rule = Rule(
    "relu",
    f=Max(x, 0),
    mean=mu * Phi(a) + sigma * phi(a),
    var=v * R,
    variants={
        "fitted": Fitted(
            var=v * S(a / t), free={"t": (0.1, 1.0)}, domain=("a", -3.0, 10.0), citation="Shekhovtsov & Flach 2018, D.1"
        ),
        "logistic_input": LogisticInput(citation="Shekhovtsov & Flach 2018, C.1"),
    },
    citation="Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, C.5",
    doc="Rectified linear unit max(x, 0).",
)
