"""Attention of random queries, keys and values: against sampling, torch where nothing is random, in torch's modes."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from torch import Tensor, nn

import momentgen
from momentgen import Moments, noisy
from momentgen.laws import diagonal, listening
from momentgen.laws.numerics.softmax import softmax
from momentgen.laws.rules.attention import attention

Pair = tuple[Tensor, Tensor | None]


def inputs(
    keys: int, size: int, noise: float, value_noise: float | None = None, batch: int = 2, queries: int = 4
) -> tuple[Pair, Pair, Pair]:
    """Normal queries, keys and values with noise of so many times their own standard deviation."""
    generator = torch.Generator().manual_seed(keys)

    def pair(count: int, noise: float) -> Pair:
        mean = torch.randn(batch, count, size, generator=generator)
        return mean, noise**2 * (0.5 + torch.rand(mean.shape, generator=generator))

    return pair(queries, noise), pair(keys, noise), pair(keys, noise if value_noise is None else value_noise)


def sample(
    query: Pair, key: Pair, value: Pair, bias: Tensor | None = None, drop: float = 0.0, count: int = 20_000
) -> tuple[Tensor, Tensor]:
    """Mean and variance by sampling: means and sums in float64."""
    generator = torch.Generator().manual_seed(1)
    scale, chunk = query[0].shape[-1] ** -0.5, 500

    def draw(pair: Pair) -> Tensor:
        mean, var = pair
        shape = (chunk, *mean.shape)
        return mean.expand(shape) if var is None else mean + var.sqrt() * torch.randn(shape, generator=generator)

    first: Tensor | float = 0.0
    second: Tensor | float = 0.0
    for _ in range(count // chunk):
        logits = scale * (draw(query) @ draw(key).mT)
        weights = torch.softmax(logits if bias is None else logits + bias, -1)
        if drop:
            weights = weights * (torch.rand(weights.shape, generator=generator) >= drop) / (1 - drop)
        out = (weights @ draw(value)).double()
        first, second = first + out.sum(0), second + (out * out).sum(0)
    mean = torch.as_tensor(first) / count
    return mean, torch.as_tensor(second) / count - mean * mean


@pytest.mark.parametrize("noise", [0.1, 1.0])
@pytest.mark.parametrize(("keys", "size"), [(2, 16), (16, 16), (64, 32)])
@pytest.mark.parametrize("value_noise", [None, 0.0])
def test_sigma_against_sampling(keys: int, size: int, noise: float, value_noise: float | None) -> None:
    given = inputs(keys, size, noise, value_noise)
    mean, var = attention(*given, scale=size**-0.5)
    truth, truth_var = sample(*given)
    ratio = (var.double() / truth_var).sqrt()
    assert abs(ratio.median() - 1) < 0.05  # sampling's own error of one σ is 0.5 %
    # With certain values all comes from the weights, and relations of keys and values that the cheap form leaves out
    # show in single entries.
    assert ((ratio - 1).abs() < (0.15 if value_noise is None else 0.35)).all()
    assert ((mean - truth).abs() < 0.1 * truth_var.sqrt()).all()


def test_two_keys_with_independent_noise_are_the_softmax() -> None:
    key = torch.eye(2)[None], torch.tensor([[[0.5, 0.0], [0.8, 0.0]]])
    query = torch.tensor([[[1.0, 0.0]]])
    mean, var = attention((query, None), key, (torch.tensor([[[0.0], [1.0]]]), None), scale=1.0)
    exact = softmax(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.8]), 0)
    torch.testing.assert_close(mean[0, 0, 0], exact[0][1], rtol=0.02, atol=0)
    torch.testing.assert_close(var[0, 0, 0], exact[1][1], rtol=0.03, atol=0)


@pytest.mark.parametrize("random", list(itertools.product([False, True], repeat=3)))
def test_none_is_a_variance_of_zero(random: tuple[bool, bool, bool]) -> None:
    given = inputs(9, 8, 0.7)
    sparse = tuple((mean, var if keep else None) for (mean, var), keep in zip(given, random, strict=True))
    zeros = tuple(
        (mean, var if keep else torch.zeros_like(mean)) for (mean, var), keep in zip(given, random, strict=True)
    )
    torch.testing.assert_close(
        attention(*sparse, 8**-0.5, drop=0.1), attention(*zeros, 8**-0.5, drop=0.1), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("noise", [None, 0.5])
def test_dropout_on_the_weights(noise: float | None) -> None:
    given = inputs(12, 16, noise or 1.0)
    if noise is None:
        given = tuple((mean, None) for mean, _ in given)  # type: ignore[assignment]
    mean, var = attention(*given, scale=0.25, drop=0.2)
    truth, truth_var = sample(*given, drop=0.2)
    ratio = (var.double() / truth_var).sqrt()
    assert abs(ratio.median() - 1) < (0.03 if noise else 0.005)
    assert ((mean - truth).abs() < 0.06 * truth_var.sqrt()).all()


def test_masks() -> None:
    query, key, value = inputs(10, 8, 0.5)
    bias = torch.zeros(4, 10)
    bias[:, 6:] = -math.inf
    bias[3] = -math.inf
    leaves = [tensor.clone().requires_grad_() for pair in (query, key, value) for tensor in pair if tensor is not None]
    pairs = [(leaves[2 * i], leaves[2 * i + 1]) for i in range(3)]
    mean, var = attention(*pairs, 8**-0.5, bias)  # type: ignore[arg-type]
    few = attention(query, *((m[:, :6], None if v is None else v[:, :6]) for m, v in (key, value)), 8**-0.5)
    torch.testing.assert_close((mean[:, :3], var[:, :3]), tuple(t[:, :3] for t in few), rtol=1e-4, atol=1e-6)
    assert mean[:, 3].isnan().all()
    assert var[:, 3].isnan().all()
    grads = torch.autograd.grad(mean[:, :3].sum() + var[:, :3].sum(), leaves)
    for grad in grads[2:]:
        assert grad[:, :6].isfinite().all()
        assert (grad[:, 6:] == 0).all()
    assert all(grad[:, :3].isfinite().all() for grad in grads[:2])


@pytest.mark.parametrize(("size", "noise"), [(1.0, 0.0), (1.0, 1e-8), (1.0, 1e3), (100.0, 1.0), (100.0, 0.0)])
def test_extremes_are_finite(size: float, noise: float) -> None:
    generator = torch.Generator().manual_seed(0)
    leaves = []
    for count in (3, 7, 7):
        leaves.append((size * torch.randn(count, 8, generator=generator)).requires_grad_())
        leaves.append((noise * torch.rand(count, 8, generator=generator)).requires_grad_())
    mean, var = attention(*zip(leaves[::2], leaves[1::2], strict=True), scale=0.35, drop=0.1)
    grads = torch.autograd.grad((mean * torch.randn(mean.shape, generator=generator)).sum() + var.sum(), leaves)
    assert all(tensor.isfinite().all() for tensor in (mean, var, *grads))
    assert (var >= 0).all()


def test_shapes_broadcast() -> None:
    query, key, value = inputs(6, 8, 0.5, batch=3)
    one = tuple((m[:1], None if v is None else v[:1]) for m, v in (key, value))
    mean, var = attention(query, *one, scale=0.35)
    many = tuple((m.expand(3, 6, 8), None if v is None else v.expand(3, 6, 8)) for m, v in one)
    torch.testing.assert_close((mean, var), attention(query, *many, scale=0.35))


def _masked(boolean: bool) -> nn.Module:
    """Attention whose second query sees no key."""

    def attended(net: Any, x: Any) -> Any:
        seen = torch.ones(3, 3, dtype=torch.bool)
        seen[1] = False
        mask = seen if boolean else torch.zeros(3, 3, dtype=x.dtype).masked_fill(~seen, -math.inf)
        query, key, value = net.projection(x).chunk(3, -1)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    return Of(attended, projection=nn.Linear(4, 12))


def _padded(weights: bool) -> nn.Module:
    """Multi-head attention on an example that is padding alone."""

    def attended(net: Any, x: Any) -> Any:
        nothing = torch.ones(len(x), 3, dtype=torch.bool)
        return net.attention(x, x, x, key_padding_mask=nothing, need_weights=weights)[0]

    return Of(attended, attention=nn.MultiheadAttention(4, 2, batch_first=True))


@pytest.mark.parametrize("method", ["ap1", "ap2", "sample"])
@pytest.mark.parametrize("make", [lambda: _masked(True), lambda: _masked(False), lambda: _padded(False)])
def test_a_query_without_keys_has_the_certain_zero_of_torch(make: Any, method: Any) -> None:
    torch.manual_seed(0)
    network, x = make().double(), torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        plain = network(x)
    out = momentgen.convert(network, method=method)(Moments(x, torch.full_like(x, 0.09)))
    assert bool((plain[:, 1] == 0).all())
    torch.testing.assert_close(out.mean[:, 1], plain[:, 1], rtol=0, atol=0)
    assert bool((out.var[:, 1] == 0).all())
    if hasattr(network, "projection") and method not in ("ap1", "sample"):
        assert bool((out.var[:, [0, 2]] > 0).all())
    (out.mean.sum() + out.var.sum()).backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize("method", ["ap1", "ap2"])
def test_a_softmax_without_keys_is_nan_as_in_torch(method: Any) -> None:
    network, x = _padded(True), torch.randn(2, 3, 4)
    assert bool(network(x).isnan().all())
    assert bool(momentgen.convert(network, method=method)(Moments(x, torch.ones_like(x))).mean.isnan().all())


def test_a_mask_of_numbers_is_that_of_flags_as_an_argument_too(method: Any) -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    network = Of(lambda net, x, mask: net.encoder(x, src_mask=mask), encoder=encoder)
    network = momentgen.convert(network.eval(), method)
    x, flags = momentgen.noisy(torch.randn(2, 5, 8), std=0.1), torch.ones(5, 5, dtype=torch.bool).triu(1)
    with torch.no_grad():
        expected = network(x, flags)
        found = network(x, torch.zeros(5, 5).masked_fill(flags, -torch.inf))
    torch.testing.assert_close((found.mean, found.var), (expected.mean, expected.var))


@pytest.mark.parametrize("copied", [torch.clone, lambda x: torch.zeros_like(x).copy_(x)])
def test_a_copy_of_a_value_is_no_product_of_attention(copied: Any) -> None:
    weight, x = torch.randn(3, 4), momentgen.noisy(torch.randn(2, 4, 5), std=0.1)
    found = diagonal(*x)
    expected, product = weight @ found, weight @ copied(found)  # type: ignore[operator]
    torch.testing.assert_close(product.moments(), expected.moments())


@pytest.mark.parametrize("method", ["ap1", "ap2", "controlled"])
def test_padded_tokens_are_those_of_torch_with_gradients_and_a_note_says_so(method: Any) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def run(net: Any, x: Any) -> Any:
        return net.encoder(x, src_key_padding_mask=torch.arange(5).expand(x.shape[0], 5) > 2)

    plain, x = Of(run, encoder=nn.TransformerEncoder(layer, 2)).eval(), torch.randn(2, 5, 8)
    expected = plain(x).detach()
    torch.backends.mha.set_fastpath_enabled(True)  # as users have it; the fixture puts it back
    with torch.no_grad(), listening() as notes:
        found = momentgen.convert(plain, method)(noisy(x, std=1e-4))
    torch.testing.assert_close(found.mean, expected, rtol=1e-3, atol=1e-3)
    assert any("padded tokens are computed" in note for note in notes)
