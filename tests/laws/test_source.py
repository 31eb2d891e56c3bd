"""Values of one source: what is written by hand over a value and functions of it, against sampling and the ops."""

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sampling import assert_agrees, law_of, normal_input
from torch import Tensor

from momentgen.laws import diagonal, listening, point
from momentgen.laws.analysis import root_of_affine


def assert_is_the_op(by_hand: Callable[..., Any], op: Callable[..., Any], *shape: int, **options: Any) -> None:
    """Moments of what is written by hand are those of the op, and no quadrature was made."""
    x = normal_input(*shape, **options)
    with torch.no_grad(), listening() as notes:
        found, want = by_hand(law_of(x)).moments(), op(law_of(x)).moments()
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)
    assert not any("quadrature" in note for note in notes), notes


# --------------------------------------------------------------- activations

_ROOT = math.sqrt(2 / math.pi)


def _gelu_tanh(x: Any) -> Any:
    return F.gelu(x, approximate="tanh")


#: what is written by hand -> the op
ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "x sigmoid(x)": (lambda x: x * torch.sigmoid(x), F.silu),
    "sigmoid(x) x": (lambda x: x.sigmoid() * x, F.silu),
    "x.mul_(sigmoid(x))": (lambda x: x.clone().mul_(x.sigmoid()), F.silu),
    "x sigmoid(1.702 x)": (lambda x: x * torch.sigmoid(1.702 * x), lambda x: F.silu(x * 1.702) / 1.702),
    "x / (1 + exp(-x))": (lambda x: x / (1 + torch.exp(-x)), F.silu),
    "x / (exp(-x) + 1)": (lambda x: x / (torch.exp(-x) + 1.0), F.silu),
    "x (1 + erf(x/sqrt 2))/2": (lambda x: 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0))), F.gelu),
    "x (1 + erf(x sqrt 1/2))/2": (lambda x: x * 0.5 * (1 + torch.erf(x * math.sqrt(0.5))), F.gelu),
    "x ((erf + 1)/2)": (lambda x: x * ((torch.erf(x * 0.7071067811865475) + 1) / 2), F.gelu),
    "x Phi(x)": (lambda x: x * torch.special.ndtr(x), F.gelu),
    "gelu, tanh, pow": (lambda x: 0.5 * x * (1 + torch.tanh(_ROOT * (x + 0.044715 * torch.pow(x, 3.0)))), _gelu_tanh),
    "gelu, tanh, **": (lambda x: 0.5 * x * (1.0 + (_ROOT * (x + 0.044715 * x**3)).tanh()), _gelu_tanh),
    "gelu, tanh, products": (lambda x: 0.5 * x * (1 + torch.tanh(_ROOT * (x + 0.044715 * x * x * x))), _gelu_tanh),
    "gelu, tanh, factored": (
        lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
        _gelu_tanh,
    ),
    "x tanh(softplus(x))": (lambda x: x * torch.tanh(F.softplus(x)), F.mish),
    "x tanh of a module": (lambda x: x * torch.tanh(torch.nn.Softplus()(x)), F.mish),
    "x relu6(x + 3)/6": (lambda x: x * F.relu6(x + 3) / 6, F.hardswish),
    "x (relu6(x + 3)/6)": (lambda x: x * (F.relu6(x + 3.0) / 6.0), F.hardswish),
    "x by a module": (lambda x: x * torch.nn.ReLU6(inplace=True)(x + 3) / 6, F.hardswish),
    "x clamp(x + 3, 0, 6)/6": (lambda x: x * (x + 3).clamp(min=0, max=6) / 6, F.hardswish),
    "x hardsigmoid(x)": (lambda x: x * F.hardsigmoid(x), F.hardswish),
    "x / (1 + |x|)": (lambda x: x / (1 + x.abs()), F.softsign),
    "x - tanh(x)": (lambda x: x - torch.tanh(x), F.tanhshrink),
    "2 x - x": (lambda x: 2 * x - x, lambda x: x.clone()),
    "x + x": (lambda x: x + x, lambda x: 2 * x),
    "x + x + 1, less x": (lambda x: (x + x + 1) - x, lambda x: x + 1),
    "x x": (lambda x: x * x, torch.square),
    "max(x, -x)": (lambda x: torch.maximum(x, -x), torch.abs),
    "-min(-x, 0 x)": (lambda x: -torch.minimum(-x, 0 * x), F.relu),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_written_by_hand_calls_its_op(name: str) -> None:
    by_hand, op = ACTIVATIONS[name]
    assert_is_the_op(by_hand, op, 2, 5)


