"""Random parameters under laws that know what values have in common, beside the covariance written out, or draws."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.random_parameters import MAPS, Bayes, Posterior, given, of_draws, posterior, weights_of
from laws.small_networks import Of
from torch import Tensor, nn
from torch_networks import Recurrent, encoder_layer

import momentgen
from momentgen import Moments
from momentgen.errors import InputError, UnsupportedError
from momentgen.inference import MeanField, randomise
from momentgen.laws.border import current_method
from momentgen.laws.weights import random_weight


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


@pytest.mark.parametrize("method", ["covariance", "adjoint"])
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
    # What two outputs have in common through products of two random values is not followed by `adjoint`.
    if not (noisy and method == "adjoint" and name == "column" and correlated):
        covariance = found.covariance.reshape(expected.shape)
        torch.testing.assert_close(covariance, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["covariance", "adjoint"])
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


@pytest.mark.parametrize("method", ["covariance", "adjoint"])
def test_rows_of_a_random_embedding_are_one_noise(method: str) -> None:
    own, index = posterior(4, 3, correlated=False), torch.tensor([[2, 0, 2]])
    x = Moments(torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))

    def run(x: Any, w: Any) -> Any:
        rows = F.embedding(index, w, padding_idx=0, scale_grad_by_freq=True)  # say something of gradients alone
        return rows[:, 0] - rows[:, 2] + 0.5 * rows[:, 1] + x

    found = propagated(Run(run, False, own), x, method)
    torch.testing.assert_close(found.var[0], own.var[0] / 4, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["covariance", "adjoint"])
def test_what_would_write_into_a_random_parameter_is_refused_and_leaves_its_mean(method: str) -> None:
    own, x = posterior(4, 3, correlated=False), given(1, 3)
    before = own.mean.clone()
    writes: list[Callable[[Any], Any]] = [
        lambda w: w.data.clamp_(0, 1),
        lambda w: F.embedding(torch.tensor([0]), w, max_norm=0.1),
    ]
    for write in writes:

        def run(x: Any, w: Any, write: Any = write) -> Any:
            write(w)
            return F.linear(x, w)

        with pytest.raises(UnsupportedError):
            propagated(Run(run, False, own), x, method)
    assert torch.equal(own.mean, before)


def scaled(own: Posterior, by: float) -> Posterior:
    return own._replace(diagonal=own.diagonal * by, below=own.below * by)


#: network -> the function, shapes of its parameters, the size of their noise, and shape of an input
_DEEP: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], float, tuple[int, ...]]] = {
    "mlp": (lambda x, w, b, v, c: F.linear(F.relu(F.linear(x, w, b)), v, c), [(6, 4), (6,), (3, 6), (3,)], 0.4, (1, 4)),
    "three layers": (
        lambda x, w, v, u: F.linear(F.relu(F.linear(F.relu(F.linear(x, w)), v)), u),
        [(20, 4), (20, 20), (3, 20)],
        0.15,
        (1, 4),
    ),
    "tied": (lambda x, w: F.linear(F.linear(x, w), w), [(3, 3)], 0.1, (1, 3)),
}
#: largest error of σ at the outputs, as a share: independent elements, and correlated ones
_BIASES: dict[tuple[str, str], tuple[float, float]] = {
    ("mlp", "ap2"): (0.01, 0.01),
    ("mlp", "adjoint"): (0.005, 0.005),
    ("mlp", "covariance"): (0.005, 0.005),
    ("three layers", "ap2"): (0.07, 0.08),
    ("three layers", "adjoint"): (0.005, 0.005),
    ("three layers", "covariance"): (0.005, 0.005),
    ("tied", "adjoint"): (0.02, 0.02),
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
    for method in ("ap2", "adjoint", "covariance"):
        if (name, method) in _BIASES:
            found = propagated(network, Moments(x, torch.zeros_like(x)), method)
            assert ((found.mean - truth[0]).abs() <= 0.06 * sigma).all()
            off = (found.var.sqrt() / sigma - 1).abs().max().item()
            assert off < _BIASES[name, method][correlated], f"{method}: {off:.4f}"


def test_less_memory_gives_the_same_moments_and_too_little_is_an_error() -> None:
    weight, x = posterior(3, 2, 3, correlated=True), given(4, 2, 6)
    network = Run(lambda x, w: F.relu(F.conv1d(x, w)).flatten(1), True, weight)
    expected = propagated(network, x, "adjoint")
    with momentgen.laws.covariance.options(memory=50_000):
        found = propagated(network, x, "adjoint")
    torch.testing.assert_close(found.var, expected.var)
    torch.testing.assert_close(found.covariance, expected.covariance)
    with momentgen.laws.covariance.options(memory=2_000), pytest.raises(InputError, match="random parameter"):
        propagated(network, x, "adjoint")


@pytest.mark.parametrize("method", ["covariance", "adjoint"])
def test_gradients_reach_mean_variance_and_covariance(method: str) -> None:
    own, x = posterior(3, 4, correlated=True), given(2, 4).mean
    parts = [part.clone().requires_grad_() for part in (own.mean, own.var, own.neighbour)]

    def run(x: Any) -> Any:
        return F.linear(x, random_weight(*parts[:2], neighbour=parts[2], draw=lambda: own.mean, method=method))

    found = momentgen.convert(Of(run), method)(x)  # type: ignore[arg-type]
    grads = torch.autograd.grad(found.var.sum(), parts, allow_unused=True)
    assert grads[0] is None or not grads[0].any()
    torch.testing.assert_close(grads[1], x.square().sum(0).expand(3, 4))
    expected = F.pad(2 * (x[:, :-1] * x[:, 1:]).sum(0), (0, 1)).repeat(3)[:-1]
    torch.testing.assert_close(grads[2], expected)


def test_correlations_that_no_pairs_of_noise_have_are_refused() -> None:
    mean, var = torch.zeros(1, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    own = Posterior(mean, torch.ones(3), torch.zeros(2))
    neighbour = torch.tensor([0.6, 0.6], dtype=torch.float64)

    def run(x: Any) -> Any:
        return F.linear(x, random_weight(mean, var, neighbour=neighbour, draw=lambda: own.mean, method="adjoint"))

    with pytest.raises(InputError, match="must not add up to more than 1"):
        propagated(Of(run), given(1, 2, 3), "adjoint")


def test_a_propagation_without_a_run_is_refused() -> None:
    own = posterior(2, 2, correlated=False)
    for method in ("adjoint", "covariance"):
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
        for method, bias in (("covariance", 0.05), ("adjoint", 0.12), ("ap2", 0.12)):
            found = propagated(bayes, Moments(x, torch.zeros_like(x)), method)
            ratio = (found.var.sqrt().view_as(truth) / truth).mean().item()
            assert abs(ratio - 1) < bias, f"{method}: {ratio:.3f}"


@pytest.mark.parametrize("method", ["ap2", pytest.param("covariance", marks=pytest.mark.slow)])
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


def test_uses_without_a_rule_for_neighbours_are_refused_by_adjoint() -> None:
    own = posterior(3, 5, correlated=True)
    with pytest.raises(UnsupportedError, match="neighbouring"):
        propagated(Run(lambda x, w: x @ w.t(), True, own), given(2, 5), "adjoint")
    assert propagated(Run(lambda x, w: x @ w.t(), False, own), given(2, 5), "adjoint").var.shape == (2, 3)


@pytest.mark.parametrize(
    "again",
    [lambda h, w: F.linear(h, w.T), lambda h, w: h @ w, lambda h, w: torch.einsum("bi,ij->bj", h, w)],
    ids=["linear", "matmul", "einsum"],
)
def test_a_weight_that_is_used_again_in_another_way_is_one_noise(again: Callable[[Any, Any], Any]) -> None:
    torch.manual_seed(0)
    plain = Of(lambda net, x: again(net.map(x), net.map.weight), map=nn.Linear(4, 4, bias=False)).eval()
    x = torch.randn(2, 4)
    with torch.no_grad():
        found = momentgen.convert(randomise(plain, MeanField(std=0.02)), "covariance")(x)
    jacobian = torch.func.jacrev(lambda w: again(F.linear(x, w), w))(plain.map.weight.detach()).reshape(2, 4, -1)
    torch.testing.assert_close(found.std, 0.02 * jacobian.square().sum(-1).sqrt(), rtol=0.01, atol=0)
