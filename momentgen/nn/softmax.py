"""Softmax layers: the propagated class posterior q of independent logits.

They end a network.  ``Softmax`` gives the moments of the class's indicator, as
the paper's table has it: mean q, variance q (1 - q), which bounds the variance of the
probability itself from above.  ``LogSoftmax`` gives log q, which is certain.
"""

from __future__ import annotations

from typing import Any

import torch

from momentgen.errors import InputError
from momentgen.nn.functional import Posterior, log_class_posterior
from momentgen.nn.layer import Layer, certain, known
from momentgen.runtime import Moments

__all__ = ["LogSoftmax", "Softmax", "Softmax2d", "Softmin"]


class _Softmax(Layer):
    """What the softmaxes share.

    Attributes:
        approximation: of :func:`momentgen.nn.functional.log_class_posterior`.
    """

    dim: int | None
    approximation: Posterior = "logistic"

    def _dim(self, x: Moments) -> int:
        if self.dim is None:
            raise InputError(f"{type(self).__name__}: expected dim to be given")
        return self.dim

    def moments(self, x: Moments) -> Moments:
        log_q = log_class_posterior(x, self._dim(x), self.approximation)
        q = log_q.exp()
        return known(q, q * -torch.expm1(log_q))

    def statistics(self, x: Moments) -> Any:
        return x  # statistics of logits are what a normalisation wants


class Softmax(_Softmax, torch.nn.Softmax):
    """:class:`torch.nn.Softmax` over moments; see :mod:`momentgen.nn.softmax`."""


class Softmax2d(_Softmax, torch.nn.Softmax2d):
    """:class:`torch.nn.Softmax2d` over moments; see :mod:`momentgen.nn.softmax`."""

    dim = -3


class Softmin(_Softmax, torch.nn.Softmin):
    """:class:`torch.nn.Softmin` over moments; see :mod:`momentgen.nn.softmax`."""

    def moments(self, x: Moments) -> Moments:
        return super().moments(Moments(-x.mean, x.var))


class LogSoftmax(_Softmax, torch.nn.LogSoftmax):
    """:class:`torch.nn.LogSoftmax` over moments: log q, certain; see :mod:`momentgen.nn.softmax`."""

    def moments(self, x: Moments) -> Moments:
        return certain(log_class_posterior(x, self._dim(x), self.approximation))
