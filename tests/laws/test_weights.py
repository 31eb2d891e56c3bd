"""Random parameters under every law, beside a million drawn parameters and the covariance written out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from sampling import ERRORS, N
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_networks import Recurrent, encoder_layer

import momentgen
from momentgen import Moments
from momentgen.errors import InputError, UnsupportedError
from momentgen.laws import diagonal
from momentgen.laws.border import current_method
from momentgen.laws.weights import random_weight

# ----------------------------------------------------------------- parameters


class Posterior(NamedTuple):
    """A normal parameter with a bidiagonal Cholesky factor: its mean, the factor's diagonal and what is below it."""

    mean: Tensor
    diagonal: Tensor
    below: Tensor

    @property
    def var(self) -> Tensor:
        carried = F.pad(self.below, (1, 0)).square() if len(self.below) else 0.0
        return (self.diagonal.square() + carried).view(self.mean.shape)

    @property
    def neighbour(self) -> Tensor:
        return self.diagonal[:-1] * self.below

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Samples, shape ``(count, *shape)``."""
        noise = torch.randn(count, len(self.diagonal), dtype=self.mean.dtype, generator=generator)
        values = noise * self.diagonal
        values[:, 1:] += noise[:, :-1] * self.below
        return self.mean + values.view(count, *self.mean.shape)

    def weight(self, method: str, correlated: bool) -> Any:
        return random_weight(
            self.mean,
            self.var,
            neighbour=self.neighbour if correlated else None,
            draw=lambda: self.draw(1)[0],
            method=method,
        )


def posterior(*shape: int, correlated: bool, seed: int = 0, dtype: torch.dtype = torch.float64) -> Posterior:
    """A parameter whose neighbours have correlations of -0.47, or are independent."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, dtype=torch.float64, generator=generator)
    std = torch.rand(mean.numel(), dtype=torch.float64, generator=generator) + 0.3
    correlation = -0.47 if correlated else 0.0
    pairs = torch.diag_embed(correlation * std[1:] * std[:-1], offset=1)
    root = torch.linalg.cholesky(torch.diag(std.square()) + pairs + pairs.mT)
    return Posterior(mean.to(dtype), root.diagonal().to(dtype), root.diagonal(-1).to(dtype))


def given(*shape: int, seed: int = 1) -> Moments:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, dtype=torch.float64, generator=generator) + 1  # neighbours alike, as pixels are
    return Moments(mean, torch.rand(shape, dtype=torch.float64, generator=generator) / 2)


#: name -> shape of the weight, shape of one input, options
MAPS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "linear": ((3, 5), (1, 5), {}),
    "conv1d": ((4, 2, 3), (1, 4, 6), {"stride": 2, "padding": 1, "groups": 2}),
    "conv2d": ((2, 2, 3, 2), (1, 4, 4, 3), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}),
}


def of_draws(function: Callable[..., Tensor], *draws: Callable[[int], Tensor], chunk: int = 50_000) -> list[Tensor]:
    """Mean and variance of a function of a million draws, and the standard errors of both."""
    run, total, count = torch.vmap(function), None, 0
    shift = run(*[draw(1000) for draw in draws]).mean(0)
    while count < N:
        away = run(*[draw(chunk) for draw in draws]) - shift
        powers = torch.stack([away.pow(k).sum(0) for k in (1, 2, 3, 4)])
        total = powers if total is None else total + powers
        count += chunk
    m1, m2, m3, m4 = total / N  # type: ignore[operator]
    var = m2 - m1**2
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    return [shift + m1, var, (var / N).sqrt(), ((fourth - var**2) / N).sqrt()]


def agree(found: Moments, sampled: list[Tensor]) -> None:
    mean, var, of_mean, of_var = sampled
    assert ((found.mean - mean).abs() <= ERRORS * of_mean).all()
    assert ((found.var - var).abs() <= ERRORS * of_var).all()


