"""ReLU, max(x, 0), of a normal input."""

from sympy import Heaviside, Max, Rational

from momentgen.rule import Formula, Phi, Rule, S, a, mu, phi, sigma, v, x

R = a * phi(a) + (a**2 + 1) * Phi(a) - (a * Phi(a) + phi(a)) ** 2
t = Rational("0.3703294866")

rule = Rule(
    "relu",
    f=Max(x, 0),
    mean=mu * Phi(a) + sigma * phi(a),
    var=v * R,
    variants={
        "fitted": Formula(
            mean=None,
            var=v * S(a / t),
            citation="Shekhovtsov & Flach 2018, D.1",
            doc="t = 0.37033 makes the largest KL(N(m, exact var) || N(m, var)) over -3 <= a <= 10 least: 0.0351",
        ),
        "identity_delta": Formula(
            mean=Max(mu, 0),
            var=v * Heaviside(mu, 0),
            citation="Haussmann, Hamprecht & Kandemir 2019, Sampling-free Variational Inference of Bayesian Neural "
            "Networks by Variance Backpropagation, Propositions 1 and 2",
            doc="f = x z with q(z) = [E x > 0], 0 at E x = 0; of ReLU's exact moments the mean falls short by at most "
            "sigma/sqrt(2 pi), at mu = 0, and the variance errs by at most 0.6592 v, at mu = 0+ (0.3409 v at mu = 0)",
        ),
    },
    citation="Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, C.5",
    doc="Rectified linear unit max(x, 0).",
)
