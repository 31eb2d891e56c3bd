"""The maximum of n against scipy's adaptive integrals, the generated op of two, and the plain maximum."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr
from torch import Tensor

import momentgen.generated
import momentgen.laws.numerics.maximum as module
from momentgen.laws.numerics.maximum import maximum_of, maximum_of_windows, native_maximum

INF = math.inf


def integrated(m: np.ndarray, s: np.ndarray) -> tuple[float, float]:
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
    elif kind == "behind ReLU":  # of unequal values, some all but certainly negative
        mu, sd = random.standard_normal(n), 10 ** random.uniform(-2, 0) * np.exp(0.5 * random.standard_normal(n))
        mu[0] = abs(mu[0])
        density = np.exp(-((mu / sd) ** 2) / 2) / math.sqrt(2 * math.pi)
        m = mu * ndtr(mu / sd) + sd * density
        s = np.sqrt(np.maximum((mu**2 + sd**2) * ndtr(mu / sd) + mu * sd * density - m**2, 0))
        m, s = np.where(mu < -6 * sd, 0, m), np.where(mu < -6 * sd, 0, s)
    elif kind == "small numbers":
        m, s = 1e-3 * random.standard_normal(n), np.full(n, 1e-3)
    return m, s


@functools.cache
def expected(kind: str, n: int, seed: int) -> tuple[float, float]:
    return integrated(*case(kind, n, seed))


@functools.cache
def expected_gradients(kind: str, n: int, seed: int) -> list[np.ndarray]:
    """Of the mean by means and variances, then of the variance: integrals of the densities, in pieces of every scale.

    An element's density of being the largest is g_i = φ_i/s_i Π_{j≠i} Φ_j, and a change of v_i half the second
    derivative by m_i: the mean gains ∫ g_i and ∫ z_i g_i/(2 s_i), the variance twice that of t - mean.
    """
    m, s = case(kind, n, seed)
    random, centre = s > 0, expected(kind, n, seed)[0]
    z_edges = np.array([-9, -6.5, -4.5, -3, -2, -1, 0, 1, 2, 3, 4.5, 6.5, 9])
    edges = np.unique(np.maximum((m[random, None] + s[random, None] * z_edges).ravel(), (m - 9 * s).max()))
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half = np.diff(edges)[:, None] / 2
    t, w = (edges[:-1, None] + half * (1 + nodes)).ravel(), (half * weights).ravel()
    z = (t - m[random, None]) / s[random, None]
    others = np.exp(log_ndtr(z).sum(0) - log_ndtr(z))
    density = w * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) / s[random, None] * others
    found = []
    for unit in (1, 2 * (t - centre)):
        for order in (1, z / (2 * s[random, None])):
            gradient = np.zeros(len(m))
            gradient[random] = (unit * order * density).sum(1)
            found.append(gradient)
    return found


KINDS = ["equal", "spread means", "unequal", "very unequal", "sharp", "some certain", "one wide", "small numbers"]
KINDS += ["behind ReLU"]


LARGER = [(3, 10), (4, 10), (5, 10), (9, 10), (16, 10), (49, 10), (100, 2), (1000, 2)]


@pytest.mark.parametrize(
    ("n", "seeds", "dtype"),
    [
        *itertools.product((3, 4, 9, 17), (2,), (torch.float32, torch.float64)),
        *(pytest.param(n, seeds, torch.float32, marks=pytest.mark.slow) for n, seeds in LARGER),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_the_exact_integrals_within_a_thousandth(kind: str, n: int, seeds: int, dtype: torch.dtype) -> None:
    m, s = (np.stack(part) for part in zip(*(case(kind, n, seed) for seed in range(seeds)), strict=True))
    mean, var = maximum_of(torch.from_numpy(m).to(dtype), torch.from_numpy(s**2).to(dtype), 1)
    for seed in range(seeds):
        e, v = expected(kind, n, seed)
        assert abs(mean[seed].item() - e) <= 1e-3 * math.sqrt(v)
        assert math.sqrt(var[seed].item() / v) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("shape", [(64, 3), (1000, 2)])
def test_many_equal_elements_stay_exact_in_float32(shape: tuple[int, int]) -> None:
    mean, var = maximum_of(torch.zeros(shape), torch.ones(shape), 0)
    e, v = integrated(np.zeros(shape[0]), np.ones(shape[0]))
    torch.testing.assert_close(mean, torch.full_like(mean, e), rtol=0, atol=1e-3 * math.sqrt(v))
    torch.testing.assert_close(var, torch.full_like(var, v), rtol=2e-3, atol=0)


def test_one_is_the_input_and_two_the_generated_op() -> None:
    m, v = torch.randn(2, 5), torch.rand(2, 5)
    assert all(torch.equal(a, b[0]) for a, b in zip(maximum_of(m[:1], v[:1], 0), (m, v), strict=True))
    wanted = momentgen.generated.maximum(m[0], v[0], m[1], v[1])
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


@pytest.fixture
def without_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "native_maximum", lambda dtype: None)


def moments_and_gradients(m: Tensor, v: Tensor) -> list[Tensor]:
    m, v = m.detach().requires_grad_(), v.detach().requires_grad_()
    mean, var = maximum_of(m, v, 1)
    # Not the sum of both: their gradients differ by far.
    return [mean, var, *torch.autograd.grad(mean.sum(), (m, v), retain_graph=True), *torch.autograd.grad(var.sum(), v)]


@pytest.mark.parametrize("n", [5, 40])
def test_slices_change_nothing(n: int, monkeypatch: pytest.MonkeyPatch, without_c: None) -> None:
    m, v = torch.rand(3, n, 4, dtype=torch.float64), torch.rand(3, n, 4, dtype=torch.float64)
    whole = moments_and_gradients(m, v)
    monkeypatch.setattr(module, "_SLICE", 5 * n * 64)
    torch.testing.assert_close(moments_and_gradients(m, v), whole)


def use(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if code == "torch":
        monkeypatch.setattr(module, "native_maximum", lambda dtype: None)
    else:
        assert native_maximum(torch.float32) is not None, "no C compiler"


@pytest.fixture(params=["C", "torch"])
def _code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use(request.param, monkeypatch)


CODE = pytest.mark.usefixtures("_code")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [3, 4, 9, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_the_torch_code_and_the_c_give_the_same_moments(
    kind: str, n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [case(kind, n, seed) for seed in range(20)]
    m, s = (torch.from_numpy(np.stack(part)).to(dtype) for part in zip(*rows, strict=True))
    use("C", monkeypatch)
    mean, var = maximum_of(m, s.square(), 1)
    use("torch", monkeypatch)
    other, spread = maximum_of(m, s.square(), 1)
    tolerance = 5e-5 if dtype == torch.float32 else 1e-7  # C has the normal tail to 1e-8
    torch.testing.assert_close(mean / spread.sqrt(), other / spread.sqrt(), rtol=1e-6, atol=tolerance)
    torch.testing.assert_close(var, spread, rtol=2 * tolerance, atol=0)


@CODE
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 4e-3), (torch.float64, 2e-5)])
@pytest.mark.parametrize("n", [3, 4, 9])
@pytest.mark.parametrize("kind", ["equal", "spread means", "unequal", "some certain", "small numbers"])
def test_gradients_are_those_of_the_exact_integrals(kind: str, n: int, dtype: torch.dtype, tolerance: float) -> None:
    for seed in range(4):
        m, s = case(kind, n, seed)
        sd = math.sqrt(expected(kind, n, seed)[1])
        inputs = [torch.from_numpy(part).to(dtype)[None].requires_grad_() for part in (m, s**2)]
        mean, var = maximum_of(*inputs, 1)
        found = *torch.autograd.grad(mean, inputs, retain_graph=True), *torch.autograd.grad(var, inputs)
        random = s > 0
        # Derivatives by m_i and v_i are of the size of 1 and 1/s_i, times the standard deviation for the variance's.
        for one, wanted, unit in zip(found, expected_gradients(kind, n, seed), (1, s, 1 / sd, s / sd), strict=True):
            error = ((one[0].double().numpy() - wanted) * unit)[random]
            assert np.abs(error).max() <= tolerance


@CODE
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_certain_maximum_but_for_a_tail_has_the_variance_of_the_tail(dtype: torch.dtype) -> None:
    z = np.linspace(0, 6, 13)
    m, s = np.stack([np.zeros(13), -z, -z - 2], 1), np.array([0.0, 1.0, 1.0])
    mean, var = maximum_of(*(torch.from_numpy(part).to(dtype) for part in (m, np.tile(s**2, (13, 1)))), 1)
    wanted = np.array([integrated(row, s) for row in m])
    np.testing.assert_allclose(mean.double(), wanted[:, 0], rtol=1e-3)
    np.testing.assert_allclose(var.double().sqrt(), np.sqrt(wanted[:, 1]), rtol=1e-3)


@CODE
def test_one_wrong_element_makes_its_window_nan_and_no_other() -> None:
    m, v = torch.zeros(5, 3), torch.ones(5, 3)
    m[0, 1], m[1, 0], v[2, 2], v[3, 0] = math.nan, INF, -1e-3, math.nan
    m, v = m.requires_grad_(), v.requires_grad_()
    mean, var = maximum_of(m, v, 1)
    assert torch.stack([mean, var])[:, :4].isnan().all()
    assert torch.stack([mean, var])[:, 4].isfinite().all()
    gradients = torch.autograd.grad(mean.sum() + var.sum(), (m, v))
    assert all(g[4].isfinite().all() for g in gradients)


@CODE
def test_overlapping_windows_share_their_elements_and_gradients() -> None:
    table = torch.tensor([[0, 1, 2], [1, 2, 3], [4, -1, 0]])
    m = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    v = torch.rand(7, 5, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
    found = maximum_of_windows(m, v, table)
    windows = [(m[:, :3], v[:, :3]), (m[:, 1:4], v[:, 1:4]), (m[:, [4, 0]], v[:, [4, 0]])]
    wanted = [torch.stack(part, 1) for part in zip(*(maximum_of(*window, 1) for window in windows), strict=True)]
    torch.testing.assert_close(found, tuple(wanted), rtol=0, atol=1e-4)
    for one, other in zip(found, wanted, strict=True):
        ours, theirs = (torch.autograd.grad(part.square().sum(), (m, v), retain_graph=True) for part in (one, other))
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n", [3, 9])
def test_second_derivatives_are_those_of_finite_differences(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    m = torch.randn(2, n, generator=generator).double().requires_grad_()
    v = (0.5 + torch.rand(2, n, generator=generator)).double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda m, v: maximum_of(m, v, 1), (m, v), atol=1e-4)


def test_transforms_give_the_derivatives_of_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    m, v = (0.5 + torch.rand(4, 5, 3, generator=generator, dtype=torch.float64) for _ in range(2))

    def loss(m: Tensor, v: Tensor) -> Tensor:
        mean, var = maximum_of(m, v, 0)
        return (mean * mean + var).sum()

    m, v = m.requires_grad_(), v.requires_grad_()
    wanted = torch.autograd.grad(sum(loss(a, b) for a, b in zip(m, v, strict=True)), (m, v))  # type: ignore[arg-type]
    m, v = m.detach(), v.detach()
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss, (0, 1)))(m, v), wanted)
    forward = torch.func.jvp(loss, (m[0], v[0]), (v[0], m[0]))[1]
    torch.testing.assert_close(forward, (wanted[0][0] * v[0] + wanted[1][0] * m[0]).sum(), rtol=1e-6, atol=1e-6)
    hessian = torch.func.jacrev(torch.func.grad(loss))(m[0], v[0])
    shifted = torch.func.grad(loss)(m[0] + 1e-5 * v[0], v[0]) - torch.func.grad(loss)(m[0] - 1e-5 * v[0], v[0])
    along = torch.einsum("abcd,cd->ab", hessian, v[0])
    torch.testing.assert_close(along, shifted / 2e-5, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("which", ["moments", "gradients"])
def test_the_operators_pass_torchs_own_check(which: str) -> None:
    m, v = torch.randn(4, 6), torch.rand(4, 6)
    table = torch.tensor([[0, 1, 2], [3, 4, 5]])
    if which == "moments":
        torch.library.opcheck(torch.ops.momentgen.maximum_of_windows, (m, v, table))
    else:
        grads = torch.randn(4, 2), torch.randn(4, 2)
        torch.library.opcheck(torch.ops.momentgen.maximum_of_windows_gradients, (m, v, *grads, table))
