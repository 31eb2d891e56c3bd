"""What is refused at once, with a sentence that says why: settings, shapes, observations, and data of other kinds."""

import math
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from inference.every_estimator import friedman, line, quick
from refused import Call, each, rows
from sklearn.datasets import load_iris
from torch import nn

import momentgen
from momentgen.errors import InputError
from momentgen.inference import (
    Bernoulli,
    BowTieModel,
    BowTieRegressor,
    Categorical,
    Censored,
    Chains,
    ConjugatePrior,
    DensityFilter,
    Gamma,
    Gaussian,
    HeteroscedasticGaussian,
    Horseshoe,
    Likelihood,
    LogUniform,
    MeanField,
    Normal,
    NormalMixture,
    Ordinal,
    PBPClassifier,
    PBPRegressor,
    Poisson,
    Probit,
    Trainer,
    Tridiagonal,
    VBPClassifier,
    VBPRegressor,
    elbo,
    from_ivon,
    from_laplace,
    from_swag,
    from_vbll,
    plot_intervals,
    polya_gamma,
    prune,
    randomise,
    to_arviz,
)
from momentgen.runtime import JointMoments

NAN, INF = math.nan, math.inf

# ------------------------------------------------------------------ likelihoods, priors, posteriors

JOINT = JointMoments.of(torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 1, 2))
ONE, THREE = torch.zeros(2, 1), torch.zeros(2, 3)


def terms(likelihood: Likelihood, output: Any, y: Any) -> list[Call]:
    return [partial(getattr(likelihood, name), output, y) for name in ("expected_log_prob", "log_z", "log_prob")]


