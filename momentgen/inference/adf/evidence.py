"""How the filter takes a likelihood: which log Z, from which targets, and where the noise begins.

``filter.c`` has log Z of one datum and its derivatives by the output's mean and variance.  Where Z is exact, it is that
of ``log_z`` of :mod:`momentgen.inference.likelihood`.

Sources:

- Hernández-Lobato & Adams 2015, Probabilistic Backpropagation, sections 2 and 3 (regression);
- Ghosh, Delle Fave & Yedidia 2016, Assumed Density Filtering Methods for Learning Bayesian Neural Networks (classes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from momentgen.errors import InputError
from momentgen.inference.likelihood import Categorical, Gaussian, Likelihood, Probit

#: number of the evidence in ``filter.c``
_GAMMA_NOISE, _KNOWN_NOISE, _PROBIT, _SAMPLED_SOFTMAX, _SOFTMAX_BOUND = range(5)


@dataclass(frozen=True)
class OutputModel:
    """A likelihood as ``filter.c`` takes it.

    Attributes:
        code: number of the evidence.
        start: shape and rate of the noise precision's gamma law before any data.
        samples: normal numbers per output that a datum takes.
    """

    code: int
    start: tuple[float, float] = (6.0, 6.0)
    samples: int = 0

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        """The targets as the filter takes them, checked: ``(replicates, n, outputs)``; of labels one column."""
        if self.code in (_GAMMA_NOISE, _KNOWN_NOISE):
            y = y.unsqueeze(2) if y.dim() == 2 else y
            if y.dim() != 3 or y.shape[2] != outputs:
                raise InputError(f"expected targets of shape (replicates, n, {outputs}), got {tuple(y.shape)}")
            return y
        if (outputs == 1) != (self.code == _PROBIT):
            wanted = "one output" if self.code == _PROBIT else "several outputs"
            raise InputError(f"expected a network of {wanted}, got {outputs}")
        if y.dim() != 2:
            raise InputError(f"expected labels of shape (replicates, n), got {tuple(y.shape)}")
        classes = max(outputs, 2)
        wrong = (y != y.round()) | (y < 0) | (y >= classes)
        if bool(wrong.any()):
            raise InputError(f"expected labels 0 to {classes - 1}, got {y[wrong][0].item()}")
        return (2 * y - 1 if self.code == _PROBIT else y).unsqueeze(2)


def output_model(likelihood: Likelihood, samples: int) -> OutputModel:
    """What the filter computes with, for a likelihood.

    Args:
        likelihood: ``Gaussian`` with one Gamma precision or one known variance, ``Probit``, or ``Categorical``.  The
            last uses ``samples`` of the outputs, or the log bound if its ``expectation`` is ``bound``.
        samples: draws of the outputs a datum.

    Raises:
        InputError: for other likelihoods, and for a noise that is learnt by gradients or differs between outputs.  Also
            for a Gamma precision with a shape that is not above 1, and less than one sample.
    """
    if isinstance(likelihood, Gaussian):
        gamma = likelihood.precision
        noise = [likelihood.var] if gamma is None else [gamma.shape, gamma.rate]
        if any(isinstance(p, nn.Parameter) for p in likelihood.parameters()) or any(t.numel() != 1 for t in noise):
            raise InputError("DensityFilter: expected one noise for all outputs, not learnt by gradients")
        if gamma is None:
            return OutputModel(_KNOWN_NOISE, (2.0, noise[0].item()))
        shape, rate = (part.item() for part in noise)
        if not (1 < shape < math.inf and 0 < rate < math.inf):
            raise InputError(f"DensityFilter: expected a noise of shape above 1 and rate above 0, got {shape}, {rate}")
        return OutputModel(_GAMMA_NOISE, (shape, rate))
    if isinstance(likelihood, Probit):
        return OutputModel(_PROBIT)
    if isinstance(likelihood, Categorical) and likelihood.expectation != "mean_predictor":
        if likelihood.expectation == "bound":
            return OutputModel(_SOFTMAX_BOUND)
        if samples < 1:
            raise InputError(f"DensityFilter: expected at least one sample, got {samples}")
        return OutputModel(_SAMPLED_SOFTMAX, samples=samples)
    raise InputError(
        "DensityFilter: expected a Gaussian, Probit or Categorical likelihood (not by the mean predictor), got "
        f"{likelihood!r}"
    )
