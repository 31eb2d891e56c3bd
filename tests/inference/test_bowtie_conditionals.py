"""Every conditional of a bow tie network against its un-normalised log joint, and what they do with hard input."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import ks_2samp
from torch import Tensor
from torch.distributions import Bernoulli, Gamma, MultivariateNormal, Normal

from momentgen.errors import InputError
from momentgen.inference.bowtie import collapsed
from momentgen.inference.bowtie import conditionals as c
from momentgen.inference.bowtie.gibbs import simulate, sweep
from momentgen.inference.bowtie.model import (
    BowTieModel,
    ConjugatePrior,
    Data,
    State,
    draw_gamma,
    log_joint,
    preactivations,
)

#: widths of networks with one, two and three hidden layers, one or two targets
SIZES = [(2, 3, 1), (3, 4, 2), (2, 3, 4, 1), (2, 4, 3, 2), (2, 3, 4, 3, 1), (1, 2, 3, 2, 2)]
N, CHAINS = 5, 2
Prior = Callable[[int, int], ConjugatePrior]


def mixed_prior(rows: int, columns: int) -> ConjugatePrior:
    mean = tuple(tuple(0.1 * (i - j) for j in range(columns)) for i in range(rows))
    var = tuple(tuple(0.5 + 0.1 * (i + 2 * j) for j in range(columns)) for i in range(rows))
    return ConjugatePrior(mean, var, shape=3.0, rate=1.5)


def full_prior(rows: int, columns: int) -> ConjugatePrior:
    """With Σ₀ in whole: correlations of 0.6 between neighbours, 0.36 between their neighbours, and so on."""
    cov = tuple(tuple(0.8 * 0.6 ** abs(i - j) for j in range(columns)) for i in range(columns))
    return replace(mixed_prior(rows, columns), var=1.0, cov=cov)


def case(widths: tuple[int, ...], seed: int = 0, prior: Prior = mixed_prior) -> tuple[BowTieModel, State, Data]:
    """A model with a prior of its own for each weight, a state of it after a few sweeps, and data."""
    draw = torch.Generator().manual_seed(seed)
    priors = tuple(prior(above, below + 1) for below, above in itertools.pairwise(widths))
    model = BowTieModel(widths, 0.4, priors)
    x = torch.randn(N, widths[0], generator=draw, dtype=torch.float64)
    state, y = simulate(model, x, CHAINS, draw)
    data = model.data(x, y[0])
    for _ in range(2):
        state = sweep(model, state, data, draw)
    return model, state, data


def put(state: State, name: str, layer: int, value: Tensor) -> State:
    parts = list(getattr(state, name))
    parts[layer] = value
    return state._replace(**{name: tuple(parts)})


def log_prob(given: c.NormalConditional, value: Tensor) -> Tensor:
    """Log density of each vector, ``(..., m)``."""
    std = torch.diag_embed(given.std[..., 0, :]) if given.std.shape[-2] == 1 else given.std
    standard = torch.linalg.solve_triangular(std, (value - given.centre).mT, upper=False)
    off = given.root.mT @ (standard / given.scale.mT) - given.half
    stretch = given.root.diagonal(dim1=-2, dim2=-1).log().sum(-1) - given.scale.log().sum((-2, -1))
    stretch = stretch - std.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return stretch[..., None] - 0.5 * (off.square().sum(-2) + off.shape[-2] * math.log(2 * math.pi))


def assert_same_ratio(
    log_density: Tensor, model: BowTieModel, data: Data, one: State, other: State, augmented: bool
) -> None:
    """The conditional's log ratio is the log joint's."""
    after = log_joint(model, other, data, augmented)
    expected = after - log_joint(model, one, data, augmented)
    assert bool((expected.abs() > 1e-3).all()), "the two states must differ"
    assert ((log_density - expected).abs() / (1 + after.abs())).max() < 1e-8


PRIORS = pytest.mark.parametrize("prior", [mixed_prior, full_prior])


@PRIORS
@pytest.mark.parametrize("widths", SIZES)
def test_the_log_joint_is_that_of_equation_6_and_the_priors(widths: tuple[int, ...], prior: Prior) -> None:
    """Term by term, by torch's distributions; with γ each gate has log PG(γ | 1, c) − log PG(γ | 1, 0) besides."""
    model, state, data = case(widths, prior=prior)
    total, besides = torch.zeros(CHAINS, dtype=torch.float64), torch.zeros(CHAINS, dtype=torch.float64)
    below = data.x[:, :-1].expand(CHAINS, -1, -1)
    for layer, (weights, precision) in enumerate(zip(state.weights, state.precisions, strict=True)):
        u = below @ weights[:, :, :-1].mT + weights[:, None, :, -1]
        std, given = precision.rsqrt()[:, None], model.prior(layer)
        if layer < model.depth:
            below = state.activations[layer]
            total += Bernoulli(logits=u / model.tau).log_prob(state.gates[layer]).sum((1, 2))
            total += Normal(state.gates[layer] * u, std).log_prob(below).sum((1, 2))
            c = u / model.tau
            besides += ((c / 2).cosh().log() - state.gamma[layer] * c.square() / 2).sum((1, 2))
        else:
            total += Normal(u, std).log_prob(data.y).sum((1, 2))
        mean, var = (torch.tensor(value, dtype=torch.float64) for value in (given.mean, given.cov or given.var))
        cov = torch.diag_embed(var) if given.cov is None else var
        total += MultivariateNormal(mean, cov).log_prob(weights).sum(1)
        total += Gamma(torch.tensor(given.shape).double(), given.rate).log_prob(precision).sum(1)
    torch.testing.assert_close(log_joint(model, state, data), total, rtol=1e-12, atol=0)
    torch.testing.assert_close(log_joint(model, state, data, augmented=True), total + besides, rtol=1e-12, atol=0)