def labels(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


PROBABILITY: list[tuple[str, list[Call]]] = [
    ("positive", [*each(Gaussian, 0.0, -1.0, NAN), *each(Normal, {"var": 0.0}, {"std": -1.0}, {"var": NAN})]),
    ("Gaussian: expected a positive, finite", each(Gaussian, INF)),
    ("either", [*each(Gaussian, (), {"var": 1.0, "precision": Gamma(1.0, 1.0)}), partial(Normal, var=1.0, std=1.0)]),
    ("by DensityFilter", each(Gaussian, {"precision": Gamma(1.0, 1.0), "learn": True})),
    ("shape", each(Gamma, (0.0, 1.0))),
    ("rate", each(Gamma, (1.0, torch.tensor([1.0, -1.0])))),
    ("beyond 1", [lambda: Gamma(1.0, 1.0).mean_inverse]),
    ("exact, mean_predictor", each(Bernoulli, "bound")),
    ("quadrature", each(Categorical, "exact")),
    ("logistic", each(Categorical, {"posterior": "exact"})),
    ("even", each(Categorical, {"points": 7})),
    ("at least 2 classes", each(Ordinal, 1)),
    ("labels 0 and 1", [*terms(Probit(), ONE, labels(1, 2)), *terms(Bernoulli(), ONE, labels(1, -1))]),
    ("or NaN", terms(Bernoulli(), ONE, labels(1.0, NAN))),
    ("from 0 to 2, got 0 to 3", terms(Categorical(), THREE, torch.tensor([0, 3]))),
    ("from 0 to 2", terms(Categorical(), THREE, torch.tensor([0, -100]))),
    ("integers, such as torch.int64", terms(Categorical(), THREE, torch.zeros(2))),
    ("shape", terms(Categorical(), THREE, torch.zeros(2, 3, dtype=torch.int64))),
    ("shape", terms(Categorical(), THREE, torch.tensor(1))),
    ("finite", [*terms(Gaussian(1.0), ONE, labels(1.0, NAN)), *terms(Gaussian(1.0), ONE, labels(1.0, INF))]),
    (r"shape \(2, 1\), got \(2,\)", terms(Gaussian(1.0), ONE, torch.zeros(2))),
    ("shape", [*terms(Gaussian(1.0), ONE, torch.zeros(2, 2)), *terms(Gaussian(1.0), ONE, torch.zeros(1))]),
    ("float", terms(Gaussian(1.0), ONE, 1.0)),
    ("float32", terms(Gaussian(1.0), ONE, torch.zeros(2, 1, dtype=torch.float64))),
    ("broadcasts", [call for y in (THREE[:, :2], ONE) for call in terms(Gaussian(torch.ones(3)), y, y)]),
    ("dtype|float", terms(Probit(), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1))),
    ("float32 or float64", terms(Probit(), ONE.half(), torch.ones(2, 1))),
    (r"\(\.\.\., k\)", terms(Probit(), torch.tensor(0.0), torch.tensor(1))),
    ("expected a tensor or Moments", terms(Probit(), [0.0], torch.tensor([1]))),
    ("negative", terms(Probit(), momentgen.Moments(torch.zeros(1), -torch.ones(1)), torch.tensor([1]))),
    ("independent outputs", [*each(Probit().log_z, (JOINT, torch.ones(1, 2)))]),
    ("need independent outputs", each(Poisson().log_z, (JOINT, torch.ones(1, 2)))),
    ("expected counts", [partial(Poisson().log_z, ONE[:1], labels(y)) for y in (-1.0, 0.5, NAN)]),
    ("Ordinal: expected class indices from 0 to 2", each(Ordinal(3).log_z, (ONE[:1], torch.tensor([[3]])))),
    ("0 for seen, 1 for larger", each(Censored(var=1.0).log_z, (ONE[:1], torch.tensor([[0.0, 0.5]])))),
    ("means and log variances", each(HeteroscedasticGaussian().predictive, THREE)),
    ("finite mean", each(Normal, NAN)),
    ("broadcast", each(Normal(torch.zeros(2)).kl_normal, (torch.zeros(3),) * 2, (torch.zeros(1),) * 2)),
    ("broadcast", each(Normal(torch.ones(2, 1)).kl, MeanField().of(nn.Parameter(torch.zeros(2))))),
    ("one shape", each(Normal().kl_normal, (torch.zeros(3), torch.ones(2)))),
    ("dtype", each(Normal().kl_normal, (torch.zeros(2), torch.ones(2).double()))),
    ("negative", each(LogUniform().kl_normal, (torch.zeros(2), -torch.ones(2)))),
    ("pi", each(NormalMixture, 1.0)),
    ("var", each(NormalMixture, (0.5, 0.0), (0.5, 1.0, -1.0))),
    ("sample", each(NormalMixture, {"samples": 0})),
    ("group", each(Horseshoe, 0)),
    ("scale", each(Horseshoe, {"groups": 3, "scale": 0.0})),
    ("3 groups along dimension 0", each(Horseshoe(3).kl_normal, (torch.zeros(2), torch.ones(2)))),
    ("along dimension 1", each(Horseshoe(3, dim=1).kl_normal, (torch.zeros(3), torch.ones(3)))),
    ("positive standard deviation", each(MeanField, 0.0, NAN)),
    ("does not broadcast", each(MeanField(std=torch.ones(7)).of, nn.Parameter(torch.ones(2)))),
    ("expected a parameter", each(MeanField().of, torch.ones(2))),
    ("with elements", each(MeanField().of, nn.Parameter(torch.ones(0)))),
    ("a family without a parameter", [MeanField().sample]),
    ("Tridiagonal: expected tau", each(Tridiagonal, (0.0, 0.1), (-1.0, 0.1), (NAN, 0.1))),
    ("Tridiagonal: expected rho", each(Tridiagonal, (0.1, 0.5), (0.1, -0.7), (0.1, NAN))),
]

# ------------------------------------------------------------------ networks, training, posteriors of other libraries

LINEAR = nn.Linear(3, 2)
RANDOM = randomise(nn.Linear(3, 2), MeanField(std=0.1)).set_method("ap2")
STATE = {name: value.clone() for name, value in nn.Sequential(nn.Linear(3, 2)).state_dict().items()}


def weighted(weights: torch.Tensor) -> Any:
    return elbo(RANDOM, Gaussian(var=0.1), torch.ones(4, 3), torch.ones(4, 2), size=4, weights=weights)


