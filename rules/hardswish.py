"""Hardswish of a normal input."""

from sympy import Piecewise

from momentgen.rule import Accuracy, Rule, x

rule = Rule(
    "hardswish",
    f=Piecewise((0, x <= -3), (x, x >= 3), (x * (x + 3) / 6, True)),
    accuracy=Accuracy(moments=True),
    citation="Howard et al. 2019, Searching for MobileNetV3",
    doc="Hardswish: x times x/6 + 1/2 clipped to [0, 1].",
)
