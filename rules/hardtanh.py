"""Hardtanh of a normal input."""

from sympy import Max, Min

from momentgen.rule import Accuracy, Parameter, Rescaled, Rule, x

low = Parameter("min_val", default=-1, low=-64, high=0, doc="the least value")
high = Parameter("max_val", default=1, low=1 / 64, high=64, doc="the greatest value")
half, middle = (high.symbol - low.symbol) / 2, (high.symbol + low.symbol) / 2

rule = Rule(
    "hardtanh",
    f=Max(low.symbol, Min(high.symbol, x)),
    parameters=(low, high),
    rescaled=Rescaled(of=Max(-1, Min(1, x)), centre=middle, width=half, scale=half, offset=middle),
    accuracy=Accuracy(moments=True),
    doc="Hardtanh: x clipped to [min_val, max_val].",
)
