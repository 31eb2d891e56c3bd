"""What variational estimators can be told: networks, likelihoods, noise, weights of rows, when to stop."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from laws.small_networks import Of
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from momentgen.inference import (
    Categorical,
    CorrelatedClassifier,
    CorrelatedRegressor,
    Gaussian,
    HeteroscedasticGaussian,
    Probit,
    VBPClassifier,
    VBPRegressor,
    credible_prediction,
    sampled_outputs,
)
from momentgen.inference.estimators.network import rough_noise
from momentgen.runtime import JointMoments, Moments

QUICK: dict[str, Any] = {"hidden": (10,), "random_state": 0, "calibrate": None, "propagation": "ap2", "lr": 0.03}


def fan(rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Targets whose noise has a σ of 0.05 to the left, and of 0.5 to the right."""
    draw = np.random.default_rng(0)
    x = draw.uniform(-2, 2, (rows, 1))
    return x, x[:, 0] + np.where(x[:, 0] < 0, 0.05, 0.5) * draw.normal(size=rows)


# ------------------------------------------------------------------ likelihoods


def drawn() -> tuple[Moments, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    output = Moments(torch.tensor([[0.3, -1.0, -0.5, 0.2]]).double(), torch.tensor([[0.2, 0.5, 0.3, 0.1]]).double())
    draws = output.mean + output.var.sqrt() * torch.randn(1_000_000, 1, 4, dtype=torch.float64)
    return output, draws, torch.tensor([[0.7, 0.1]]).double()


def test_the_terms_of_two_heads_are_those_of_draws() -> None:
    output, draws, y = drawn()
    likelihood = HeteroscedasticGaussian()
    logs = likelihood.log_prob(draws, y.expand(len(draws), 1, 2))
    assert likelihood.expected_log_prob(output, y) == pytest.approx(logs.mean(0), abs=5 * float(logs.std()) / 1000)
    assert likelihood.log_z(output, y) == pytest.approx(logs.logsumexp(0) - math.log(len(draws)), abs=5e-3)
    new = draws[..., :2] + (draws[..., 2:] / 2).exp() * torch.randn(draws[..., :2].shape, dtype=torch.float64)
    found = likelihood.predictive(output)
    assert torch.allclose(found.mean, new.mean(0), atol=0.01)
    assert torch.allclose(found.var, new.var(0), rtol=0.02)


def test_the_terms_of_heads_with_a_covariance_are_those_of_joint_draws() -> None:
    torch.manual_seed(0)
    mean, factor, y = torch.randn(3, 2).double(), 0.5 * torch.randn(3, 2, 2).double(), torch.randn(3, 1).double()
    output = JointMoments.of(mean, factor.square().sum(1), factor)
    draws = mean + torch.einsum("nbr,brk->nbk", torch.randn(100_000, 3, 2).double(), factor)
    likelihood = HeteroscedasticGaussian()
    logs = likelihood.log_prob(draws, y.expand(len(draws), 3, 1))
    assert ((likelihood.expected_log_prob(output, y) - logs.mean(0)).abs() < 5 * logs.std(0) / 316).all()
    assert torch.allclose(likelihood.log_z(output, y), logs.logsumexp(0) - math.log(len(draws)), atol=0.02)


# ------------------------------------------------------------------ estimators


def test_credible_intervals_of_a_classifier_hold_its_probabilities() -> None:
    X, y = load_iris(return_X_y=True)
    model = CorrelatedClassifier(epochs=40, random_state=0).fit(X, y)
    draws = sampled_outputs(model.network_, torch.as_tensor(model.x_scaler_.transform(X)))
    found = credible_prediction(draws.softmax(-1))
    assert found.probabilities.shape == (150, 3)
    assert bool((found.lower <= found.upper).all())
    assert (found.certain & (found.label == torch.tensor(y))).sum() > 90


@pytest.mark.parametrize("kind", [VBPRegressor, pytest.param(CorrelatedRegressor, marks=pytest.mark.slow)])
def test_noise_that_depends_on_the_input_is_found_where_it_is(kind: Any) -> None:
    x, y = fan()
    own = {"propagation": "ap2"} if kind is VBPRegressor else {"kl_weight": 0.1}
    model = kind(hidden=(10,), noise="input", epochs=300, lr=0.03, random_state=0, calibrate=None, **own)
    parts = model.fit(x, y).predict_parts([[-1.5], [1.5]])
    assert 0.03 < parts.aleatoric[0] < 0.1
    assert parts.aleatoric[1] == pytest.approx(0.5, abs=0.15)
    std = model.predict([[-1.5], [1.5]], return_std=True)[1]
    assert std == pytest.approx(np.hypot(parts.epistemic, parts.aleatoric), rel=1e-6)
    constant = kind(hidden=(10,), epochs=300, lr=0.03, random_state=0, calibrate=None, **own).fit(x, y)
    assert model.log_prob(x, y).mean() > constant.log_prob(x, y).mean() + 0.2


def test_known_noise_of_rows_weighs_them_as_least_squares_does() -> None:
    """A linear model: half of the rows have an offset of 1, and say that they are a hundred times as noisy."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(200, 1))
    y_std = np.where(np.arange(200) % 2, 5.0, 0.05)
    y = 2 * x[:, 0] + 0.05 * draw.normal(size=200) + np.where(np.arange(200) % 2, 1.0, 0.0)
    settings = {**QUICK, "hidden": (), "epochs": 400, "lr": 0.05}
    told = VBPRegressor(**settings).fit(x, y, y_std=y_std).predict([[0.0], [1.0]])
    assert told == pytest.approx([0.0, 2.0], abs=0.1)
    assert VBPRegressor(**settings).fit(x, y).predict([[0.0]])[0] == pytest.approx(0.5, abs=0.15)


def test_a_row_of_weight_two_counts_as_two_rows_and_one_of_weight_zero_as_none() -> None:
    """The optimum of a linear model; duplicated rows have the same bound."""
    draw = np.random.default_rng(2)
    x = draw.normal(size=(60, 1))
    y = x[:, 0] + 0.3 * draw.normal(size=60)
    y[:20] += 3
    weight = np.repeat([0.0, 1.0, 2.0], 20)
    settings = {**QUICK, "hidden": (), "epochs": 500, "lr": 0.1}
    weighted = VBPRegressor(**settings).fit(x, y, sample_weight=weight)
    doubled = VBPRegressor(**settings).fit(np.repeat(x, weight.astype(int), 0), np.repeat(y, weight.astype(int)))
    grid = [[-1.0], [0.0], [1.0]]
    for mine, other in zip(
        weighted.predict(grid, return_std=True), doubled.predict(grid, return_std=True), strict=True
    ):
        assert mine == pytest.approx(other, abs=0.03)
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        VBPRegressor(**settings).fit(x, y, sample_weight=-weight)


def test_a_network_of_ones_own_and_a_function_that_makes_one_give_the_same_fit() -> None:
    x, y = fan(80)

    def make(features: int) -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(features, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 1))

    own = make(1)
    before = own[0].weight.clone()
    ways = (own, make, lambda features: own)  # networks that calibrate are others, whatever the function returns
    fits = [VBPRegressor(module=one, epochs=20, random_state=0).fit(x, y) for one in ways]
    assert all(np.array_equal(fits[0].predict(x), other.predict(x)) for other in fits[1:])
    assert torch.equal(own[0].weight, before)
    assert fits[0].network_.posteriors["0/weight"].mean.shape == (7, 1)


def test_heads_of_ones_own_begin_as_they_are_where_they_are_two_layers_or_not_the_last() -> None:
    def heads(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden = net.body(x).relu()
        return torch.cat([net.mean(hidden), net.log_var(hidden)], 1)

    own = Of(heads, mean=nn.Linear(8, 2), log_var=nn.Linear(8, 2), body=nn.Linear(1, 8))
    x, y = fan(40)
    model = VBPRegressor(**{**QUICK, "lr": 1e-9}, module=own, noise="input", epochs=1)
    model.fit(x, np.stack([y, -y], 1))
    assert torch.allclose(model.network_.posteriors["body/bias"].mean.float(), own.body.bias)


def test_measurements_without_noise_are_calibrated_as_if_nothing_were_said_of_it() -> None:
    x, y = fan(60)
    options = {**QUICK, "epochs": 20, "calibrate": "split"}
    found, plain = VBPRegressor(**options).fit(x, y, y_std=np.zeros(60)), VBPRegressor(**options).fit(x, y)
    np.testing.assert_allclose(found.predict_interval(x), plain.predict_interval(x), rtol=1e-9)
    np.testing.assert_allclose(found.predict_quantiles(x), plain.predict_quantiles(x), rtol=1e-9)


def test_copies_of_rows_leave_the_first_noise_as_it_is() -> None:
    x, y = (torch.as_tensor(part) for part in fan(60))
    y = y.reshape(60, -1)
    once = rough_noise(x, y)
    torch.testing.assert_close(rough_noise(x.repeat(3, 1), y.repeat(3, 1)), once)
    # Replicates, of other targets, tell most of it.
    assert rough_noise(x.repeat(2, 1), torch.cat([y, y + 0.1])).item() == pytest.approx(0.005)


def test_classifiers_take_a_likelihood_and_weights() -> None:
    x, _ = fan(100)
    labels = (x[:, 0] > 0).astype(int)
    probit = VBPClassifier(likelihood=Probit(), epochs=60, lr=0.03, random_state=0).fit(x, labels)
    both = VBPClassifier(likelihood=Categorical(), epochs=60, lr=0.03, random_state=0).fit(x, labels)
    assert probit.score(x, labels) > 0.95 < both.score(x, labels)
    assert probit.predict_proba(x).sum(1) == pytest.approx(1)
    flipped = np.concatenate([labels, 1 - labels])
    weight = np.concatenate([np.ones(100), np.zeros(100)])
    weighted = VBPClassifier(epochs=60, lr=0.03, random_state=0).fit(np.concatenate([x, x]), flipped, weight)
    assert weighted.score(x, labels) > 0.95


def test_early_stopping_keeps_the_network_that_predicts_held_out_rows_best() -> None:
    draw = np.random.default_rng(4)
    x, y = draw.normal(size=(40, 8)), draw.normal(size=40)  # nothing to learn
    settings: dict[str, Any] = {
        "propagation": "ap2",
        "calibrate": None,
        "kl_weight": 0.0,
        "lr": 0.03,
        "max_steps": 800,
        "random_state": 0,
    }
    test_x, test_y = draw.normal(size=(200, 8)), draw.normal(size=200)
    with pytest.warns(ConvergenceWarning, match="bound still rises"):
        overfitted = VBPRegressor(**settings).fit(x, y).log_prob(test_x, test_y).mean()
    stopped = VBPRegressor(**settings, validation_fraction=0.3).fit(x, y)
    assert stopped.log_prob(test_x, test_y).mean() > overfitted + 0.5


def test_a_row_held_out_for_early_stopping_makes_the_posterior_no_narrower() -> None:
    draw = np.random.default_rng(0)
    x = np.concatenate([np.full((40, 1), -1.0), np.full((40, 1), 1.0)])
    model = VBPRegressor(
        hidden=(), likelihood=Gaussian(var=0.5), validation_fraction=0.5, lr=0.02, calibrate=None, random_state=0
    ).fit(x, x[:, 0] + draw.normal(size=80))
    # 40 rows are left, of a feature and a constant that are 1 or -1, and a standard normal prior.
    for posterior in model.network_.posteriors.values():
        assert posterior.var.item() == pytest.approx(1 / (40 / 0.5 + 1), rel=1e-2)


def test_a_callback_sees_each_epoch_and_may_end_training() -> None:
    x, y = fan(60)
    seen: list[int] = []

    def stop_at_five(trainer: Any) -> bool:
        seen.append(len(trainer.history))
        return len(seen) == 5

    with pytest.warns(ConvergenceWarning, match="a callback that ends training later, may help"):
        model = VBPRegressor(epochs=50, callback=stop_at_five, calibrate=None, random_state=0).fit(x, y)
    assert seen == [1, 2, 3, 4, 5]
    assert model.n_iter_ == 5


def test_scores_and_callbacks_predict_as_after_training() -> None:
    """Dropout and batch norm of a network of one's own are in evaluation then, and only training moves statistics."""

    def make(features: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))

    def watch(trainer: Any) -> bool:
        norm = next(one for one in trainer.network.modules() if isinstance(one, nn.BatchNorm1d))
        assert norm.num_batches_tracked == trainer.steps
        found.append(model.predict(x, return_std=True))
        return len(found) == 30

    x, y = fan(60)
    found: list[Any] = []
    for options in ({"validation_fraction": 0.2, "batch_size": 2}, {"epochs": 30, "kl_weight": 1.0}):
        found.clear()
        model = VBPRegressor(**QUICK, module=make, callback=watch, **options)
        with pytest.warns(ConvergenceWarning):
            model.fit(x, y)
    np.testing.assert_array_equal(found[-1], model.predict(x, return_std=True))