@pytest.mark.parametrize(
    "more", [lambda x: 1e-3 * F.relu(x - 2), lambda x: 1e-3 * torch.cos(x), lambda x: 1e-3 * x * x]
)
def test_a_function_that_is_nearly_an_op_is_not_taken_for_it(more: Callable[[Any], Any]) -> None:
    x = law_of(normal_input(2, 5))
    with listening() as notes:
        found, op = (x * torch.sigmoid(x) + more(x)).moments(), F.silu(x).moments()
    assert any("quadrature" in note for note in notes)
    assert (found.mean - op.mean).abs().max() > 1e-5


@pytest.mark.parametrize("scale", [1.23456789012, -3.0, 1e-3])
def test_a_scaled_activation_has_the_scaled_moments_of_its_op(scale: float) -> None:
    x = law_of(normal_input(2, 5))
    found, op = (x * torch.sigmoid(x) * scale + 0.5).moments(), F.silu(x).moments()
    torch.testing.assert_close(found.mean, op.mean * scale + 0.5, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.var, op.var * scale**2, rtol=1e-10, atol=0)


def test_a_gradient_reaches_through_what_is_put_off() -> None:
    x = normal_input(4)
    mean, var = x.mean.clone().requires_grad_(), x.var.clone().requires_grad_()
    law = diagonal(mean, var)
    out = (law * torch.cos(law)).moments()
    gradients = torch.autograd.grad(out.mean.sum() + out.var.sum(), (mean, var))
    assert all(bool(part.isfinite().all()) and bool((part != 0).any()) for part in gradients)


# --------------------------------------------------------------------- norms


def _by_var(x: Any, dims: Any, unbiased: bool) -> Any:
    mean, var = x.mean(dims, keepdim=True), x.var(dims, unbiased=unbiased, keepdim=True)
    return (x - mean) / torch.sqrt(var + 1e-5)


def _by_square(x: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)


def _by_two(x: Any) -> Any:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) / (variance + 1e-5) ** 0.5


def _by_std(x: Any) -> Any:
    return _W * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + _W


def _layer_norm(x: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:])


def _channel_norm(x: Any) -> Any:
    return F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2)


_W = torch.linspace(0.5, 1.5, 6).double()
_N = 6
_ROWS, _IMAGES = (3, _N), (2, _N, 2, 1)


def _rms(eps: float, weight: Any = None) -> Callable[[Any], Any]:
    return lambda x: F.rms_norm(x, (_N,), weight, eps)


