"""Random parameters with covariances of neighbours in deeper networks, beside draws."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.random_parameters import Bayes, Posterior, given, of_draws, posterior, weights_of
from torch import nn
from torch_networks import encoder_layer

import momentgen
from momentgen import Moments
from momentgen.errors import InputError
from momentgen.laws.methods import current_method


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
    "three layers": (
        lambda x, w, v, u: F.linear(F.relu(F.linear(F.relu(F.linear(x, w)), v)), u),
        [(20, 4), (20, 20), (3, 20)],
        0.15,
        (1, 4),
    ),
}
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


#: networks written over other functions, and inputs; their weights meet many values, some of them many times
_COMPOSITE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "encoder layer": (encoder_layer, (2, 3, 8)),
}


@pytest.mark.parametrize("name", _COMPOSITE)
def test_transformers_have_the_spread_of_drawn_parameters(name: str) -> None:
    make, shape = _COMPOSITE[name]
    torch.manual_seed(2)
    bayes, x = Bayes(make(), False, noise=0.05).eval(), torch.randn(shape)
    with torch.no_grad():
        sampled = momentgen.convert(bayes, "sample")
        truth = torch.stack([sampled(x).mean for _ in range(1500)]).std(0)
        found = momentgen.convert(bayes, "ap2")(Moments(x, torch.zeros_like(x)))
        assert abs((found.var.sqrt().view_as(truth) / truth).mean().item() - 1) < 0.12


@pytest.mark.parametrize("name", _COMPOSITE)
def test_neighbours_have_a_rule_in_functions_that_are_written_over_linear_maps(name: str) -> None:
    make, shape = _COMPOSITE[name]
    torch.manual_seed(2)
    x, plain = torch.randn(shape), make()
    with torch.no_grad():
        with_it, without = (
            momentgen.convert(Bayes(copy.deepcopy(plain), part, noise=0.05).eval(), "ap2")(x).var
            for part in (True, False)
        )
    assert (with_it > 0).all()
    assert not torch.allclose(with_it, without, rtol=0.01)
