"""Every op as a user calls it, under torch's transforms and in its dtypes, and what is no number.

The accuracy of values is asked elsewhere; hence tolerances that any rounding meets and no mistake does.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from contract.library import OPS, each_variant, moderate, settings_of
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from momentgen.errors import InputError

#: of one value and of two, of one output and of two; a parameter that is not the default, so that it is seen to arrive
SOME = {"relu": {}, "leaky_relu": {"negative_slope": 0.2}, "maximum_correlated": {}}
each = pytest.mark.parametrize("name", SOME)
#: whose derivatives are not those of a fit
CLOSED = (
    *SOME, "product", "maximum", "abs",
    "heaviside", "relu_squared", "logistic_transform",
)  # fmt: skip


#: a fallback of torch's ("no batching rule", "no autograd kernel") must not pass unseen
loud = pytest.mark.filterwarnings("error::UserWarning")


def call(name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(OPS[name](*tensors, **SOME[name]))


def total(name: str, *tensors: Tensor) -> Tensor:
    return sum((k * out for k, out in enumerate(call(name, *tensors), 1)), start=torch.zeros(())).sum()


@each_variant
def test_the_kernel_and_the_float64_form_agree_on_moments_and_gradients(name: str, variant: str) -> None:
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [tensor.requires_grad_() for tensor in moderate(OPS[name], 300, dtype)]
        outputs = tuple(OPS[name](*leaves, variant=variant))
        gradients = torch.autograd.grad(sum(output.sum() for output in outputs), leaves)
        results.append([tensor.detach().double() for tensor in (*outputs, *gradients)])
    for i, (single, double) in enumerate(zip(*results, strict=True)):
        unit = 2e-5 if i < len(outputs) else 1e-4
        torch.testing.assert_close(single, double, rtol=0, atol=unit * max(1.0, float(double.abs().max())))


@each_variant
def test_nan_and_a_negative_variance_give_nan_in_every_output(name: str, variant: str) -> None:
    op = OPS[name]
    for number, setting in enumerate(settings_of(op)):
        # In units of another width than 1 the smallest number may be divided away.
        least = -(2.0**-149) if number == 0 else -(2.0**-120)
        rows = []
        for at, of in enumerate(op.input_names):
            for value in (math.nan, -1.0, least, -1e30, -math.inf) if of.startswith("var") else (math.nan,):
                for mean, var in ((1.0, 1.0), (0.0, 0.0), (math.inf, 1.0), (-3.0, math.inf)):
                    row = [mean if other.startswith("mean") else var for other in op.input_names[:4]] + [0.0]
                    rows.append([value if i == at else other for i, other in enumerate(row[: len(op.input_names)])])
        for dtype in (torch.float32, torch.float64):
            columns = torch.tensor(rows).to(dtype).unbind(1)
            for output in tuple(op(*columns, variant=variant, **setting)):
                assert output.isnan().all(), [rows[i] for i in (~output.isnan()).nonzero().ravel().tolist()]


@loud
@pytest.mark.parametrize("name", CLOSED)
def test_gradcheck_of_first_and_second_derivatives(name: str) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in moderate(OPS[name], 3, torch.float64))
    for variant in OPS[name].variants:
        run = lambda *ts, v=variant: tuple(OPS[name](*ts, variant=v))  # noqa: E731
        every = name in ("relu", "leaky_relu")  # others take the same way, and longer
        modes = {"check_forward_ad": every, "check_batched_forward_grad": every}
        assert torch.autograd.gradcheck(run, leaves, check_batched_grad=every, **modes)
        assert torch.autograd.gradgradcheck(run, leaves, check_batched_grad=every, check_fwd_over_rev=every)


@each
def test_transforms_agree_with_autograd(name: str) -> None:
    tensors = moderate(OPS[name], 6)
    leaves = tuple(tensor.clone().requires_grad_() for tensor in tensors)
    want = torch.autograd.grad(total(name, *leaves), leaves)
    every = tuple(range(len(tensors)))
    got = grad(lambda *ts: total(name, *ts), argnums=every)(*tensors)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    rows = jacrev(lambda *ts: sum(k * out for k, out in enumerate(call(name, *ts), 1)), argnums=every)(*tensors)
    for i, jacobian in enumerate(rows):
        torch.testing.assert_close(jacobian.diagonal(), want[i])
        assert torch.equal(jacobian, jacobian.diagonal().diag())
        tangents = tuple(torch.ones_like(t) if i == k else torch.zeros_like(t) for k, t in enumerate(tensors))
        _, tangent = jvp(lambda *ts: total(name, *ts), tensors, tangents)
        torch.testing.assert_close(tangent, want[i].sum())


@each
def test_vmap_gives_each_row_the_bits_of_its_own_call(name: str) -> None:
    tensors = tuple(tensor.view(3, 4) for tensor in moderate(OPS[name], 12))
    rows = vmap(lambda *ts: call(name, *ts))(*tensors)
    for row in range(3):
        for batch, single in zip(rows, call(name, *(tensor[row] for tensor in tensors)), strict=True):
            assert torch.equal(batch[row], single)
    flat = [tensor.flatten() for tensor in tensors]
    leaf = flat[0].clone().requires_grad_()
    (want,) = torch.autograd.grad(call(name, leaf, *flat[1:])[-1].sum(), leaf)
    assert torch.equal(vmap(grad(lambda *ts: call(name, *ts)[-1]))(*flat), want)


@each
def test_it_compiles_into_one_graph_with_the_same_bits(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda *ts: call(name, ts[0] * 1.0, *ts[1:]), fullgraph=True, backend="aot_eager")
    results = []
    for run in (lambda *ts: call(name, *ts), compiled):
        leaves = tuple(tensor.requires_grad_() for tensor in moderate(OPS[name], 6))
        out = run(*leaves)
        results.append((*out, *torch.autograd.grad(sum(k * o.sum() for k, o in enumerate(out, 1)), leaves)))
    assert all(torch.equal(eager, traced) for eager, traced in zip(*results, strict=True))


@each_variant
def test_narrow_dtypes_are_the_float32_result_rounded_once(name: str, variant: str) -> None:
    op = OPS[name]
    for dtype in (torch.bfloat16, torch.float16):
        tensors = moderate(op, 500, dtype)
        for setting in settings_of(op):
            got = tuple(op(*tensors, variant=variant, **setting))
            want = tuple(op(*(tensor.float() for tensor in tensors), variant=variant, **setting))
            for a, b in zip(got, want, strict=True):
                assert a.dtype is dtype
                torch.testing.assert_close(a, b.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["relu", "leaky_relu"])
def test_second_derivatives_at_the_kink(name: str) -> None:
    """d²E f/dmu² = (1 - slope)·phi(a)/sigma, also at a mean of 0."""
    slope = SOME[name].get("negative_slope", 0.0)
    for variant, dtype in itertools.product(("exact", "tight"), (torch.float32, torch.float64, torch.float16)):
        mean, var = torch.tensor([0.0, -0.7, 1.3], dtype=dtype), torch.tensor([1.0, 0.5, 2.0], dtype=dtype)
        of = lambda m, v, variant=variant: OPS[name](m, v, variant=variant, **SOME[name]).mean  # noqa: E731
        m, v = mean.double(), var.double()
        want = ((1 - slope) * torch.exp(-m.square() / (2 * v)) / torch.sqrt(2 * torch.pi * v)).to(dtype)
        close = {"rtol": 2e-3, "atol": 1e-3} if dtype is torch.float16 else {"rtol": 1e-5, "atol": 1e-6}
        leaf = mean.clone().requires_grad_()
        (first,) = torch.autograd.grad(of(leaf, var).sum(), leaf, create_graph=True)
        torch.testing.assert_close(torch.autograd.grad(first.sum(), leaf)[0], want, **close)
        for second in (grad(grad(of)), jacfwd(grad(of))):
            torch.testing.assert_close(vmap(second)(mean, var), want, **close)


def test_arguments_have_names_and_errors_say_which() -> None:
    op, one = OPS["maximum_correlated"], torch.ones(2)
    assert str(op.__signature__).startswith("(mean1: torch.Tensor, var1: torch.Tensor, mean2")  # type: ignore[attr-defined]
    assert torch.equal(op(one, one, mean2=one, var2=one, cov=one).mean, one)
    with pytest.raises(InputError, match="expected tensors mean1, var1, mean2, var2, cov, got 4"):
        op(one, one, one, one)
