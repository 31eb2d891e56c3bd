"""Gamma laws of precisions: moment matching, and the step of expectation propagation that refines the prior.

Source: Hernández-Lobato & Adams 2015, Probabilistic Backpropagation, equations (12), (13) and section 3.3.
"""

from __future__ import annotations

import torch
from torch import Tensor


def match_gamma(law: Tensor, log_z: Tensor, log_z1: Tensor, log_z2: Tensor) -> tuple[Tensor, Tensor]:
    """The gamma law with the first two moments of the tilted one, and where there is one.

    Args:
        law: shape and rate, ``(..., 2)``, float64.
        log_z: log Z for that law, ``(...)``.
        log_z1: the same with the shape raised by 1.
        log_z2: the same with the shape raised by 2.

    Returns:
        The new law, ``law`` itself where its moments do not exist, and a mask of where they do.
    """
    shape, rate = law.unbind(-1)
    grow = torch.expm1(log_z2 - log_z1 - (log_z1 - log_z))
    new_shape = 1 / (grow + (1 + grow) / shape)
    new_rate = rate / (torch.exp(log_z2 - log_z1) * (shape + 1) - torch.exp(log_z1 - log_z) * shape)
    good = (new_shape > 1) & (new_rate > 0) & new_shape.isfinite() & new_rate.isfinite()
    return torch.where(good[..., None], torch.stack([new_shape, new_rate], -1), law), good


class PriorFactors:
    """The prior p(w | λ) = N(0, 1/λ) of each weight, approximated by a normal factor in w times a gamma factor in λ.

    All in float64: natural parameters are differences of large numbers.

    Args:
        shape: of the gamma law of the precision λ before any data, above 1.
        rate: of the same.
        mean: means of the factors at first, ``(replicates, weights)``.
        var: their *variances*.
    """

    def __init__(self, shape: float, rate: float, mean: Tensor, var: Tensor) -> None:
        mean, var = mean.double(), var.double()
        self.law = torch.tensor([shape, rate], dtype=torch.float64, device=var.device).repeat(len(var), 1)
        self._least_shape = shape
        self.precision, self.scaled_mean = 1 / var, mean / var
        self.shape, self.rate = torch.zeros_like(var), torch.zeros_like(var)

    def refine(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step of expectation propagation for all factors at once.

        Each factor is replaced in the posterior by the exact one, and moments are matched.  The quotient is the
        factor's new value; the gamma law then takes all the changes.  Factors without a proper cavity, or whose
        moments do not exist, stay as they are.

        Args:
            mean: posterior means of the weights, ``(replicates, weights)``.
            var: their *variances*.

        Returns:
            The new means and variances, in the dtype of the old ones, and the number of skipped factors per replicate.
        """
        m, v = mean.double(), var.double()
        cavity_precision = 1 / v - self.precision
        cavity_var = 1 / cavity_precision
        cavity_mean = (m / v - self.scaled_mean) * cavity_var
        a, b = self.law[:, :1] - self.shape, self.law[:, 1:] - self.rate
        # A cavity of next to no precision says that the data know nothing of this weight.
        proper = (cavity_var > 0) & (cavity_var < 1e6) & (a > 1) & (b > 0)
        log_zs = []
        for more in (-1, 0, 1):
            total = cavity_var + b / (a + more)
            log_zs.append(-0.5 * (total.log() + cavity_mean.square() / total))
        total = cavity_var + b / (a - 1)
        new_mean = cavity_mean - cavity_var * cavity_mean / total
        new_var = cavity_var - cavity_var.square() / total
        law, matched = match_gamma(torch.stack(torch.broadcast_tensors(a, b), -1), *log_zs)
        good = proper & matched & (new_var > 0) & new_mean.isfinite()
        # What each factor alone would add to the gamma law.  All together take a part of the way where they would bring
        # the shape below the first one, halve the rate, or double either: large steps throw small data sets off.
        added = torch.where(good[..., None], law - self.law[:, None], 0.0)
        total = added.sum(1)
        room = torch.stack([(self.law[:, 0] - self._least_shape).clamp(min=0), 0.5 * self.law[:, 1]], 1)
        part = torch.where(total < 0, -room / total, self.law / total).amin(1).clamp(max=1)
        added *= part[:, None, None]
        self.law = self.law + added.sum(1)
        self.shape, self.rate = self.shape + added[..., 0], self.rate + added[..., 1]
        found_mean, found_var = (
            torch.where(good, new, old).to(mean.dtype) for new, old in ((new_mean, m), (new_var, v))
        )
        self.precision = torch.where(good, 1 / new_var - cavity_precision, self.precision)
        self.scaled_mean = torch.where(good, new_mean / new_var - cavity_mean * cavity_precision, self.scaled_mean)
        return found_mean, found_var, (~good).sum(1)
