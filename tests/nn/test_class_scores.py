"""The class posteriors of independent normal logits: formulas in mpmath, properties, extremes, derivatives."""

import mpmath
import pytest
import torch
from other_processes import growth, needs_linux
from torch import Tensor
from torch.func import jvp, vmap

from momentgen import Moments
from momentgen.nn import functional
from momentgen.nn.functional import Posterior, class_posterior, log_class_posterior

each = pytest.mark.parametrize("approximation", ["logistic", "normal", "simplified"])
VAR_S = mpmath.pi**2 / 3
RUN = """
import torch
from momentgen import Moments, class_posterior

def run(*shape):
    logits = Moments(torch.randn(shape).requires_grad_(), (torch.rand(shape) + 0.1).requires_grad_())
    class_posterior(logits).square().sum().backward()

run(2, 3)
"""


def row(classes: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mean = 3 * torch.randn(classes, generator=generator, dtype=torch.float64)
    return mean.to(dtype), (4 * torch.rand(classes, generator=generator, dtype=torch.float64)).to(dtype)


def log_of(mean: Tensor, var: Tensor, approximation: Posterior = "logistic", dim: int = -1) -> Tensor:
    return log_class_posterior(Moments(mean, var), dim, approximation)


def formula(mean: Tensor, var: Tensor, approximation: Posterior) -> list[mpmath.mpf]:
    """The approximation as the paper prints it: (59), (61), (64), renormalised."""
    m, v = ([mpmath.mpf(x) for x in t.tolist()] for t in (mean, var))
    classes = range(len(m))
    if approximation == "simplified":
        q = [mpmath.exp(a / mpmath.sqrt(b / VAR_S + 1)) for a, b in zip(m, v, strict=True)]
    elif approximation == "normal":
        z = [[(m[y] - m[k]) / mpmath.sqrt(v[y] + v[k] + VAR_S) for k in classes if k != y] for y in classes]
        q = [mpmath.fprod(mpmath.ncdf(a) for a in line) for line in z]
    else:
        z = [[(m[k] - m[y]) / mpmath.sqrt((v[y] + v[k]) / VAR_S + 1) for k in classes] for y in classes]
        q = [1 / mpmath.fsum(mpmath.exp(a) for a in line) for line in z]
    return [a / mpmath.fsum(q) for a in q]


@each
@pytest.mark.parametrize("classes", [1, 2, 7])
def test_probabilities_are_the_paper_s_formula_to_a_rounding(approximation: Posterior, classes: int) -> None:
    mean, var = row(classes)
    with mpmath.workdps(30):
        want = torch.tensor([float(p) for p in formula(mean, var, approximation)], dtype=torch.float64)
    torch.testing.assert_close(log_of(mean.double(), var.double(), approximation), want.log(), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(log_of(mean, var, approximation).double(), want.log(), rtol=1e-7, atol=1e-15)


@each
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e8])
def test_a_thousand_classes_and_logits_of_ten_thousand_sum_to_one(approximation: Posterior, scale: float) -> None:
    generator = torch.Generator().manual_seed(1)
    mean = (1e4 * (2 * torch.rand(1000, generator=generator) - 1)).requires_grad_()
    var = torch.full_like(mean, scale).requires_grad_()
    log_p = log_of(mean, var, approximation)
    assert abs(log_p.double().exp().sum().item() - 1) <= 1e-6
    grads = torch.autograd.grad(log_p.exp()[0] + log_p.sum(), (mean, var))
    assert all(torch.isfinite(t).all() for t in (log_p, *grads))


@pytest.mark.parametrize("approximation", ["logistic", "simplified"])
def test_certain_logits_give_the_softmax(approximation: Posterior) -> None:
    mean, _ = row(10, dtype=torch.float64)
    got = class_posterior(mean, -1, approximation)
    torch.testing.assert_close(got, torch.softmax(mean, -1), rtol=1e-13, atol=0)


@each
def test_derivatives_of_both_orders(approximation: Posterior) -> None:
    leaves = tuple(t.requires_grad_() for t in row(4, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda m, v: log_of(m, v, approximation), leaves)
    assert torch.autograd.gradgradcheck(lambda m, v: log_of(m, v, approximation), leaves)


def slices_of(monkeypatch: pytest.MonkeyPatch, pairs: int) -> None:
    monkeypatch.setattr(functional, "_SLICE", pairs)
    monkeypatch.setattr(functional, "_LARGE_SLICE", pairs)


@each
@pytest.mark.parametrize("pairs", [1, 10, 40, 60, 200])
def test_slices_change_nothing(approximation: Posterior, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of classes, of rows, of both; of outputs, gradients and what they are differentiated to."""
    mean, var = (torch.stack([t, t.flip(0), 2 * t]) for t in row(9, dtype=torch.float64))
    results = []
    for size in (1 << 18, pairs):
        slices_of(monkeypatch, size)
        leaves = mean.clone().requires_grad_(), var.clone().requires_grad_()
        p = log_of(*leaves, approximation).exp()
        first = torch.autograd.grad(p[:, 0].sum(), leaves, retain_graph=True)
        again = torch.autograd.grad(p[:, 1].sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((t * t).sum() for t in again), leaves)
        results.append((p, *first, *again, *second))
    for whole, sliced in zip(*results, strict=True):
        torch.testing.assert_close(sliced, whole, rtol=1e-12, atol=1e-16)


@each
def test_slices_have_derivatives_of_both_orders_in_either_input(
    approximation: Posterior, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices_of(monkeypatch, 10)
    mean, var = (torch.stack([t, t.flip(0)]) for t in row(4, dtype=torch.float64))
    for moments in ((mean.requires_grad_(), var), (mean.detach(), var.requires_grad_()), (mean.requires_grad_(), var)):
        assert torch.autograd.gradcheck(lambda m, v: log_of(m, v, approximation), moments)
        assert torch.autograd.gradgradcheck(lambda m, v: log_of(m, v, approximation), moments)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (2, 0, 3)])
def test_nothing_has_no_probabilities(shape: tuple[int, ...]) -> None:
    mean, var = torch.zeros(shape, requires_grad=True), torch.ones(shape)
    log_p = log_of(mean, var)
    assert log_p.shape == shape
    log_p.sum().backward()
    assert mean.grad is not None
    assert mean.grad.shape == shape


@needs_linux
@pytest.mark.parametrize("classes", [pytest.param(10, marks=pytest.mark.slow), 1000])
def test_forward_and_backward_take_no_more_memory_for_more_classes(classes: int) -> None:
    """200,000 logits add at most 200 MB to the process; a thousand classes each added 860."""
    assert growth(RUN, f"run({200_000 // classes}, {classes})") < 200e6


@each
def test_any_axis_dtype_and_transform(approximation: Posterior) -> None:
    mean, var = (t.view(3, 4) for t in row(12))

    def op(m: Tensor, v: Tensor, dim: int = -1) -> Tensor:
        return log_of(m, v, approximation, dim).exp()

    assert torch.equal(op(mean, var, 0), op(mean.T, var.T, 1).T)
    assert torch.equal(vmap(op)(mean, var), op(mean, var))
    # A shift of all logits changes no probability.
    _, tangent = jvp(lambda m: op(m, var), (mean,), (torch.ones_like(mean),))
    if approximation != "simplified":
        torch.testing.assert_close(tangent, torch.zeros_like(mean), atol=1e-7, rtol=0)
    assert op(mean.half(), var.half()).dtype is torch.float16