def drawing(x: Moments, seed: int = 5) -> Callable[[int], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda count: (
        x.mean + x.var.sqrt() * torch.randn(count, *x.mean.shape, dtype=x.mean.dtype, generator=generator)
    )


def weights_of(own: Posterior, seed: int = 6) -> Callable[[int], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda count: own.draw(count, generator)


# ----------------------------------------------------------------------- ap2


@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize(
    "name", ["linear", *(pytest.param(name, marks=pytest.mark.slow) for name in ("conv1d", "conv2d"))]
)
def test_a_random_weight_and_bias_on_a_random_input_have_the_moments_of_draws(name: str, correlated: bool) -> None:
    shape, size, options = MAPS[name]
    function, x = getattr(F, name), given(*size)
    weight, bias = posterior(*shape, correlated=correlated), posterior(shape[0], correlated=False, seed=3)
    found = function(diagonal(*x), weight.weight("ap2", correlated), bias.weight("ap2", False), **options).moments()
    truth = of_draws(lambda x, w, b: function(x, w, b, **options), drawing(x), weights_of(weight), weights_of(bias, 7))
    agree(found, truth)


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


def test_what_neighbours_have_in_common_matters_where_inputs_are_alike() -> None:
    own, x = posterior(2, 400, correlated=True), torch.ones(1, 400, dtype=torch.float64)
    with_it, without = (F.linear(x, own.weight("ap2", part)).moments().var for part in (True, False))
    assert (without / with_it > 4).all()


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


def test_a_random_scale_on_a_random_input_of_an_evaluated_batch_norm_is_exact() -> None:
    x, scale = given(2, 3), posterior(3, correlated=False)
    running = (torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    found = F.batch_norm(diagonal(*x), *running, scale.weight("ap2", False), None, False, eps=0.0).moments()
    agree(found, of_draws(lambda x, w: x * w, drawing(x), weights_of(scale)))


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


def test_parts_of_a_weight_chosen_by_outputs_keep_what_neighbours_have_in_common() -> None:
    own, x = posterior(4, 5, correlated=True), given(2, 5)
    whole = own.weight("ap2", True)
    expected = F.linear(diagonal(*x), whole).moments().var  # type: ignore[arg-type]
    first, second = whole.chunk(2)
    parts = [F.linear(diagonal(*x), part).moments().var for part in (first, second)]  # type: ignore[arg-type]
    torch.testing.assert_close(torch.cat(parts, 1), expected)
    sliced = F.linear(diagonal(*x), whole[1:3]).moments().var  # type: ignore[arg-type]
    torch.testing.assert_close(sliced, expected[:, 1:3])


_LOSING: list[Callable[[Any, Tensor], Any]] = [
    lambda w, x: x @ w.t(),
    lambda w, x: torch.einsum("bi,oi->bo", x, w),
    lambda w, x: w.view(5, 3),
    lambda w, x: F.linear(w, x),
    lambda w, x: w.sum(1),
]


@pytest.mark.parametrize("use", _LOSING)
def test_uses_that_would_lose_the_covariance_of_neighbours_are_refused(use: Callable[[Any, Tensor], Any]) -> None:
    with pytest.raises(UnsupportedError, match="neighbour"):
        use(posterior(3, 5, correlated=True).weight("ap2", True), torch.ones(2, 5, dtype=torch.float64))


def test_a_transposed_convolution_refuses_neighbours_and_takes_independent_elements() -> None:
    own, x = posterior(2, 3, 3, correlated=True), given(1, 2, 4).mean
    with pytest.raises(UnsupportedError, match="mean-field"):
        F.conv_transpose1d(x, own.weight("ap2", True))
    found = F.conv_transpose1d(x, own.weight("ap2", False)).moments().var
    torch.testing.assert_close(found, F.conv_transpose1d(x.square(), own.var))


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


@pytest.mark.parametrize("method", ["ap2", "sample", "local"])
def test_shapes_that_do_not_fit_are_named(method: str) -> None:
    mean = torch.zeros(2, 3)
    with pytest.raises(InputError, match="6 elements have 5"):
        random_weight(mean, mean, neighbour=torch.zeros(6), draw=lambda: mean, method=method)
    with pytest.raises(InputError, match="variance of"):
        random_weight(mean, mean[0], draw=lambda: mean, method=method)


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


class Bayes(nn.Module):
    """A network that sets its parameters anew at each run, from a mean and a standard deviation for each."""

    def __init__(self, net: nn.Module, correlated: bool, noise: float = 0.1) -> None:
        super().__init__()
        self.net, self.correlated = net, correlated
        self.means, self.logs = nn.ParameterList(), nn.ParameterList()
        self.places: list[tuple[str, str]] = []
        for path, part in net.named_modules():
            for name, value in list(part._parameters.items()):
                if value is not None:
                    del part._parameters[name]
                    self.places.append((path, name))
                    self.means.append(nn.Parameter(value.detach()))
                    self.logs.append(nn.Parameter(torch.full_like(value, noise).log()))

    def forward(self, x: Any) -> Any:
        for (path, name), mean, log in zip(self.places, self.means, self.logs, strict=True):
            std = log.exp()
            neighbour = -0.45 * std.flatten()[1:] * std.flatten()[:-1] if self.correlated else None

            def draw(mean: Tensor = mean, std: Tensor = std) -> Tensor:
                return mean + std * torch.randn_like(mean)

            own = current_method(getattr(self, "propagation", None))
            weight = random_weight(mean, std.square(), neighbour=neighbour, draw=draw, method=own)
            self.net.get_submodule(path).__dict__[name] = weight
        return self.net(x)


class Convolutional(nn.Module):
    """A convolution, a batch norm and two linear maps, of which the first may be within a checkpoint."""

    def __init__(self, within: bool = False) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.middle, self.scale, self.last = nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.within = within

    def forward(self, x: Tensor) -> Tensor:
        def middle(x: Tensor) -> Tensor:
            return F.gelu(self.scale(self.middle(x)))

        x = F.relu(self.norm(self.first(x))).flatten(1)
        return self.last(checkpoint(middle, x, use_reentrant=False) if self.within else middle(x))


def results(network: Any, bayes: Bayes, x: Any) -> list[Tensor]:
    torch.manual_seed(1)
    out = network(x)
    return [*out, *torch.autograd.grad(out.mean.sum() + (out.var + 1e-3).sqrt().sum(), list(bayes.parameters()))]


@pytest.mark.parametrize("method", ["ap2", "sample", "local"])
def test_a_checkpoint_changes_nothing(method: str) -> None:
    torch.manual_seed(2)
    bayes, x = Bayes(Convolutional(), True), torch.randn(3, 2, 4, 4)
    network = momentgen.convert(bayes, method)  # type: ignore[arg-type]
    expected = results(network, bayes, x)
    bayes.net.within = True
    torch.testing.assert_close(results(momentgen.convert(bayes, method), bayes, x), expected)  # type: ignore[arg-type]


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))


@pytest.mark.parametrize("method", ["ap2", "local"])
def test_compiled_networks_of_random_parameters_equal_eager(method: str) -> None:
    torch.manual_seed(2)
    torch._dynamo.reset()
    bayes, x = Bayes(small(), True).train(), torch.randn(3, 2, 4, 4)
    network = momentgen.convert(bayes, method)  # type: ignore[arg-type]
    fast = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(results(fast, bayes, x), results(network, bayes, x))


@pytest.mark.slow
@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("method", ["ap1", "ap2", "sample", "local"])
def test_every_network_of_random_parameters_compiles(method: str, within: bool, correlated: bool) -> None:
    torch.manual_seed(2)
    torch._dynamo.reset()
    bayes, x = Bayes(Convolutional(within), correlated).train(), torch.randn(3, 2, 4, 4)
    network = momentgen.convert(bayes, method)  # type: ignore[arg-type]
    fast = torch.compile(network, backend="aot_eager", fullgraph=True)
    if method == "ap1":  # gradients reach the means only
        torch.testing.assert_close(results_without(fast, x), results_without(network, x))
    else:
        torch.testing.assert_close(results(fast, bayes, x), results(network, bayes, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("correlated", [False, True])
def test_autocast_keeps_variances_and_gradients_finite(dtype: torch.dtype, correlated: bool) -> None:
    torch.manual_seed(2)
    bayes, x = Bayes(Convolutional(), correlated, noise=1e-3), torch.randn(3, 2, 4, 4)
    network = momentgen.convert(bayes, "ap2")
    exact = network(x)
    with torch.autocast("cpu", dtype):
        found = network(x)
    assert found.mean.dtype is dtype
    torch.testing.assert_close(found.std.float(), exact.std, rtol=0.1, atol=0)
    found.var.float().sum().backward()
    assert all(bool(part.grad.isfinite().all()) for part in bayes.parameters() if part.grad is not None)


def test_deterministic_laws_give_the_same_bits_twice() -> None:
    torch.manual_seed(2)
    bayes, x = Bayes(Convolutional(), True).eval(), torch.randn(3, 2, 4, 4)
    for method in ("ap1", "ap2"):
        network = momentgen.convert(bayes, method)  # type: ignore[arg-type]
        for first, second in zip(results_without(network, x), results_without(network, x), strict=True):
            assert torch.equal(first, second)


def results_without(network: Any, x: Any) -> list[Tensor]:
    with torch.no_grad():
        return list(network(x))


# ------------------------------------------- laws that know what values have in common


class Run(nn.Module):
    """A function of an input and of parameters that are random anew at each run."""

    def __init__(self, function: Callable[..., Any], correlated: bool, *parameters: Posterior) -> None:
        super().__init__()
        self.function, self.correlated, self.parameters_of = function, correlated, parameters

    def forward(self, x: Any) -> Any:
        own = current_method(getattr(self, "propagation", None))
        return self.function(x, *[part.weight(own, self.correlated) for part in self.parameters_of])


def propagated(network: nn.Module, x: Moments | Tensor, method: str) -> Any:
    """Joint moments of the output; ``adjoint`` is the function :func:`momentgen.output_covariance`."""
    if method == "adjoint":
        return momentgen.output_covariance(network, x)
    return momentgen.convert(network, method)(x)  # type: ignore[arg-type]


def second_order(run: Callable[..., Tensor], x: Moments, *parameters: Posterior) -> Tensor:
    """The covariance of a function that is linear in the input and in each parameter, written out.

    Parameters enter in separate terms, the first of them in products with the input.
    """
    roots = [torch.diag(part.diagonal) + torch.diag(part.below, -1) for part in parameters]
    means = [part.mean for part in parameters]
    n = run(x.mean, *means).numel()
    total = torch.zeros(n, n, dtype=torch.float64)
    for place, root in enumerate(roots):
        jacobian = torch.func.jacrev(lambda *w: run(x.mean, *w), place)(*means).reshape(n, -1) @ root  # type: ignore[misc]
        total += jacobian @ jacobian.T
    by_input = torch.func.jacrev(run)(x.mean, *means).reshape(n, -1)  # type: ignore[misc]
    both = torch.func.jacrev(torch.func.jacrev(run), 1)(x.mean, *means).reshape(n, by_input.shape[1], -1)  # type: ignore[misc]
    v = x.var.flatten()
    return total + (by_input * v) @ by_input.T + torch.einsum("aik,i,bik->ab", both @ roots[0], v, both @ roots[0])


#: sequences of rows, one input for each output (all neighbours belong to two outputs), and a transposed convolution
_SHARED: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    **{name: (name, *own) for name, own in MAPS.items()},
    "rows": ("linear", (3, 5), (1, 2, 5), {}),
    "column": ("linear", (4, 1), (1, 1), {}),
    "conv_transpose1d": ("conv_transpose1d", (2, 3, 2), (1, 2, 3), {}),
}


@pytest.mark.parametrize("method", ["covariance", "adjoint", "correlated"])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize(
    ("name", "correlated"),
    [(name, correlated) for name in _SHARED for correlated in (False, True) if not (correlated and "transp" in name)],
)
def test_the_first_map_is_exact(name: str, correlated: bool, noisy: bool, method: str) -> None:
    kind, shape, size, options = _SHARED[name]
    x = given(*size)
    x = x if noisy else Moments(x.mean, torch.zeros_like(x.var))
    weight = posterior(*shape, correlated=correlated)
    bias = posterior(shape["transpose" in kind], correlated=correlated, seed=3)

    def run(x: Any, w: Any, b: Any) -> Any:
        return getattr(F, kind)(x, w, b, **options)

    found = propagated(Run(run, correlated, weight, bias), x, method)
    expected = second_order(run, x, weight, bias)
    torch.testing.assert_close(found.var.flatten(), expected.diagonal(), rtol=1e-10, atol=0)
    # What `correlated` says of covariances is that of ten directions, and has no products of two random values; what
    # two outputs have in common through such products is not followed by `adjoint` either.
    products = noisy and (method == "correlated" or (method == "adjoint" and name == "column" and correlated))
    if not products and not (method == "correlated" and len(expected) > 10):
        covariance = found.covariance.reshape(expected.shape)
        torch.testing.assert_close(covariance, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["covariance", "adjoint", "correlated"])
@pytest.mark.parametrize("correlated", [False, True])
def test_scale_and_bias_of_a_batch_norm_are_one_noise_for_all_places(correlated: bool, method: str) -> None:
    x, scale, bias = given(1, 3, 2), posterior(3, correlated=correlated), posterior(3, correlated=correlated, seed=4)
    x = Moments(x.mean, torch.zeros_like(x.var))
    running = (torch.randn(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64) + 0.5)

    def run(x: Any, w: Any, b: Any) -> Any:
        return F.batch_norm(x, *running, w, b)

    found = propagated(Run(run, correlated, scale, bias), x, method)
    expected = second_order(run, x, scale, bias)
    torch.testing.assert_close(found.var.flatten(), expected.diagonal(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("method", ["covariance", "adjoint", "correlated"])
def test_rows_of_a_random_embedding_are_one_noise(method: str) -> None:
    own, index = posterior(4, 3, correlated=False), torch.tensor([[2, 0, 2]])
    x = Moments(torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))

    def run(x: Any, w: Any) -> Any:
        rows = F.embedding(index, w)
        return rows[:, 0] - rows[:, 2] + 0.5 * rows[:, 1] + x

    found = propagated(Run(run, False, own), x, method)
    torch.testing.assert_close(found.var[0], own.var[0] / 4, rtol=1e-10, atol=1e-12)


def scaled(own: Posterior, by: float) -> Posterior:
    return own._replace(diagonal=own.diagonal * by, below=own.below * by)


#: network -> the function, shapes of its parameters, the size of their noise, and shape of an input
_DEEP: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], float, tuple[int, ...]]] = {
    "mlp": (
        lambda x, w, b, v, c: F.linear(F.relu(F.linear(x, w, b)), v, c),
        [(6, 4), (6,), (3, 6), (3,)],
        0.4,
        (1, 4),
    ),
    "three layers": (
        lambda x, w, v, u: F.linear(F.relu(F.linear(F.relu(F.linear(x, w)), v)), u),
        [(20, 4), (20, 20), (3, 20)],
        0.15,
        (1, 4),
    ),
    "tied": (lambda x, w: F.linear(F.linear(x, w), w), [(3, 3)], 0.1, (1, 3)),
}
#: largest error of σ at the outputs, as a share: independent elements, and correlated ones.  That of `correlated`
#: is chance in networks of so few units: 0.01 to 0.07 over eight seeds of the samples for "mlp", 0.01 to 0.11 over five
#: for "three layers".
_BIASES: dict[tuple[str, str], tuple[float, float]] = {
    ("mlp", "ap2"): (0.01, 0.01),
    ("mlp", "adjoint"): (0.005, 0.005),
    ("mlp", "correlated"): (0.08, 0.08),
    ("mlp", "covariance"): (0.005, 0.005),
    ("three layers", "ap2"): (0.07, 0.08),
    ("three layers", "adjoint"): (0.005, 0.005),
    ("three layers", "correlated"): (0.1, 0.12),
    ("three layers", "covariance"): (0.005, 0.005),
    ("tied", "adjoint"): (0.02, 0.02),
    ("tied", "correlated"): (0.05, 0.05),
    ("tied", "covariance"): (0.02, 0.02),
}


