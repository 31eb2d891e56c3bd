"""Functions of one value at a time: which generated op has the moments of each function of torch.

Each row of :data:`ACTIVATIONS` names a class of torch.nn, the op, the functions that compute the same and their
parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from momentgen.laws.table import names

__all__ = ["ACTIVATIONS", "BY_FUNCTION", "INTEGRATED", "UNDEFINED", "Activation"]


@dataclass(frozen=True)
class Activation:
    """One row of the table.

    Args:
        layer: the class in torch.nn.
        op: the generated op.
        functions: the functions of torch.nn.functional, torch and torch.Tensor that compute the same.
        parameters: parameter of the function, and attribute of the module -> (keyword of the op, default); in the
            function's order.
        alternatives: value of the parameter ``approximate`` -> another op.
        at_least: a parameter that the op has not -> the least value for which the op is what torch computes.
    """

    layer: str
    op: str
    functions: tuple[str, ...] = ()
    parameters: Mapping[str, float | None] = field(default_factory=dict)
    alternatives: Mapping[object, str] = field(default_factory=dict)
    at_least: Mapping[str, float] = field(default_factory=dict)


ACTIVATIONS: tuple[Activation, ...] = (
    Activation("ReLU", "relu", ("relu",)),
    Activation("LeakyReLU", "leaky_relu", ("leaky_relu",), {"negative_slope": 0.01}),
    Activation("Sigmoid", "logistic_transform", ("sigmoid",)),
    Activation("Tanh", "tanh", ("tanh",)),
    Activation("SiLU", "silu", ("silu",)),
    Activation("GELU", "gelu", ("gelu",), alternatives={"tanh": "gelu_tanh"}),
    Activation("ELU", "elu", ("elu",), {"alpha": 1.0}),
    Activation("CELU", "celu", ("celu",), {"alpha": 1.0}),
    Activation("SELU", "selu", ("selu",)),
    # Above beta x = threshold torch's softplus is x itself: at 20, its default, 2.1e-9/beta from the op's.
    Activation("Softplus", "softplus", ("softplus",), {"beta": 1.0}, at_least={"threshold": 20}),
    Activation("Softsign", "softsign", ("softsign",)),
    Activation("Softshrink", "softshrink", ("softshrink",), {"lambd": 0.5}),
    Activation("Hardshrink", "hardshrink", ("hardshrink",), {"lambd": 0.5}),
    Activation("Tanhshrink", "tanhshrink", ("tanhshrink",)),
    Activation("Mish", "mish", ("mish",)),
    Activation("Hardtanh", "hardtanh", ("hardtanh",), {"min_val": -1.0, "max_val": 1.0}),
    Activation("ReLU6", "relu6", ("relu6",)),
    Activation("Hardsigmoid", "hardsigmoid", ("hardsigmoid",)),
    Activation("Hardswish", "hardswish", ("hardswish",)),
    Activation("LogSigmoid", "logsigmoid", ("logsigmoid",)),
    Activation("Threshold", "threshold", ("threshold",), {"threshold": None, "value": None}),
    # not in torch.nn
    Activation("Abs", "abs", ("abs",)),
    Activation("Heaviside", "heaviside", ("unit_step",)),
    Activation("Erf", "erf", ("erf",)),
    Activation("Cos", "cos", ("cos",)),
    Activation("Exp", "exp", ("exp",)),
    Activation("Sin", "sin", ("sin",)),
    Activation("Square", "square", ("square",)),
    Activation("NormalCdf", "normal_cdf", ("normal_cdf",)),
    Activation("Atan", "atan", ("atan",)),
    Activation("PseudoHuber", "pseudo_huber", ("pseudo_huber",)),
)
#: name of a function -> its row
BY_FUNCTION: dict[str, Activation] = {name: row for row in ACTIVATIONS for name in row.functions}

#: functions without an op that are defined and smooth on the whole line: integrated by quadrature
INTEGRATED = names("expm1 exp2 sinh cosh asinh erfc sinc")
#: functions that are not defined for every value of a normal variable: refused
UNDEFINED = names("log log2 log10 log1p acos asin acosh atanh tan lgamma digamma logit erfinv")
