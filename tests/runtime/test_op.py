"""What a call of an op gives, for every kind of tensor, and what it refuses."""

import copy
import importlib
import inspect
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from momentgen import Moments
from momentgen.errors import InputError
from momentgen.generated import bow_tie, gelu, leaky_relu, relu, silu, square, tanh
from momentgen.native.c_compiler import find_compiler
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


# Standard deviations are differentiable where the variance is 0, in every way that torch differentiates.
VAR = torch.tensor([0.0, 4.0, 0.25])
SLOPES = torch.tensor([0.0, 0.25, 1.0])
BENDS = torch.tensor([0.0, -1 / 32, -2.0])


def std(var: Tensor) -> Tensor:
    return Moments(torch.zeros_like(var), var).std


def _autograd(var: Tensor, of: Callable[[Tensor], Tensor] = std) -> Tensor:
    leaf = var.clone().requires_grad_()
    return torch.autograd.grad(of(leaf).sum(), leaf)[0]


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "autograd": _autograd,
    "compiled": lambda var: _autograd(var, torch.compile(std, fullgraph=True, backend="aot_eager")),
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


@pytest.mark.parametrize("way", list(WAYS)[2:])
def test_so_is_the_second_derivative_by_forward_mode_over_each(way: str) -> None:
    torch.testing.assert_close(torch.func.jvp(WAYS[way], (VAR,), (torch.ones(3),))[1], BENDS)


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


# Bow tie units: a = z u + eta e, z ~ Bernoulli(S(u/tau)); their accuracy is asked in ``tests/contract``.
TAUS = (1e-3, 0.1, 1.0, 10.0)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("eta", [0.0, 0.3])
def test_of_a_certain_input_gate_and_noise_are_all_the_variance(tau: float, eta: float) -> None:
    means = torch.tensor([k * tau for k in (0.0, 0.01, -0.5, 2.0, -2.4, 9.0, -30.0, 200.0)], dtype=torch.float32)
    out = bow_tie(means, torch.zeros_like(means), tau=tau, eta=eta)
    for m, got_mean, got_var in zip(means.tolist(), out.mean.tolist(), out.var.tolist(), strict=True):
        open_, shut = (float(1 / (1 + mpmath.exp(sign * m / tau))) for sign in (-1, 1))
        mean, var = m * open_, m**2 * open_ * shut + eta**2
        assert abs(got_mean - mean) <= 2.0**-22 * max(tau, abs(mean))
        assert abs(got_var - var) <= 2.0**-22 * max(tau**2, var)
    # A closed and an open gate are certain.
    for certain in out.var[-2:].tolist():
        assert certain == pytest.approx(eta**2, rel=2.0**-22, abs=1e-9 * tau**2)


@pytest.mark.parametrize("tau", [1e-3, 0.1, 16.0])
def test_the_ends_of_float32_give_numbers_and_no_negative_variance(tau: float) -> None:
    sizes = [0.0, 2.0**-149, 1e-30, 1e-10, 1.0, 1e10, 1e19, 3e30, torch.finfo(torch.float32).max]
    means = torch.tensor([*sizes, *(-s for s in sizes)])
    mean, var = (t.flatten().requires_grad_() for t in torch.meshgrid(means, torch.tensor(sizes), indexing="ij"))
    out = bow_tie(mean, var, tau=tau)
    assert out.mean.isfinite().all()
    assert out.var.isfinite().all()
    assert (out.var >= 0).all()
    for gradient in torch.autograd.grad((out.mean + out.var).sum(), (mean, var)):
        assert gradient.isfinite().all()


def test_the_certificate_says_what_is_allowed_to_the_variance_and_what_it_is_at_0() -> None:
    certificate = bow_tie.certificate()
    assert "Errors of the variance are at most 1e-05*L^2*v + 1e-06*max(A^2, V)." in certificate.words
    checked = certificate.method["promises"]["checked"]
    assert "v = 0 gives the variance given x = mu" in checked
    assert "v = 0 gives variance 0" not in checked


# ReLU and leaky ReLU as x times a step at the mean (``identity_delta``): the closed form itself, bit for bit.
_LARGEST = {torch.float32: torch.finfo(torch.float32).max, torch.float64: torch.finfo(torch.float64).max}
_LEAST = {torch.float32: 2.0**-149, torch.float64: 5e-324}
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")


def points(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Means on either side of the step and on it, by variances; both zeros, and the ends of the dtype."""
    sizes = [_LEAST[dtype], 1e-30, 0.7, 3.0, 1e20, _LARGEST[dtype]]
    means = torch.tensor([0.0, -0.0, *sizes, *(-s for s in sizes)], dtype=dtype)
    variances = torch.tensor([0.0, *sizes], dtype=dtype)
    mean, var = torch.meshgrid(means, variances, indexing="ij")
    return mean.flatten(), var.flatten()


def closed_form(mean: torch.Tensor, var: torch.Tensor) -> list[torch.Tensor]:
    """mean, var, d(mean + 2 var)/dmu and /dvar."""
    on = mean > 0
    zero = torch.zeros_like(mean)
    return [torch.where(on, mean, zero), torch.where(on, var, zero), on.to(mean.dtype), 2 * on.to(mean.dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", [pytest.param("c", marks=needs_compiler), "torch"])
def test_every_backend_gives_the_closed_form_exactly_at_the_step_and_on_both_sides(
    dtype: torch.dtype, backend: str
) -> None:
    mean, var = points(dtype)
    one = torch.ones_like(mean)
    found = [
        *relu.kernel("forward", variant="identity_delta", backend=backend)(mean, var),
        *relu.kernel("backward", variant="identity_delta", backend=backend)(mean, var, one, 2 * one),
    ]
    for got, want in zip(found, closed_form(mean, var), strict=True):
        assert torch.equal(got, want)


def test_the_certificate_has_no_error_and_says_what_it_is_of() -> None:
    certificate = relu.certificate("identity_delta")
    assert all(bound["ulp of the terms"] == 0 for bound in certificate.bounds.values())
    assert "the variant's published formula, not the moments that it approximates" in " ".join(certificate.words)
    assert "the mean falls short by at most sigma/sqrt(2 pi), at mu = 0" in certificate.method["how"]
