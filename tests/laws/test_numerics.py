"""What holds of every function of moments in ``laws.numerics``: in torch's modes, in its dtypes, and its derivatives.

What a function's moments are is asked in a test of its own.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from momentgen.laws.numerics.maximum import maximum_of
from momentgen.laws.numerics.normalise import l2_normalise, layer_norm, rms_norm
from momentgen.laws.numerics.quadrature import quadrature
from momentgen.laws.numerics.root import matrix_root
from momentgen.laws.numerics.softmax import log_softmax, softmax
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
    "layer_norm": Subject(
        lambda m, v: layer_norm(m, v, 1, 1e-3), lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-3), (6, 32), (3,)
    ),
    "rms_norm": Subject(
        lambda m, v: rms_norm(m, v, 1, 1e-3), lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-3), (6, 32), (3,)
    ),
    "l2_normalise": Subject(
        lambda m, v: l2_normalise(m, v, -1, 1e-12), lambda x: F.normalize(x, dim=-1), (6, 32), (3,)
    ),
    "softmax": Subject(lambda m, v: softmax(m, v, -1), lambda x: x.softmax(-1), (5, 40), (5,)),
    "log_softmax": Subject(lambda m, v: log_softmax(m, v, -1), lambda x: x.log_softmax(-1), (5, 40), (5,)),
    "maximum": Subject(lambda m, v: maximum_of(m, v, -1), lambda x: x.amax(-1), (2, 3, 40), (3, 9, 40), True),
    "quadrature": Subject(lambda m, v: quadrature(torch.tanh, m, v), torch.tanh, (4,), (4,)),
    "attention": Subject(
        _attention, lambda x: F.scaled_dot_product_attention(x, x.flip(-2), 2 * x, scale=0.4), (8,), ()
    ),
}


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
