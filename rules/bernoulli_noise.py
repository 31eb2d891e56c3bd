"""Multiplicative Bernoulli noise, scaled to mean 1: dropout."""

from sympy import Integer

from momentgen.rule import Accuracy, Noise, Parameter, Rule, mu, v, x

drop = Parameter("p", default=0.5, low=0, high=1 - 2.0**-20, doc="probability of dropping an input")
p = drop.symbol
z = Noise("z", mean=Integer(1), var=p / (1 - p), citation="z = Bernoulli(1 - p)/(1 - p), torch's inverted scaling")

rule = Rule(
    "bernoulli_noise",
    f=x * z.symbol,
    noise=z,
    parameters=(drop,),
    mean=mu,
    var=v / (1 - p) + mu**2 * p / (1 - p),
    accuracy=Accuracy(ulp={"exact": 8.0}),
    citation="Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, (8), 3.2",
    doc="Dropout: x times an independent Bernoulli(1 - p)/(1 - p).",
)
