"""RReLU of a normal input in evaluation: the slope for negative inputs is the mean of [1/8, 1/3]."""

from sympy import Max, Rational

from momentgen.rule import Accuracy, Rule, x

slope = (Rational(1, 8) + Rational(1, 3)) / 2

rule = Rule(
    "rrelu",
    f=Max(x, slope * x),
    accuracy=Accuracy(ulp={"exact": 8.0, "tight": 2.0}),
    citation="Xu et al. 2015, Empirical Evaluation of Rectified Activations in Convolutional Network",
    doc="Randomized leaky ReLU in evaluation: max(x, 11/48 x).",
)
