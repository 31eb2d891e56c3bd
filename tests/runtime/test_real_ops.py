"""The generated ops under torch's transforms: compile, opcheck, gradcheck, grad, jacrev, vmap and jvp.

Ops of the test fixtures hold the runtime to more; this shows that real ones, with their many operations, selects and
parameters, come through the same way.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from real_rules import ALL, each, op_of, settings_of
from torch import Tensor
from torch.func import grad, jacrev, jvp, vmap

from momentgen.runtime import Moments, Op

SOME = [(n, v) for n, v in ALL if n in ("relu", "leaky_relu") and v in ("exact", "tight")]
#: parameters that are not the default, so that they are seen to arrive
OTHER = {"relu": {}, "leaky_relu": {"negative_slope": 0.2}}

Function = Callable[[Tensor, Tensor], Moments]


def function(name: str, variant: str) -> Function:
    op: Op = op_of(name)

    def call(mean: Tensor, var: Tensor) -> Moments:
        return op(mean, var, variant=variant, **OTHER[name])

    return call


def inputs(n: int = 6, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    mean = torch.randn(n, generator=generator, dtype=torch.float64) * 2
    return mean.to(dtype), (torch.rand(n, generator=generator, dtype=torch.float64) * 3 + 0.2).to(dtype)


@each(SOME)
def test_compiles_into_one_graph_with_the_same_bits(name: str, variant: str) -> None:
    torch._dynamo.reset()
    call = function(name, variant)
    compiled = torch.compile(lambda m, v: call(m * 1.0, v), fullgraph=True, backend="aot_eager")
    results = []
    for run in (call, compiled):
        mean, var = (x.requires_grad_() for x in inputs())
        out = run(mean, var)
        grads = torch.autograd.grad(out[0].sum() + 2 * out[1].sum(), (mean, var))
        results.append([*out, *grads])
    for eager, traced in zip(*results, strict=True):
        assert torch.equal(eager, traced)


@each(SOME)
def test_operators_pass_opcheck(name: str, variant: str) -> None:
    kernel = op_of(name)._kernels[variant]
    params, (mean, var) = list(OTHER[name].values()), inputs()
    torch.library.opcheck(kernel.forward, (mean, var, params))
    torch.library.opcheck(kernel.backward, (mean, var, torch.ones_like(mean), var, params))


@each(ALL)
def test_gradcheck_of_first_and_second_derivatives(name: str, variant: str) -> None:
    mean, var = (x.requires_grad_() for x in inputs(4, torch.float64))
    setting = settings_of(name)[0]

    def call(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(op_of(name)(m, v, variant=variant, **setting))  # type: ignore[return-value]

    assert torch.autograd.gradcheck(call, (mean, var))
    assert torch.autograd.gradgradcheck(call, (mean, var))


@each(SOME)
def test_functional_transforms_agree_with_autograd(name: str, variant: str) -> None:
    call, (mean, var) = function(name, variant), inputs()

    def total(m: Tensor, v: Tensor) -> Tensor:
        out = call(m, v)
        return (out.mean + 2 * out.var).sum()

    leaves = tuple(x.clone().requires_grad_() for x in (mean, var))
    want = torch.autograd.grad(total(*leaves), leaves)
    got = grad(total, argnums=(0, 1))(mean, var)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
    for argument in (0, 1):
        jacobian = jacrev(lambda m, v: call(m, v).mean + 2 * call(m, v).var, argnums=argument)(mean, var)
        torch.testing.assert_close(jacobian.diagonal(), want[argument])
        assert torch.equal(jacobian, jacobian.diagonal().diag())
    _, tangent = jvp(lambda m, v: total(m, v), (mean, var), (torch.ones_like(mean), torch.zeros_like(var)))
    torch.testing.assert_close(tangent, want[0].sum())


@each(SOME)
def test_vmap_gives_each_row_the_bits_of_its_own_call(name: str, variant: str) -> None:
    call, (mean, var) = function(name, variant), inputs(12)
    rows = vmap(call)(mean.view(3, 4), var.view(3, 4))
    for row, (m, v) in enumerate(zip(mean.view(3, 4), var.view(3, 4), strict=True)):
        for batch, single in zip(rows, call(m, v), strict=True):
            assert torch.equal(batch[row], single)
    per_sample = vmap(grad(lambda m, v: call(m, v).var))(mean, var)
    leaf = mean.clone().requires_grad_()
    (want,) = torch.autograd.grad(call(leaf, var).var.sum(), leaf)
    assert torch.equal(per_sample, want)


@each(SOME)
def test_second_derivatives_at_the_kink(name: str, variant: str) -> None:
    """d²E f/dmu² = (1 - slope)·phi(a)/sigma, also at a mean of 0."""
    slope = OTHER[name].get("negative_slope", 0.0)
    mean = torch.tensor([0.0, -0.7, 1.3])
    var = torch.tensor([1.0, 0.5, 2.0])
    second = vmap(grad(grad(lambda m, v: function(name, variant)(m, v).mean)))(mean, var)
    want = (1 - slope) * torch.exp(-mean.square() / (2 * var)) / torch.sqrt(2 * torch.pi * var)
    torch.testing.assert_close(second, want, rtol=1e-5, atol=1e-6)