@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("name", ["mlp", "tied", pytest.param("three layers", marks=pytest.mark.slow)])
def test_deeper_networks_have_the_stated_bias(name: str, correlated: bool) -> None:
    function, shapes, noise, size = _DEEP[name]
    parameters = [scaled(posterior(*s, correlated=correlated, seed=k), noise) for k, s in enumerate(shapes)]
    x = given(*size).mean
    truth = of_draws(lambda *w: function(x, *w), *[weights_of(part, 30 + k) for k, part in enumerate(parameters)])
    network = Run(function, correlated, *parameters)
    sigma = truth[1].sqrt()
    for method in ("ap2", "adjoint", "correlated", "covariance"):
        if (name, method) in _BIASES:
            found = propagated(network, Moments(x, torch.zeros_like(x)), method)
            assert ((found.mean - truth[0]).abs() <= 0.06 * sigma).all()
            off = (found.var.sqrt() / sigma - 1).abs().max().item()
            assert off < _BIASES[name, method][correlated], f"{method}: {off:.4f}"


@pytest.mark.parametrize("method", ["adjoint", "correlated"])
def test_less_memory_gives_the_same_moments_and_too_little_is_an_error(method: str) -> None:
    weight, x = posterior(3, 2, 3, correlated=True), given(4, 2, 6)
    network = Run(lambda x, w: F.relu(F.conv1d(x, w)).flatten(1), True, weight)
    expected = propagated(network, x, method)
    with momentgen.laws.covariance.options(memory=50_000):
        found = propagated(network, x, method)
    torch.testing.assert_close(found.var, expected.var)
    torch.testing.assert_close(found.covariance, expected.covariance)
    with momentgen.laws.covariance.options(memory=2_000), pytest.raises(InputError, match="random parameter"):
        propagated(network, x, method)


