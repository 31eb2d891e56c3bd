"""What a call of an op gives, for every kind of tensor, and what it refuses."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from momentgen import Moments
from momentgen.errors import InputError
from momentgen.generated import gelu, leaky_relu, relu, silu, square, tanh
from momentgen.runtime import Op, Parameter


def test_parameter_defaults() -> None:
    m, v = torch.randn(9), torch.rand(9)
    assert torch.equal(leaky_relu(m, v).mean, leaky_relu(m, v, negative_slope=0.01).mean)


def test_variants_are_chosen_by_name() -> None:
    m, v = torch.tensor([3.0]), torch.tensor([0.5])
    assert relu(m, v, variant="identity_delta").mean.item() == 3.0
    assert relu(m, v, variant="exact").mean.item() == relu(m, v).mean.item() > 3.0


@pytest.mark.parametrize("size", [1, 31, 8191, 8193, 100_001])
def test_every_element_is_computed_with_one_thread_or_more(size: int) -> None:
    m, v = torch.randn(size), torch.rand(size)
    out = square(m, v)
    torch.testing.assert_close(out.mean.double(), m.double() ** 2 + v.double(), rtol=1e-6, atol=0)


def test_channels_last_stays_channels_last() -> None:
    mean = torch.randn(4, 3, 6, 5).to(memory_format=torch.channels_last)
    out = square(mean, torch.rand(4, 3, 6, 5))
    assert out.mean.is_contiguous(memory_format=torch.channels_last)
    assert out.var.is_contiguous(memory_format=torch.channels_last)


def test_inputs_are_left_alone() -> None:
    m, v = torch.randn(50), torch.rand(50)
    kept = m.clone(), v.clone()
    square(m, v)
    assert torch.equal(m, kept[0])
    assert torch.equal(v, kept[1])


def test_other_devices_go_through_the_pytorch_code() -> None:
    out = square(torch.empty(3, 4, device="meta"), torch.empty(3, 4, device="meta"))
    assert out.var.device.type == "meta"
    assert out.var.shape == (3, 4)


def test_autocast_promotes_mixed_dtypes() -> None:
    m, v = torch.randn(5).bfloat16(), torch.rand(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(square(m, v).mean, square(m.float(), v).mean)
        assert square(m, v.bfloat16()).mean.dtype is torch.bfloat16
    with pytest.raises(InputError, match="one dtype, got mean bfloat16, var float32"):
        square(m, v)


x = torch.ones(3)


def test_required_and_unbounded_parameters() -> None:
    needy = Op("leaky_relu", "momentgen.generated.leaky_relu", parameters=(Parameter("negative_slope"),))
    with pytest.raises(InputError, match=r"negative_slope is required \(negative_slope in \(-inf, inf\), required\)"):
        needy(x, x)
    with pytest.raises(InputError, match="got inf"):
        needy(x, x, negative_slope=float("inf"))
    with pytest.raises(InputError, match="beyond the range of float32"):
        needy(x, x, negative_slope=1e300)


def test_an_op_copies_and_pickles_by_name() -> None:
    assert copy.deepcopy(square) is square
    assert pickle.loads(pickle.dumps(square)) is square


def test_an_op_documents_itself() -> None:
    signature = inspect.signature(leaky_relu)
    assert list(signature.parameters) == ["mean", "var", "variant", "negative_slope"]
    assert signature.parameters["negative_slope"].default == 0.01
    assert "negative_slope: slope for negative inputs; a float or a tensor" in leaky_relu.__doc__
    assert "in [0, 1]." in leaky_relu.__doc__
    assert "identity_delta" in relu.__doc__
    assert leaky_relu.__name__ == "leaky_relu"
    assert repr(square).startswith("<op momentgen.generated.square.square(mean")


def test_ops_of_one_name_in_two_packages_live_side_by_side() -> None:
    other = Op("relu", "momentgen.generated.relu", variants=("identity_delta",), default="identity_delta")
    again = Op("relu", "momentgen.generated.relu", variants=("exact", "identity_delta"))
    foreign = Op("relu", "elsewhere.relu", variants=("exact",))
    m, v = torch.tensor([3.0]), torch.tensor([0.5])
    assert other(m, v).mean.item() == 3.0
    assert again(m, v).mean.item() == relu(m, v).mean.item() > 3.0
    with pytest.raises(ModuleNotFoundError, match="elsewhere"):
        foreign(m, v)


def test_a_package_built_anew_and_imported_again_serves_the_new_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rebuilt_rules" / "square"
    shutil.copytree(Path(sys.modules["momentgen.generated.square"].__file__).parent, folder)
    monkeypatch.syspath_prepend(tmp_path)
    m, v = torch.tensor([3.0]), torch.tensor([0.5])
    means = []
    for more in (0, 1):
        for old in (folder / "exact.c", folder / "exact_float64.c", folder / "exact_torch.py"):
            replaced = re.sub(r"(out_mean = \w+)[^;]*;", rf"\1 + {more};", old.read_text())
            replaced = replaced.replace("mean * mean + var", f"mean * mean + var + {more}")
            old.unlink()
            old.write_text(replaced + "\n")
        for name in [name for name in sys.modules if name.startswith("rebuilt_rules")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        op = importlib.import_module("rebuilt_rules.square").square
        means.append([op(m, v).mean.item(), op(m.double(), v.double()).mean.item()])
    assert means == [[9.5, 9.5], [10.5, 10.5]]


@pytest.mark.parametrize("backend", ["c", "torch"])
def test_bare_kernels_agree_with_the_op(backend: str) -> None:
    m, v = torch.randn(100), torch.rand(100)
    chosen = {"variant": "identity_delta", "negative_slope": 0.25}
    bare = leaky_relu.kernel("forward", backend=backend, variant="identity_delta")(m, v, negative_slope=0.25)
    torch.testing.assert_close(bare, tuple(leaky_relu(m, v, **chosen)), rtol=1e-6, atol=0)
    pull = leaky_relu.kernel("backward", backend=backend, variant="identity_delta")
    grads = pull(m, v, torch.ones(100), torch.zeros(100), negative_slope=0.25)
    torch.testing.assert_close(grads, (torch.where(m > 0, 1.0, 0.25), torch.zeros_like(v)))
    with pytest.raises(InputError, match="backend"):
        square.kernel("forward", backend="cuda")


# Standard deviations are differentiable where the variance is 0, in every way that torch differentiates.
VAR = torch.tensor([0.0, 4.0, 0.25])
SLOPES = torch.tensor([0.0, 0.25, 1.0])
BENDS = torch.tensor([0.0, -1 / 32, -2.0])


def std(var: Tensor) -> Tensor:
    return Moments(torch.zeros_like(var), var).std


def _autograd(var: Tensor) -> Tensor:
    leaf = var.clone().requires_grad_()
    return torch.autograd.grad(std(leaf).sum(), leaf)[0]


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "autograd": _autograd,
    "func.grad": torch.func.grad(lambda var: std(var).sum()),
    "vmap of grad": torch.vmap(torch.func.grad(std)),
    "jacrev": lambda var: torch.func.jacrev(std)(var).diagonal(),
    "jacfwd": lambda var: torch.func.jacfwd(std)(var).diagonal(),
    "jvp": lambda var: torch.func.jvp(std, (var,), (torch.ones_like(var),))[1],
}


@pytest.mark.parametrize("way", WAYS)
def test_the_derivative_is_0_at_variance_0_and_the_root_s_elsewhere(way: str) -> None:
    torch.testing.assert_close(WAYS[way](VAR), SLOPES)


def test_so_is_the_second_derivative_by_double_backward() -> None:
    leaf = VAR.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(std(leaf).sum(), leaf, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(slopes.sum(), leaf)[0], BENDS)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "autograd"])
def test_so_is_the_second_derivative_by_forward_mode_over_each(way: str) -> None:
    torch.testing.assert_close(torch.func.jvp(WAYS[way], (VAR,), (torch.ones(3),))[1], BENDS)


def test_it_compiles_with_its_gradient() -> None:
    compiled = torch.compile(std, fullgraph=True, backend="aot_eager")
    leaf = VAR.clone().requires_grad_()
    out = compiled(leaf)
    out.sum().backward()
    assert out.tolist() == [0, 2, 0.5]
    torch.testing.assert_close(leaf.grad, SLOPES)


@given(st.floats(0, width=32, allow_infinity=False, allow_nan=False))
def test_gradients_are_finite_at_every_variance_and_the_value_is_the_root(var: float) -> None:
    v = torch.tensor([var])
    assert std(v).item() == v.sqrt().item()
    assert _autograd(v).isfinite().all()


@pytest.mark.parametrize(("op", "mean", "var"), [(tanh, 5.0, 0.01), (silu, -10.0, 0.04), (gelu, -5.0, 0.25)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_variance_that_underflows_in_an_op_leaves_finite_gradients(
    op: Op, mean: float, var: float, dtype: torch.dtype
) -> None:
    leaves = [torch.tensor([value], dtype=dtype, requires_grad=True) for value in (mean, var)]
    gradients = torch.autograd.grad(op(*leaves).std.sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
