"""What laws, networks and results refuse at once, with a sentence that says why."""

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributions as td
import torch.nn.functional as F
import torch.utils._pytree as pytree
from laws.random_parameters import given, posterior, random_weight
from laws.small_networks import Of, small
from refused import Call, each, rows
from sampling import law_of, normal_input
from torch import Tensor, nn

import momentgen
import momentgen.generated
from momentgen import Moments, budget, convert, joint, noisy
from momentgen import nn as own
from momentgen.errors import InputError, UnsupportedError
from momentgen.laws import activation, diagonal, register_activation
from momentgen.laws.channels import channels
from momentgen.laws.numerics.maximum import maximum_of
from momentgen.laws.numerics.normalise import layer_norm
from momentgen.laws.numerics.quadrature import quadrature
from momentgen.nn import functional

NAN, INF = math.nan, math.inf
ONE, ROWS, PAIRS = torch.ones(3), torch.zeros(2, 3), torch.zeros(2, 2)
X = noisy(torch.zeros(2), std=1.0)
#: an answer for four examples of two values, one that a pytree has lost a part of, and one of correlated values
ANSWER = convert(nn.Linear(3, 2).eval())(noisy(torch.ones(4, 3), std=0.5))
LOST = pytree.tree_map(Tensor.clone, noisy(ROWS, td.Laplace(0.0, 0.2)))
JOINT = pytree.tree_map(Tensor.clone, noisy(PAIRS, cov=torch.eye(2)))

# ------------------------------------------------------------------ noise