def trained(x: torch.Tensor, y: torch.Tensor) -> None:
    Trainer(randomise(nn.Linear(3, 1), MeanField()), Gaussian(var=0.1)).run(x, y, 1)


def swag(*changes: dict[str, torch.Tensor]) -> Any:
    plain = nn.Sequential(nn.Linear(3, 2))
    plain.load_state_dict(STATE)
    return randomise(plain, from_swag([{**STATE, **change} for change in changes]))


NETWORKS: list[tuple[str, list[Call]]] = [
    ("no parameter that only=None chooses", each(randomise, (nn.ReLU(), MeanField()))),
    ("no parameter that only='nothing'", [partial(randomise, LINEAR, MeanField(), only="nothing")]),
    ("expected a posterior", each(randomise, (LINEAR, Normal()))),
    (r"no pattern of prior fits the parameter 'weight'", [
        partial(randomise, LINEAR, MeanField(), prior={"0.*": Normal()})]),
    (r"0\.weight.*only=", [
        lambda: randomise(nn.Sequential(torch.jit.script(nn.Linear(2, 3)), nn.Linear(3, 1)), MeanField())]),
    (r"expected a plain torch\.nn\.Module", each(randomise, ("net", MeanField()))),
    ("which is random already", each(randomise, (RANDOM, MeanField()))),
    ("made by randomise", [lambda: elbo(LINEAR, Gaussian(var=1.0), torch.ones(1, 3), ONE[:1], size=1)]),
    ("a size", [lambda: elbo(RANDOM, Gaussian(var=1.0), None, torch.ones(1), size=0)]),
    ("got 3 for a batch of 4", [
        lambda: elbo(RANDOM, Gaussian(var=1.0), torch.ones(4, 3), torch.ones(4, 2), size=3)]),
    ("prune: expected a threshold", each(prune, (RANDOM, NAN), (RANDOM, None))),
    ("elbo: expected weights", each(weighted, torch.ones(4, 1), torch.ones(2), -torch.ones(4))),
    ("as many observations as inputs", each(trained, (torch.zeros(0, 3), torch.zeros(0, 1)))),
    ("got 5 and 4", each(trained, (torch.zeros(4, 3), torch.zeros(5, 1)))),
    ("finite observations", each(trained, (torch.zeros(4, 3), torch.full((4, 1), NAN)))),
    ("expected a fitted Laplace approximation", each(from_laplace, LINEAR)),
    ("expected the optimizer IVON", each(from_ivon, torch.optim.Adam(LINEAR.parameters()))),
    ("at least two state dicts", [partial(from_swag, [STATE]), partial(from_swag, STATE)]),
    ("a rank of 0 or at least 2, got 0.5 and 1", [partial(from_swag, [STATE] * 2, rank=1)]),
    ("Regression or DiscClassification", each(from_vbll, LINEAR)),
    ("has 0 parameters", each(swag, ({"other": torch.zeros(2)}, {"other": torch.ones(2)}))),
    ("of one network", each(swag, ({}, {"more": torch.ones(1)}))),
    ("0.weight of Sequential was not trained and has other values", each(
        swag, tuple({"0.weight": 1 + STATE["0.weight"], "0.bias": end + STATE["0.bias"]} for end in (0, 1)))),
]  # fmt: skip

# ------------------------------------------------------------------ filters and chains

NOISY = Gaussian(precision=Gamma(6.0, 6.0))
TWO = DensityFilter((5, 4, 1), NOISY, replicates=2)
ROW = torch.zeros(1, 1, 5), torch.zeros(1, 1)
X = torch.linspace(-1.5, 1.5, 30, dtype=torch.float64)[:, None]
Y = X.abs() - 0.75
BAD = X.index_fill(0, torch.tensor([3]), NAN)


def filtered(likelihood: Any, outputs: int, label: float = 0.0) -> Any:
    return DensityFilter((5, 4, outputs), likelihood).update(ROW[0], torch.tensor([[label]]))


