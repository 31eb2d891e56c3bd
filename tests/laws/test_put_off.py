"""Monotone functions are computed when somebody asks for them, and come out as if they had been computed at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from torch import Tensor, nn

import momentgen
import momentgen.generated
from momentgen import Moments
from momentgen.errors import InputError


def found(written: Callable[[Tensor], Tensor], batch: int = 3) -> tuple[Tensor, ...]:
    """Moments of a convolution, what is written after it, and a linear layer."""
    torch.manual_seed(0)
    layers = {"conv": nn.Conv2d(1, 2, 3, padding=1), "head": nn.LazyLinear(2)}
    net = Of(lambda net, x: net.head(written(net.conv(x)).flatten(1)), **layers).eval()
    torch.manual_seed(1)
    x = torch.randn(batch, 1, 6, 6)
    torch.manual_seed(2)
    net(x)  # the lazy layer's weights
    out = momentgen.convert(net, "adjoint")(Moments(x, 0.1))
    return out.mean, out.var, out.covariance


def same(a: tuple[Tensor, ...], b: tuple[Tensor, ...], tolerance: float = 0.0) -> None:
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_adjoint_computes_no_moments_of_a_function_that_a_pool_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    op = momentgen.generated.relu
    own = type(op).__call__

    def counted(self: Any, mean: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self is op:
            sizes.append(mean.shape[-1])
        return own(self, mean, *args, **kwargs)

    monkeypatch.setattr(type(op), "__call__", counted)
    found(lambda x: F.max_pool2d(F.relu(x), 2))
    assert set(sizes) == {3}


def test_a_value_that_is_pooled_and_used_beside_it_is_both() -> None:
    def once(x: Tensor) -> Tensor:
        y = F.relu(x)
        return torch.cat([F.max_pool2d(y, 2).flatten(1), y.flatten(1)], 1)

    def asked(x: Tensor) -> Tensor:
        y = F.relu(x)
        y = y.view(y.shape)  # moved, and so computed
        return torch.cat([F.max_pool2d(F.relu(x), 2).flatten(1), y.flatten(1)], 1)

    same(found(once), found(asked), 1e-5)


def test_writing_to_the_argument_changes_no_function_of_what_it_was() -> None:
    def written(x: Tensor) -> Tensor:
        y = F.relu(x)
        x.mul_(3)
        return F.max_pool2d(y, 2)

    def kept(x: Tensor) -> Tensor:
        y = torch.relu(x.clone())
        x.mul_(3)
        return F.max_pool2d(y, 2)

    before = found(lambda x: F.max_pool2d(F.relu(x), 2))
    same(found(kept), before)
    # The pool knows the ReLU's argument no more, and is the maximum of its values: the same function, less normal.
    for one, other in zip(found(written), before, strict=True):
        torch.testing.assert_close(one, other, rtol=0.2, atol=0.05)


def test_gradients_flow_through_what_was_put_off_and_asked_for_without() -> None:
    weight = torch.full((1, 4), 0.5, requires_grad=True)

    def asks(x: Tensor) -> Tensor:
        y = F.softplus(x * weight)
        with torch.no_grad():
            (y + 1).sum()
        return y * 2

    out = momentgen.convert(Of(asks).eval(), "adjoint")(Moments(torch.zeros(2, 4), torch.ones(2, 4)))
    (by_mean,) = torch.autograd.grad(out.mean.sum(), weight, retain_graph=True)
    (by_var,) = torch.autograd.grad(out.var.sum(), weight)
    assert by_mean.abs().min() > 0
    assert by_var.abs().min() > 0


def test_a_network_may_end_in_what_was_put_off() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Sigmoid()).eval()
    x = Moments(torch.zeros(2, 3), torch.full((2, 3), 0.01))
    by_ap2 = momentgen.convert(net, "ap2")(x)
    out = momentgen.convert(net, "adjoint")(x)
    torch.testing.assert_close(out.mean, by_ap2.mean, rtol=1e-5, atol=0)
    torch.testing.assert_close(out.var, by_ap2.var, rtol=0.02, atol=0)


# -------------------------------------------- examples that are looked at alone


def _of_twenty(x: Tensor) -> Tensor:
    """Written for batches of twenty, in which neighbours share their mean."""
    pairs = x.view(10, 2, 4) if len(x) != 1 else x.view(1, 1, 4)
    return (pairs - pairs.mean(1, keepdim=True)).view(-1, 4)


@pytest.mark.parametrize("function", [lambda x: x + 0.5 * x.roll(1, 0), _of_twenty])
def test_examples_that_interact_are_seen_in_a_batch_of_many(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    with pytest.raises(InputError, match="another result within the batch"):
        momentgen.convert(Of(function).eval(), "adjoint")(Moments(torch.randn(20, 4), 0.1))


def test_one_output_of_adjoint_is_computed_for_a_whole_batch_at_once(chunks: list[int | None]) -> None:
    """What forty outputs keep of a layer is forty times as much."""
    for outputs in (1, 40):
        net = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16 * 16, outputs))
        momentgen.convert(net.eval(), "adjoint")(Moments(torch.zeros(24, 1, 16, 16), 0.1))
    chosen = [size for size in chunks if size is not None]
    assert max(chosen) == 24
    assert min(chosen) == 8
