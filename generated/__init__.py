"""Moments of activations, written by `momentgen build`: do not edit.

Each op takes the mean and variance of its input and returns those of its output::

    NAME(mean, var, *, variant="exact", **params) -> Moments
"""

from .abs import abs as abs
from .heaviside import heaviside as heaviside
from .leaky_relu import leaky_relu as leaky_relu
from .logistic_transform import logistic_transform as logistic_transform
from .relu import relu as relu
from .tanh import tanh as tanh

__all__ = [
    "abs",
    "heaviside",
    "leaky_relu",
    "logistic_transform",
    "relu",
    "tanh",
]
