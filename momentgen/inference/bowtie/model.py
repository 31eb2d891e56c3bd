"""The bow tie network as a model: its sizes and priors, the state of its Markov chains, its un-normalised log joint.

The first stage of :mod:`momentgen.inference.bowtie`: :mod:`~momentgen.inference.bowtie.conditionals` draws the blocks
of a :class:`State` one given the others, :mod:`~momentgen.inference.bowtie.gibbs` puts them together to a sweep.

Source: Smith, Lawson & Linderman, Bayesian Inference in Augmented Bow Tie Networks, equations (1) to (8).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from momentgen.errors import InputError


@dataclass(frozen=True)
class ConjugatePrior:
    """Conjugate prior of a layer: a unit's weights and bias N(mean, Σ₀), inverse noise variances Ga(shape, rate).

    Args:
        mean: μ₀, a number, or nested tuples that broadcast to ``(units, inputs + 1)``; the last column is the bias's.
        var: diagonal of Σ₀, a *variance*, likewise.
        shape: α₀ of the gamma distribution of the precisions η⁻².
        rate: its β₀.
        cov: Σ₀ in whole, in the place of ``var``: nested tuples ``(inputs + 1, inputs + 1)``, one for all units.

    Raises:
        InputError: for variances, shapes or rates that are not positive and finite.  Also for a ``cov`` that is not
            symmetric and positive definite, or beside a ``var``.
    """

    mean: float | tuple[tuple[float, ...], ...] = 0.0
    var: float | tuple[tuple[float, ...], ...] = 1.0
    shape: float = 1.0
    rate: float = 0.01
    cov: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        for name in ("var", "shape", "rate"):
            value = torch.as_tensor(getattr(self, name), dtype=torch.float64)
            if not bool(((value > 0) & value.isfinite()).all()):
                raise InputError(f"ConjugatePrior: expected {name} positive and finite, got {getattr(self, name)}")
        if not bool(torch.as_tensor(self.mean, dtype=torch.float64).isfinite().all()):
            raise InputError(f"ConjugatePrior: expected a finite mean, got {self.mean}")
        if self.cov is not None:
            matrix = torch.tensor(self.cov, dtype=torch.float64)
            square = matrix.dim() == 2 and matrix.shape[0] == matrix.shape[1]
            if not square or not torch.equal(matrix, matrix.mT) or int(torch.linalg.cholesky_ex(matrix).info):
                raise InputError(f"ConjugatePrior: expected cov symmetric and positive definite, got {self.cov}")
            if self.var != 1.0:
                raise InputError("ConjugatePrior: expected var or cov, got both")


class Data(NamedTuple):
    """Features and targets of a model, checked, and what is computed from the features once.

    Attributes:
        x: features with a column of ones, ``(n, features + 1)``.
        y: targets, ``(n, outputs)``; where chains have data of their own, ``(chains, n, outputs)``.
        outer: products of the columns of ``x``, ``(n, (features + 1)²)``.
    """

    x: Tensor
    y: Tensor
    outer: Tensor


class State(NamedTuple):
    """What a chain is at: all random values but the data.  The first dimension of every tensor is that of chains.

    Attributes:
        weights: of the L + 1 layers, ``(chains, units, inputs + 1)``; the last column is the bias.
        precisions: η⁻² of the L + 1 layers, ``(chains, units)``.
        activations: of the L hidden layers, ``(chains, n, units)``.
        gates: of the hidden layers, 0.0 or 1.0, ``(chains, n, units)``.
        gamma: Pólya-gamma variables of the hidden layers, ``(chains, n, units)``.
    """

    weights: tuple[Tensor, ...]
    precisions: tuple[Tensor, ...]
    activations: tuple[Tensor, ...]
    gates: tuple[Tensor, ...]
    gamma: tuple[Tensor, ...]


@dataclass(frozen=True)
class BowTieModel:
    """A bow tie network of any depth with diagonal noise.

    u₁ = W₁x + b₁, z ~ Bernoulli(sigmoid(u/τ)), a ~ N(z·u, η²), u₂ = W₂a + b₂, ..., y ~ N(u, η²).

    Args:
        widths: of the features, the hidden layers (at least one) and the targets.
        tau: temperature τ of the gates.
        priors: one for all layers, or one for each of them, the output layer's last.

    Raises:
        InputError: for widths that are not positive integers, or a temperature that is not positive and finite.  Also
            for another number of priors than of layers, and a prior that does not broadcast to its layer.

    >>> model = BowTieModel((2, 3, 1), tau=0.1)
    >>> model.depth
    1
    """

    widths: tuple[int, ...]
    tau: float = 0.1
    priors: ConjugatePrior | tuple[ConjugatePrior, ...] = ConjugatePrior()

    def __post_init__(self) -> None:
        if len(self.widths) < 3 or any(not isinstance(width, int) or width < 1 for width in self.widths):
            raise InputError(
                f"BowTieModel: expected widths of features, hidden layers and targets, positive, got {self.widths}"
            )
        if not (0 < self.tau < math.inf):
            raise InputError(f"BowTieModel: expected a temperature tau > 0, got {self.tau}")
        if not isinstance(self.priors, ConjugatePrior) and len(self.priors) != self.depth + 1:
            raise InputError(f"BowTieModel: expected {self.depth + 1} priors, a layer each, got {len(self.priors)}")
        for layer in range(self.depth + 1):
            self.weight_prior(layer, torch.device("cpu"))

    @property
    def depth(self) -> int:
        """Number L of hidden layers."""
        return len(self.widths) - 2

    def prior(self, layer: int) -> ConjugatePrior:
        """Of a layer, 0 for the first, L for the output's."""
        return self.priors if isinstance(self.priors, ConjugatePrior) else self.priors[layer]

    def weight_prior(self, layer: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean of a layer's weights, ``(units, inputs + 1)``, and the root of Σ₀.

        The root is the diagonal's standard deviations, ``(units, 1, inputs + 1)``, or with ``cov`` the lower Cholesky
        factor of each unit, ``(units, inputs + 1, inputs + 1)``.
        """
        prior, size = self.prior(layer), (self.widths[layer + 1], self.widths[layer] + 1)
        spread, wanted = (prior.var, size) if prior.cov is None else (prior.cov, (size[1], size[1]))
        mean, var = (torch.as_tensor(value, dtype=torch.float64, device=device) for value in (prior.mean, spread))
        try:
            mean, var = mean.expand(size), var.expand(wanted) if prior.cov is None else var.view(wanted)
        except RuntimeError:
            raise InputError(
                f"BowTieModel: expected a prior of layer {layer} that broadcasts to {size} and {wanted}, got "
                f"{tuple(mean.shape)} and {tuple(var.shape)}"
            ) from None
        if prior.cov is None:
            return mean, var.sqrt()[:, None]
        return mean, torch.linalg.cholesky(var).expand(size[0], -1, -1)

    def at(self, tau: float) -> BowTieModel:
        """The model of another temperature."""
        return self if tau == self.tau else replace(self, tau=tau)

    def data(self, x: Tensor, y: Tensor) -> Data:
        """Check features ``(n, widths[0])`` and targets ``(n, widths[-1])``, in float64.

        Raises:
            InputError: for other shapes, no rows, or values that are not finite.
        """
        for name, value, width in (("x", x, self.widths[0]), ("y", y, self.widths[-1])):
            if value.dim() != 2 or value.shape[1] != width or len(value) != len(x) or not len(value):
                raise InputError(f"BowTieModel: expected {name} of shape (n, {width}), got {tuple(value.shape)}")
            if not bool(value.isfinite().all()):
                raise InputError(f"BowTieModel: expected finite {name}, got NaN or infinity")
        with_one = with_ones(x.detach().double())
        return Data(with_one, y.detach().double(), (with_one[:, :, None] * with_one[:, None, :]).flatten(1))


def with_ones(a: Tensor) -> Tensor:
    """``a`` with a last column of ones, which the bias takes."""
    return torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1)


def inputs(state: State, data: Data, layer: int) -> Tensor:
    """What a layer's weights are applied to, with ones: ``(n, ...)`` for the first, else ``(chains, n, ...)``."""
    return data.x if layer == 0 else with_ones(state.activations[layer - 1])


def preactivations(state: State, data: Data, layer: int) -> Tensor:
    """u of a layer, ``(chains, n, units)``."""
    return inputs(state, data, layer) @ state.weights[layer].mT


def from_standard(noise: Tensor, root: Tensor) -> Tensor:
    """Weights less their prior mean, of standard normal ones ``(..., units, inputs + 1)``."""
    return root[:, 0] * noise if root.shape[-2] == 1 else (root @ noise[..., None])[..., 0]


def to_standard(off: Tensor, root: Tensor) -> Tensor:
    """The inverse of :func:`from_standard`."""
    if root.shape[-2] == 1:
        return off / root[:, 0]
    return torch.linalg.solve_triangular(root, off[..., None], upper=False)[..., 0]


def draw_gates(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """0.0 or 1.0."""
    uniform = torch.rand(logits.shape, generator=generator, dtype=logits.dtype, device=logits.device)
    return (uniform < logits.sigmoid()).to(logits.dtype)


def draw_gamma(shape: Tensor, rate: Tensor | float, generator: torch.Generator | None) -> Tensor:
    """Gamma variables of these shapes and rates."""
    return torch._standard_gamma(shape, generator=generator) / rate


def log_normal(value: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """Log density of a normal distribution with this precision, elementwise."""
    return 0.5 * (precision.log() - math.log(2 * math.pi) - precision * (value - mean).square())


def log_joint(model: BowTieModel, state: State, data: Data, augmented: bool = False) -> Tensor:
    """Log density of state and targets given the features, one per chain: shape ``(chains,)``.

    Args:
        model: sizes, temperature and priors.
        state: of any number of chains.
        data: by :meth:`BowTieModel.data`.
        augmented: with the Pólya-gamma variables (equation 7), without the density of PG(1, 0) at them, which depends
            on nothing else.  Otherwise without these variables (equation 6, and the priors), normalised.
    """
    chains = len(state.precisions[0])
    total = data.y.new_zeros(chains)
    for layer in range(model.depth + 1):
        u, precision = preactivations(state, data, layer), state.precisions[layer]
        if layer == model.depth:
            terms = log_normal(data.y, u, precision[:, None])
        else:
            gate, tilt = state.gates[layer], u / model.tau
            terms = log_normal(state.activations[layer], gate * u, precision[:, None])
            if augmented:
                terms = terms + (gate - 0.5) * tilt - 0.5 * state.gamma[layer] * tilt.square() - math.log(2)
            else:
                terms = terms + logsigmoid((2 * gate - 1) * tilt)
        mean, root = model.weight_prior(layer, data.y.device)
        shape, rate = model.prior(layer).shape, model.prior(layer).rate
        of_precision = shape * math.log(rate) - math.lgamma(shape) + (shape - 1) * precision.log() - rate * precision
        standard = to_standard(state.weights[layer] - mean, root)
        stretch = (root if root.shape[-2] == 1 else root.diagonal(dim1=1, dim2=2)).log().sum()
        of_weights = -0.5 * (standard.square() + math.log(2 * math.pi)).sum((1, 2)) - stretch
        total = total + terms.sum((1, 2)) + of_weights + of_precision.sum(1)
    return total