class WithoutExpand(td.Distribution):
    """Noise of a user's own, which defines what is asked for most."""

    mean = variance = property(lambda self: torch.ones(()))

    def __init__(self) -> None:
        super().__init__(torch.Size(), validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return torch.randn(*sample_shape)


def sized(dtype: torch.dtype, **size: Any) -> Call:
    return partial(noisy, torch.zeros(3, 2, dtype=dtype), **size)


def of(*distributions: Any) -> list[Call]:
    """Noise of these distributions on four examples of three values."""
    return [partial(noisy, torch.zeros(4, 3), distribution) for distribution in distributions]


#: what is no standard deviation, as a number and in tensors
NO_SIZES = ["a", (0.1, "b"), *(made for size in (1j, True, -1.0, INF, NAN) for made in (
    size, torch.tensor(size), torch.full((2,), size)))]  # fmt: skip
_ANGLE, _ANGLES = td.VonMises(torch.zeros(()), torch.ones(())), td.VonMises(torch.zeros(2), torch.ones(2))
_TWO = td.Categorical(torch.ones(2))
#: noise of angles, by itself and within what mixes, wraps, transforms or expands it
OF_ANGLES = [
    _ANGLE, _ANGLE.expand((4, 3)), td.MixtureSameFamily(_TWO, _ANGLES),
    td.MixtureSameFamily(_TWO, td.Independent(td.VonMises(torch.zeros(2, 3), torch.ones(2, 3)), 1)),
    td.TransformedDistribution(_ANGLE, [td.AffineTransform(0.0, 2.0)]),
]  # fmt: skip
NOISE: list[tuple[str, Call | list[Call]]] = [
    ("noisy: expected a (number|standard deviation|variance)",
        [partial(noisy, torch.zeros(2), **{name: size}) for name in ("std", "var") for size in NO_SIZES]),
    ("one of distribution, var, std and cov", each(noisy, X.mean, {"x": PAIRS, "var": 1.0, "cov": torch.eye(2)})),
    (r"\(3, 3\) or \(2, 3, 3\) for x of shape \(2, 3\), got \(2, 2", partial(noisy, ROWS, cov=torch.eye(2))),
    ("got float", partial(noisy, ROWS, cov=1.0)),
    ("got torch.float64", partial(noisy, ROWS, cov=torch.eye(3, dtype=torch.float64))),
    ("positive semidefinite", partial(noisy, PAIRS, cov=torch.tensor([[1.0, 2.0], [2.0, 1.0]]))),
    ("symmetric", partial(noisy, PAIRS, cov=torch.tensor([[1.0, 0.5], [-0.5, 1.0]]))),
    ("finite", partial(noisy, PAIRS, cov=torch.full((2, 2), NAN))),
    (r"complex64.*torch\.view_as_real", partial(noisy, torch.zeros(3, dtype=torch.complex64), std=0.1)),
    (r"floating point, got torch\.int64.*x\.float", partial(noisy, torch.tensor([1, 2]), std=0.5)),
    # what a dtype does not hold
    (r"float16 does not hold the variance of a std of 0\.0001", sized(torch.float16, std=1e-4)),
    ("torch.float32 does not hold the variance.*; use ", [
        *(sized(torch.float32, std=std) for std in (1e-24, 1e-50, 1e-21, 1e25, torch.tensor([1.0, 1e20]))),
        *(sized(torch.float32, var=var) for var in (1e-50, 1e-44)),
        sized(torch.float32, std=torch.tensor([0.1, 1e-50], dtype=torch.float64)),
        sized(torch.float32, cov=torch.diag(torch.tensor([1.0, 1e-43])))]),
    ("torch.float64 does not hold the variance.*; use ", sized(torch.float64, std=1e-200)),
    ("torch.float16 does not hold the variance.*; use ", sized(torch.float16, std=1e-5)),
    ("torch.bfloat16 does not hold the variance.*; use ", sized(torch.bfloat16, std=1e-24)),
    (r"expected a variance that torch\.float32 holds", each(
        Moments, *((torch.zeros(2), var) for var in (1e-50, 1e-44, 1e39)))),
    ("float16 does not hold", lambda: Moments(torch.zeros(1), torch.full((1,), 1e-12)).to(torch.float16)),
    # distributions
    ("finite mean and variance", of(td.Cauchy(0.0, 1.0), td.StudentT(1.5), td.Pareto(1.0, 1.5))),
    ("angles", of(*OF_ANGLES)),
    (r"WithoutExpand has no expand.*\(4, 3\), got \(\)\. Make it", of(WithoutExpand())),
    ("its draws differ; use float64", of(td.Normal(0.0, 1e-25))),
    ("float32 does not hold the variance of Normal noise", of(td.Normal(torch.zeros(()).double(), 1e-25))),
    ("does not know", of(td.RelaxedBernoulli(torch.tensor(1.0), torch.tensor(0.5)))),
    ("does not broadcast", of(td.Normal(torch.zeros(5), 1.0), td.MultivariateNormal(torch.zeros(2), torch.eye(2)))),
    ("var= or std=", of(0.1)),
    ("expected moments with a distribution", lambda: convert(nn.Linear(3, 2).eval())(LOST)),
    ("made of mean and variance alone", lambda: convert(nn.Linear(2, 1).eval())(JOINT)),
]  # fmt: skip

# ------------------------------------------------------------------ results, budgets, networks, methods, numerics


def jointly() -> Any:
    with joint():
        return convert(nn.ReLU(), "ap2")(noisy(torch.ones(1), std=0.5))


RESULTS: list[tuple[str, Call | list[Call]]] = [
    ("expected an index of examples first", each(ANSWER.__getitem__, None, ..., torch.ones(4, 2) > 0)),
    ("cannot be broadcast", lambda: ANSWER * torch.ones(5, 4, 2)),
    ("between 0 and 1, got 95", lambda: ANSWER.interval(95)),
    ("returns booleans", lambda: ANSWER.probability(lambda y: y * 2)),
    ("function of the output", lambda: ANSWER.probability(ANSWER.mean > 3)),
    ("expected noisy values, got none", lambda: convert(torch.sum)(noisy(torch.zeros(0), std=1.0)).quantile(0.5)),
    ("expected quantiles between", each(lambda how: how(0.99999), ANSWER.quantile, ANSWER.interval)),
    ("another dimension of classes than the batch", lambda: momentgen.class_posterior(ANSWER, dim=0)),
    (r"nothing is random.*momentgen\.noisy\(x, std=\.\.\.\)", each(
        partial(momentgen.summary, small()), torch.randn(4, 4), Moments(torch.randn(4, 4), torch.zeros(4, 4)))),
    ("returns one random tensor, got tuple", lambda: budget(lambda x: (x, x), X)),
    ("or tensors, got 'pixel'", partial(budget, torch.exp, X, groups="pixel")),
    ("expected groups of the shapes", partial(budget, torch.exp, X, groups=torch.zeros(3))),
    ("expected 2 names", lambda: budget(lambda x: x.sum().exp(), X, names=["a"])),
    ("index of one value", lambda: budget(torch.exp, X).table(at=(0, 1))),  # of two examples with a value each
    ("an image of 4 groups, got 3 × 2", lambda: budget(torch.sum, noisy(torch.zeros(4), std=1.0)).plot(image=(3, 2))),
    ("expected 2 labels, one for each value, got 1", lambda: ANSWER[0].plot(labels=["a"])),
    ("classes need an answer of the default method", lambda: Moments(torch.zeros(2), 1.0).plot(classes=True)),
    ("level between 0 and 1, got 95", lambda: ANSWER[0].plot(level=95)),
]  # fmt: skip
#: what a layer is given in the place of a tensor or moments; hostile/test_layers has what is of other kinds
NO_MOMENTS: list[tuple[str, Call | list[Call]]] = [
    (said, [partial(layer, value) for layer in (own.Linear(3, 2), own.ReLU(), own.Dropout())]) for said, value in (
        (r"one shape and device, got \(2, 3\) on cpu and \(2, 4\)", Moments(ROWS, torch.zeros(2, 4))),
        ("must not be negative, got -1e-30", Moments(ROWS, torch.tensor([[0.0, 1.0, -1e-30]]).expand(2, 3))),
        ("expected a tensor or Moments, got str", "x"),
        ("got tuple of 2", (ROWS, ROWS)),
        ("got tuple of 4", (*Moments(ROWS, ROWS), *Moments(ROWS, ROWS))))
]  # fmt: skip
GIVEN = Moments(ROWS, torch.ones(2, 3))
LAYERS: list[tuple[str, Call | list[Call]]] = [
    (r"expected \(..., 4\), got \(2, 3\)", partial(own.Linear(4, 2), GIVEN)),
    (r"conv2d: expected 3 channels and 2 dimensions of space, .* \(2, 3\)", partial(own.Conv2d(3, 2, 1), GIVEN)),
    ("expected 4 channels", partial(own.BatchNorm1d(4), GIVEN)),
    ("layer_norm: expected", partial(own.LayerNorm(4), GIVEN)),
    ("Normalize: expected 4 channels", partial(own.Normalize(4), GIVEN)),
    ("same dtype", partial(own.Linear(3, 2).double(), GIVEN)),
    ("conv2d: expected|Linear: 3 input features|Normalize: expected", [  # statistics of other channels
        partial(own.propagate_statistics, layer, torch.zeros(2), torch.ones(2))
        for layer in (own.Conv2d(3, 2, 1), own.Conv2d(4, 2, 1, groups=2), own.Linear(3, 2), own.Normalize(3))]),
    ("must be positive, got 0", partial(functional.gaussian_nll_loss, GIVEN, ROWS, 0)),
    (r"output \(2, 3\) and target \(3,\) differ", partial(functional.gaussian_nll_loss, GIVEN, ROWS[0], 1.0)),
    ("expected one of logistic, normal, simplified, quadrature",
        partial(functional.log_class_posterior, GIVEN, approximation="exact")),
    ("no activation of Sequential has a variant 'best'", partial(own.set_variant, own.Sequential(own.ReLU()), "best")),
    ("n of at least 2, got 1", partial(momentgen.monte_carlo, own.ReLU(), ROWS, 1)),
    (r"hardtanh: parameter min_val must be in \[-64, 0\], got 0.5", lambda: own.Hardtanh(0.5, 2.0)(GIVEN)),
    ("Softplus: expected threshold >= 20, where the rule 'softplus' holds, got 5",
        lambda: own.Softplus(threshold=5)(GIVEN)),
    (r"BowTie: expected tau in \[0.000976562, 16\], got 0.0", partial(own.BowTie, tau=0.0)),
    ("BowTie: expected tau in .*, got nan", partial(own.BowTie, tau=NAN)),
    (r"BowTie: expected eta in \[0, 16\], got -1$", partial(own.BowTie, eta=-1)),
    ("BowTie: expected tau in .*, got a number beyond 3.4", partial(own.BowTie, tau=10**400)),
    ("BowTie: expected a number for eta, got str", partial(own.BowTie, eta="much")),
]  # fmt: skip
NO_ACCURACY: dict[str, Any] = {"rtol": 0.0, "max_rows": 2, "seed": 0.5}
NETWORKS: list[tuple[str, Call | list[Call]]] = [
    (r"call \.eval\(\) on the network", jointly),
    ("variance must not be negative", lambda: convert(small())(Moments(torch.zeros(2, 4), torch.full((2, 4), -1.0)))),
    ("expected one of ap1, ap2, sample, local, controlled, got 'ap3'", each(momentgen.method, "ap3")),
    ("at least one value", lambda: maximum_of(ONE[:0], ONE[:0], 0)),
    ("at least one node", lambda: quadrature(torch.tanh, ONE, ONE, nodes=0)),
    ("normalise over 1 to 1 dimensions", lambda: layer_norm(ONE, ONE, 2, 1e-3)),
    ("expected an axis of a tensor of 1 dimensions, got dim = 1", each(functional.log_class_posterior, (X, 1))),
    ("expected a whole number for dim, got float", each(functional.log_class_posterior, (X, 0.5))),
    ("view_as_real of a complex output", lambda: momentgen.monte_carlo(Of(torch.fft.rfft), noisy(ROWS, std=0.3), 2)),
    ("6 elements have 5", [partial(random_weight, ROWS, ROWS, neighbour=torch.zeros(6), draw=lambda: ROWS, method=how)
        for how in ("ap2", "local")]),
    ("variance of", [partial(random_weight, ROWS, ROWS[0], draw=lambda: ROWS, method=how) for how in ("ap2", "local")]),
    ("call the network itself", lambda: posterior(2, 2, correlated=False).weight("controlled", False)),
    ("of the same shapes for every draw", lambda: convert(Of(lambda x: x[x > 0]), "controlled")(X)),
    *((name, [partial(convert, nn.Linear(2, 2), "controlled", **{name: value}),
        partial(momentgen.method, "controlled", **{name: value})]) for name, value in NO_ACCURACY.items()),
    ('of method="controlled"', [partial(momentgen.method, "ap2", **{name: value})
        for name, value in NO_ACCURACY.items()]),
]  # fmt: skip

# ------------------------------------------------------------------ functions that users make known


def plain(x: Tensor) -> Tensor:
    return x.relu()


def another(x: Tensor) -> Tensor:
    return x.tanh()


def steeper(x: Tensor, slope: float = 0.1) -> Tensor:
    return F.leaky_relu(x, 2 * slope)


REGISTERED: list[tuple[str, Call | list[Call]]] = [
    ("another is another function than that of silu: at x = -1.7 it is -0.935",
        lambda: activation(momentgen.generated.silu)(another)),
    ("another function than that of leaky_relu",
        lambda: activation(momentgen.generated.leaky_relu, "negative_slope")(steeper)),
    (r"got plain, which torch hides from laws; write @momentgen\.laws\.activation\(silu\) above",
        each(register_activation, (plain, momentgen.generated.silu))),
    ("got the module SiLU; make the function known that its forward calls",
        each(register_activation, (nn.SiLU, momentgen.generated.silu))),
    ("got the module SiLU", each(register_activation, (nn.SiLU(), momentgen.generated.silu))),
    ("got 3, which torch hides from laws", each(register_activation, (3, momentgen.generated.silu))),
    (r"expected parameters of silu, which are \[\], got",
        each(register_activation, (torch.special.i0, momentgen.generated.silu, "slope"))),
]  # fmt: skip


@rows(NOISE, RESULTS, NO_MOMENTS, LAYERS, NETWORKS, REGISTERED)
def test_what_means_nothing_is_refused_in_a_sentence(said: str, call: Call) -> None:
    with pytest.raises(InputError, match=said):
        call()


# ------------------------------------------------------------------ functions without a rule

BY_AP2 = partial(convert, method="ap2")
BATCH = noisy(torch.ones(1, 2, 2), std=0.3)
#: uses of a random weight of three outputs, whose elements are correlated, that would lose the covariance
LOSING = [
    lambda w, x: x @ w.t(), lambda w, x: torch.einsum("bi,oi->bo", x, w), lambda w, x: w.view(5, 3),
    lambda w, x: F.linear(w, x), lambda w, x: w.sum(1), lambda w, x: w[torch.eye(3, 5).bool()],
    lambda w, x: w[torch.tensor([[0, 2], [1, 1]])], lambda w, x: w[torch.tensor([2, 1])][True],
    lambda w, x: w[torch.tensor([2, 1])][torch.tensor(True)],
]  # fmt: skip
#: what has no meaning for the statistics of channels
CHANNELS = [
    lambda x: F.pixel_shuffle(x.view(1, 3, 1, 1), 1).transpose(0, 1), lambda x: x + torch.ones(4, 4),
    lambda x: x[0].mean(),
]  # fmt: skip
#: what is not to be taken for a function of the same name that has a rule
UNLIKE = [
    lambda x: x.norm(1), lambda x: x.norm(INF, dim=0), lambda x: torch.linalg.norm(x, 2),
    lambda x: torch.linalg.norm(x, 2, dim=(0, 1)), lambda x: torch.norm(x, "nuc"),
    lambda x: torch.frobenius_norm(x, 2), lambda x: F.normalize(x, p=1),
    lambda x: torch.einsum("ij,jk,kl->il", x, x, x), lambda x: F.adaptive_max_pool1d(x, 1, return_indices=True),
    lambda x: torch.native_dropout(x, 0.5, True), lambda x: torch.max_pool1d_with_indices(x[None], 2),
    lambda x: F.max_pool2d_with_indices(x[None], 2), lambda x: F.adaptive_max_pool2d_with_indices(x[None], 2),
]  # fmt: skip
WITHOUT_RULE: list[tuple[str, Call | list[Call]]] = [
    ("of a random value, Diagonal of shape", [lambda use=use: use(law_of(normal_input(4, 4))) for use in UNLIKE]),
    ("multinomial of a random value", [
        lambda method=method: convert(Of(lambda x: x.softmax(1).multinomial(2).float()), method)(ROWS)
        for method in ("ap1", "ap2")]),
    (r"torch\.stack", lambda: BY_AP2(Of(lambda x: torch.tensor([x[0, 0], x[0, 1]])))(BATCH)),
    ("neighbour", [
        lambda use=use: use(posterior(3, 5, correlated=True).weight("ap2", True), torch.ones(2, 5).double())
        for use in LOSING]),
    ("mean-field",
        lambda: F.conv_transpose1d(given(1, 2, 4).mean, posterior(2, 3, 3, correlated=True).weight("ap2", True))),
    ("", [lambda use=use: use(channels(torch.zeros(3), ONE, nn.Conv2d(3, 4, 3))) for use in CHANNELS]),
    ("a random matrix times itself has no rule", [lambda use=use: BY_AP2(Of(use))(BATCH) for use in (
        lambda x: x @ x, lambda x: torch.einsum("bij,bjk->bik", x, x))]),
    ("not defined for every value", lambda: BY_AP2(Of(lambda x: torch.log(torch.tanh(x))))(BATCH)),
    ("one exponent has a rule, got a tensor of shape",
        lambda: BY_AP2(Of(lambda x: x ** torch.tensor([1.0, 2.0])))(BATCH)),
    (r"no rule for complex random values.*controlled", lambda: diagonal(ONE, ONE) * torch.tensor(1j)),
    ("div", lambda: (lambda x: torch.div(x * torch.cos(x), 2, rounding_mode="floor"))(law_of(normal_input(4)))),
    (r"inv.* of a random value, Diagonal .*, in 1 \(Of\), at .*:\d+", lambda: convert(nn.Sequential(
        nn.Linear(2, 2), Of(lambda net, x: torch.linalg.inv(net.fc(x)), fc=nn.Linear(2, 2))))(BATCH)),
]  # fmt: skip


@rows(WITHOUT_RULE)
def test_what_has_no_rule_is_refused_in_a_sentence(said: str, call: Call) -> None:
    with pytest.raises(UnsupportedError, match=said):
        call()
