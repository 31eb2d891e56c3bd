"""Unit of a bow tie network, of a normal input: a gate that opens with probability S(u/tau), and normal noise.

Given the input u it is a ~ N(z u, eta²) with z ~ Bernoulli(S(u/tau)): its mean is u S(u/tau), SiLU in units of tau, and
its variance u² S(u/tau) S(-u/tau) + eta².  For tau -> 0 it is ReLU with noise.
"""

from momentgen.rule import Accuracy, Parameter, Rule, S, x

temperature = Parameter("tau", default=0.1, low=2.0**-10, high=16, doc="temperature of the gate; 0.1 in the paper")
noise = Parameter("eta", default=0, low=0, high=16, doc="standard deviation of the noise")
tau, eta = temperature.symbol, noise.symbol

rule = Rule(
    "bow_tie",
    f=x * S(x / tau),
    conditional_var=x**2 * S(x / tau) * S(-x / tau) + eta**2,
    parameters=(temperature, noise),
    accuracy=Accuracy(moments=True),
    citation="Smith, Lawson & Linderman 2019, Bayesian Inference in Augmented Bow Tie Networks, (4)-(6)",
    doc="Bow tie unit: x with probability S(x/tau), else 0, plus normal noise of variance eta^2.",
)
