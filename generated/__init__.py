"""Moments of activations, written by `momentgen build`: do not edit.

Each op takes the mean and variance of its input and returns those of its output::

    NAME(mean, var, *, variant="exact", **params) -> Moments
"""

from .abs import abs as abs
from .celu import celu as celu
from .cos import cos as cos
from .elu import elu as elu
from .erf import erf as erf
from .exp import exp as exp
from .gelu import gelu as gelu
from .gelu_tanh import gelu_tanh as gelu_tanh
from .hardshrink import hardshrink as hardshrink
from .hardsigmoid import hardsigmoid as hardsigmoid
from .hardswish import hardswish as hardswish
from .hardtanh import hardtanh as hardtanh
from .heaviside import heaviside as heaviside
from .leaky_relu import leaky_relu as leaky_relu
from .logistic_transform import logistic_transform as logistic_transform
from .logsigmoid import logsigmoid as logsigmoid
from .mish import mish as mish
from .relu import relu as relu
from .relu6 import relu6 as relu6
from .rrelu import rrelu as rrelu
from .sigmoid import sigmoid as sigmoid
from .silu import silu as silu
from .sin import sin as sin
from .softplus import softplus as softplus
from .softshrink import softshrink as softshrink
from .square import square as square
from .tanh import tanh as tanh
from .tanhshrink import tanhshrink as tanhshrink
from .threshold import threshold as threshold

__all__ = [
    "abs",
    "celu",
    "cos",
    "elu",
    "erf",
    "exp",
    "gelu",
    "gelu_tanh",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "heaviside",
    "leaky_relu",
    "logistic_transform",
    "logsigmoid",
    "mish",
    "relu",
    "relu6",
    "rrelu",
    "sigmoid",
    "silu",
    "sin",
    "softplus",
    "softshrink",
    "square",
    "tanh",
    "tanhshrink",
    "threshold",
]
