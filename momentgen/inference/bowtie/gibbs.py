"""A sweep of block Gibbs sampling over a bow tie network, and where chains start.

The third stage of :mod:`momentgen.inference.bowtie`: a sweep is a function of state, data and generator.

Source: Smith, Lawson & Linderman, Bayesian Inference in Augmented Bow Tie Networks, section 3 and appendix A.  Beyond
the paper: gates and weights of the topmost hidden layer may be drawn with that layer's activations integrated out.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Generator, Tensor

from momentgen.errors import InputError
from momentgen.inference.bowtie.collapsed import collapsed_weights_conditional, draw_collapsed_gates
from momentgen.inference.bowtie.conditionals import (
    activations_conditional,
    gates_conditional,
    precisions_conditional,
    weights_conditional,
)
from momentgen.inference.bowtie.model import (
    BowTieModel,
    Data,
    State,
    draw_gamma,
    draw_gates,
    from_standard,
    preactivations,
    to_standard,
)
from momentgen.inference.polya_gamma_sampler.function import polya_gamma

#: blocks that may be drawn without the topmost activations
COLLAPSIBLE = ("gates", "weights")


def sweep(
    model: BowTieModel,
    state: State,
    data: Data,
    generator: Generator | None = None,
    collapsed: Collection[str] = ("gates",),
) -> State:
    """Draw every block once given the others.

    Args:
        model: sizes, temperature and priors.
        state: of any number of chains; not changed.
        data: by :meth:`BowTieModel.data`.
        generator: of all random numbers.
        collapsed: which of ``gates`` and ``weights`` of the topmost hidden layer are drawn with its activations
            integrated out.  ``()`` is the paper's sweep.  The weights are then one draw of units·(inputs + 1) numbers,
            whose cost grows with their third power.

    Raises:
        InputError: for other names, or where float64 cannot factor a conditional's information matrix.
    """
    check_collapsed(collapsed)
    top = model.depth - 1
    of_gates = model.depth - ("gates" in collapsed)
    gates = [draw_gates(gates_conditional(model, state, data, layer), generator) for layer in range(of_gates)]
    state = state._replace(gates=(*gates, *state.gates[of_gates:]))
    if "gates" in collapsed:
        state = state._replace(gates=(*gates, draw_collapsed_gates(model, state, data, generator)))
    tilts = (preactivations(state, data, layer) / model.tau for layer in range(model.depth))
    state = state._replace(gamma=tuple(polya_gamma(1, tilt, generator=generator) for tilt in tilts))
    early = "weights" in collapsed
    if early:
        drawn = collapsed_weights_conditional(model, state, data).draw(generator)
        state = _with_weights(state, top, drawn.view_as(state.weights[top]))
    state = state._replace(activations=activations_conditional(model, state, data).draw(generator))
    for layer in range(model.depth + 1):
        if not (early and layer == top):
            drawn = weights_conditional(model, state, data, layer).draw(generator)
            state = _with_weights(state, layer, drawn.squeeze(-2))
    layers = range(model.depth + 1)
    found = tuple(draw_gamma(*precisions_conditional(model, state, data, layer), generator) for layer in layers)
    return state._replace(precisions=found)


def check_collapsed(collapsed: Collection[str]) -> None:
    """Raise InputError for a name that a sweep does not have."""
    if isinstance(collapsed, str) or not set(collapsed) <= set(COLLAPSIBLE):
        raise InputError(f"sweep: expected collapsed among {COLLAPSIBLE}, got {collapsed!r}")


def _with_weights(state: State, layer: int, drawn: Tensor) -> State:
    return state._replace(weights=(*state.weights[:layer], drawn, *state.weights[layer + 1 :]))


# ------------------------------------------------------------------- the model


def simulate(model: BowTieModel, x: Tensor, chains: int, generator: Generator | None = None) -> tuple[State, Tensor]:
    """Parameters, latent values and targets ``(chains, n, outputs)`` from the model itself, for features ``(n, d)``."""
    data = model.data(x, x.new_zeros(len(x), model.widths[-1]))
    weights, precisions = [], []
    for layer in range(model.depth + 1):
        mean, root = model.weight_prior(layer, x.device)
        weights.append(mean + from_standard(_normal(mean.expand(chains, -1, -1), generator), root))
        shape = mean.new_full((chains, len(mean)), model.prior(layer).shape)
        precisions.append(draw_gamma(shape, model.prior(layer).rate, generator))
    state = State(tuple(weights), tuple(precisions), (), (), ())
    for layer in range(model.depth):
        u = preactivations(state, data, layer)
        gate = draw_gates(u / model.tau, generator)
        noise = _normal(u, generator) * precisions[layer].rsqrt()[:, None]
        state = state._replace(
            activations=(*state.activations, gate * u + noise),
            gates=(*state.gates, gate),
            gamma=(*state.gamma, polya_gamma(1, u / model.tau, generator=generator)),
        )
    u = preactivations(state, data, model.depth)
    return state, u + _normal(u, generator) * precisions[-1].rsqrt()[:, None]


def _normal(like: Tensor, generator: Generator | None) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format).normal_(generator=generator)


# ---------------------------------------------------------------------- starts


def random_start(model: BowTieModel, data: Data, chains: int, generator: Generator | None = None) -> State:
    """Chains with random weights of ReLU networks' usual scale, gates and activations as these have them.

    Noise variances are 0.1 at the outputs and 0.01 in the hidden layers, for targets in standard units.
    """
    weights = []
    for layer, below in enumerate(model.widths[:-1]):
        size = (chains, model.widths[layer + 1], below + 1)
        drawn = torch.randn(size, generator=generator, dtype=torch.float64, device=data.y.device)
        weights.append(drawn * math.sqrt((1 if layer == model.depth else 2) / (below + 1)))
    return _start_at(model, data, tuple(weights), generator)


@torch.enable_grad()
def relu_start(
    model: BowTieModel, data: Data, chains: int, generator: Generator | None = None, steps: int = 500
) -> State:
    """Chains at ReLU networks that Adam has trained for ``steps`` on squared errors and the weights' prior."""
    weights = [part.requires_grad_() for part in random_start(model, data, chains, generator).weights]
    adam = torch.optim.Adam(weights, lr=0.01)
    for _ in range(steps):
        state = State(tuple(weights), (), (), (), ())
        loss = data.y.new_zeros(())
        for layer in range(model.depth + 1):
            u = preactivations(state, data, layer)
            state = state._replace(activations=(*state.activations, u.relu()))
            mean, root = model.weight_prior(layer, u.device)
            loss = loss + 0.5 * to_standard(weights[layer] - mean, root).square().sum()
        # A noise variance of 0.01.
        loss = loss + 50 * (data.y - u).square().sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return _start_at(model, data, tuple(part.detach() for part in weights), generator)


def _start_at(model: BowTieModel, data: Data, weights: tuple[Tensor, ...], generator: Generator | None) -> State:
    """Chains at these weights, latent values as a ReLU network has them, noise as the residuals have it."""
    state = State(weights, (), (), (), ())
    for layer in range(model.depth):
        u = preactivations(state, data, layer)
        state = state._replace(
            activations=(*state.activations, u.relu()),
            gates=(*state.gates, (u > 0).double()),
            gamma=(*state.gamma, polya_gamma(1, u / model.tau, generator=generator)),
            precisions=(*state.precisions, u.new_full((len(u), u.shape[-1]), 100.0)),
        )
    off = data.y - preactivations(state, data, model.depth)
    return state._replace(precisions=(*state.precisions, 1 / (0.01 + off.square().mean(1))))
