"""Moments of activations, written by `momentgen build`: do not edit.

Each op takes the mean and variance of its input and returns those of its output::

    NAME(mean, var, *, variant="exact", **params) -> Moments
"""

__path__.append(f"{__path__[0]}/.old")  # where a build that was killed may have left a rule

from .abs import abs as abs
from .atan import atan as atan
from .bernoulli_noise import bernoulli_noise as bernoulli_noise
from .bow_tie import bow_tie as bow_tie
from .celu import celu as celu
from .cos import cos as cos
from .difference import difference as difference
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
from .logistic_bernoulli import logistic_bernoulli as logistic_bernoulli
from .logistic_transform import logistic_transform as logistic_transform
from .logsigmoid import logsigmoid as logsigmoid
from .maximum import maximum as maximum
from .maximum_correlated import maximum_correlated as maximum_correlated
from .mish import mish as mish
from .normal_cdf import normal_cdf as normal_cdf
from .probit import probit as probit
from .product import product as product
from .pseudo_huber import pseudo_huber as pseudo_huber
from .relu import relu as relu
from .relu6 import relu6 as relu6
from .relu_squared import relu_squared as relu_squared
from .rrelu import rrelu as rrelu
from .selu import selu as selu
from .sigmoid import sigmoid as sigmoid
from .silu import silu as silu
from .sin import sin as sin
from .softplus import softplus as softplus
from .softshrink import softshrink as softshrink
from .softsign import softsign as softsign
from .square import square as square
from .tanh import tanh as tanh
from .tanhshrink import tanhshrink as tanhshrink
from .threshold import threshold as threshold

__all__ = [
    "abs",
    "atan",
    "bernoulli_noise",
    "bow_tie",
    "celu",
    "cos",
    "difference",
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
    "logistic_bernoulli",
    "logistic_transform",
    "logsigmoid",
    "maximum",
    "maximum_correlated",
    "mish",
    "normal_cdf",
    "probit",
    "product",
    "pseudo_huber",
    "relu",
    "relu6",
    "relu_squared",
    "rrelu",
    "selu",
    "sigmoid",
    "silu",
    "sin",
    "softplus",
    "softshrink",
    "softsign",
    "square",
    "tanh",
    "tanhshrink",
    "threshold",
]
