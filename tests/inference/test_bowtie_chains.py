"""Chains of a bow tie network: seeds, interruption, disk, ArviZ, several processes; where they start; hard data."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.bowtie import (
    BowTieModel,
    Chains,
    ConjugatePrior,
    Draws,
    State,
    chains,
    predict,
    random_start,
    simulate,
)
from momentgen.inference.estimators.bowtie import BowTieRegressor

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
def test_an_interrupted_chain_goes_on_bit_for_bit(
    model: BowTieModel, stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in burn-in, between and after kept draws; the file is that of the sweep before."""
    settings: dict[str, Any] = {"chains": 2, "burn_in": 8, "draws": 4, "thin": 2, "seed": 1, "anneal_from": 1.0}
    whole = quick(model, X, Y, **settings).run()
    broken, sweep = quick(model, X, Y, **settings), Chains._sweep

    def interrupted(self: Chains) -> None:
        if self.done == stop:
            raise KeyboardInterrupt
        sweep(self)

    path = tmp_path / "deeper" / "chains.pt"
    with monkeypatch.context() as patch:
        patch.setattr(Chains, "_sweep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            broken.run(checkpoint=path, every=1)
    assert [part.name for part in path.parent.iterdir()] == ["chains.pt"]
    resumed = Chains.load(path, model, X, Y)
    assert resumed.done == stop
    assert_same(whole, resumed.run())


def test_chains_with_other_data_are_saved_and_loaded_before_they_go_on(tmp_path: Path) -> None:
    moved = quick(MODEL, X, Y, chains=2, burn_in=3, draws=2).run().with_data(X + 0.1, Y)
    moved.save(tmp_path / "chains.pt")
    loaded = Chains.load(tmp_path / "chains.pt", MODEL, X + 0.1, Y)
    assert_same(loaded.go_on(3), moved.go_on(3))


def test_a_file_of_another_model_or_of_other_data_or_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chains.pt"
    quick(MODEL, X, Y, chains=1, burn_in=1, draws=1).run(checkpoint=path)
    for model, part in ((BowTieModel((1, 7, 1), 0.1), "7"), (BowTieModel((1, 6, 1), 0.2), "0.2"), (DEEP, "4, 3")):
        with pytest.raises(InputError, match=f"chains of the model.*{part}"):
            Chains.load(path, model, X, Y)
    other = BowTieModel((1, 6, 1), 0.1, ConjugatePrior(rate=0.02))
    with pytest.raises(InputError, match=r"rate=0\.02"):
        Chains.load(path, other, X, Y)
    with pytest.raises(InputError, match="chains of the data"):
        Chains.load(path, MODEL, X, Y + 1e-12)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="cannot be read"):
        Chains.load(path, MODEL, X, Y)
    torch.save({"weights": 1}, path)
    with pytest.raises(InputError, match="format"):
        Chains.load(path, MODEL, X, Y)
    with pytest.raises(FileNotFoundError):
        Chains.load(tmp_path / "none.pt", MODEL, X, Y)


def test_thinning_keeps_every_third_state_after_burn_in() -> None:
    fine = quick(MODEL, X, Y, chains=1, burn_in=4, draws=9, seed=2).run().draws
    coarse = quick(MODEL, X, Y, chains=1, burn_in=4, draws=3, thin=3, seed=2).run().draws
    for a, b in zip(parts_of(fine), parts_of(coarse), strict=True):
        assert torch.equal(a[:, 2::3], b)


def test_fixed_blocks_stay_and_the_others_move() -> None:
    for block in ("gates", "gamma", "activations", "weights", "precisions"):
        run = quick(DEEP, X, Y, chains=1, burn_in=0, draws=1, fixed=(block,))
        before = run.state
        after = run.run().state
        for name in State._fields:
            same = all(torch.equal(a, b) for a, b in zip(getattr(before, name), getattr(after, name), strict=True))
            assert same == (name == block), (block, name)


def test_temperature_falls_to_the_models_in_half_the_burn_in() -> None:
    run = quick(MODEL, X, Y, chains=1, burn_in=8, draws=1, anneal_from=1.6)
    found = []
    for done in range(9):
        run.done = done
        found.append(run._temperature())
    assert found[:4] == pytest.approx([1.6, 0.8, 0.4, 0.2])
    assert found[4:] == [0.1] * 5


def test_the_posterior_of_a_linear_problem_is_that_of_the_conjugate_regression() -> None:
    """One unit whose gate is held open and whose activations are data: y = w·a + b + noise of known variance."""
    draw = torch.Generator().manual_seed(0)
    model = BowTieModel((1, 1, 1), 1.0, ConjugatePrior(var=2.0))
    state, _ = simulate(model, X, 1, draw)
    state = state._replace(precisions=(state.precisions[0], torch.tensor([[4.0]], dtype=torch.float64)))
    run = quick(
        model, X, Y, start=state, chains=1, burn_in=0, draws=1500, fixed=("activations", "precisions", "gates", "gamma")
    ).run()
    a = torch.cat([state.activations[0][0], torch.ones(len(X), 1, dtype=torch.float64)], 1)
    cov = torch.linalg.inv(torch.eye(2, dtype=torch.float64) / 2 + 4 * a.T @ a)
    mean = 4 * cov @ a.T @ Y[:, 0]
    found = run.draws.weights[1][0, :, 0]
    assert ((found.mean(0) - mean).abs() / (cov.diagonal() / 1500).sqrt()).max() < 4.5
    assert ((found.var(0) / cov.diagonal() - 1).abs()).max() < 4.5 * math.sqrt(2 / 1500)


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


# ------------------------------------------------------------------- bad input


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


