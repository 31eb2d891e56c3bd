"""The maximum of n against scipy's adaptive integrals, the generated op of two, and the plain maximum."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import momentgen.laws.numerics.maximum as module
from momentgen.errors import InputError
from momentgen.laws.activations import generated_op
from momentgen.laws.numerics.maximum import maximum_of

INF = math.inf


def expected(m: np.ndarray, s: np.ndarray) -> tuple[float, float]:
    """Mean and variance by adaptive integrals of 1 - F above and F below the largest mean, in pieces of every scale."""
    centre = float(m.max())
    random = s > 0

    def distribution(t: float) -> float:
        if (t < m[~random]).any():
            return 0.0
        z = (t - m[random]) / s[random]
        return float(np.exp(log_ndtr(z).sum())) if len(z) > 50 else float(np.prod(ndtr(z)))

    edges = {centre, *(m[~random] if (~random).any() else [])}
    for mean, sd in zip(m[random], s[random], strict=True):
        edges |= {mean + k * sd for k in (-9, -3, -1, 0, 1, 3, 9)}
    places = sorted(edges)
    if len(places) > 60:
        places = sorted({*places[:: len(places) // 50], places[-1], centre})

    def piece(k: int, a: float, b: float) -> float:
        if b <= centre:
            below = quad(lambda t: k * (centre - t) ** (k - 1) * distribution(t), a, b, limit=200)
            return float((-1) ** k * below[0])
        return float(quad(lambda t: k * (t - centre) ** (k - 1) * (1 - distribution(t)), a, b, limit=200)[0])

    first, second = (sum(piece(k, a, b) for a, b in itertools.pairwise(places)) for k in (1, 2))
    return centre + first, second - first**2


def case(kind: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    m, s = np.zeros(n), np.ones(n)
    if kind == "spread means":
        m = 1.5 * random.standard_normal(n)
    elif kind == "unequal":
        m, s = random.standard_normal(n), np.exp(random.standard_normal(n))
    elif kind == "very unequal":
        m, s = 0.3 * random.standard_normal(n), np.exp(3 * random.standard_normal(n))
    elif kind == "sharp":
        m, s = 0.5 * random.standard_normal(n), np.where(random.random(n) < 0.5, 10.0 ** random.uniform(-4, 0, n), 1.0)
    elif kind == "some certain":
        m, s = random.standard_normal(n), np.where(np.arange(n) % 2 == 1, 0.0, 1.0)
    elif kind == "one wide":
        s[0] = 10 ** random.uniform(0, 3)
        m[0] = s[0] * random.uniform(-2, 2)
    elif kind == "small numbers":
        m, s = 1e-3 * random.standard_normal(n), np.full(n, 1e-3)
    return m, s


KINDS = ["equal", "spread means", "unequal", "very unequal", "sharp", "some certain", "one wide", "small numbers"]


def is_within_a_thousandth(kind: str, n: int, dtype: torch.dtype, seeds: range) -> None:
    cases = [case(kind, n, seed) for seed in seeds]
    m, s = (np.stack(part) for part in zip(*cases, strict=True))
    mean, var = maximum_of(torch.from_numpy(m).to(dtype), torch.from_numpy(s**2).to(dtype), 1)
    for row, (a, b) in enumerate(cases):
        e, v = expected(a, b)
        assert abs(mean[row].item() - e) <= 1e-3 * math.sqrt(v)
        assert math.sqrt(var[row].item() / v) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [3, 4, 9, 17])
@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_the_exact_integrals_within_a_thousandth(kind: str, n: int, dtype: torch.dtype) -> None:
    is_within_a_thousandth(kind, n, dtype, range(2))


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 4, 5, 9, 16, 49, 100, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_moments_of_more_and_larger_windows_are_exact_within_a_thousandth(kind: str, n: int) -> None:
    is_within_a_thousandth(kind, n, torch.float32, range(10 if n < 100 else 2))


@pytest.mark.parametrize("shape", [(64, 3), (1000, 2)])
def test_many_equal_elements_stay_exact_in_float32(shape: tuple[int, int]) -> None:
    mean, var = maximum_of(torch.zeros(shape), torch.ones(shape), 0)
    e, v = expected(np.zeros(shape[0]), np.ones(shape[0]))
    torch.testing.assert_close(mean, torch.full_like(mean, e), rtol=0, atol=1e-3 * math.sqrt(v))
    torch.testing.assert_close(var, torch.full_like(var, v), rtol=2e-3, atol=0)


def test_maximum_of_three_equal_normals_has_its_closed_form() -> None:
    mean, var = maximum_of(torch.zeros(3).double(), torch.ones(3).double(), 0)
    assert mean.item() == pytest.approx(1.5 / math.sqrt(math.pi), rel=1e-4)
    assert var.item() == pytest.approx(1 + math.sqrt(3) / (2 * math.pi) - 9 / (4 * math.pi), rel=1e-4)


def test_one_is_the_input_and_two_the_generated_op() -> None:
    m, v = torch.randn(2, 5), torch.rand(2, 5)
    assert all(torch.equal(a, b[0]) for a, b in zip(maximum_of(m[:1], v[:1], 0), (m, v), strict=True))
    wanted = generated_op("maximum", "a test")(m[0], v[0], m[1], v[1])
    assert all(torch.equal(a, b) for a, b in zip(maximum_of(m, v, 0), wanted, strict=True))


@pytest.mark.parametrize("n", [1, 2, 3, 9, 30])
@pytest.mark.parametrize("tied", [False, True])
def test_certain_elements_give_the_plain_maximum_no_variance_and_finite_gradients(n: int, tied: bool) -> None:
    m = torch.ones(n, 4) if tied else torch.randn(n, 4, generator=torch.Generator().manual_seed(n))
    m, v = m.requires_grad_(), torch.zeros(n, 4, requires_grad=True)
    mean, var = maximum_of(m, v, 0)
    assert torch.equal(mean, m.amax(0))
    assert (var == 0).all()
    gradients = torch.autograd.grad(mean.sum() + var.sum(), (m, v))
    assert all(gradient.isfinite().all() for gradient in gradients)
    torch.testing.assert_close(gradients[0].sum(0), torch.ones(4))


@pytest.mark.parametrize("n", [2, 3, 9, 20])
def test_padding_by_minus_infinity_never_wins(n: int) -> None:
    m, v = torch.randn(n, 4).double().requires_grad_(), torch.rand(n, 4).double().requires_grad_()
    padded = torch.cat([m, torch.full((1, 4), -INF).double()]), torch.cat([v, torch.zeros(1, 4).double()])
    got, wanted = maximum_of(*padded, 0), maximum_of(m, v, 0)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
    assert all(g.isfinite().all() for g in torch.autograd.grad(got[0].sum() + got[1].sum(), (m, v)))


@pytest.mark.parametrize("n", [2, 3, 20])
def test_padding_alone_is_minus_infinity_and_certain(n: int) -> None:
    mean, var = maximum_of(torch.full((n, 2), -INF), torch.zeros(n, 2), 0)
    assert (mean == -INF).all()
    assert (var == 0).all()


def test_one_value_beside_padding_is_itself() -> None:
    m = torch.tensor([-INF, 2.0], requires_grad=True)
    v = torch.tensor([0.0, 3.0], requires_grad=True)
    mean, var = maximum_of(m, v, 0)
    assert (mean.item(), var.item()) == (2.0, pytest.approx(3.0))
    gradients = torch.autograd.grad(mean + var, (m, v))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert gradients[0][1] == 1


@pytest.mark.parametrize("n", [3, 9, 20])
def test_a_shift_and_a_scale_pass_through(n: int) -> None:
    m, v = torch.randn(n, 6).double(), torch.rand(n, 6).double()
    mean, var = maximum_of(m, v, 0)
    torch.testing.assert_close(maximum_of(m * 1e-4 + 7, v * 1e-8, 0), (mean * 1e-4 + 7, var * 1e-8))


@pytest.mark.parametrize("n", [3, 9, 40])
def test_gradients_are_those_of_finite_differences(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    m = torch.randn(n, 2, generator=generator).double().requires_grad_()
    v = (0.2 + torch.rand(n, 2, generator=generator)).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda m, v: maximum_of(m, v, 0), (m, v))


def test_gradients_are_the_chances_of_winning() -> None:
    m = torch.randn(9, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    v = torch.linspace(0.3, 2, 9).double()
    (share,) = torch.autograd.grad(maximum_of(m, v, 0)[0], m)
    x = m.detach() + v.sqrt() * torch.randn(10**6, 9, generator=torch.Generator().manual_seed(1)).double()
    wins = torch.bincount(x.argmax(1), minlength=9) / 1e6
    torch.testing.assert_close(share, wins.double(), rtol=0, atol=2.5e-3)  # four standard errors are 2e-3


@pytest.mark.parametrize("n", [5, 40])
def test_slices_change_nothing(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    m, v = (torch.rand(3, n, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def everything() -> list[Tensor]:
        mean, var = maximum_of(m, v, 1)
        with torch.no_grad():
            plain = maximum_of(m, v, 1)
        return [mean, var, *plain, *torch.autograd.grad(mean.sum() + var.sum(), (m, v))]

    whole = everything()
    monkeypatch.setattr(module, "_SLICE", 5 * n * 24)
    torch.testing.assert_close(everything(), whole)


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.slow), "aot_eager"])
@pytest.mark.parametrize(
    "n", [pytest.param(1, marks=pytest.mark.slow), 2, 3, pytest.param(9, marks=pytest.mark.slow), 40]
)
def test_it_compiles_to_one_graph(n: int, backend: str) -> None:
    torch.compiler.reset()  # each length is a graph of its own
    m, v = torch.randn(3, n, 4), torch.rand(3, n, 4)
    compiled = torch.compile(maximum_of, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(m, v, 1), maximum_of(m, v, 1))


@pytest.mark.parametrize("n", [3, 9, 40])
def test_it_works_under_vmap_and_fake_tensors(n: int) -> None:
    m, v = torch.randn(3, n, 4), torch.rand(3, n, 4)
    mapped = torch.vmap(lambda m, v: maximum_of(m, v, 0))
    torch.testing.assert_close(mapped(m, v), maximum_of(m, v, 1))
    torch.testing.assert_close(torch.vmap(lambda v: maximum_of(m[0], v, 0))(v), maximum_of(m[:1].expand(3, n, 4), v, 1))
    with FakeTensorMode():
        assert maximum_of(torch.empty(3, n, 4), torch.empty(3, n, 4), 1)[1].shape == (3, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_are_computed_in_float32(dtype: torch.dtype) -> None:
    m, v = torch.randn(9, 4).to(dtype), torch.rand(9, 4).to(dtype)
    got, wanted = maximum_of(m, v, 0), maximum_of(m.float(), v.float(), 0)
    assert all(torch.equal(a, b.to(dtype)) for a, b in zip(got, wanted, strict=True))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="at least one value"):
        maximum_of(torch.ones(0, 2), torch.ones(0, 2), 0)
    with pytest.raises(InputError, match="at least one node"):
        maximum_of(torch.ones(3), torch.ones(3), 0, nodes=0)