def chains(x: torch.Tensor = X, y: torch.Tensor = Y, **options: Any) -> Chains:
    return Chains(BowTieModel((1, 6, 1), 0.1), x, y, **{"start": "random", **options})


def with_prior(**options: Any) -> BowTieModel:
    return BowTieModel((1, 2, 1), priors=ConjugatePrior(**options))


SAMPLERS: list[tuple[str, list[Call]]] = [
    ("features of shape", each(TWO.update, (torch.zeros(2, 3, 4), ONE), (torch.zeros(3, 3, 5), ONE))),
    ("3 targets", each(TWO.update, (torch.zeros(2, 3, 5), torch.zeros(2, 4)))),
    ("targets of shape", each(TWO.update, (torch.zeros(2, 3, 5), torch.zeros(2, 3, 2)))),
    ("finite features", each(TWO.update, (torch.full((2, 3, 5), NAN), THREE))),
    ("finite targets", each(TWO.update, (torch.zeros(2, 3, 5), torch.full((2, 3), INF)))),
    ("labels 0 to", [
        partial(filtered, likelihood, outputs, label) for label in (-1.0, 3.0, 0.5)
        for likelihood, outputs in ((Probit(), 1), (Categorical(), 3), (Categorical("bound"), 3))]),
    ("expected a network of", each(filtered, (Probit(), 2), (Categorical(), 1), (Categorical("bound"), 1))),
    ("DensityFilter: expected", [partial(DensityFilter, (2, 1), of) for of in (
        Bernoulli(), Categorical("mean_predictor"), Gaussian(var=1.0, learn=True), Gaussian(var=torch.ones(2)),
        Gaussian(precision=Gamma(1.0, 1.0)))]),
    ("at least one sample", [partial(DensityFilter, (5, 3), Categorical(), samples=0)]),
    ("two or more widths", each(DensityFilter, ((5,), NOISY), ((5, 0, 1), NOISY))),
    ("replicates of at least 1", [partial(DensityFilter, (5, 1), NOISY, replicates=0)]),
    ("a rule of pbp, ebp", [partial(DensityFilter, (5, 1), NOISY, rule="adf")]),
    ("float32 or float64", [partial(DensityFilter, (5, 1), NOISY, dtype=torch.float16)]),
    ("shape above 1", [partial(DensityFilter, (5, 1), NOISY, prior=(1.0, 1.0))]),
    ("a spread of at least 0", [partial(DensityFilter, (5, 1), NOISY, spread=-1.0)]),
    ("draws of shape", each(DensityFilter((5, 3), Categorical(), samples=2).update, (*ROW, torch.zeros(1, 1, 1, 3)))),
    ("shape", each(chains, (X[:0], Y[:0]), (X[:, 0], Y), (X, Y[:-1]), (X.expand(-1, 2), Y), (X, Y.expand(-1, 2)))),
    ("Chains: expected (chains|burn_in|draws|thin) of at least", each(
        chains, {"chains": 0}, {"chains": 1.5}, {"burn_in": -1}, {"draws": 0}, {"thin": 0})),
    ("expected collapsed", each(chains, {"collapsed": "gates"}, {"collapsed": ("gamma",)})),
    ("expected start", each(chains, {"start": "there"})),
    ("temperature", each(chains, {"anneal_from": 0.0})),
    ("temperature", [partial(BowTieModel, (1, 2, 1), tau) for tau in (0.0, -1.0, NAN, INF)]),
    ("got none", [lambda: chains().draws]),
    ("finite x", each(chains, BAD, BAD.nan_to_num(INF))),
    ("finite y", each(chains, (X, BAD), (X, BAD.nan_to_num(INF)))),
    ("widths", [partial(BowTieModel, widths) for widths in ((1, 1), (1, 0, 1), (1, 2.0, 1))]),
    ("expected", each(with_prior, {"var": 0.0}, {"rate": -1.0}, {"shape": NAN}, {"mean": INF})),
    ("expected cov", each(with_prior, {"cov": ((1.0, 2.0), (2.0, 1.0))}, {"cov": ((1.0, 0.5), (0.4, 1.0))})),
    ("var or cov", each(with_prior, {"cov": ((1.0,),), "var": 2.0})),
    ("broadcasts", each(with_prior, {"cov": ((1.0,),)}, {"mean": ((1.0, 2.0, 3.0),)})),
    ("2 priors", [lambda: BowTieModel((1, 2, 1), priors=(ConjugatePrior(),))]),
]  # fmt: skip