WRONG: list[tuple[Callable[[], Any], str]] = [
    *((lambda x=x, y=y: quick(MODEL, x, y), "shape") for x, y in (
        (X[:0], Y[:0]), (X[:, 0], Y), (X, Y[:-1]), (X.expand(-1, 2), Y), (X, Y.expand(-1, 2))
    )),
    *((lambda name=name, value=value: quick(MODEL, X, Y, **{name: value}), name) for name, value in (
        ("chains", 0), ("burn_in", -1), ("draws", 0), ("thin", 0), ("chains", 1.5)
    )),
    *((lambda options=options: quick(MODEL, X, Y, **options), "expected") for options in (
        {"fixed": ("gate",)}, {"fixed": "gates"}, {"collapsed": ("gamma",)}, {"start": "there"}
    )),
    (lambda: quick(MODEL, X, Y, anneal_from=0.0), "temperature"),
    (lambda: quick(MODEL, X, Y).draws, "got none"),
    (lambda: quick(MODEL, X, Y, start=random_start(DEEP, DEEP.data(X, Y), 1)), "weights of shapes"),
    *((lambda widths=widths: BowTieModel(widths), "widths") for widths in ((1, 1), (1, 0, 1), (1, 2.0, 1))),
    *((lambda tau=tau: BowTieModel((1, 2, 1), tau), "temperature") for tau in (0.0, -1.0, math.nan, math.inf)),
    *((lambda options=options: ConjugatePrior(**options), "expected") for options in (
        {"var": 0.0}, {"rate": -1.0}, {"shape": math.nan}, {"mean": math.inf},
        {"cov": ((1.0, 2.0), (2.0, 1.0))}, {"cov": ((1.0, 0.5), (0.4, 1.0))}, {"cov": ((1.0,),), "var": 2.0},
    )),
    (lambda: BowTieModel((1, 2, 1), priors=ConjugatePrior(cov=((1.0,),))), "broadcasts"),
    (lambda: BowTieModel((1, 2, 1), priors=(ConjugatePrior(),)), "2 priors"),
    (lambda: BowTieModel((1, 2, 1), priors=ConjugatePrior(mean=((1.0, 2.0, 3.0),))), "broadcasts"),
    *((lambda x=x, y=y: quick(MODEL, x, y), text) for bad in (math.nan, math.inf) for x, y, text in (
        (X.index_fill(0, torch.tensor([3]), bad), Y, "finite x"), (X, Y * bad, "finite y")
    )),
]  # fmt: skip


@pytest.mark.parametrize(("call", "said"), WRONG)
def test_what_is_no_model_and_what_does_not_fit_one_is_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()


def test_chains_start_at_trained_networks() -> None:
    """Which fit better than random weights do, before any sweep."""
    start, random = (Chains(MODEL, X, Y, chains=2, start=name).state.precisions[-1] for name in ("relu", "random"))
    assert bool((start > random).all())


def test_every_start_is_a_state_of_the_model() -> None:
    for start in chains.STARTS.values():
        for model in (MODEL, DEEP):
            model.check(start(model, model.data(X, Y), 3), len(X))


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


# ------------------------------------------------------------------- estimator


def small(**options: object) -> BowTieRegressor:
    return BowTieRegressor(
        **{"hidden": (10,), "burn_in": 60, "draws": 40, "calibrate": None, "random_state": 0, **options}
    )


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    X = draw.uniform(-3, 3, (120, 1))
    return X, 100 + 10 * np.abs(X[:, 0]) + draw.normal(size=120)


def test_the_regressor_finds_a_bend_and_its_noise(data: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = data
    model = small(burn_in=300, draws=200).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.sqrt(np.mean((mean - 100 - 10 * np.abs(X[:, 0])) ** 2)) < 0.7
    assert 0.8 < np.median(std) < 1.5
    low, middle, high = model.predict_quantiles(X)
    assert 0.9 < np.mean((low < y) & (y < high)) <= 1
    assert np.all((low < middle) & (middle < high))
    # Of the same mixture in the targets' unit, by SciPy.
    found = model.chains_.predict(model._features(X))
    scale, shift = model.y_scaler_.scale_[0], model.y_scaler_.mean_[0]
    parts = stats.norm.logpdf(y, found.means[..., 0] * scale + shift, found.roots[:, 0] * scale)
    expected = np.log(np.mean(np.exp(parts), 0))
    np.testing.assert_allclose(model.log_prob(X, y), expected, rtol=1e-9)


def test_partial_fit_keeps_draws_of_the_same_data_and_begins_anew_with_others(
    data: tuple[np.ndarray, np.ndarray],
) -> None:
    X, y = data
    model = small(chains=1).fit(X, y)
    before = model.chains_.draws.log_joint
    after = model.partial_fit(X, y, 5).chains_.draws.log_joint
    assert after.shape == (1, 45)
    assert torch.equal(after[:, :40], before)
    weights = model.chains_.state.weights
    model.partial_fit(X[:50], y[:50], 2)
    assert model.chains_.draws.log_joint.shape == (1, 2)
    assert len(model.chains_.data.x) == 50
    assert not torch.equal(model.chains_.state.weights[0], weights[0])
    assert small().partial_fit(X, y, 3).chains_.draws.log_joint.shape == (2, 3)
    assert model.set_params(chains=2).diagnostics_["draws"] == 2  # of the one chain that ran


def test_bad_levels_are_refused(data: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = data
    model = small().fit(X, y)
    for levels in ([], [[0.1]], [0.0], [1.5]):
        with pytest.raises(InputError, match="level"):
            model.predict_quantiles(X, levels)
