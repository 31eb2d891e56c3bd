"""The exact posterior of a linear model whose noise and prior scale are learnt by their evidence.

With features and targets about their means, y_k = w_k · x + noise of variance σ_k² and w_k ~ N(0, (σ_k² / r_k) 1):

    w_k | data ~ N((G + r_k)⁻¹ b_k, σ_k² (G + r_k)⁻¹),    G = Σ x xᵀ,  b_k = Σ x y_k

The intercept has a flat prior, which leaves n - 1 rows to the noise.  The ratio r_k has the largest evidence.  σ_k²
is the best for this ratio, in closed form.  One decomposition of G serves all ratios.

Source: MacKay 1992, Bayesian interpolation.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from scipy import optimize
from torch import Tensor

from momentgen.runtime import Moments

#: logarithms of noise over prior over rows, between which the evidence is searched, and on how many points
_RATIOS, _POINTS = (-27.6, 13.8), 200
#: least noise variance, of targets in standard units: targets on a line leave none
_LEAST = 1e-12


class _Solved(NamedTuple):
    axes: Tensor
    coef: Tensor  # (features, outputs)
    shrunk: Tensor  # posterior variance over the noise's, of each axis and output
    noise: Tensor
    log_z: float


class LinearPosterior:
    """Exact Bayesian regression on features and targets in standard units, from sums that chunks add to.

    Args:
        prior_var: *variance* of the coefficients' prior; None learns it, for each target.

    >>> x = torch.linspace(-1, 1, 101, dtype=torch.float64)[:, None]
    >>> model = LinearPosterior().add(x, 2 * x + 0.5)
    >>> model(torch.tensor([[0.5]])).mean
    tensor([[1.5000]], dtype=torch.float64)
    """

    def __init__(self, prior_var: float | None = None) -> None:
        self.prior_var, self.rows = prior_var, 0.0
        self._mean = self._scatter = torch.zeros(0, dtype=torch.float64)

    def add(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> LinearPosterior:
        """Take in features ``(n, features)`` and targets ``(n, outputs)``, each row as often as its weight says."""
        both = torch.cat([x, y], 1).double().cpu()
        counts = torch.ones(len(both), dtype=torch.float64) if weights is None else weights
        count = counts.sum().item()
        mean = counts @ both / count
        scatter = (both - mean).mT @ (counts[:, None] * (both - mean))
        if self.rows:
            off, share = mean - self._mean, count / (self.rows + count)
            scatter = self._scatter + scatter + self.rows * share * torch.outer(off, off)
            mean = self._mean + share * off
        self._mean, self._scatter, self.rows = mean, scatter, self.rows + count
        self._features = x.shape[1]
        self.__dict__.pop("_solved", None)
        return self

    @functools.cached_property
    def _solved(self) -> _Solved:
        d = self._features
        values, axes = torch.linalg.eigh(self._scatter[:d, :d])
        values, along = values.clamp_min(0), axes.mT @ self._scatter[:d, d:]
        totals = self._scatter.diagonal()[d:]
        found = [self._solve(values, b, total) for total, b in zip(totals, along.mT, strict=True)]
        coef, shrunk, noises, logs = zip(*found, strict=True)
        return _Solved(axes, axes @ torch.stack(coef, 1), torch.stack(shrunk, 1), torch.cat(noises), sum(logs))

    def _solve(self, values: Tensor, b: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
        """Coefficients of one target along the axes, their variances over the noise's, the noise, and log Z."""
        free, least = max(self.rows - 1, 1), _LEAST * self.rows

        def rest_and_noise(r: Tensor) -> tuple[Tensor, Tensor]:
            rest = (total - (b.square() / (values + r[:, None])).sum(1)).clamp_min(least)
            return rest, rest / free if self.prior_var is None else self.prior_var * r

        def evidence(log: Tensor) -> Tensor:
            rest, noise = rest_and_noise(log.exp())
            fit = -0.5 * (free * noise.log() + rest / noise)
            return fit + 0.5 * (log[:, None] - (values + log.exp()[:, None]).log()).sum(1)

        grid = math.log(self.rows) + torch.linspace(*_RATIOS, _POINTS, dtype=torch.float64)
        best, step = grid[evidence(grid).argmax()].item(), (grid[1] - grid[0]).item()
        log = optimize.minimize_scalar(
            lambda at: -evidence(torch.tensor([at], dtype=torch.float64)).item(),
            bounds=(best - step, best + step),
            method="bounded",
        ).x
        r = torch.tensor([log], dtype=torch.float64).exp()
        noise = rest_and_noise(r)[1]
        noise = noise if self.rows > 1 else torch.ones_like(noise)  # one row says nothing: a standard unit
        log_z = evidence(r.log()).item() - 0.5 * free * math.log(2 * math.pi)
        return b / (values + r), 1 / (values + r), noise, log_z

    @property
    def noise(self) -> Tensor:
        """*Variance* of the targets about the line, ``(outputs,)``."""
        return self._solved.noise

    @property
    def log_z(self) -> float:
        """Log evidence of the data, of all targets."""
        return self._solved.log_z

    def __call__(self, x: Tensor) -> Moments:
        """Mean and *variance* of the line, noise left out, at features ``(n, features)``: ``(n, outputs)``."""
        off, found = x.double().cpu() - self._mean[: self._features], self._solved
        spread = (off @ found.axes).square() @ found.shrunk + 1 / self.rows
        return Moments(off @ found.coef + self._mean[self._features :], spread * found.noise)