@pytest.mark.parametrize("method", ["covariance", "correlated"])
def test_gradients_reach_mean_variance_and_covariance(method: str) -> None:
    own, x = posterior(3, 4, correlated=True), given(2, 4).mean
    parts = [part.clone().requires_grad_() for part in (own.mean, own.var, own.neighbour)]

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            weight = random_weight(*parts[:2], neighbour=parts[2], draw=lambda: own.mean, method=method)
            return F.linear(x, weight)

    found = momentgen.convert(Net(), method)(x)  # type: ignore[arg-type]
    grads = torch.autograd.grad(found.var.sum(), parts, allow_unused=True)
    assert grads[0] is None or not grads[0].any()
    torch.testing.assert_close(grads[1], x.square().sum(0).expand(3, 4))
    expected = F.pad(2 * (x[:, :-1] * x[:, 1:]).sum(0), (0, 1)).repeat(3)[:-1]
    torch.testing.assert_close(grads[2], expected)


@pytest.mark.parametrize("method", ["adjoint", "correlated"])
def test_correlations_that_no_pairs_of_noise_have_are_refused(method: str) -> None:
    mean, var = torch.zeros(1, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    own = Posterior(mean, torch.ones(3), torch.zeros(2))
    neighbour = torch.tensor([0.6, 0.6], dtype=torch.float64)

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            weight = random_weight(mean, var, neighbour=neighbour, draw=lambda: own.mean, method=method)
            return F.linear(x, weight)

    with pytest.raises(InputError, match="must not add up to more than 1"):
        propagated(Net(), given(1, 2, 3), method)


def test_laws_that_know_what_values_share_give_the_same_bits_twice() -> None:
    torch.manual_seed(2)
    bayes, x = Bayes(small(), True).eval(), torch.randn(3, 2, 4, 4)
    for method in ("adjoint", "correlated", "covariance"):
        first, second = (propagated(bayes, Moments(x, torch.zeros_like(x)), method) for _ in range(2))
        assert torch.equal(first.mean, second.mean)
        assert torch.equal(first.var, second.var)


def test_a_propagation_without_a_run_is_refused() -> None:
    own = posterior(2, 2, correlated=False)
    for method in ("adjoint", "correlated", "covariance"):
        with pytest.raises(InputError, match="call the network itself"):
            own.weight(method, False)


#: networks written over other functions, and inputs; their weights meet many values, some of them many times
_COMPOSITE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm": (lambda: Recurrent(nn.LSTM), (2, 3, 4)),
    "encoder layer": (encoder_layer, (2, 3, 8)),
}