Z = torch.ones(2, 3)
#: of the Pólya-gamma sampler, whose sentences are compared as they stand
TILTS: list[tuple[str, Any, Any]] = [
    ("got 1.0", 1.0, Z),
    ("got True", True, Z),
    ("got None", None, Z),
    ("got -1", -1, Z),
    ("from 0 to 2147483647, got 2147483648", 2**31, Z),
    ("float32", torch.tensor(1.0), Z),
    ("bool", torch.tensor([True, False, True]), Z),
    ("sparse_coo", torch.eye(3, dtype=torch.int64).to_sparse(), Z),
    ("got -3", torch.tensor([1, -3, 2]), Z),
    (f"got {2**40}", torch.tensor(2**40), Z),
    ("broadcast to the shape of z, (2, 3), got (4,)", torch.ones(4, dtype=torch.int64), Z),
    ("broadcast to the shape of z, (2, 3), got (5, 2, 3)", torch.ones(5, 2, 3, dtype=torch.int64), Z),
    ("got float", 1, 1.0),
    ("got ndarray", 1, np.ones(3)),
    ("got Moments", 1, momentgen.Moments(torch.ones(2), torch.ones(2))),
    ("got int64", 1, torch.ones(3, dtype=torch.int64)),
    ("got float16", 1, torch.ones(3, dtype=torch.float16)),
    ("got complex64", 1, torch.ones(3, dtype=torch.complex64)),
    ("got sparse_coo", 1, torch.eye(3).to_sparse()),
    ("got nested", 1, torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)),
    ("got nan at element 2", 1, torch.tensor([[1.0, 2.0], [NAN, INF]])),
    ("got -inf at element 1", 1, torch.tensor([0.0, -INF], dtype=torch.float64)),
    ("z requires a gradient", 1, torch.ones(3, requires_grad=True)),
]

# ------------------------------------------------------------------ estimators


def fitted(kind: Any, **options: Any) -> list[Call]:
    return [lambda: quick(kind, **options).fit(*friedman(kind))]


def known(**options: Any) -> Any:
    return VBPRegressor(hidden=(), epochs=1).fit(*line(40), **options)


