"""What holds of every function of moments in ``laws.numerics``: in torch's modes, in its dtypes, and its derivatives.

What a function's moments are is asked in a test of its own.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from momentgen.laws.numerics.maximum import maximum_of
from momentgen.laws.numerics.normalise import l2_normalise, layer_norm, rms_norm
from momentgen.laws.numerics.quadrature import quadrature
from momentgen.laws.numerics.root import matrix_root
from momentgen.laws.numerics.softmax import log_softmax, merge, softmax
from momentgen.laws.rules.attention import attention

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Subject:
    """One function of mean and variance along the last axis.

    Attributes:
        call: (mean, var) -> (mean, var).
        plain: the same on a certain value.
        sizes: of the last axis, one for each way in which it is computed.
        differences: of these sizes derivatives are those of the code as it is written; beyond, terms are held constant.
        operator: whether it is an operator with a derivative of its own, which compiled code has to call.
    """

    call: Callable[[Tensor, Tensor], Pair]
    plain: Callable[[Tensor], Tensor]
    sizes: tuple[int, ...]
    differences: tuple[int, ...]
    operator: bool = False


def _attention(mean: Tensor, var: Tensor) -> Pair:
    return attention((mean, var), (mean.flip(-2), var.flip(-2)), (2 * mean, var), 0.4)


SUBJECTS = {
    "layer_norm": Subject(lambda m, v: layer_norm(m, v, 1, 1e-3), lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-3),
        (6, 32), (3,)),
    "rms_norm": Subject(lambda m, v: rms_norm(m, v, 1, 1e-3), lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-3),
        (6, 32), (3,)),
    "l2_normalise": Subject(lambda m, v: l2_normalise(m, v, -1, 1e-12), lambda x: F.normalize(x, dim=-1),
        (6, 32), (3,)),
    "softmax": Subject(lambda m, v: softmax(m, v, -1), lambda x: x.softmax(-1), (5, 40), (5,)),
    "log_softmax": Subject(lambda m, v: log_softmax(m, v, -1), lambda x: x.log_softmax(-1), (5, 40), (5,)),
    "maximum": Subject(lambda m, v: maximum_of(m, v, -1), lambda x: x.amax(-1), (2, 3, 40), (3, 9, 40), True),
    "quadrature": Subject(lambda m, v: quadrature(torch.tanh, m, v), torch.tanh, (4,), (4,)),
    "attention": Subject(_attention, lambda x: F.scaled_dot_product_attention(x, x.flip(-2), 2 * x, scale=0.4),
        (8,), ()),
}  # fmt: skip


def each(sizes: Callable[[Subject], Iterable[int]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("name", "size"), [(name, size) for name, subject in SUBJECTS.items() for size in sizes(subject)]
    )


def given(size: int, dtype: torch.dtype = torch.float32) -> Pair:
    generator = torch.Generator().manual_seed(size)
    mean = torch.randn(3, 4, size, generator=generator, dtype=torch.float64)
    return mean.to(dtype), (0.2 + torch.rand(3, 4, size, generator=generator, dtype=torch.float64)).to(dtype)


@each(lambda subject: subject.sizes)
def test_it_compiles_to_one_graph(name: str, size: int) -> None:
    torch.compiler.reset()  # each size is a graph of its own
    subject, results = SUBJECTS[name], []
    for run in (subject.call, torch.compile(subject.call, fullgraph=True, backend="aot_eager")):
        leaves = [tensor.requires_grad_(subject.operator) for tensor in given(size)]
        out = run(*leaves)
        of = out[0].square().sum() + out[1].sum()
        results.append((*out, *(torch.autograd.grad(of, leaves) if subject.operator else ())))
    torch.testing.assert_close(*results)


@each(lambda subject: subject.sizes)
def test_it_works_under_vmap_and_fake_tensors(name: str, size: int) -> None:
    call, (mean, var) = SUBJECTS[name].call, given(size)
    whole = call(mean, var)
    torch.testing.assert_close(torch.vmap(call)(mean, var), whole)
    of_one = call(mean[:1].expand_as(mean), var)
    torch.testing.assert_close(torch.vmap(call, in_dims=(None, 0))(mean[0], var), of_one)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = call(*map(mode.from_tensor, (mean, var)))
    assert [tensor.shape for tensor in fake] == [tensor.shape for tensor in whole]


@each(lambda subject: subject.sizes)
def test_float64_is_computed_in_float64(name: str, size: int) -> None:
    call, pair = SUBJECTS[name].call, given(size, torch.float64)
    for got, wanted in zip(call(*pair), call(*(tensor.float() for tensor in pair)), strict=True):
        assert got.dtype is torch.float64
        torch.testing.assert_close(got, wanted.double(), rtol=1e-4, atol=1e-6)


@each(lambda subject: subject.differences)
def test_gradients_are_those_of_finite_differences(name: str, size: int) -> None:
    leaves: list[Any] = [tensor[0, :2].requires_grad_() for tensor in given(size, torch.float64)]
    assert torch.autograd.gradcheck(SUBJECTS[name].call, leaves)


@each(lambda subject: subject.sizes)
def test_a_certain_value_has_that_of_the_plain_function_no_variance_and_finite_gradients(name: str, size: int) -> None:
    mean, _ = given(size)
    leaves = [mean.requires_grad_(), torch.zeros_like(mean).requires_grad_()]
    out, var = SUBJECTS[name].call(*leaves)
    torch.testing.assert_close(out, SUBJECTS[name].plain(mean), rtol=2e-6, atol=2e-6)
    assert (var == 0).all()
    for gradient in torch.autograd.grad(out.square().sum() + out.sum() + var.sum(), leaves):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("name", "size"), [(name, size) for name in list(SUBJECTS)[:5] for size in SUBJECTS[name].sizes if size < 40]
)
def test_the_derivative_at_variance_0_is_the_limit_of_those_beside_it(name: str, size: int) -> None:
    mean, _ = given(size, torch.float64)

    def slope(variance: float) -> Tensor:
        var = torch.full_like(mean, variance).requires_grad_()
        return torch.autograd.grad(SUBJECTS[name].call(mean, var)[1].sum(), var)[0]

    torch.testing.assert_close(slope(0.0), slope(1e-7), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_a_singular_matrix_with_rows_of_zeros_has_a_root(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(8):  # LAPACK in float32 does not converge for one in ten
        size, rank = (int(torch.randint(50, 300, (), generator=generator)) for _ in range(2))
        scale = torch.exp(3 * torch.randn(size, generator=generator)) * (torch.rand(size, generator=generator) > 0.5)
        factor = torch.randn(min(rank, size - 1), size, generator=generator) * scale
        matrix = factor.mT @ factor
        root = matrix_root(matrix)
        torch.testing.assert_close(root @ root, matrix, rtol=0, atol=2e-6 * float(matrix.abs().max()))


def test_the_root_of_a_matrix_has_derivatives_of_any_order() -> None:
    a = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def root(a: Tensor) -> Tensor:
        return matrix_root(a @ a.mT)

    assert torch.autograd.gradcheck(root, a, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(root, a)
    slope = torch.func.grad(lambda a: root(a).sin().sum())
    torch.testing.assert_close(torch.func.jacrev(slope)(a), torch.func.jacfwd(slope)(a))


# The softmax as a value: against quadrature, sampling, torch where nothing is random, and in every mode of torch.
CLASSES = (1, 2, 3, 10, 32, 33, 100)


def logits(rows: int, classes: int, sigma: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed + classes)
    mean = torch.randn(rows, classes, generator=generator)
    return mean, sigma**2 * (0.5 + torch.rand(rows, classes, generator=generator))


def sample(mean: Tensor, var: Tensor, count: int, log: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and variance by sampling in float64, antithetic."""
    generator = torch.Generator().manual_seed(1)
    mean, sigma = mean.double(), var.double().sqrt()
    function = torch.log_softmax if log else torch.softmax
    first, second, done = torch.zeros_like(mean), torch.zeros_like(mean), 0
    centre = function(mean, -1)
    chunk = max(1, 1_000_000 // mean.numel())
    while done < count:
        noise = sigma * torch.randn(chunk, *mean.shape, generator=generator, dtype=torch.float64)
        for sign in (1, -1):
            p = function(mean + sign * noise, -1) - centre
            first, second, done = first + p.sum(0), second + (p * p).sum(0), done + chunk
    return centre + first / done, second / done - (first / done) ** 2


@pytest.mark.parametrize("sigma", [0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("gap", [0.0, 1.0, 4.0, -6.0])
def test_two_classes_are_exact(gap: float, sigma: float) -> None:
    mean = torch.tensor([gap, 0.0])
    var = torch.tensor([0.7, 0.3]) * sigma**2
    spread = math.sqrt(var.double().sum())
    nodes = [gap + spread * k for k in range(-12, 13)]

    def moment(power: int) -> float:
        def density(t: float) -> float:
            return mpmath.npdf(t, gap, spread) * (1 / (1 + mpmath.exp(-t))) ** power

        return float(mpmath.quad(density, sorted([*nodes, 0.0])))

    first = moment(1)
    q, w = softmax(mean, var, 0)
    # A few roundings of float32 in the mean, and in the log-odds, which the tail's variance magnifies.
    torch.testing.assert_close(q[0].item(), first, rtol=2e-5, atol=0)
    torch.testing.assert_close(w[0].item(), moment(2) - first**2, rtol=2e-4, atol=0)
    torch.testing.assert_close(w[1].item(), w[0].item(), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize(("sigma", "tolerance"), [(0.1, 0.01), (0.3, 0.01), (1.0, 0.06)])
@pytest.mark.parametrize("classes", [2, 3, 10, 33, 100])
def test_sigma_against_sampling(classes: int, sigma: float, tolerance: float) -> None:
    mean, var = logits(4, classes, sigma)
    q, w = softmax(mean, var, -1)
    truth, truth_var = sample(mean, var, 200_000 if classes <= 10 else 50_000)
    ratio = (w.double() / truth_var).sqrt()
    assert abs(ratio.median() - 1) < tolerance
    # Every class down to a tenth of the average: twice the tolerance of the typical one, and the sampling's 2 %.
    assert ((ratio - 1).abs()[truth > 0.1 / classes] < 2 * tolerance + 0.02).all()
    assert ((q - truth).abs() < 0.03 * truth_var.sqrt()).all()


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0, 3.0, 10.0])
@pytest.mark.parametrize("classes", [10, 100, 1000])
def test_typical_sigma_at_any_variance(classes: int, sigma: float) -> None:
    mean, var = logits(4, classes, sigma)
    _, w = softmax(mean, var, -1)
    truth, truth_var = sample(mean, var, 60_000)
    weighted = (truth * w.double().sqrt()).sum() / (truth * truth_var.sqrt()).sum()
    assert abs(weighted - 1) < 0.06


@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize(("sigma", "tolerance"), [(0.1, 0.01), (1.0, 0.08)])
def test_log_softmax_against_sampling(classes: int, sigma: float, tolerance: float) -> None:
    mean, var = logits(4, classes, sigma)
    m, w = log_softmax(mean, var, -1)
    truth, truth_var = sample(mean, var, 100_000, log=True)
    assert abs((w.double() / truth_var).sqrt().median() - 1) < tolerance
    assert ((m - truth).abs() < 0.03 * truth_var.sqrt()).all()


def test_merge_is_exact() -> None:
    mean_a, var_a, mean_b, var_b = 0.4, 2.0, -0.3, 0.5
    grid = torch.linspace(-10, 10, 801, dtype=torch.float64)
    weight = torch.exp(-grid * grid / 2)
    weight = weight / weight.sum()
    node = torch.logaddexp(mean_a + math.sqrt(var_a) * grid[:, None], mean_b + math.sqrt(var_b) * grid[None, :])
    both = weight[:, None] * weight[None, :]
    first = (both * node).sum()
    second = (both * (node - first) ** 2).sum()
    for a, b in (((mean_a, var_a), (mean_b, var_b)), ((mean_b, var_b), (mean_a, var_a))):
        m, v = merge(*(torch.tensor(x, dtype=torch.float64) for x in (*a, *b)))
        torch.testing.assert_close(m, first, rtol=1e-9, atol=0)
        torch.testing.assert_close(v, second, rtol=1e-9, atol=0)


@pytest.mark.parametrize("classes", CLASSES)
def test_classes_may_be_in_any_dimension(classes: int) -> None:
    mean, var = logits(3, classes, 1.0)
    for function in (softmax, log_softmax):
        m, v = function(mean.T, var.T, 0)
        torch.testing.assert_close((m.T, v.T), function(mean, var, -1))


@pytest.mark.parametrize("classes", CLASSES)
def test_masked_classes_take_no_part(classes: int) -> None:
    mean, var = logits(4, classes + 2, 1.0)
    out = torch.zeros_like(mean, dtype=torch.bool)
    out[:, [0, classes]] = True
    out[3] = True
    leaves = mean.masked_fill(out, -math.inf).requires_grad_(), var.clone().requires_grad_()
    q, w = softmax(*leaves, -1)
    few = [tensor[:3][~out[:3]].reshape(3, classes) for tensor in (mean, var)]
    expected = softmax(*few, -1)
    # Another number of classes is another tree, or the other method.
    torch.testing.assert_close(q[:3][~out[:3]].reshape(3, -1), expected[0], rtol=0.03, atol=1e-6)
    torch.testing.assert_close(w[:3][~out[:3]].reshape(3, -1), expected[1], rtol=0.12, atol=1e-6)
    assert (q[:3][out[:3]] == 0).all()
    assert (w[:3][out[:3]] == 0).all()
    assert q[3].isnan().all()
    assert w[3].isnan().all()
    grads = torch.autograd.grad((q[:3] ** 2).sum() + w[:3].sum(), leaves)
    assert all(grad[:3].isfinite().all() for grad in grads)
    m, v = log_softmax(*leaves, -1)
    assert (m[:3][out[:3]] == -math.inf).all()
    assert (v[:3][out[:3]] == 0).all()
    assert m[:3][~out[:3]].isfinite().all()


@pytest.mark.parametrize("classes", [1, 2, 3, 10, 32, 33, 1000])
@pytest.mark.parametrize(("size", "scale"), [(1e4, 1e3), (1e4, 0.0), (1e4, 1e-8), (0.0, 1e3), (30.0, 1.0), (0.0, 0.0)])
def test_extremes_are_finite(classes: int, size: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(classes)
    mean = (size * (2 * torch.rand(4, classes, generator=generator) - 1)).requires_grad_()
    var = (scale * torch.rand(4, classes, generator=generator)).requires_grad_()
    q, w = softmax(mean, var, -1)
    m, v = log_softmax(mean, var, -1)
    weights = torch.randn(q.shape, generator=generator)
    grads = torch.autograd.grad((weights * q).sum() + w.sum() + (weights * m).mean() + v.mean(), (mean, var))
    for tensor in (q, w, m, v, *grads):
        assert tensor.isfinite().all()
    assert ((w >= 0) & (w <= 0.25)).all()
    assert (v >= 0).all()
    # Rounding of K terms of a sum of about 1.
    assert ((q.double().sum(-1) - 1).abs() < 1e-6).all()


def test_gradients_of_many_classes_are_those_of_differences() -> None:
    mean, var = (tensor.double() for tensor in logits(1, 34, 1.0))
    weights = torch.randn(2, 34, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def loss(mean: Tensor, var: Tensor) -> Tensor:
        q, w = softmax(mean, var, -1)
        return (weights[0] * q + weights[1] * w).sum()

    leaves = mean.requires_grad_(), var.requires_grad_()
    grads = torch.autograd.grad(loss(*leaves), leaves)
    step = 1e-5
    for which in range(2):
        direction = torch.randn(mean.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        moved = [
            [leaf.detach() + (sign * step * direction if i == which else 0) for i, leaf in enumerate(leaves)]
            for sign in (1, -1)
        ]
        slope = (loss(*moved[0]) - loss(*moved[1])) / (2 * step)
        # Newton's slope is left out of the derivative of the self-consistent way, which has converged to 1 %.
        torch.testing.assert_close((grads[which] * direction).sum(), slope, rtol=0.02, atol=1e-6)
