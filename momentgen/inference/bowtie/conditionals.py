"""The complete conditional distributions of a bow tie network.

The second stage of :mod:`momentgen.inference.bowtie`.  A normal conditional is a normal distribution (a prior, or the
noise about z·u) times a Gaussian factor exp(−½wᵀAw + gᵀw).  Both are counted from the centre of that distribution and
in its root s, with covariance ssᵀ.  So the matrix to factor is I + sᵀAs, whose least eigenvalue is 1.  Its columns are
scaled alike before it is factored, so that A may be singular.

Source: Smith, Lawson & Linderman, Bayesian Inference in Augmented Bow Tie Networks, appendix A, with the misprints of
equations (11), (17) and (18) mended.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from momentgen.errors import InputError
from momentgen.inference.bowtie.model import BowTieModel, Data, State, inputs, preactivations


def _plus_one(matrix: Tensor) -> Tensor:
    return matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def factor(matrix: Tensor, where: str) -> Tensor:
    """Lower Cholesky factor, or an error that says where."""
    root, failed = torch.linalg.cholesky_ex(matrix)
    if bool(failed.any()) or not bool(root.isfinite().all()):
        raise InputError(
            f"{where}: expected a matrix that is positive definite and finite in float64, got one that is not; "
            "bring features and targets to standard units"
        )
    return root


@dataclass
class NormalConditional:
    """N(centre, diag std²) times exp(−½wᵀAw + gᵀw), normalised; vectors are rows, of which several may share A.

    Attributes:
        centre: ``(..., m, p)``.
        std: root s of the covariance before the factor, its diagonal ``(..., 1, p)`` or lower triangle ``(..., p, p)``.
        scale: ``(..., 1, p)``, of each component of I + sᵀAs.
        root: lower Cholesky factor of I + sᵀAs in that scale, ``(..., p, p)``.
        half: its inverse times the linear term, ``(..., p, m)``.
    """

    centre: Tensor
    std: Tensor
    scale: Tensor
    root: Tensor
    half: Tensor

    @classmethod
    def of(cls, centre: Tensor, std: Tensor, information: Tensor, linear: Tensor, where: str) -> NormalConditional:
        """From A, ``(..., p, p)``, and g at the centre, that is g − A·centre, ``(..., m, p)``."""
        diagonal = std.shape[-2] == 1
        scaled = _plus_one(std.mT * information * std if diagonal else std.mT @ information @ std)
        scale = scaled.diagonal(dim1=-2, dim2=-1).rsqrt()[..., None, :]
        scaled = scale.mT * scaled * scale
        root = factor(scaled, where)
        linear = linear * std if diagonal else linear @ std
        half = torch.linalg.solve_triangular(root, (linear * scale).mT, upper=False)
        return cls(centre, std, scale, root, half)

    def draw(self, generator: Generator | None) -> Tensor:
        """One draw of every vector, shape of the centre."""
        noise = torch.randn(self.half.shape, generator=generator, dtype=self.half.dtype, device=self.half.device)
        moved = torch.linalg.solve_triangular(self.root.mT, self.half + noise, upper=True).mT
        if self.std.shape[-2] == 1:
            return self.centre + self.std * self.scale * moved
        return self.centre + (self.scale * moved) @ self.std.mT


@dataclass
class Message:
    """What the layers above say of a layer's activations: the factor exp(−½aᵀAa + gᵀa) of each row of data.

    Attributes:
        information: A, ``(chains, n, d, d)``, or ``(chains, 1, d, d)`` where all rows share it.
        linear: g, ``(chains, n, d)``.
    """

    information: Tensor
    linear: Tensor


def _message(state: State, data: Data, model: BowTieModel, layer: int, above: Message | None) -> Message:
    """The factor on the activations of hidden ``layer``, from that on those of ``layer + 1`` (None: targets)."""
    weights = state.weights[layer + 1]
    matrix, bias, precision = weights[:, :, :-1], weights[:, None, :, -1], state.precisions[layer + 1]
    if above is None:
        weighted = precision[:, :, None] * matrix
        return Message((matrix.mT @ weighted)[:, None], (data.y - bias) @ weighted)
    # With a ~ N(z·u, Σ) integrated out, the factor (A, g) becomes (K, k) on z·u: K = A − A(Σ⁻¹+A)⁻¹A,
    # k = Σ⁻¹(Σ⁻¹+A)⁻¹g.
    gate, gamma = state.gates[layer + 1], state.gamma[layer + 1] / model.tau**2
    std = precision.rsqrt()[:, None, None, :]
    scaled = std.mT * above.information * std
    root = factor(_plus_one(scaled), f"activations of hidden layer {layer + 1}")
    inner = torch.cholesky_solve(scaled, root)
    if above.information.shape[1] == 1:
        k = torch.cholesky_solve((above.linear * std[:, 0]).mT, root[:, 0]).mT / std[:, 0]
    else:
        k = torch.cholesky_solve((above.linear * std[:, 0])[..., None], root)[..., 0] / std[:, 0]
    # Factors on u, to which also the Pólya-gamma variable contributes, then on the activations below.
    full = gate[..., :, None] * (0.5 * (inner + inner.mT) / (std.mT * std)) * gate[..., None, :]
    full = full + torch.diag_embed(gamma)
    linear = (gate - 0.5) / model.tau + gate * k - (full @ bias[..., None])[..., 0]
    return Message(matrix.mT[:, None] @ full @ matrix[:, None], linear @ matrix)


@dataclass
class ActivationsConditional:
    """All activations of every row of data given the rest: a Markov chain over layers (equation 9).

    They are filtered from the targets down and drawn from the first layer up.  So the topmost layer's covariance is
    the same for all rows, and one hidden layer needs one Cholesky factor per chain.
    """

    model: BowTieModel
    state: State
    data: Data
    messages: tuple[Message, ...]

    def layer(self, layer: int, below: tuple[Tensor, ...]) -> NormalConditional:
        """A layer given those below, vectors ``(chains, 1, n, d)`` where rows share A, else ``(chains, n, 1, d)``."""
        message = self.messages[layer]
        u = preactivations(self.state._replace(activations=below), self.data, layer)
        centre, std = self.state.gates[layer] * u, self.state.precisions[layer].rsqrt()[:, None, None, :]
        shared = message.information.shape[1] == 1
        if shared:
            linear = (message.linear - centre @ message.information[:, 0])[:, None]
            centre = centre[:, None]
        else:
            linear = (message.linear[..., None] - message.information @ centre[..., None]).mT
            centre = centre[:, :, None]
        return NormalConditional.of(centre, std, message.information, linear, f"activations of hidden layer {layer}")

    def draw(self, generator: Generator | None) -> tuple[Tensor, ...]:
        """One draw, ``(chains, n, units)`` a hidden layer."""
        drawn: tuple[Tensor, ...] = ()
        for layer in range(self.model.depth):
            drawn = (*drawn, self.layer(layer, drawn).draw(generator).reshape(self.state.gates[layer].shape))
        return drawn


def activations_conditional(model: BowTieModel, state: State, data: Data) -> ActivationsConditional:
    """Equations (9) to (15), by backward filtering."""
    messages: list[Message] = []
    for layer in reversed(range(model.depth)):
        messages.insert(0, _message(state, data, model, layer, messages[0] if messages else None))
    return ActivationsConditional(model, state, data, tuple(messages))


def gram_of_units(weight: Tensor, state: State, data: Data, layer: int) -> Tensor:
    """Σ_n weight_nd ãã ᵀ for each unit d, ``(chains, units, p, p)``, from weights ``(chains, n, units)``."""
    if layer == 0:
        return (weight.mT @ data.outer).unflatten(-1, (data.x.shape[1], -1))
    below = inputs(state, data, layer)
    return (weight.mT[..., None] * below[:, None]).mT @ below[:, None]


def weights_conditional(model: BowTieModel, state: State, data: Data, layer: int) -> NormalConditional:
    """Rows of a layer's weights given the rest, vectors ``(chains, units, 1, inputs + 1)`` (equations 16 to 18)."""
    precision, below = state.precisions[layer], inputs(state, data, layer)
    if layer == model.depth:
        gram = precision[:, :, None, None] * (below.mT @ below).expand(len(precision), -1, -1)[:, None]
        linear = precision[:, :, None] * (data.y.mT @ below)
    else:
        gate = state.gates[layer]
        on = precision[:, None] * gate
        gram = gram_of_units(state.gamma[layer] / model.tau**2 + on, state, data, layer)
        linear = ((gate - 0.5) / model.tau + on * state.activations[layer]).mT @ below
    mean, root = model.weight_prior(layer, data.y.device)
    centre = mean[:, None].expand(len(precision), -1, -1, -1)
    linear = linear[:, :, None] - centre @ gram
    return NormalConditional.of(centre, root, gram, linear, f"weights of layer {layer}")


def precisions_conditional(model: BowTieModel, state: State, data: Data, layer: int) -> tuple[Tensor, Tensor]:
    """Shapes and rates of the gamma laws of a layer's precisions given the rest (equations 19 to 21)."""
    u, prior = preactivations(state, data, layer), model.prior(layer)
    off = data.y - u if layer == model.depth else state.activations[layer] - state.gates[layer] * u
    rate = prior.rate + 0.5 * off.square().sum(1)
    return torch.full_like(rate, prior.shape + len(data.x) / 2), rate


def gates_conditional(model: BowTieModel, state: State, data: Data, layer: int) -> Tensor:
    """Logits of a layer's gates given the rest but the Pólya-gamma variables (equations 22 and 23).

    Gates are independent; given u a gate and its Pólya-gamma variable are, too.
    """
    u = preactivations(state, data, layer)
    on = state.precisions[layer][:, None] * u
    return u / model.tau + on * (state.activations[layer] - 0.5 * u)
