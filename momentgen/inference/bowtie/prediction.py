"""Predictions from the draws of a bow tie network's chains: a mixture of normal distributions, one per draw.

The last stage of :mod:`momentgen.inference.bowtie`.  A draw has parameters, gates and lower activations at new
features.  It gives a normal distribution of the targets, since the topmost activations are integrated out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.bowtie.model import BowTieModel, with_ones
from momentgen.runtime import Moments

#: numbers of a hidden layer held at once, over draws, rows and units
_AT_ONCE = 4_000_000


class Draws(NamedTuple):
    """What chains keep of their states.

    Attributes:
        weights: of the L + 1 layers, ``(chains, draws, units, inputs + 1)``.
        precisions: η⁻² of the layers, ``(chains, draws, units)``.
        log_joint: of state and targets, without Pólya-gamma variables, ``(chains, draws)``.
    """

    weights: tuple[Tensor, ...]
    precisions: tuple[Tensor, ...]
    log_joint: Tensor


class Predictive(NamedTuple):
    """Equally weighted normal distributions of the targets, and moments in which the topmost gates are integrated out.

    Attributes:
        means: of the components, ``(draws, n, outputs)``.
        roots: Cholesky factors of their covariances, ``(draws, outputs, outputs)``.
        expected: mean of the targets, given the parameters and lower activations of a draw, ``(draws, n, outputs)``.
        spread: their *variance*, likewise.
    """

    means: Tensor
    roots: Tensor
    expected: Tensor
    spread: Tensor

    def moments(self) -> Moments:
        """Mean and *variance* of the targets, noise included, ``(n, outputs)``."""
        return Moments(self.expected.mean(0), self.spread.mean(0) + self.expected.var(0, correction=0))

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density of targets ``(n, outputs)`` under the mixture, ``(n,)``."""
        off = torch.linalg.solve_triangular(self.roots, (y - self.means).mT, upper=False)
        stretch = self.roots.diagonal(dim1=1, dim2=2).log().sum(1)
        terms = -0.5 * (off.square().sum(1) + off.shape[1] * math.log(2 * math.pi)) - stretch[:, None]
        return terms.logsumexp(0) - math.log(len(terms))

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws of the targets, ``(count, n, outputs)``, on the CPU; rows are independent."""
        means, roots = self.means.cpu(), self.roots.cpu()
        which = torch.randint(len(means), (count, means.shape[1]), generator=generator)
        noise = torch.randn(count, *means.shape[1:], generator=generator, dtype=means.dtype)
        return means[which, torch.arange(means.shape[1])] + (roots[which] @ noise[..., None])[..., 0]

    def quantile(self, level: float) -> Tensor:
        """Quantile of each target under the mixture, ``(n, outputs)``, by bisection to float64's resolution.

        Raises:
            InputError: for a level that is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise InputError(f"quantile: expected a level between 0 and 1, got {level}")
        std = self.roots.square().sum(2).sqrt()[:, None]
        # Every component's quantile is between these.
        reach = std * torch.special.ndtri(torch.tensor(level, dtype=std.dtype)).item()
        low, high = (self.means + reach).amin(0), (self.means + reach).amax(0)
        for _ in range(80):
            middle = 0.5 * (low + high)
            below = torch.special.ndtr((middle - self.means) / std).mean(0) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return 0.5 * (low + high)


def predict(model: BowTieModel, draws: Draws, x: Tensor, seed: int = 0) -> Predictive:
    """The predictive distribution of each row of features ``(n, widths[0])``.

    Random numbers are the same for all rows, so that a row's prediction does not depend on the others.

    Raises:
        InputError: for features of another shape, or that are not finite, or where nothing has been drawn.
    """
    if x.dim() != 2 or x.shape[1] != model.widths[0] or not bool(x.isfinite().all()):
        raise InputError(f"predict: expected finite features of shape (n, {model.widths[0]}), got {tuple(x.shape)}")
    weights, precisions = (tuple(part.flatten(0, 1) for part in field) for field in (draws.weights, draws.precisions))
    count = len(precisions[0])
    if not count:
        raise InputError("predict: expected chains that have kept draws, got none")
    generator = torch.Generator(x.device).manual_seed(seed)
    empty = [torch.empty(count, 1, width, dtype=torch.float64, device=x.device) for width in model.widths[1:-1]]
    uniform = [part.clone().uniform_(generator=generator) for part in empty]
    noise = [part.normal_(generator=generator) for part in empty[:-1]]
    size = max(1, _AT_ONCE // (max(len(x), 1) * max(model.widths)))
    parts = []
    for start in range(0, count, size):
        part = slice(start, start + size)
        a = x.double()
        for layer in range(model.depth):
            u = with_ones(a) @ weights[layer][part].mT
            on = (u / model.tau).sigmoid()
            gate = (uniform[layer][part] < on).double()
            if layer < model.depth - 1:
                a = gate * u + noise[layer][part] * precisions[layer][part].rsqrt()[:, None]
        matrix, bias = weights[-1][part][:, :, :-1], weights[-1][part][:, None, :, -1]
        cov = (matrix / precisions[-2][part][:, None]) @ matrix.mT
        cov = cov + torch.diag_embed(precisions[-1][part].reciprocal())
        spread = (on * (1 - on) * u.square()) @ matrix.square().mT + cov.diagonal(dim1=1, dim2=2)[:, None]
        parts.append(
            Predictive((gate * u) @ matrix.mT + bias, torch.linalg.cholesky(cov), (on * u) @ matrix.mT + bias, spread)
        )
    return Predictive(*(torch.cat(field) for field in zip(*parts, strict=True)))
