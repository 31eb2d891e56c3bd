"""The method ``covariance`` with exact covariances of ReLU, GELU, Heaviside and Phi: the default."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from laws.test_covariance import assert_sound, joint, noisy
from torch import Tensor, nn

import momentgen.generated
from momentgen import Moments
from momentgen.laws.covariance import options
from momentgen.laws.numerics.pairs import pairwise_covariance

FUNCTIONS: dict[str, Any] = {"relu": torch.relu, "gelu": F.gelu, "normal_cdf": torch.special.ndtr}
each = pytest.mark.parametrize("name", FUNCTIONS)


def layer(width: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(width, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)


@each
def test_covariances_are_those_of_the_op_of_two_values(name: str) -> None:
    weight, x = layer(), noisy(2, 4, dtype=torch.float64)
    out = joint(Of(lambda x: FUNCTIONS[name](F.linear(x, weight))), x)
    op = getattr(momentgen.generated, f"{name}_covariance")
    for k in range(2):
        mean, cov = weight @ x.mean[k], weight @ torch.diag(x.var[k]) @ weight.T
        var = cov.diagonal()
        want = op(*torch.broadcast_tensors(mean[:, None], var[:, None], mean, var, cov))
        want = torch.diagonal_scatter(want, getattr(momentgen.generated, name)(mean, var).var)
        torch.testing.assert_close(out.covariance[k], want, rtol=1e-6, atol=1e-9)
    assert_sound(out)


def test_equal_and_opposite_values_have_the_variance_of_one() -> None:
    x = Moments(torch.tensor([[0.3]]), torch.tensor([[2.0]]))
    out = joint(Of(lambda x: torch.relu(torch.cat([x, x, -x], 1))), x)
    torch.testing.assert_close(out.covariance[0, 0, 1], out.var[0, 0], rtol=1e-5, atol=0)
    other = momentgen.generated.relu(-x.mean, x.var).mean
    product = -(out.mean[0, 0] * other).squeeze()  # max(X, 0) max(-X, 0) = 0
    torch.testing.assert_close(out.covariance[0, 0, 2], product, rtol=1e-5, atol=0)


def test_a_number_of_terms_keeps_hermite_s_sum_and_none_is_the_default() -> None:
    network = Of(lambda x: torch.relu(x.expand(-1, 2)))
    x = Moments(torch.zeros(1, 1), torch.ones(1, 1))
    with options(terms=1):
        assert float(joint(network, x).covariance[0, 0, 1]) == pytest.approx(1 / 4)
    with options(terms=None):
        found = joint(network, x).covariance
    assert torch.equal(found, joint(network, x).covariance)
    assert float(found[0, 0, 1]) == pytest.approx(0.5 - 0.5 / math.pi, rel=1e-5)


@each
@pytest.mark.parametrize("rank", [2, 8, 48])
def test_float32_keeps_the_matrix_positive_semidefinite(name: str, rank: int) -> None:
    """As nearly as the matrix that it comes from: 48 values of ``rank`` independent ones."""
    draw = torch.Generator().manual_seed(rank)
    root = torch.randn(48, rank, generator=draw) / rank**0.5
    cov, mean = root @ root.T, torch.randn(48, generator=draw)
    var = cov.diagonal().clone()
    own = getattr(momentgen.generated, name)(mean, var).var
    found = pairwise_covariance(getattr(momentgen.generated, f"{name}_covariance"), mean, var, cov, own)
    assert torch.equal(found, found.mT)
    assert torch.linalg.eigvalsh(found.double()).min() >= -2e-6 * own.max()


def test_certain_values_have_no_covariance_and_finite_gradients() -> None:
    mean = noisy(1, 4).mean.requires_grad_()
    var = torch.tensor([[0.0, 0.5, 0.0, 1.0]]).requires_grad_()
    out = joint(nn.Sequential(nn.ReLU()), Moments(mean, var))
    assert not out.covariance[0, 0].any()
    (out.covariance.sum() + out.mean.sum()).backward()
    assert mean.grad.isfinite().all()
    assert var.grad.isfinite().all()


@each
def test_gradients_are_those_of_differences(name: str) -> None:
    weight, x = layer(3), noisy(1, 4, dtype=torch.float64)
    network = Of(lambda x: FUNCTIONS[name](F.linear(x, weight)))

    def value(mean: Tensor, var: Tensor) -> Tensor:
        cov: Tensor = joint(network, Moments(mean, var)).covariance
        return (cov * torch.arange(9.0, dtype=torch.float64).view(3, 3)).sum()

    assert torch.autograd.gradcheck(value, (x.mean.requires_grad_(), x.var.requires_grad_()), atol=1e-4)


def test_examples_run_together() -> None:
    """One call of the op serves all examples of a batch."""
    calls: list[int] = []
    op = momentgen.generated.relu_covariance
    real = op.__class__.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self is op)
        return real(self, *args, **kwargs)

    network, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU()), noisy(16, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op.__class__, "__call__", counted)
        whole = joint(network, x)
    assert sum(calls) == 1
    torch.testing.assert_close(joint(network, Moments(x.mean[3:4], x.var[3:4])).covariance[0], whole.covariance[3])