#: what is written by hand -> the same by torch's functions, and the shape
NORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], tuple[int, ...]]] = {
    "layer norm, var": (lambda x: _by_var(x, -1, False), _layer_norm, _ROWS),
    "layer norm, var unbiased": (
        lambda x: _by_var(x, -1, True), lambda x: F.layer_norm(x, (_N,), eps=1e-5 * 5 / 6) * (5 / 6) ** 0.5, _ROWS
    ),
    "layer norm, squares": (_by_square, _layer_norm, _ROWS),
    "layer norm, centred twice": (_by_two, _layer_norm, _ROWS),
    "layer norm, unsqueezed": (
        lambda x: (x - x.mean(-1).unsqueeze(-1)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt(),
        _layer_norm, _ROWS,
    ),
    "layer norm, scaled, by std": (
        _by_std, lambda x: F.layer_norm(x, (_N,), eps=0.0) * (5 / 6) ** 0.5 * _W + _W, _ROWS
    ),
    "layer norm, one over": (
        lambda x: (x - x.mean(-1, True)) * (1.0 / torch.sqrt(x.var(-1, False, True) + 1e-5)), _layer_norm, _ROWS
    ),
    "over channels, var": (lambda x: _by_var(x, 1, False), _channel_norm, _IMAGES),
    "over channels, convnext": (
        lambda x: (x - x.mean(1, keepdim=True))
        / torch.sqrt((x - x.mean(1, keepdim=True)).pow(2).mean(1, keepdim=True) + 1e-5),
        _channel_norm, _IMAGES,
    ),
    "over several dims": (lambda x: _by_var(x, (1, 2, 3), False), lambda x: F.layer_norm(x, x.shape[1:]), _IMAGES),
    "rms norm, pow": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), _rms(1e-6), _ROWS),
    "rms norm, by weight": (
        lambda x: _W * (x * torch.rsqrt(x.to(torch.float64).square().mean(dim=-1, keepdim=True) + 1e-6)),
        _rms(1e-6, _W), _ROWS,
    ),
    "rms norm, product, sqrt": (lambda x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6), _rms(1e-6), _ROWS),
    "rms norm, by the norm": (
        lambda x: x / (x.norm(2, dim=-1, keepdim=True) * _N**-0.5 + 1e-8), _rms(1e-16), _ROWS
    ),
    "l2 norm": (lambda x: x / x.norm(dim=-1, keepdim=True), lambda x: F.normalize(x, dim=-1), _ROWS),
    "l2 norm, clamped": (
        lambda x: x / x.norm(p=2, dim=1, keepdim=True).clamp(min=1e-12), lambda x: F.normalize(x, dim=1), _ROWS
    ),
    "l2 norm, linalg, expanded": (
        lambda x: x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + 1e-12).expand_as(x),
        lambda x: F.normalize(x, dim=-1), _ROWS,
    ),
    "centred": (lambda x: x - x.mean(1, keepdim=True), lambda x: -(x.mean(1, keepdim=True) - x), _ROWS),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_written_by_hand_is_its_op(name: str) -> None:
    by_hand, op, shape = NORMS[name]
    assert_is_the_op(by_hand, op, *shape)
    x = normal_input(*shape).mean
    torch.testing.assert_close(by_hand(x), op(x), rtol=1e-4, atol=1e-4)
    assert torch.equal(by_hand(point(x)).value, by_hand(x))


def _roots(*steps: tuple[Any, ...]) -> Any:
    """What a chain of functions is, each of the one before and a number."""
    return root_of_affine(tuple((name, (("value", at), *rest), ()) for at, (name, *rest) in enumerate(steps)))


def test_a_root_is_told_by_its_values_and_what_is_nearly_one_is_none() -> None:
    assert _roots(("mul", 4.0), ("add", 1e-5), ("sqrt",)) == pytest.approx((2.0, 2.5e-6, 1))
    assert _roots(("sqrt",), ("add", 1e-8), ("reciprocal",)) == pytest.approx((1.0, 1e-16, -1))
    assert _roots(("sqrt",), ("clamp", 1e-12)) == pytest.approx((1.0, 1e-24, 1))
    for steps in (("sqrt",), ("add", -1e-4)), (("sqrt",), ("add", 0.1)), (("mul", 2.0),), (("sqrt",), ("clamp", 0, 9)):
        assert _roots(*steps) is None


def test_a_norm_over_channels_may_be_viewed_as_the_plain_one_is() -> None:
    found = _by_var(law_of(normal_input(2, 4, 2, 2)), 1, False).view(2, -1)
    assert found.shape == (2, 16)


# ------------------------------------------------------------------- softmax


def _by_maximum(x: Any, dim: int = -1) -> Any:
    e = torch.exp(x - x.max(dim, keepdim=True)[0])
    return e / e.sum(dim, keepdim=True)


SOFTMAX: dict[str, Callable[[Any], Any]] = {
    "exp": lambda x: _plain_softmax(x),
    "max": _by_maximum,
    "amax": lambda x: (lambda e: e / e.sum(1, True))((x - x.amax(1, keepdim=True)).exp()),
    "max, unsqueezed": lambda x: (lambda e: e / e.sum(-1).unsqueeze(-1))(torch.exp(x - x.max(-1).values.unsqueeze(-1))),
    "max, detached": lambda x: (lambda e: e / e.sum(-1, keepdim=True))(torch.exp(x - _certainly(x))),
}


def _plain_softmax(x: Any) -> Any:
    e = torch.exp(x)
    return e / torch.sum(e, dim=-1, keepdim=True)


def _certainly(x: Any) -> Any:
    return x.max(-1, keepdim=True).values.detach()


@pytest.mark.parametrize("name", SOFTMAX)
def test_a_softmax_written_by_hand_is_its_op(name: str) -> None:
    assert_is_the_op(SOFTMAX[name], lambda x: F.softmax(x, -1), 3, 5)


