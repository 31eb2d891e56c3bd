"""Geweke's test of the whole sampler: with targets drawn anew after every sweep, the joint distribution must stay put.

Chains begin at independent draws from the model, so that after any number of sweeps they are independent draws from it
still, if every block and their order are right; a sample of fresh draws is what they are compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import ks_2samp
from torch import Tensor

from momentgen.inference.bowtie import gibbs
from momentgen.inference.bowtie.conditionals import GammaConditional
from momentgen.inference.bowtie.model import BowTieModel, ConjugatePrior, Data, State, preactivations

PRIOR = ConjugatePrior(mean=0.2, var=0.8, shape=3.0, rate=1.0)
X = torch.tensor([[-1.0], [0.3], [1.2]], dtype=torch.float64)
#: chance of a false alarm in one test of all statistics
LEVEL = 1e-4
POLYA_GAMMA = gibbs.polya_gamma


def statistics(model: BowTieModel, state: State, data: Data) -> dict[str, NDArray[Any]]:
    """Numbers of every chain: all parameters, and latent values by themselves and with others."""
    found: dict[str, Tensor] = {}
    for layer in range(model.depth + 1):
        u, precision = preactivations(state, data, layer), state.precisions[layer]
        found |= {f"weights {layer} {k}": w for k, w in enumerate(state.weights[layer].flatten(1).T)}
        found |= {f"precisions {layer} {k}": p for k, p in enumerate(precision.T)}
        if layer == model.depth:
            found["targets"] = data.y[:, 0, 0]
            found["scaled residuals"] = ((data.y - u) * precision[:, None].sqrt())[:, 0, 0]
            continue
        gate, a = state.gates[layer], state.activations[layer]
        found[f"activations {layer}"] = a[:, 0, 0]
        found[f"scaled noise {layer}"] = ((a - gate * u) * precision[:, None].sqrt())[:, 0, 0]
        found[f"gates {layer}"] = gate.mean((1, 2)) + 1e-3 * u[:, 0, 0].tanh()
        found[f"gates and u {layer}"] = ((gate - (u / model.tau).sigmoid()) * u)[:, 0, 0]
        found[f"gamma {layer}"] = state.gamma[layer][:, 0, 0]
        found[f"gamma and u {layer}"] = (state.gamma[layer] * u.square())[:, 0, 0]
        found[f"activations and targets {layer}"] = a[:, 0, 0] * data.y[:, 0, 0]
        found[f"activations and weights {layer}"] = a[:, 0, 0] * state.weights[layer + 1][:, 0, 0]
    return {name: part.numpy() for name, part in found.items()}


def worst(widths: tuple[int, ...], chains: int, sweeps: int, collapsed: tuple[str, ...]) -> tuple[float, str]:
    """The smallest p-value of Kolmogorov and Smirnov's test, times the number of statistics, and whose it is."""
    model = BowTieModel(widths, 0.5, PRIOR)
    draw = torch.Generator().manual_seed(1)
    empty = model.data(X, torch.zeros(len(X), widths[-1], dtype=torch.float64))
    fresh, targets = gibbs.simulate(model, X, chains, draw)
    expected = statistics(model, fresh, empty._replace(y=targets))
    state, y = gibbs.simulate(model, X, chains, draw)
    for _ in range(sweeps):
        state = gibbs.sweep(model, state, empty._replace(y=y), draw, collapsed=collapsed)
        u = preactivations(state, empty, model.depth)
        y = u + torch.empty_like(u).normal_(generator=draw) * state.precisions[-1].rsqrt()[:, None]
    found = statistics(model, state, empty._replace(y=y))
    values = {name: float(ks_2samp(found[name], expected[name]).pvalue) for name in found}
    assert np.isfinite(list(values.values())).all()
    least = min(values, key=lambda name: values[name])
    return values[least] * len(values), least


# ------------------------------------------------------------- planted errors


Conditional = Callable[..., Any]


def _inverse(state: State) -> State:
    return state._replace(precisions=(*state.precisions[:-1], state.precisions[-1].reciprocal()))


def _without_prior(right: Conditional) -> Conditional:
    """Without the gates' prior's log odds u/τ."""
    return lambda model, *given: right(model.at(1e12), *given)


def _wider(right: GammaConditional) -> GammaConditional:
    return GammaConditional(right.shape + 0.5, right.rate)


#: block -> where the sweep finds it, and the error
PLANTED: dict[str, tuple[str, Callable[[Conditional], Conditional]]] = {
    # equation (11) as it is printed: the output noise's variance where its inverse belongs
    "activations": (
        "activations_conditional",
        lambda right: lambda model, state, data: right(model, _inverse(state), data),
    ),
    # of the hidden layers, at a temperature a fifth too high
    "weights": ("weights_conditional", lambda right: lambda model, *given: right(model.at(1.2 * model.tau), *given)),
    # a shape of α₀ + (N + 1)/2
    "precisions": ("precisions_conditional", lambda right: lambda *given: _wider(right(*given))),
    "gates": ("gates_conditional", _without_prior),
    # PG(1, u) for PG(1, u/τ)
    "gamma": ("polya_gamma", lambda right: lambda b, z, **options: right(b, 0.5 * z, **options)),
    "collapsed gates": ("draw_collapsed_gates", _without_prior),
    "collapsed weights": ("collapsed_weights_conditional", _without_prior),
}


def planted_error_is_found(
    monkeypatch: pytest.MonkeyPatch, block: str, widths: tuple[int, ...], chains: int, sweeps: int
) -> None:
    name, wrong = PLANTED[block]
    monkeypatch.setattr(gibbs, name, wrong(getattr(gibbs, name)))
    if block == "gamma":
        # Draws from the model itself, which start the test, stay right.
        simulate, right = gibbs.simulate, POLYA_GAMMA

        def kept(*given: Any) -> Any:
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(gibbs, "polya_gamma", right)
                return simulate(*given)

        monkeypatch.setattr(gibbs, "simulate", kept)
    collapsed = ("gates",) if block == "collapsed gates" else ("weights",) if block == "collapsed weights" else ()
    p, _ = worst(widths, chains, sweeps, collapsed)
    assert p < LEVEL


#: widths, chains, sweeps; `make slow` has more of each
QUICK = [((1, 2, 1), 10_000, 10), ((1, 2, 2, 1), 10_000, 10)]
LONG = [(widths, 20_000, 20) for widths in ((1, 2, 1), (1, 3, 2), (1, 2, 2, 1), (1, 2, 3, 2))]
COLLAPSED = [(), ("gates", "weights")]


@pytest.mark.parametrize(
    ("size", "collapsed"),
    [
        *((size, collapsed) for size in QUICK for collapsed in COLLAPSED),
        *(
            pytest.param(size, collapsed, marks=pytest.mark.slow)
            for size in LONG
            for collapsed in (*COLLAPSED, ("gates",), ("weights",))
        ),
    ],
)
def test_sweeps_leave_the_joint_distribution_as_it_is(size: Any, collapsed: tuple[str, ...]) -> None:
    p, name = worst(*size, collapsed)
    assert p > LEVEL, name


@pytest.mark.parametrize(
    ("block", "size"),
    [
        *((block, QUICK[0]) for block in ("activations", "weights", "precisions")),
        *(pytest.param(b, size, marks=pytest.mark.slow) for b in sorted(PLANTED) for size in (LONG[0], LONG[2])),
    ],
)
def test_an_error_planted_in_a_block_is_found(monkeypatch: pytest.MonkeyPatch, block: str, size: Any) -> None:
    planted_error_is_found(monkeypatch, block, *size)