@PRIORS
@pytest.mark.parametrize("widths", SIZES)
def test_activations_weights_and_precisions_are_drawn_from_the_log_joint(widths: tuple[int, ...], prior: Prior) -> None:
    model, state, data = case(widths, prior=prior)
    joint = c.activations_conditional(model, state, data)
    other = state._replace(activations=joint.draw(torch.Generator().manual_seed(3)))
    after, before = (
        sum(log_prob(given, value.reshape(given.centre.shape)).flatten(1).sum(1) for given, value in layers)
        for layers in (
            [(joint.layer(layer, drawn[:layer]), drawn[layer]) for layer in range(model.depth)]
            for drawn in (other.activations, state.activations)
        )
    )
    assert_same_ratio(after - before, model, data, state, other, augmented=True)
    for layer in range(model.depth + 1):
        of_weights, now = c.weights_conditional(model, state, data, layer), state.weights[layer]
        value = of_weights.draw(torch.Generator().manual_seed(3))
        ratio = (log_prob(of_weights, value) - log_prob(of_weights, now.view_as(value))).flatten(1).sum(1)
        other = put(state, "weights", layer, value.view_as(now))
        assert_same_ratio(ratio, model, data, state, other, augmented=True)
        of_precisions = c.precisions_conditional(model, state, data, layer)
        value, gamma = draw_gamma(*of_precisions, torch.Generator().manual_seed(3)), Gamma(*of_precisions)
        ratio = (gamma.log_prob(value) - gamma.log_prob(state.precisions[layer])).sum(1)
        assert_same_ratio(ratio, model, data, state, put(state, "precisions", layer, value), augmented=True)


@pytest.mark.parametrize("widths", SIZES)
@pytest.mark.parametrize("augmented", [False, True])
def test_gates_are_drawn_from_the_log_joint_with_and_without_gamma(widths: tuple[int, ...], augmented: bool) -> None:
    model, state, data = case(widths)
    for layer in range(model.depth):
        given = Bernoulli(logits=c.gates_conditional(model, state, data, layer))
        value = 1 - state.gates[layer]
        ratio = (given.log_prob(value) - given.log_prob(state.gates[layer])).sum((1, 2))
        other = put(state, "gates", layer, value)
        assert_same_ratio(ratio, model, data, state, other, augmented)


@PRIORS
@pytest.mark.parametrize("widths", SIZES)
def test_collapsed_weights_are_drawn_from_the_joint_without_activations(widths: tuple[int, ...], prior: Prior) -> None:
    """p(w) = p(w, a) / p(a | w), for any a: the topmost layer's activations, those below held."""
    model, state, data = case(widths, prior=prior)
    top = model.depth - 1
    given = collapsed.collapsed_weights_conditional(model, state, data)
    value = given.draw(torch.Generator().manual_seed(3))
    other = put(state, "weights", top, value.view_as(state.weights[top]))
    ratio = (log_prob(given, value) - log_prob(given, state.weights[top].flatten(1)[:, None])).sum(1)

    def without_top(at: State) -> Tensor:
        held = c.activations_conditional(model, at, data).layer(top, at.activations[:top])
        joint = log_joint(model, at, data, augmented=True)
        return joint - log_prob(held, at.activations[top][:, None]).sum((1, 2))

    expected = without_top(other) - without_top(state)
    assert ((ratio - expected).abs() / (1 + without_top(other).abs())).max() < 1e-8