@pytest.mark.parametrize("name", _COMPOSITE)
def test_recurrent_networks_and_transformers_have_the_spread_of_drawn_parameters(name: str) -> None:
    make, shape = _COMPOSITE[name]
    torch.manual_seed(2)
    bayes, x = Bayes(make(), False, noise=0.05).eval(), torch.randn(shape)
    with torch.no_grad():
        sampled = momentgen.convert(bayes, "sample")
        truth = torch.stack([sampled(x).mean for _ in range(1500)]).std(0)
        for method in ("correlated", "covariance", "adjoint"):
            found = propagated(bayes, Moments(x, torch.zeros_like(x)), method)
            ratio = (found.var.sqrt().view_as(truth) / truth).mean().item()
            assert abs(ratio - 1) < (0.12 if method == "adjoint" else 0.05), f"{method}: {ratio:.3f}"


@pytest.mark.parametrize("method", ["ap2", "correlated", pytest.param("covariance", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", _COMPOSITE)
def test_neighbours_have_a_rule_in_functions_that_are_written_over_linear_maps(name: str, method: str) -> None:
    make, shape = _COMPOSITE[name]
    torch.manual_seed(2)
    x, plain = torch.randn(shape), make()
    with torch.no_grad():
        with_it, without = (
            momentgen.convert(Bayes(copy.deepcopy(plain), part, noise=0.05).eval(), method)(x).var  # type: ignore[arg-type]
            for part in (True, False)
        )
    assert (with_it > 0).all()
    assert not torch.allclose(with_it, without, rtol=0.01)


@pytest.mark.parametrize("method", ["adjoint", "correlated"])
def test_uses_without_a_rule_for_neighbours_are_refused_in_two_passes(method: str) -> None:
    own = posterior(3, 5, correlated=True)
    with pytest.raises(UnsupportedError, match="neighbouring"):
        propagated(Run(lambda x, w: x @ w.t(), True, own), given(2, 5), method)
    assert propagated(Run(lambda x, w: x @ w.t(), False, own), given(2, 5), method).var.shape == (2, 3)
