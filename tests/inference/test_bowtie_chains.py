"""Chains of a bow tie network: seeds, interruption, R̂, ArviZ; where they start; hard data; predictions."""

import importlib.util
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.bowtie import BowTieModel, Chains, ConjugatePrior, simulate
from momentgen.inference.bowtie.chains import split_r_hat
from momentgen.inference.bowtie.model import State
from momentgen.inference.bowtie.prediction import Draws, predict

X = torch.linspace(-1.5, 1.5, 30, dtype=torch.float64)[:, None]
Y = X.abs() - 0.75
MODEL = BowTieModel((1, 6, 1), 0.1)
DEEP = BowTieModel((1, 4, 3, 1), 0.1)


def quick(model: BowTieModel, x: Tensor = X, y: Tensor = Y, **options: Any) -> Chains:
    """Chains that begin at random weights, without any training."""
    return Chains(model, x, y, **{"start": "random", **options})


def tensors(state: State) -> list[Tensor]:
    return [part for field in state for part in field]


def assert_same(one: Chains, other: Chains) -> None:
    """Bit for bit, in state, draws and log joint."""
    for a, b in zip(tensors(one.state), tensors(other.state), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(parts_of(one.draws), parts_of(other.draws), strict=True):
        assert torch.equal(a, b)


def parts_of(draws: Draws) -> list[Tensor]:
    return [*draws.weights, *draws.precisions, draws.log_joint]


@pytest.mark.parametrize("model", [MODEL, DEEP])
def test_the_same_seed_gives_the_same_chains_and_another_seed_others(model: BowTieModel) -> None:
    one, again, other = (quick(model, X, Y, chains=2, burn_in=5, draws=4, seed=s).run() for s in (3, 3, 4))
    assert_same(one, again)
    assert not torch.equal(one.draws.log_joint, other.draws.log_joint)


@pytest.mark.parametrize("model", [MODEL, DEEP])
@pytest.mark.parametrize("stop", [3, 9, 14])
def test_chains_that_were_pickled_go_on_bit_for_bit(model: BowTieModel, stop: int) -> None:
    """In burn-in, between and after kept draws."""
    settings: dict[str, Any] = {"chains": 2, "burn_in": 8, "draws": 4, "thin": 2, "seed": 1, "anneal_from": 1.0}
    whole = quick(model, X, Y, **settings).run()
    resumed = pickle.loads(pickle.dumps(quick(model, X, Y, **settings).run(sweeps=stop)))
    assert resumed.done == stop
    assert_same(whole, resumed.run())


def test_thinning_keeps_every_third_state_after_burn_in() -> None:
    fine = quick(MODEL, X, Y, chains=1, burn_in=4, draws=9, seed=2).run().draws
    coarse = quick(MODEL, X, Y, chains=1, burn_in=4, draws=3, thin=3, seed=2).run().draws
    for a, b in zip(parts_of(fine), parts_of(coarse), strict=True):
        assert torch.equal(a[:, 2::3], b)


def test_temperature_falls_to_the_models_in_half_the_burn_in() -> None:
    run = quick(MODEL, X, Y, chains=1, burn_in=8, draws=1, anneal_from=1.6)
    found = []
    for done in range(9):
        run.done = done
        found.append(run._temperature())
    assert found[:4] == pytest.approx([1.6, 0.8, 0.4, 0.2])
    assert found[4:] == [0.1] * 5


def test_r_hat_is_one_of_chains_that_agree_and_large_of_those_that_do_not() -> None:
    draws = torch.randn(4, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert abs(split_r_hat(draws).item() - 1) < 0.01
    apart = draws + torch.arange(4.0, dtype=torch.float64)[:, None]
    # Means 0, 1, 2, 3, each of two halves: variance 10/7 between, 1 within.
    assert abs(split_r_hat(apart).item() - (1 + 10 / 7) ** 0.5) < 0.05
    drifting = draws + torch.linspace(0, 6, 2000, dtype=torch.float64)
    assert split_r_hat(drifting).item() > 1.5
    for unknown in (draws[:, :3], draws.where(draws < 3, torch.nan), draws.where(draws < 3, torch.inf)):
        assert split_r_hat(unknown).isnan()


def test_arviz_gets_all_draws_and_names_what_is_missing_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run = quick(MODEL, X, Y, chains=2, burn_in=3, draws=8).run()
    found = run.to_arviz(X[:4])
    assert found.posterior["weights_1"].shape == (2, 8, 6, 2)
    assert found.posterior["prediction"].shape == (2, 8, 4, 1)
    np.testing.assert_array_equal(found.sample_stats["lp"].values, run.draws.log_joint.numpy())
    np.testing.assert_allclose(found.posterior["sigma_2"].values ** -2, run.draws.precisions[1].numpy(), rtol=1e-12)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "arviz" else real(name))
    with pytest.raises(ImportError, match=r"momentgen\[chains\]"):
        run.to_arviz()


def test_a_bar_shows_the_log_joint(capsys: pytest.CaptureFixture[str]) -> None:
    run = quick(MODEL, X, Y, chains=1, burn_in=20, draws=5).run(progress=True)
    shown = capsys.readouterr().err
    assert "25/25" in shown
    assert f"log joint {run.log_joint().mean().item():.1f}" in shown


@pytest.mark.parametrize("collapsed", [(), ("gates", "weights")])
@pytest.mark.parametrize(
    ("model", "x", "y"),
    [
        (MODEL, X[:1], Y[:1]),
        (DEEP, X[:1], Y[:1]),
        (BowTieModel((4, 6, 1)), torch.cat([X, X, torch.zeros_like(X), torch.ones_like(X)], 1), Y),
        (MODEL, X * 1e-6, Y),
        (MODEL, X * 1e3, Y),
        (MODEL, X * 1e6, Y),
        (MODEL, X, Y * 1e6),
    ],
    ids=["one row", "one row, deep", "constant and repeated features", "1e-6 x", "1e3 x", "1e6 x", "1e6 y"],
)
def test_hard_data_leave_chains_finite(model: BowTieModel, x: Tensor, y: Tensor, collapsed: tuple[str, ...]) -> None:
    """Features of large scales at tilts in the thousands."""
    run = quick(model, x, y, chains=2, burn_in=30, draws=20, collapsed=collapsed)
    if x.abs().max() > 1e3:
        assert ((run.data.x @ run.state.weights[0].mT) / model.tau).abs().max() > 1e3
    run.run()
    assert all(bool(part.isfinite().all()) for part in tensors(run.state))
    assert len(x) > 1 or bool(run.predict(X).moments().var.gt(0).all())


def test_chains_start_at_trained_networks() -> None:
    """Which fit better than random weights do, before any sweep."""
    start, random = (Chains(MODEL, X, Y, chains=2, start=name).state.precisions[-1] for name in ("relu", "random"))
    assert bool((start > random).all())


def test_chains_run_where_gradients_are_off_and_for_features_that_have_some() -> None:
    with torch.no_grad():
        found = Chains(MODEL, X.clone().requires_grad_(), Y, chains=1, burn_in=1, draws=1, seed=5).run()
    assert_same(found, Chains(MODEL, X, Y, chains=1, burn_in=1, draws=1, seed=5).run())
    assert not any(part.requires_grad for part in tensors(found.state))


# What a bow tie network predicts: the mixture against simulation and SciPy, and the scikit-learn estimator.
def one_network(model: BowTieModel, draws: int) -> Draws:
    """The same parameters in every draw: the mixture is then over gates and lower activations alone."""
    state, _ = simulate(
        model, torch.zeros(1, model.widths[0], dtype=torch.float64), 1, torch.Generator().manual_seed(4)
    )
    weights, precisions = (
        tuple(part[:, None].expand(1, draws, *part.shape[1:]) for part in field)
        for field in (state.weights, state.precisions)
    )
    return Draws(weights, precisions, torch.zeros(1, draws))


@pytest.mark.parametrize("widths", [(2, 3, 1), (2, 3, 2), (2, 3, 4, 1), (2, 3, 2, 2, 2)])
def test_the_mixture_has_the_distribution_of_simulated_targets(widths: tuple[int, ...]) -> None:
    """Simulated here step by step from equations (4) and (5), for 40,000 draws of gates and noise."""
    model, n = BowTieModel(widths, 0.7, ConjugatePrior(shape=3.0, rate=1.0)), 40_000
    draws = one_network(model, n)
    x = torch.tensor([[0.4, -1.0], [1.5, 0.2]], dtype=torch.float64)
    found = predict(model, draws, x)
    draw = torch.Generator().manual_seed(9)
    a = x.expand(n, -1, -1)
    for layer, (weights, precision) in enumerate(zip(draws.weights, draws.precisions, strict=True)):
        u = a @ weights[0, 0, :, :-1].T + weights[0, 0, :, -1]
        on = torch.rand(u.shape, generator=draw, dtype=torch.float64) < torch.sigmoid(u / model.tau)
        noise = torch.randn(u.shape, generator=draw, dtype=torch.float64) / precision[0, 0].sqrt()
        a = noise + (u if layer == model.depth else u * on)
    moments, var = found.moments(), a.var(0)
    # 4.5 standard errors of two samples; of a variance √2 times the fourth root of kurtosis, at most 3 here.
    assert ((moments.mean - a.mean(0)).abs() / (2 * var / n).sqrt()).max() < 4.5
    assert (moments.var / var - 1).abs().max() < 4.5 * (2 * 3 / n) ** 0.5
    for level in (0.05, 0.5, 0.9):
        share = (a < found.quantile(level)).double().mean(0)
        assert ((share - level).abs() / (2 * level * (1 - level) / n) ** 0.5).max() < 4.5


@pytest.mark.parametrize("outputs", [1, 2])
def test_log_density_and_quantiles_are_those_of_scipys_mixture(outputs: int) -> None:
    model, count = BowTieModel((2, 3, outputs), 0.7, ConjugatePrior(shape=3.0, rate=1.0)), 7
    state, _ = simulate(model, torch.zeros(1, 2, dtype=torch.float64), count, torch.Generator().manual_seed(4))
    weights, precisions = (tuple(part[None] for part in field) for field in (state.weights, state.precisions))
    x, y = (
        torch.tensor([[0.4, -1.0], [1.5, 0.2]]).double(),
        torch.tensor([[0.1, 2.0], [-1.0, 0.4]]).double()[:, :outputs],
    )
    found = predict(model, Draws(weights, precisions, torch.zeros(1, count)), x)
    covs = found.roots @ found.roots.mT
    parts = [[stats.multivariate_normal(found.means[s, i], covs[s]) for s in range(count)] for i in range(2)]
    expected = [np.log(np.mean([part.pdf(y[i]) for part in parts[i]])) for i in range(2)]
    np.testing.assert_allclose(found.log_prob(y), expected, rtol=1e-12)
    for level in (1e-3, 0.3, 0.999):
        q = found.quantile(level)
        for i in range(2):
            for k in range(outputs):
                std = covs[:, k, k].sqrt()
                assert np.mean(stats.norm.cdf(q[i, k], found.means[:, i, k], std)) == pytest.approx(level, rel=1e-10)
    for level in (0.0, 1.0, -1.0):
        with pytest.raises(InputError, match="level"):
            found.quantile(level)


def test_a_rows_prediction_does_not_depend_on_the_others() -> None:
    model = BowTieModel((2, 3, 3, 1), 0.7)
    draws = one_network(model, 20)
    x = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together, alone = predict(model, draws, x), predict(model, draws, x[4:5])
    assert torch.allclose(together.means[:, 4:5], alone.means, rtol=1e-13, atol=1e-13)
    for bad in (x[:, :1], x * float("nan")):
        with pytest.raises(InputError, match="finite features of shape"):
            predict(model, draws, bad)