def test_a_value_below_its_maximum_is_that_of_samples() -> None:
    assert_agrees(lambda x: x - x.amax(1, keepdim=True), normal_input(1, 5), bias=(0.005, 0.01))


# ----------------------------------------------------------------- attention

_MASK = torch.tensor([[True, False, True, True], [True, True, False, True]])
_BIAS = torch.linspace(-1, 1, 8).double().view(2, 4)
_SHAPES = ((2, 3, 2, 5), (2, 3, 4, 5), (2, 3, 4, 2))


def _reference(mask: Tensor | None = None, scale: float | None = None, drop: float = 0.0) -> Callable[..., Any]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask, drop, scale=scale)


def _finish(scores: Any, v: Any) -> Any:
    return torch.softmax(scores, dim=-1) @ v


def _windows(q: Any, k: Any, v: Any) -> Any:
    """Windows as Swin has them: a mask for each window between two views."""
    scores = (q * 5**-0.5) @ k.transpose(-2, -1) + _BIAS
    scores = scores.view(1, 2, 3, 2, 4) + torch.zeros(1, 2, 1, 2, 4).double()
    return torch.softmax(scores.view(-1, 3, 2, 4), -1) @ v


def _flat(q: Any, k: Any, v: Any) -> Any:
    """Heads and batch as one dimension of ``bmm``, as older code has them, and a mask between."""
    q, k, v = q.reshape(6, 2, 5), k.reshape(6, 4, 5), v.reshape(6, 4, 2)
    scores = torch.bmm(q, k.transpose(1, 2)) * 5**-0.5
    scores = (scores.view(2, 3, 2, 4) + _float(_MASK)).view(6, 2, 4)
    return torch.bmm(F.softmax(scores, dim=-1), v).view(2, 3, 2, 2)


def _float(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -math.inf)


#: scores that a softmax and a product with the values follow -> what scaled_dot_product_attention is given
SCORES: dict[str, tuple[Callable[[Any, Any], Any], dict[str, Any]]] = {
    "scaled after": (lambda q, k: q @ k.transpose(-2, -1) / math.sqrt(5), {}),
    "scaled before": (lambda q, k: torch.matmul(q * 5**-0.5, k.mT), {}),
    "scaled by a tensor": (lambda q, k: q @ k.mT / torch.full([], 5**0.5, dtype=torch.float64), {}),
    "scaled per head": (lambda q, k: q @ k.mT * torch.full((3, 1, 1), 5**-0.5, dtype=torch.float64), {}),
    "not scaled": (lambda q, k: q @ k.transpose(2, 3), {"scale": 1.0}),
    "masked_fill": (lambda q, k: (q @ k.mT * 5**-0.5).masked_fill(~_MASK, -math.inf), {"mask": _MASK}),
    "masked_fill, a low number": (lambda q, k: (q @ k.mT).masked_fill(_MASK == 0, -1e9) * 5**-0.5, {"mask": _MASK}),
    "masked_fill, in place": (lambda q, k: (q @ k.mT * 5**-0.5).masked_fill_(~_MASK, float("-inf")), {"mask": _MASK}),
    "where": (lambda q, k: torch.where(_MASK, q @ k.mT * 5**-0.5, torch.finfo(torch.float64).min), {"mask": _MASK}),
    "where, a tensor": (lambda q, k: torch.where(_MASK, q @ k.mT * 5**-0.5, torch.full([], -1e10).double()),
        {"mask": _MASK}),
    "where, the other way": (lambda q, k: torch.where(~_MASK, -math.inf, q @ k.mT * 5**-0.5), {"mask": _MASK}),
    "additive": (lambda q, k: q @ k.mT * 5**-0.5 + _float(_MASK), {"mask": _MASK}),
    "additive, a point": (lambda q, k: q @ k.mT * 5**-0.5 + point(_float(_MASK)), {"mask": _MASK}),
    "additive, in place": (lambda q, k: (q @ k.mT).mul_(5**-0.5).add_(_BIAS), {"mask": _BIAS}),
    "a bias table": (lambda q, k: q @ k.mT * 5**-0.5 + _BIAS[None], {"mask": _BIAS}),
    "a bias before the scale": (lambda q, k: (q @ k.mT + _BIAS) / 5**0.5, {"mask": _BIAS * 5**-0.5}),
    "baddbmm": (
        lambda q, k: torch.baddbmm(_BIAS, q.reshape(6, 2, 5), k.reshape(6, 4, 5).mT, beta=1, alpha=5**-0.5).view(
            2, 3, 2, 4
        ),
        {"mask": _BIAS},
    ),
    "einsum, then matmul": (lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k) * 5**-0.5, {}),
}  # fmt: skip


