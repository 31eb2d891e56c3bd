"""Values of one source: what is written by hand over a value and functions of it, against sampling."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sampling import assert_agrees, law_of, normal_input
from torch import Tensor

from momentgen.errors import UnsupportedError
from momentgen.laws import diagonal, listening, point


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --------------------------------------------------------------- activations

_ROOT = math.sqrt(2 / math.pi)


#: activations as they are written by hand
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "x sigmoid(x)": lambda x: x * torch.sigmoid(x),
    "sigmoid(x) x": lambda x: x.sigmoid() * x,
    "x.mul_(sigmoid(x))": lambda x: x.clone().mul_(x.sigmoid()),
    "x sigmoid(1.702 x)": lambda x: x * torch.sigmoid(1.702 * x),
    "x / (1 + exp(-x))": lambda x: x / (1 + torch.exp(-x)),
    "x / (exp(-x) + 1)": lambda x: x / (torch.exp(-x) + 1.0),
    "x (1 + erf(x/sqrt 2))/2": lambda x: 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "x (1 + erf(x sqrt 1/2))/2": lambda x: x * 0.5 * (1 + torch.erf(x * math.sqrt(0.5))),
    "x ((erf + 1)/2)": lambda x: x * ((torch.erf(x * 0.7071067811865475) + 1) / 2),
    "x Phi(x)": lambda x: x * torch.special.ndtr(x),
    "gelu, tanh, pow": lambda x: 0.5 * x * (1 + torch.tanh(_ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
    "gelu, tanh, **": lambda x: 0.5 * x * (1.0 + (_ROOT * (x + 0.044715 * x**3)).tanh()),
    "gelu, tanh, products": lambda x: 0.5 * x * (1 + torch.tanh(_ROOT * (x + 0.044715 * x * x * x))),
    "gelu, tanh, factored": lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
    "x tanh(softplus(x))": lambda x: x * torch.tanh(F.softplus(x)),
    "x tanh of a module": lambda x: x * torch.tanh(torch.nn.Softplus()(x)),
    "x relu6(x + 3)/6": lambda x: x * F.relu6(x + 3) / 6,
    "x (relu6(x + 3)/6)": lambda x: x * (F.relu6(x + 3.0) / 6.0),
    "x by a module": lambda x: x * torch.nn.ReLU6(inplace=True)(x + 3) / 6,
    "x clamp(x + 3, 0, 6)/6": lambda x: x * (x + 3).clamp(min=0, max=6) / 6,
    "x hardsigmoid(x)": lambda x: x * F.hardsigmoid(x),
    "x / (1 + |x|)": lambda x: x / (1 + x.abs()),
    "x - tanh(x)": lambda x: x - torch.tanh(x),
    "2 x - x": lambda x: 2 * x - x,
    "x + x": lambda x: x + x,
    "x + x + 1, less x": lambda x: x + x + 1 - x,
    "x x": lambda x: x * x,
    "max(x, 0.1 x)": lambda x: torch.maximum(x, 0.1 * x),
    "max(x, 0.1 x), by max": lambda x: torch.max(0.1 * x, x),
    "-min(-x, 0 x)": lambda x: -torch.minimum(-x, 0 * x),
}


#: exact by sampling; None of these has an op.  Smooth ones by quadrature, and what it is off at a kink.
WRITTEN: dict[str, tuple[Callable[[Any], Any], tuple[float, float] | None]] = {
    "x sigmoid(x)": (lambda x: x * torch.sigmoid(x), None),
    "max(x, 0.1 x)": (lambda x: torch.maximum(x, 0.1 * x), None),
    "min(2 x + 1, 3)": (lambda x: torch.minimum(2 * x + 1, 0 * x + 3), None),
    "x + relu(x)": (lambda x: x + torch.relu(x), (0.02, 0.02)),
    "x x x": (lambda x: x * x * x, None),
    "x cos(x)": (lambda x: x * torch.cos(x), None),
    "x + sin(x) by alpha": (lambda x: torch.add(x, torch.sin(x), alpha=0.5), None),
    "x relu(x)": (lambda x: x * F.relu(x), (0.02, 0.02)),
    "sin(x) exp(-x x/2)": (lambda x: torch.sin(x) * torch.exp(-x * x / 2), (0.02, 0.02)),
    "x tanh(x) by a tensor": (lambda x: x * torch.tanh(x * torch.tensor(0.5)), None),
    "x per channel": (lambda x: x * torch.sigmoid(x * torch.linspace(0.5, 1.5, 5).double()), None),
    "a polynomial": (lambda x: 1 - x + 0.5 * x**2 - x**3 / 6, None),
    "through views of its own": (lambda x: x.view(-1, 5) * torch.sigmoid(x.view(-1, 5)), None),
    "through a flatten": (lambda x: torch.sin(x.reshape(-1, 5)).flatten(1) + x.reshape(-1, 5).flatten(1), None),
    "a function of a pending value": (lambda x: torch.relu(x * torch.sigmoid(x)), (0.02, 0.03)),  # a kink
    "x / (1 + x x)": (lambda x: x / (1 + x * x), (0.02, 0.02)),
}


@pytest.mark.parametrize("name", [*ACTIVATIONS, *WRITTEN])
def test_functions_of_one_value_are_those_of_samples(name: str) -> None:
    function, bias = WRITTEN.get(name) or (ACTIVATIONS[name], (0.01, 0.01))
    assert_agrees(function, normal_input(1, 5), bias=bias)


@pytest.mark.parametrize("name", [*ACTIVATIONS, *WRITTEN])
def test_on_points_they_are_torchs_own_bit_for_bit(name: str) -> None:
    function = ACTIVATIONS[name] if name in ACTIVATIONS else WRITTEN[name][0]
    x = normal_input(1, 5).mean
    with torch.no_grad():
        assert torch.equal(function(point(x.clone())).value, function(x.clone()))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(-1, 5) * x.sigmoid().view(-1, 5),
        lambda x: x[:, 1:] * torch.sigmoid(x)[:, 1:],
        lambda x: x.chunk(5, 1)[2] * x.tanh().chunk(5, 1)[2],
        lambda x: x[:, :, None] * x[:, None],
        lambda x: x * x.sum(-1, keepdim=True),
    ],
    ids=["views", "slices", "chunks", "outer", "a sum"],
)
def test_a_value_that_meets_itself_moved_is_noted_as_independent(function: Callable[[Any], Any]) -> None:
    with listening() as notes:
        function(law_of(normal_input(2, 5)))
    assert any("taken as independent" in note for note in notes)


def test_values_that_are_moved_apart_are_independent_without_a_note() -> None:
    with listening() as notes:
        assert_agrees(lambda x: torch.cat([-x[:, 2:], x[:, :2]], 1) * 0.5 + x * 2, normal_input(1, 4))
        assert_agrees(lambda x: x * x.roll(1, -1), normal_input(1, 3))
    assert not notes


def test_a_gradient_reaches_through_what_is_integrated() -> None:
    x = normal_input(4)
    mean, var = x.mean.clone().requires_grad_(), x.var.clone().requires_grad_()
    law = diagonal(mean, var)
    out = (law * torch.cos(law)).moments()
    gradients = torch.autograd.grad(out.mean.sum() + out.var.sum(), (mean, var))
    assert all(bool(part.isfinite().all()) and bool((part != 0).any()) for part in gradients)


def test_rounding_of_an_integrated_value_is_refused() -> None:
    x = law_of(normal_input(4))
    with pytest.raises(UnsupportedError, match="div"):
        torch.div(x * torch.cos(x), 2, rounding_mode="floor")


# --------------------------------------------------------------------- norms


def _by_var(x: Any, dims: Any, unbiased: bool) -> Any:
    mean, var = x.mean(dims, keepdim=True), x.var(dims, unbiased=unbiased, keepdim=True)
    return (x - mean) / torch.sqrt(var + 1e-5)


def _by_square(x: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)


#: norms and the like that are written by hand
NORMS: dict[str, Callable[[Any], Any]] = {
    "layer norm, var": lambda x: _by_var(x, -1, False),
    "layer norm, squares": _by_square,
    "layer norm, one over": lambda x: (x - x.mean(-1, True)) * (1.0 / torch.sqrt(x.var(-1, False, True) + 1e-5)),
    "over channels": lambda x: _by_var(x.view(-1, 32, 1, 1), 1, False),
    "rms norm": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "rms norm, product": lambda x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6),
    "l2 norm": lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12),
    "centred": lambda x: x - x.mean(1, keepdim=True),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_written_by_hand_is_near_samples_where_it_has_many_values_and_noted(name: str) -> None:
    x = normal_input(1, 32)
    with listening() as notes:
        assert_agrees(NORMS[name], x, bias=(0.05, 0.18))
    assert any("taken as independent" in note for note in notes)
    assert torch.equal(NORMS[name](point(x.mean)).value, NORMS[name](x.mean))


# ----------------------------------------------------------------- attention

_MASK = torch.tensor([[True, False, True, True], [True, True, False, True]])
_BIAS = torch.linspace(-1, 1, 8).double().view(2, 4)
_SHAPES = ((1, 2, 3), (1, 4, 3), (1, 4, 2))


def _finish(scores: Any, v: Any) -> Any:
    return torch.softmax(scores, dim=-1) @ v


def _float(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -math.inf)


ATTENTION: dict[str, Callable[..., Any]] = {
    "scaled after": lambda q, k, v: _finish(q @ k.transpose(-2, -1) / math.sqrt(5), v),
    "masked_fill": lambda q, k, v: _finish((q @ k.mT * 5**-0.5).masked_fill(~_MASK, -math.inf), v),
    "additive": lambda q, k, v: _finish((q @ k.mT).mul_(5**-0.5).add_(_float(_MASK)), v),
    "a module, cast": lambda q, k, v: torch.nn.Softmax(-1)((q @ k.mT * 5**-0.5).double()).type_as(v) @ v,
    "dropout in evaluation": lambda q, k, v: torch.nn.Dropout(0.3).eval()(torch.softmax(q @ k.mT / 2, -1)) @ v,
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_written_by_hand_knows_that_weights_sum_to_one(name: str) -> None:
    x = [normal_input(*shape, seed=seed) for seed, shape in enumerate(_SHAPES)]
    with listening() as notes:
        assert_agrees(ATTENTION[name], *x, bias=(0.08, 0.16))
    assert any("softmax times values" in note for note in notes)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_weights_by_einsum_or_with_dropout_count_as_independent(noise: float) -> None:
    def by_einsum(q: Any, k: Any, v: Any) -> Any:
        return torch.einsum("bij,bjd->bid", F.dropout(torch.softmax(q @ k.mT * 5**-0.5, -1), noise), v)

    x = [normal_input(*shape, seed=seed) for seed, shape in enumerate(_SHAPES)]
    assert_agrees(by_einsum, *x, bias=(0.08, 0.35))


def test_a_constant_in_place_of_logits_is_not_taken_for_a_mask() -> None:
    def by_hand(q: Any, k: Any, v: Any) -> Any:
        return _finish((q @ k.mT * 2**-0.5).masked_fill(~_MASK[:, :3], 0.5), v)

    inputs = [normal_input(*shape, seed=seed) for seed, shape in enumerate(((1, 2, 2), (1, 3, 2), (1, 3, 2)))]
    # As independent weights: the mean is right, and the variance of the right size.
    assert_agrees(by_hand, *inputs, bias=(0.05, 0.6))


# ------------------------------------------------------------------- history


def _after(write: Callable[[Any], Any], use: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        x = x.clone()
        y = torch.sigmoid(x)
        write(x)
        return use(x, y)

    return program


def test_what_is_written_to_is_no_longer_the_source() -> None:
    # After x is overwritten by something certain, x·sigmoid(old x) is not SiLU.
    program = _after(lambda x: x.zero_().add_(2.0), lambda x, y: x * y)
    assert_agrees(program, normal_input(1, 4))
    # After one is added, sigmoid(old x) is taken as independent: no history is better than a stale one.
    x = normal_input(1, 4)
    found = _after(lambda x: x.add_(1), lambda x, y: x * y)(law_of(x)).moments()
    separate = ((law_of(x) + 1) * torch.sigmoid(law_of(x))).moments()
    torch.testing.assert_close(found.mean, separate.mean)
    torch.testing.assert_close(found.var, separate.var)


@pytest.mark.parametrize("through", [lambda x: x, lambda x: x[:, :], lambda x: x.view(1, 4), lambda x: x[0][None]])
def test_writing_to_a_source_leaves_its_functions(through: Callable[[Any], Any]) -> None:
    x = normal_input(1, 4)
    law = law_of(x)
    view = through(law)
    y = view * torch.cos(view)
    law.mul_(100.0)
    want = law_of(x)
    want = (want * torch.cos(want)).moments()
    assert torch.equal(y.moments().mean, want.mean)
    assert torch.equal(y.moments().var, want.var)


def test_a_view_is_no_source_after_its_base_was_written_to() -> None:
    x = normal_input(1, 4)
    law = law_of(x)
    view = law.view(4)
    y = torch.sigmoid(view)
    law.zero_()
    assert (y * view).moments().mean.abs().max() == 0
    assert (y * view).moments().var.abs().max() == 0


def test_a_constant_that_is_overwritten_later_is_not_looked_at_again() -> None:
    x, factor = normal_input(1, 4), torch.full((4,), 0.5).double()
    law = law_of(x)
    y = law * factor
    z = y * torch.cos(law)
    factor.zero_()
    again = law_of(x)
    want = ((again * 0.5) * torch.cos(again)).moments()
    torch.testing.assert_close(z.moments().mean, want.mean)
    found = (y * torch.sin(law)).moments()  # the history of y is not to be used
    assert (found.mean != 0).all()


def test_a_law_is_freed_after_the_next_affine_map() -> None:
    law = law_of(normal_input(2, 4))
    reference = weakref.ref(law)
    out = F.linear(torch.relu(law), torch.ones(3, 4).double())
    del law
    gc.collect()
    assert reference() is None
    assert out.moments().var.shape == (2, 3)


@pytest.mark.parametrize(
    "step", [torch.relu, lambda x: x + 1, torch.expm1, lambda x: 0.5 * (x * torch.cos(x)), lambda x: x.view(2, 4)]
)
def test_long_chains_are_cut(step: Callable[[Any], Any]) -> None:
    law = law_of(normal_input(2, 4, least=0.01, spread=0.01))
    reference = weakref.ref(law)
    for _ in range(300):
        law = step(0.1 * law)
    gc.collect()
    assert reference() is None
    assert law.moments().mean.isfinite().all()
