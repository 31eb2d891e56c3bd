"""Moments of activations, written by `momentgen build`: do not edit.

Each op takes the mean and variance of its input and returns those of its output::

    NAME(mean, var, *, variant="exact", **params) -> Moments
"""

from .abs import abs as abs
from .bernoulli_noise import bernoulli_noise as bernoulli_noise
from .difference import difference as difference
from .heaviside import heaviside as heaviside
from .leaky_relu import leaky_relu as leaky_relu
from .log_softmax import log_softmax as log_softmax
from .logistic_bernoulli import logistic_bernoulli as logistic_bernoulli
from .logistic_transform import logistic_transform as logistic_transform
from .maximum import maximum as maximum
from .maximum_correlated import maximum_correlated as maximum_correlated
from .normal_cdf import normal_cdf as normal_cdf
from .probit import probit as probit
from .product import product as product
from .relu import relu as relu
from .softmax import softmax as softmax

__all__ = [
    "abs",
    "bernoulli_noise",
    "difference",
    "heaviside",
    "leaky_relu",
    "log_softmax",
    "logistic_bernoulli",
    "logistic_transform",
    "maximum",
    "maximum_correlated",
    "normal_cdf",
    "probit",
    "product",
    "relu",
    "softmax",
]