LINE = quick(PBPRegressor, hidden=()).fit(*line(40))
COUNTS = quick(VBPRegressor, likelihood=Poisson(), epochs=1).fit(line(40)[0], np.arange(40) % 3)
NEW = line(5)[0]
ESTIMATORS: list[tuple[str, list[Call]]] = [
    ("passes and members", [*fitted(PBPRegressor, passes=0), *fitted(PBPRegressor, members=0)]),
    ("a dtype of float32, float64", fitted(PBPRegressor, dtype="float16")),
    ("shape above 1", [*fitted(PBPRegressor, noise=(1.0, 1.0)), *fitted(PBPRegressor, prior=(1.0, 1.0))]),
    ("widths", fitted(PBPRegressor, hidden=(0,))),
    ("widths of the hidden layers, such as .*, got .10, 0.", fitted(PBPRegressor, hidden=(10, 0))),
    ("calibrate", fitted(PBPRegressor, calibrate="split in two")),
    ("rows that it does not fit", fitted(PBPRegressor, calibrate=[(np.arange(20), np.arange(9, 30))])),
    ("expected numbers as labels", [
        lambda: quick(VBPClassifier, likelihood=Ordinal(3)).fit(line(30)[0], np.repeat(["low", "mid", "top"], 10))]),
    ("censored= or y_std=., not Censored", fitted(VBPRegressor, likelihood=Censored(0.1))),
    ("at least one sample", fitted(PBPClassifier, samples=0)),
    ("a likelihood of auto, probit", fitted(PBPClassifier, likelihood="softmax")),
    ("epochs of at least 1, or None, got 0", fitted(VBPRegressor, epochs=0)),
    ("a positive, finite lr, got 0.0", fitted(VBPRegressor, lr=0.0)),
    ("propagation of controlled or ap2, got 'sample'", fitted(VBPRegressor, propagation="sample")),
    ("widths of the hidden layers, such as .*, got 10.5", fitted(VBPRegressor, hidden=10.5)),
    ("got both, and the noise of Gaussian", fitted(VBPRegressor, noise="input", likelihood=Gaussian(var=0.1))),
    ("noise is that of all rows", fitted(VBPRegressor, likelihood=Gaussian(var=torch.ones(60, 1)))),
    ("expected module to be a torch module", fitted(VBPRegressor, module=lambda features: features)),
    ("early stopping", fitted(VBPRegressor, epochs=5, validation_fraction=0.3)),
    ("Ordinal is of labels, for a classifier", fitted(VBPRegressor, likelihood=Ordinal(3))),
    ("got Ordinal for 2 classes", fitted(VBPClassifier, likelihood=Ordinal(3))),
    (r"expected Categorical, Ordinal\(2\), or Bernoulli", fitted(VBPClassifier, likelihood=HeteroscedasticGaussian())),
    ("expected", [*fitted(BowTieRegressor, hidden=()), *fitted(BowTieRegressor, start="there")]),
    ("expected", [*fitted(BowTieRegressor, tau=0.0), *fitted(BowTieRegressor, weight_var=-1.0)]),
    ("expected", fitted(BowTieRegressor, noise_rate=0.0)),
    ("passes of at least 1, got 0", [lambda: quick(PBPRegressor).partial_fit(*line(20), passes=0)]),
    ("two classes only", [lambda: quick(PBPClassifier, likelihood="probit").fit(*load_iris(return_X_y=True))]),
    ("y_std of y's shape", each(known, {"y_std": -np.ones(40)})),
    ("40 rows adds up to 1 rows", each(known, {"sample_weight": np.full(40, 1 / 40)})),
    ("makes 2 outputs of each row", fitted(VBPRegressor, noise="input", module=lambda width: nn.Linear(width, 1))),
    ("censored of y's shape", each(known, {"censored": np.ones((40, 1))})),
    ("expected .*x_std", [partial(LINE.predict, NEW, **given) for given in (
        {"x_std": -1.0}, {"x_std": NAN}, {"x_std": np.ones(3)}, {"x_std": 1.0, "x_cov": np.eye(2)},
        {"x_cov": np.ones(2)}, {"x_cov": [[1.0, 2.0], [2.0, 1.0]]}, {"x_cov": [[1.0, 0.5], [0.0, 1.0]]})]),
    ("expected a coverage", each(LINE.predict_interval, (NEW, 0.0), (NEW, 1.0))),
    ("level", [partial(LINE.predict_quantiles, NEW, levels) for levels in ([], [[0.1]], [0.0], [1.5])]),
    ("n_samples", each(LINE.sample_y, (NEW, 0))),
    (r"too large for torch.float", each(LINE.predict, 1e300 * NEW)),
    ("expected finite targets", each(LINE.log_prob, (NEW[:2], [NAN, 1.0]))),
    ("normal noise", each(to_arviz, (COUNTS, *line(40)))),
    ("at least 2", [partial(to_arviz, LINE, *line(40), draws=1)]),
    ("one output", each(plot_intervals, (LINE, NEW, np.ones((5, 2))))),
]  # fmt: skip


TILTED = [(re.escape(said), partial(polya_gamma, b, z)) for said, b, z in TILTS]


@rows(PROBABILITY, NETWORKS, SAMPLERS, ESTIMATORS, TILTED)
def test_what_means_nothing_is_refused_in_a_sentence(said: str, call: Call) -> None:
    if "arviz" in str(call):
        pytest.importorskip("arviz")
    with pytest.raises(InputError, match=said):
        call()
