"""What a call of an op gives, for every kind of tensor, and what it refuses."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import shutil
import sys
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.fixture_rules import scaled_square, square

from momentgen import Moments
from momentgen.errors import InputError
from momentgen.runtime import Op, Parameter

HALF_ULP = Fraction(1, 2**24)
floats = st.floats(-1e6, 1e6, width=32).filter(lambda x: x == 0 or abs(x) > 1e-6)


def exact_square(mean: float, var: float, scale: float = 1.0) -> tuple[Fraction, Fraction]:
    m, v, s = Fraction(mean), Fraction(var), Fraction(scale)
    return s * (m * m + v), s * s * (2 * v * v + 4 * m * m * v)


def assert_close(got: float, want: Fraction, roundings: int) -> None:
    # Sums of positive terms: each rounding adds at most half an ulp.
    assert abs(Fraction(got) - want) <= want * roundings * HALF_ULP * Fraction(101, 100)


@given(floats, floats.map(abs))
@settings(deadline=None, max_examples=50)
def test_float32_is_exact_up_to_the_roundings_of_the_kernel(mean: float, var: float) -> None:
    out = square(torch.tensor([mean]), torch.tensor([var]))
    assert isinstance(out, Moments)
    for got, want in zip(out, exact_square(mean, var), strict=True):
        assert_close(got.item(), want, roundings=8)


@given(floats, floats.map(abs), st.floats(0.25, 4.0))
@settings(deadline=None, max_examples=50)
def test_parameter_reaches_the_kernels_with_its_value(mean: float, var: float, scale: float) -> None:
    want = exact_square(mean, var, scale)
    narrow = scaled_square(torch.tensor([mean]), torch.tensor([var]), scale=scale)
    wide = scaled_square(torch.tensor([mean]).double(), torch.tensor([var]).double(), scale=scale)
    for single, double, exact in zip(narrow, wide, want, strict=True):
        assert_close(single.item(), exact, roundings=12)
        assert_close(double.item(), exact, roundings=1)


def test_parameter_defaults() -> None:
    m, v = torch.randn(9), torch.rand(9)
    assert torch.equal(scaled_square(m, v).mean, scaled_square(m, v, scale=1.5).mean)


def test_variants_are_chosen_by_name() -> None:
    m, v = torch.tensor([3.0]), torch.tensor([0.5])
    assert square(m, v, variant="linearised").mean.item() == 9.0
    assert square(m, v, variant="exact").mean.item() == square(m, v).mean.item() == 9.5


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


def test_subclasses_and_parameters_are_tensors() -> None:
    m, v = torch.nn.Parameter(torch.randn(3)), torch.nn.Buffer(torch.rand(3))
    assert square(m, v).mean.requires_grad


def test_autocast_promotes_mixed_dtypes() -> None:
    m, v = torch.randn(5).bfloat16(), torch.rand(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(square(m, v).mean, square(m.float(), v).mean)
        assert square(m, v.bfloat16()).mean.dtype is torch.bfloat16
    with pytest.raises(InputError, match="one dtype, got mean bfloat16, var float32"):
        square(m, v)


x = torch.ones(3)
REFUSED = {
    "a pair": (lambda: square(Moments(x, x)), "expected tensors mean, var, got 1: Moments"),
    "unknown parameter": (lambda: square(x, x, slope=1.0), "unknown parameter 'slope'; its parameters: none"),
    "tensor parameter": (lambda: scaled_square(x, x, scale=x[0]), "got Tensor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_is_refused_with_what_was_expected_and_what_came(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        call()


def test_required_and_unbounded_parameters() -> None:
    needy = Op("scaled_square", "runtime.fixture_rules.scaled_square", parameters=(Parameter("scale"),))
    with pytest.raises(InputError, match=r"parameter scale is required \(scale in \(-inf, inf\), required\)"):
        needy(x, x)
    with pytest.raises(InputError, match="got inf"):
        needy(x, x, scale=float("inf"))
    with pytest.raises(InputError, match="beyond the range of float32"):
        needy(x, x, scale=1e300)


def test_an_op_copies_and_pickles_by_name() -> None:
    assert copy.deepcopy(square) is square
    assert pickle.loads(pickle.dumps(square)) is square


def test_an_op_documents_itself() -> None:
    signature = inspect.signature(scaled_square)
    assert list(signature.parameters) == ["mean", "var", "variant", "scale"]
    assert signature.parameters["scale"].default == 1.5
    assert "factor of the square; a float in [0.25, 4]" in scaled_square.__doc__
    assert "linearised" in square.__doc__
    assert scaled_square.__name__ == "scaled_square"
    assert repr(square).startswith("<op runtime.fixture_rules.square.square(mean")


def test_ops_of_one_name_in_two_packages_live_side_by_side() -> None:
    other = Op("square", "runtime.fixture_rules.square", variants=("linearised",), default="linearised")
    again = Op("square", "runtime.fixture_rules.square", variants=("exact", "linearised"))
    foreign = Op("square", "elsewhere.square", variants=("exact",))
    m, v = torch.tensor([3.0]), torch.tensor([0.5])
    assert other(m, v).mean.item() == 9.0
    assert again(m, v).mean.item() == square(m, v).mean.item() == 9.5
    with pytest.raises(ModuleNotFoundError, match="elsewhere"):
        foreign(m, v)


def test_a_package_built_anew_and_imported_again_serves_the_new_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rebuilt_rules" / "square"
    shutil.copytree(Path(sys.modules["runtime.fixture_rules.square"].__file__).parent, folder)
    monkeypatch.syspath_prepend(tmp_path)
    m, v = torch.tensor([3.0]), torch.tensor([0.5])
    means = []
    for text in ("mean * mean + var", "mean * mean + var + 1"):
        for file, new in (
            ("exact.c", text),
            ("exact_float64.c", text),
            ("exact_torch.py", text.replace("mean", "size")),
        ):
            old = folder / file
            replaced = old.read_text().replace("mean * mean + var", new).replace("size * size + var", new)
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
    bare = scaled_square.kernel("forward", backend=backend)(m, v, scale=2.0)
    torch.testing.assert_close(bare, tuple(scaled_square(m, v, scale=2.0)), rtol=1e-6, atol=0)
    grads = scaled_square.kernel("backward", backend=backend)(m, v, torch.ones(100), torch.zeros(100), scale=2.0)
    torch.testing.assert_close(grads, (4 * m, torch.full_like(v, 2.0)))
    with pytest.raises(InputError, match="backend"):
        square.kernel("forward", backend="cuda")
