"""Random parameters under laws that take values as independent, alone and in networks, beside a million draws."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.random_parameters import (
    MAPS,
    Bayes,
    Posterior,
    agree,
    given,
    of_draws,
    posterior,
    random_weight,
    small,
    weights_of,
)
from laws.small_networks import Of
from sampling import ERRORS
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_networks import encoder_layer

import momentgen
from momentgen import Moments
from momentgen.laws import diagonal
from momentgen.laws.border import current_method

# ----------------------------------------------------------------------- ap2


#: options of convolutions whose variance is that of the covariance written out
_FORMS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    *[(name, *own) for name, own in MAPS.items()],
    ("conv1d", (3, 2, 3), (2, 7), {"padding": "same", "dilation": 2}),
    ("conv2d", (2, 3, 1, 1), (2, 3, 4, 4), {}),
    ("conv2d", (4, 1, 3, 3), (1, 2, 5, 5), {"groups": 2, "padding": "valid"}),
    ("conv3d", (2, 2, 2, 1, 3), (1, 2, 4, 4, 5), {"padding": (1, 0, 2), "stride": 2}),
]


@pytest.mark.parametrize(("name", "shape", "size", "options"), _FORMS)
def test_variances_under_neighbours_are_those_of_the_whole_covariance_matrix(
    name: str, shape: tuple[int, ...], size: tuple[int, ...], options: dict[str, Any]
) -> None:
    function, x, own = getattr(F, name), given(*size), posterior(*shape, correlated=True)
    found = function(diagonal(*x), own.weight("ap2", True), None, **options).moments()
    by_weight = torch.func.jacrev(lambda w: function(x.mean, w, None, **options))(own.mean)
    by_input = torch.func.jacrev(lambda m: function(m, own.mean, None, **options))(x.mean)
    root = torch.diag(own.diagonal) + torch.diag(own.below, -1)
    expected = (by_weight.reshape(found.mean.numel(), -1) @ root).square().sum(1)
    expected += by_input.reshape(found.mean.numel(), -1).square() @ x.var.flatten()
    expected += function(x.var, own.var, None, **options).flatten()
    torch.testing.assert_close(found.var.flatten(), expected, rtol=1e-13, atol=0)


def test_a_rank_deficient_posterior_gives_no_negative_variance() -> None:
    mean = torch.randn(1, 301)
    var = torch.full_like(mean, 2.0).index_fill(1, torch.tensor([0, 300]), 1.0)  # differences of neighbours
    x = torch.full((64, 301), 0.1) * torch.rand(64, 1)
    weight = random_weight(mean, var, neighbour=-torch.ones(300), draw=lambda: mean, method="ap2")
    found = F.linear(x, weight).moments().var
    assert (found >= 0).all()
    assert found.max() < 1e-5


@pytest.mark.parametrize("training", [False, True])
def test_scale_and_bias_of_a_batch_norm_have_the_moments_of_draws(training: bool) -> None:
    x, scale, bias = given(6, 3), posterior(3, correlated=False), posterior(3, correlated=False, seed=4)
    running = (torch.randn(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64) + 0.5)

    def norm(weight: Any, bias: Any) -> Any:
        statistics = [part.clone() for part in running]
        return F.batch_norm(x.mean, *statistics, weight, bias, training)

    found = norm(scale.weight("ap2", False), bias.weight("ap2", False)).moments()
    normed = F.batch_norm(x.mean, *[part.clone() for part in running], None, None, training)
    agree(found, of_draws(lambda w, b: normed * w + b, weights_of(scale), weights_of(bias, 7)))


@pytest.mark.parametrize(
    "norm", [lambda x, w, b: F.layer_norm(x, (4,), w, b), lambda x, w, b: F.group_norm(x, 2, w, b)]
)
def test_scale_and_bias_of_other_norms_on_a_certain_input_have_the_moments_of_draws(norm: Any) -> None:
    x, scale, bias = given(2, 4).mean, posterior(4, correlated=False), posterior(4, correlated=False, seed=4)
    found = norm(x, scale.weight("ap2", False), bias.weight("ap2", False)).moments()
    normed = norm(x, None, None)
    agree(found, of_draws(lambda w, b: normed * w + b, weights_of(scale), weights_of(bias, 7)))


@pytest.mark.parametrize("correlated", [False, True])
def test_a_bias_alone_is_random(correlated: bool) -> None:
    x, bias = given(2, 5), posterior(3, correlated=correlated)
    weight = posterior(3, 5, correlated=False).mean
    for value, of_input in ((diagonal(*x), x.var @ weight.square().T), (x.mean, 0.0)):
        found = F.linear(value, weight, bias.weight("ap2", correlated)).moments()  # type: ignore[arg-type]
        torch.testing.assert_close(found.var, (of_input + bias.var).expand(2, 3))


def test_rows_of_a_random_embedding_are_random() -> None:
    own = posterior(4, 3, correlated=True)
    found = F.embedding(torch.tensor([2, 0, 2]), own.weight("ap2", True)).moments()
    assert torch.equal(found.mean, own.mean[[2, 0, 2]])
    assert torch.equal(found.var, own.var[[2, 0, 2]])


@pytest.mark.parametrize(
    "chosen",
    [
        lambda w: w[1:3],
        lambda w: w[::3],
        lambda w: w[-1],
        lambda w: w[torch.tensor([3, 0, 3])],
        lambda w: w[torch.tensor(2)],
        lambda w: w[torch.tensor([True, False, False, True])],
        lambda w: w.chunk(2)[1],
        lambda w: w.narrow(0, 1, 2),
        lambda w: w.select(0, 2),
        lambda w: w.index_select(0, torch.tensor([2, 1])),
    ],
)
def test_parts_of_a_weight_chosen_by_outputs_keep_what_neighbours_have_in_common(chosen: Callable[[Any], Any]) -> None:
    own, x = posterior(4, 5, correlated=True), given(2, 5)
    weight = own.weight("ap2", True)
    expected = F.linear(diagonal(*x), weight).moments().var  # type: ignore[arg-type]
    found = F.linear(diagonal(*x), chosen(weight)).moments().var  # type: ignore[arg-type]
    torch.testing.assert_close(found.T, chosen(expected.T))


@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("method", ["ap2", "local"])
def test_a_variance_of_zero_is_certain(method: str, correlated: bool) -> None:
    own = Posterior(torch.randn(3, 2, 3, 3), torch.zeros(54), torch.zeros(53))
    x = torch.randn(2, 2, 5, 5)
    with momentgen.method(method):  # type: ignore[arg-type]
        found = momentgen.laws.lower(F.conv2d(x, own.weight(method, correlated), padding=1))
    torch.testing.assert_close(found.mean, F.conv2d(x, own.mean, padding=1))
    assert not found.var.any()


@pytest.mark.parametrize("name", MAPS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    shape, size, options = MAPS[name]
    own, x, function = posterior(*shape, correlated=True), given(*size), getattr(F, name)

    def run(mean: Tensor, var: Tensor, neighbour: Tensor, m: Tensor, v: Tensor) -> Any:
        weight = random_weight(mean, var, neighbour=neighbour, draw=lambda: mean, method="ap2")
        return tuple(function(diagonal(m, v), weight, None, **options).moments())

    parts = [part.clone().requires_grad_() for part in (own.mean, own.var, own.neighbour, *x)]
    assert torch.autograd.gradcheck(run, parts)


# ----------------------------------------------------------- sample and local


@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("name", MAPS)
def test_local_draws_outputs_of_the_analytic_mean_and_variance(name: str, correlated: bool) -> None:
    shape, size, options = MAPS[name]
    own, bias, x = posterior(*shape, correlated=correlated), posterior(shape[0], correlated=False), given(*size).mean
    batch, function = x.expand(20_000, *x.shape[1:]), getattr(F, name)
    torch.manual_seed(3)
    drawn = function(batch, own.weight("local", correlated), bias.weight("local", False), **options)
    exact = function(x, own.weight("ap2", correlated), bias.weight("ap2", False), **options).moments()
    n = len(batch)
    assert ((drawn.mean(0) - exact.mean[0]).abs() <= ERRORS * (exact.var[0] / n).sqrt()).all()
    assert ((drawn.var(0) - exact.var[0]).abs() <= ERRORS * exact.var[0] * (2 / n) ** 0.5).all()


def test_local_takes_one_sample_a_run_for_all_other_functions() -> None:
    own = posterior(4, 3, correlated=False)
    weight = own.weight("local", False)
    first, second = F.embedding(torch.tensor([1, 1]), weight)
    assert torch.equal(first, second)
    assert torch.equal(first, (weight * 1)[1])
    assert not torch.equal(first, (own.weight("local", False) * 1)[1])


@pytest.mark.parametrize("method", ["ap1", "sample"])
def test_means_and_draws_are_plain_tensors(method: str) -> None:
    own = posterior(4, 3, correlated=True)
    found = own.weight(method, True)
    assert type(found) is Tensor
    assert (method == "sample") != torch.equal(found, own.mean)


# ------------------------------------------------------------------- networks


def convolutional(within: bool = False) -> Any:
    """A convolution, a batch norm and two linear maps, of which the first may be within a checkpoint."""

    def run(net: Any, x: Tensor) -> Tensor:
        def middle(x: Tensor) -> Tensor:
            return F.gelu(net.scale(net.middle(x)))

        x = F.relu(net.norm(net.first(x))).flatten(1)
        return net.last(checkpoint(middle, x, use_reentrant=False) if net.within else middle(x))

    first, norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
    linear, scale = nn.Linear(64, 8), nn.LayerNorm(8)
    return Of(run, first=first, norm=norm, middle=linear, scale=scale, last=nn.Linear(8, 3), within=within)


def results(network: Any, bayes: Bayes, x: Any) -> list[Tensor]:
    torch.manual_seed(1)
    out = network(x)
    return [*out, *torch.autograd.grad(out.mean.sum() + (out.var + 1e-3).sqrt().sum(), list(bayes.parameters()))]


@pytest.mark.parametrize("method", ["ap2", "sample", "local"])
def test_a_checkpoint_changes_nothing(method: str) -> None:
    torch.manual_seed(2)
    bayes, x = Bayes(convolutional(), True), torch.randn(3, 2, 4, 4)
    network = momentgen.convert(bayes, method)  # type: ignore[arg-type]
    expected = results(network, bayes, x)
    bayes.net.within = True
    torch.testing.assert_close(results(momentgen.convert(bayes, method), bayes, x), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "method", "correlated", "backend"),
    [
        (small, "local", True, "eager"),
        *(
            pytest.param(make, method, correlated, "aot_eager", marks=pytest.mark.slow)
            for make in (convolutional, lambda: convolutional(True))
            for method in ("ap1", "ap2", "sample", "local")
            for correlated in (False, True)
        ),
    ],
)
def test_compiled_networks_of_random_parameters_equal_eager(
    make: Callable[[], nn.Module], method: Any, correlated: bool, backend: str
) -> None:
    torch.manual_seed(2)
    torch._dynamo.reset()
    bayes, x = Bayes(make(), correlated).train(), torch.randn(3, 2, 4, 4)
    network = momentgen.convert(bayes, method)
    fast = torch.compile(network, backend=backend, fullgraph=True)
    if method == "ap1":  # gradients reach the means only
        torch.testing.assert_close(results_without(fast, x), results_without(network, x))
    else:
        torch.testing.assert_close(results(fast, bayes, x), results(network, bayes, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("correlated", [False, True])
def test_autocast_keeps_variances_and_gradients_finite(dtype: torch.dtype, correlated: bool) -> None:
    torch.manual_seed(2)
    bayes, x = Bayes(convolutional(), correlated, noise=1e-3), torch.randn(3, 2, 4, 4)
    network = momentgen.convert(bayes, "ap2")
    exact = network(x)
    with torch.autocast("cpu", dtype):
        found = network(x)
    assert found.mean.dtype is torch.float32
    torch.testing.assert_close(found.std, exact.std, rtol=0.1, atol=0)
    found.var.sum().backward()
    assert all(bool(part.grad.isfinite().all()) for part in bayes.parameters() if part.grad is not None)


def results_without(network: Any, x: Any) -> list[Tensor]:
    with torch.no_grad():
        return list(network(x))


# Random parameters with covariances of neighbours in deeper networks, beside draws.
class Run(nn.Module):
    """A function of an input and of parameters that are random anew at each run."""

    def __init__(self, function: Callable[..., Any], correlated: bool, *parameters: Posterior) -> None:
        super().__init__()
        self.function, self.correlated, self.parameters_of = function, correlated, parameters

    def forward(self, x: Any) -> Any:
        own = current_method(getattr(self, "propagation", None))
        return self.function(x, *[part.weight(own, self.correlated) for part in self.parameters_of])


def scaled(own: Posterior, by: float) -> Posterior:
    return own._replace(diagonal=own.diagonal * by, below=own.below * by)


#: network -> the function, shapes of its parameters, the size of their noise, and shape of an input
_DEEP: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], float, tuple[int, ...]]] = {
    "mlp": (lambda x, w, b, v, c: F.linear(F.relu(F.linear(x, w, b)), v, c), [(6, 4), (6,), (3, 6), (3,)], 0.4, (1, 4)),
    "three layers": (lambda x, w, v, u: F.linear(F.relu(F.linear(F.relu(F.linear(x, w)), v)), u),
        [(20, 4), (20, 20), (3, 20)], 0.15, (1, 4)),
}  # fmt: skip
#: largest error of σ at the outputs, as a share: independent elements, and correlated ones
_BIASES = {"mlp": (0.01, 0.01), "three layers": (0.07, 0.08)}


@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("name", ["mlp", pytest.param("three layers", marks=pytest.mark.slow)])
def test_deeper_networks_have_the_stated_bias(name: str, correlated: bool) -> None:
    function, shapes, noise, size = _DEEP[name]
    parameters = [scaled(posterior(*s, correlated=correlated, seed=k), noise) for k, s in enumerate(shapes)]
    x = given(*size).mean
    truth = of_draws(lambda *w: function(x, *w), *[weights_of(part, 30 + k) for k, part in enumerate(parameters)])
    network = Run(function, correlated, *parameters)
    sigma = truth[1].sqrt()
    found = momentgen.convert(network, "ap2")(Moments(x, torch.zeros_like(x)))
    assert ((found.mean - truth[0]).abs() <= 0.06 * sigma).all()
    assert (found.var.sqrt() / sigma - 1).abs().max().item() < _BIASES[name][correlated]


def test_transformers_have_the_spread_of_drawn_parameters() -> None:
    torch.manual_seed(2)
    bayes, x = Bayes(encoder_layer(), False, noise=0.05).eval(), torch.randn(2, 3, 8)
    with torch.no_grad():
        sampled = momentgen.convert(bayes, "sample")
        truth = torch.stack([sampled(x).mean for _ in range(1500)]).std(0)
        found = momentgen.convert(bayes, "ap2")(Moments(x, torch.zeros_like(x)))
        assert abs((found.var.sqrt().view_as(truth) / truth).mean().item() - 1) < 0.12


def test_neighbours_have_a_rule_in_functions_that_are_written_over_linear_maps() -> None:
    torch.manual_seed(2)
    x, plain = torch.randn(2, 3, 8), encoder_layer()
    with torch.no_grad():
        with_it, without = (
            momentgen.convert(Bayes(copy.deepcopy(plain), part, noise=0.05).eval(), "ap2")(x).var
            for part in (True, False)
        )
    assert (with_it > 0).all()
    assert not torch.allclose(with_it, without, rtol=0.01)
