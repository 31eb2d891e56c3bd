"""Square of a normal input."""

from momentgen.rule import Accuracy, Rule, x

rule = Rule("square", f=x**2, accuracy=Accuracy(moments=True), doc="Square x^2.")