@pytest.mark.parametrize("widths", [(2, 3, 1), (2, 3, 2), (2, 2, 3, 1), (2, 2, 3, 2)])
def test_collapsed_gates_have_their_posterior_without_activations(widths: tuple[int, ...]) -> None:
    """All 2^units gates of each row by Bayes' rule, against the shares of 10,000 draws."""
    model, state, data = case(widths)
    top, draws, units = model.depth - 1, 10_000, widths[-2]
    one = State(*(tuple(part[:1] for part in field) for field in state))
    terms = []
    for gates in torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * units):
        # log p(y, a, z | a below) − log p(a | y, z, ...), a row each, the same for any a.
        at = put(one, "gates", top, gates.expand(1, N, units))
        a, u = at.activations[top], preactivations(at, data, top)
        given = c.activations_conditional(model, at, data).layer(top, at.activations[:top])
        out = Normal(preactivations(at, data, model.depth), at.precisions[-1].rsqrt()[:, None])
        prior = Bernoulli(logits=u / model.tau).log_prob(at.gates[top])
        noise = Normal(gates * u, at.precisions[top].rsqrt()[:, None]).log_prob(a)
        terms.append((prior + noise).sum(-1) + out.log_prob(data.y).sum(-1) - log_prob(given, a[:, None])[:, 0])
    shares = torch.stack(terms, -1)[0].softmax(-1)
    many = State(*(tuple(part.expand(draws, *part.shape[1:]) for part in field) for field in one))
    generator = torch.Generator().manual_seed(5)
    for _ in range(12):
        many = put(many, "gates", top, collapsed.draw_collapsed_gates(model, many, data, generator))
    places = (many.gates[top] * 2.0 ** torch.arange(units - 1, -1, -1)).sum(-1).long()
    found = torch.nn.functional.one_hot(places, 2**units).double().mean(0)
    error = (shares * (1 - shares) / draws).sqrt()
    assert ((found - shares).abs() / (error + 1e-4)).max() < 4.5


def test_draws_have_the_mean_and_the_covariance_of_their_conditional(monkeypatch: pytest.MonkeyPatch) -> None:
    centre = torch.tensor([[[0.3, -1.0]], [[2.0, 0.0]]], dtype=torch.float64)
    information = torch.tensor([[[2.0, 1.0], [1.0, 3.0]], [[0.0, 0.0], [0.0, 5.0]]], dtype=torch.float64)
    linear, std = torch.tensor([[[1.0, 2.0]], [[0.5, -1.0]]], dtype=torch.float64), torch.tensor([[0.5, 2.0]]).double()
    given = c.NormalConditional.of(centre, std, information, linear, "test")
    cov = torch.linalg.inv(information + torch.diag(1 / std[0] ** 2))
    mean = centre + linear @ cov
    with monkeypatch.context() as patch:  # without noise a draw is the mean
        patch.setattr(torch, "randn", lambda shape, dtype, **_: torch.zeros(shape, dtype=dtype))
        assert torch.allclose(given.draw(None), mean, rtol=0, atol=1e-14)
    n = 200_000
    many = c.NormalConditional.of(centre.expand(2, n, 2), std, information, linear.expand(2, n, 2), "test")
    drawn = many.draw(torch.Generator().manual_seed(0)) - mean
    variances = cov.diagonal(dim1=1, dim2=2)
    assert (drawn.mean(1).abs() / (variances / n).sqrt()).max() < 4.5
    # The standard error of a sample covariance is at most √2 of the larger variance over √n.
    off = (drawn.mT @ drawn / n - cov).abs() / variances.amax(1)[:, None, None]
    assert off.max() < 4.5 * (2 / n) ** 0.5


def test_a_singular_regression_has_its_prior_where_data_are_silent() -> None:
    """Two equal columns: the difference of their weights keeps the prior's variance, 2."""
    model = BowTieModel((2, 2, 1), 1.0)
    column = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    data = model.data(column.expand(-1, 2).contiguous(), column)
    state, _ = simulate(model, data.x[:, :2], 1, torch.Generator().manual_seed(0))
    state = put(state, "precisions", 0, torch.full((1, 2), 1e10, dtype=torch.float64))
    state = put(state, "gates", 0, torch.ones(1, 50, 2, dtype=torch.float64))
    given = c.weights_conditional(model, state, data, 0)
    difference = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([given.draw(generator) @ difference for _ in range(4000)])
    assert (drawn.var(0) / 2 - 1).abs().max() < 0.1


def test_an_information_matrix_beyond_float64_is_an_error_that_says_where() -> None:
    model, state, data = case((2, 3, 1))
    huge = data._replace(x=data.x * 1e160, outer=data.outer * 1e305)
    with pytest.raises(InputError, match="weights of layer 0"):
        c.weights_conditional(model, put(state, "precisions", 0, state.precisions[0] * 1e10), huge, 0)


# Geweke's test of the whole sampler: with targets drawn anew after every sweep, the joint distribution must stay put.
PRIOR = ConjugatePrior(mean=0.2, var=0.8, shape=3.0, rate=1.0)
X = torch.tensor([[-1.0], [0.3], [1.2]], dtype=torch.float64)
#: chance of a false alarm in one test of all statistics
LEVEL = 1e-4


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
    (fresh, targets), (state, y) = (simulate(model, X, chains, draw) for _ in range(2))
    expected = statistics(model, fresh, empty._replace(y=targets))
    for _ in range(sweeps):
        state = sweep(model, state, empty._replace(y=y), draw, collapsed=collapsed)
        u = preactivations(state, empty, model.depth)
        y = u + torch.empty_like(u).normal_(generator=draw) * state.precisions[-1].rsqrt()[:, None]
    found = statistics(model, state, empty._replace(y=y))
    return min((float(ks_2samp(found[name], expected[name]).pvalue) * len(found), name) for name in found)


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