def _weights(q: Any, k: Any) -> Any:
    return torch.softmax(q @ k.mT * 5**-0.5, -1)


#: what is written by hand otherwise -> the same by scaled_dot_product_attention
ATTENTION: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    **{
        name: (lambda q, k, v, scores=scores: _finish(scores(q, k), v), _reference(**given))
        for name, (scores, given) in SCORES.items()
    },
    "softmax of a module, cast": (lambda q, k, v: torch.nn.Softmax(-1)((q @ k.mT * 5**-0.5).double()).type_as(v) @ v,
        _reference()),
    "windows": (_windows, _reference(_BIAS)),
    "flat": (_flat, _reference(_MASK)),
    "dropout on the weights": (lambda q, k, v: F.dropout(_weights(q, k), 0.3) @ v, _reference(drop=0.3)),
    "dropout of a module in evaluation": (lambda q, k, v: torch.nn.Dropout(0.3).eval()(_weights(q, k)) @ v,
        _reference()),
    "einsum": (lambda q, k, v: torch.einsum("bhij,bhjd->bhid",
        torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) * 5**-0.5, -1), v), _reference()),
    "einsum, heads later": (lambda q, k, v: torch.einsum("bhqk,bkhd->bqhd",
        (torch.einsum("bqhd,bkhd->bhqk", q.transpose(1, 2), k.transpose(1, 2)) / 5**0.5 + _BIAS).softmax(-1),
        v.transpose(1, 2)).transpose(1, 2), _reference(_BIAS)),
    "einsum, an ellipsis": (lambda q, k, v: torch.einsum("...ij,...jd->...id",
        torch.softmax(torch.einsum("...id,...jd->...ij", q * 5**-0.5, k), -1), v), _reference()),
    "einsum, masked, with dropout": (lambda q, k, v: torch.einsum("bhij,bhjd->bhid",
        F.dropout(torch.einsum("bhid,bhjd->bhij", q * 5**-0.5, k).masked_fill(~_MASK, -1e10).softmax(-1), 0.2, True),
        v), _reference(_MASK, drop=0.2)),
    "by a softmax by hand": (lambda q, k, v: _by_maximum(q @ k.mT * 5**-0.5) @ v, _reference()),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_written_by_hand_is_its_op(name: str) -> None:
    by_hand, op = ATTENTION[name]
    x = [normal_input(*shape, seed=seed) for seed, shape in enumerate(_SHAPES)]
    with torch.no_grad():
        found, want = by_hand(*map(law_of, x)).moments(), op(*map(law_of, x)).moments()
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)


def test_a_constant_in_place_of_logits_is_not_taken_for_a_mask() -> None:
    def by_hand(q: Any, k: Any, v: Any) -> Any:
        return _finish((q @ k.mT * 2**-0.5).masked_fill(~_MASK[:, :3], 0.5), v)

    inputs = [normal_input(*shape, seed=seed) for seed, shape in enumerate(((1, 2, 2), (1, 3, 2), (1, 3, 2)))]
    # As independent weights: the mean is right, and the variance of the right size.
    assert_agrees(by_hand, *inputs, bias=(0.05, 0.6), n=200_000)


def test_a_gram_matrix_has_squares_on_its_diagonal() -> None:
    assert_agrees(lambda x: x @ x.transpose(-2, -1), normal_input(1, 3, 2))
    assert_agrees(lambda x: torch.matmul(x.mT, x), normal_input(1, 3, 2))


# What a value remembers of its source: until one of them is written to, and no longer than it is needed.
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
    torch.testing.assert_close(found, separate)


@pytest.mark.parametrize("through", [lambda x: x, lambda x: x[:, :], lambda x: x.view(1, 4), lambda x: x[0][None]])
def test_what_is_put_off_is_computed_before_its_source_is_written_to(through: Callable[[Any], Any]) -> None:
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
    for _ in range(100):
        law = step(0.1 * law)
    gc.collect()
    assert reference() is None
    assert law.moments().mean.isfinite().all()
