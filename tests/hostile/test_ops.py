"""Ops in hostile hands: the right numbers, or an error of our own that names what was expected and what came."""

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hostile.strategies import BAD_TENSORS, NO_TENSORS, OBJECTS, odd_pairs, plain
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import momentgen.generated
from momentgen import Moments
from momentgen.errors import InputError
from momentgen.generated import bernoulli_noise, leaky_relu, maximum, relu, sigmoid
from momentgen.nn.functional import log_class_posterior, log_probabilities
from momentgen.runtime import Op

LIBRARY = [getattr(momentgen.generated, name) for name in momentgen.generated.__all__]
SOME = [relu, leaky_relu, sigmoid, maximum, bernoulli_noise]


def slow_unless(some: bool) -> Any:
    return () if some else pytest.mark.slow


EVERY = [
    pytest.param(op, variant, id=f"{op.name}-{variant}", marks=slow_unless(op in SOME and variant == op.default))
    for op in LIBRARY
    for variant in op.variants
]
each_op = pytest.mark.parametrize("op", [pytest.param(op, id=op.name, marks=slow_unless(op in SOME)) for op in LIBRARY])


def gradients(op: Op, variant: str, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    return torch.autograd.grad([output.sum() for output in op(*leaves, variant=variant)], leaves)


def assert_same(found: Tensor, wanted: Tensor) -> None:
    assert found.shape == wanted.shape
    assert found.dtype is wanted.dtype
    torch.testing.assert_close(plain(found), wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("op", "variant"), EVERY)
@settings(max_examples=10)
@given(data=st.data())
def test_odd_memory_and_odd_values_give_what_plain_ones_give(op: Op, variant: str, data: st.DataObject) -> None:
    """And each element what it gives alone; promises hold."""
    tensors = data.draw(odd_pairs(len(op.input_names)))
    alone = tuple(map(plain, tensors))
    outputs = tuple(op(*tensors, variant=variant))
    for found, wanted in zip(outputs, tuple(op(*alone, variant=variant)), strict=True):
        assert_same(found, wanted)
    for found, wanted in zip(gradients(op, variant, tensors), gradients(op, variant, alone), strict=True):
        assert_same(found, wanted)
    flat = [tensor.reshape(-1) for tensor in alone]
    if flat[0].numel():
        singles = [tuple(op(*one, variant=variant)) for one in zip(*flat, strict=True)]
        for k, found in enumerate(outputs):
            assert_same(plain(found).reshape(-1), torch.stack([single[k] for single in singles]))
    assert not (plain(outputs[-1]) < 0).any()
    bad = sum(
        tensor.isnan() | ((tensor < 0) if name.startswith("var") else False)
        for name, tensor in zip(op.input_names, alone, strict=True)
    )
    assert all(plain(output)[bad > 0].isnan().all() for output in outputs)


@settings(max_examples=25)
@given(odd_pairs(), st.integers(-5, 4))
def test_odd_memory_gives_the_same_class_posteriors(tensors: tuple[Tensor, Tensor], dim: int) -> None:
    dims = tensors[0].dim()
    if not -dims <= dim < dims:
        with pytest.raises(InputError, match=rf"expected an axis .* got dim = {dim}"):
            log_probabilities(*tensors, dim, "logistic")
        return
    found, wanted = (log_probabilities(*pair, dim % dims, "logistic") for pair in (tensors, map(plain, tensors)))
    assert_same(found, wanted)


def refused(op: Any, tensors: list[Any], came: str) -> None:
    with pytest.raises(InputError) as caught:
        op(*tensors)
    message = str(caught.value)
    assert message.startswith(f"{op.name}: ")
    assert any(word in message for word in ("must be", "expected")), message
    assert came in message


def in_place_of_one(op: Any, position: int | None, bad: Any) -> list[Any]:
    """The bad thing for the input at a position, or for all of them."""
    return [bad if position in (None, i) else torch.ones(2, 3) for i in range(len(op.input_names))]


@each_op
def test_tensors_that_kernels_do_not_take_are_refused_by_kind(op: Any) -> None:
    for make, came in BAD_TENSORS.values():
        for position in (None, *range(len(op.input_names))):
            refused(op, in_place_of_one(op, position, make()), came)


@each_op
def test_what_is_no_tensor_is_refused_by_its_type(op: Any) -> None:
    for value in NO_TENSORS.values():
        for position in (None, *range(len(op.input_names))):
            refused(op, in_place_of_one(op, position, value), type(value).__name__)


MIXED: dict[str, tuple[Callable[[], tuple[Tensor, Tensor]], str]] = {
    "shapes": (lambda: (torch.ones(2, 3), torch.ones(3, 2)), "one shape, got mean"),
    "broadcasting": (lambda: (torch.ones(2, 3), torch.ones(())), "one shape, got mean"),
    "dimensions": (lambda: (torch.ones(3), torch.ones(1, 3)), "one shape, got mean"),
    "dtypes": (lambda: (torch.ones(3), torch.ones(3).double()), "one dtype, got mean"),
    "halves": (lambda: (torch.ones(3).half(), torch.ones(3).bfloat16()), "one dtype, got mean"),
    "devices": (lambda: (torch.ones(3), torch.ones(3, device="meta")), "one device, got mean"),
    "dtypes on meta": (lambda: (torch.ones(3, device="meta"), torch.ones(3, device="meta").double()),
        "one dtype, got mean"),
}  # fmt: skip


@pytest.mark.parametrize("case", MIXED)
@pytest.mark.parametrize("op", [relu, leaky_relu], ids=lambda op: op.name)
@pytest.mark.parametrize("autocast", [False, True])
def test_inputs_that_do_not_match_are_refused_by_what_differs(op: Any, case: str, autocast: bool) -> None:
    tensors, message = MIXED[case][0](), MIXED[case][1]
    with torch.autocast("cpu", enabled=autocast):
        if autocast and case in ("dtypes", "halves"):  # as torch's own operators of two arguments
            widest = [tensor.float() if case == "halves" else tensor.double() for tensor in tensors]
            found, wanted = op(*tensors), op(*widest)
            assert_same(found.mean, plain(wanted.mean))
            return
        with pytest.raises(InputError, match=rf"{op.name}: expected tensors of {message}"):
            op(*tensors)


@settings(max_examples=150)
@given(OBJECTS)
def test_a_parameter_is_a_number_of_its_range_or_a_tensor_that_broadcasts_or_refused(value: Any) -> None:
    mean, var = torch.tensor([-1.0, 2.0]), torch.tensor([0.5, 1.0])
    fits = isinstance(value, torch.Tensor) and value.is_floating_point() and value.shape in ((), (1,), (2,))
    if fits and value.isfinite().all():  # leaky_relu is affine in its slope, which may then be any number
        found = leaky_relu(mean, var, negative_slope=value)
        assert found.mean.shape == mean.shape
        assert bool((found.var >= 0).all())
        return
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if is_number and 0 <= value <= 1:
        wanted = leaky_relu(mean, var, negative_slope=float(value))
        assert all(map(torch.equal, leaky_relu(mean, var, negative_slope=value), wanted))
        return
    assume(value is not None)  # the default
    refused = r"leaky_relu: parameter negative_slope( must be| takes a Python number in \[0, 1\]|: expected a shape)"
    with pytest.raises(InputError, match=refused):
        leaky_relu(mean, var, negative_slope=value)


@settings(max_examples=100)
@given(OBJECTS)
def test_a_variant_is_one_of_the_names_or_refused(value: Any) -> None:
    op = relu
    assume(value is not None and value not in op.variants if isinstance(value, str) else value is not None)
    tensors = [torch.ones(3)] * 2
    for call in (lambda: op(*tensors, variant=value), lambda: op.certificate(value)):
        with pytest.raises(InputError, match=rf"{op.name}: no variant .*; expected one of {op.variants[0]}"):
            call()


@settings(max_examples=100)
@given(OBJECTS)
def test_an_axis_is_a_whole_number_in_range_or_refused(value: Any) -> None:
    logits = Moments(torch.randn(2, 3), torch.rand(2, 3))
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and -2 <= value < 2:
        assert torch.equal(log_class_posterior(logits, value), log_class_posterior(logits, int(value)))
        return
    with pytest.raises(InputError, match=r"expected (a whole number for dim, got|an axis of a tensor of 2 dimensions)"):
        log_class_posterior(logits, value)


@settings(max_examples=60)
@given(st.sampled_from(SOME), st.lists(st.sampled_from(["tensor", *NO_TENSORS]), max_size=6))
def test_too_few_or_too_many_inputs_are_counted(op: Op, cases: list[str]) -> None:
    given_ = [torch.ones(2) if case == "tensor" else NO_TENSORS[case] for case in cases]
    assume(len(given_) != len(op.input_names))
    with pytest.raises(
        InputError, match=rf"{op.name}: expected tensors {', '.join(op.input_names)}, got {len(given_)}"
    ):
        op(*given_)


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from(["inplace", "out", "Mean", "dim", "negative_slope_", "mean"]), OBJECTS, min_size=1)
)
def test_unknown_words_are_named(words: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"leaky_relu: unknown parameter '.*'; its parameters: negative_slope"):
        leaky_relu(torch.ones(2), torch.ones(2), **words)


@pytest.mark.parametrize(
    ("which", "backend"),
    [
        *((which, "c") for which in (["forward"], None, "sideways", 1)),
        *(("forward", on) for on in (["c"], None, "cuda")),
    ],
)
def test_a_bare_kernel_is_of_a_direction_and_a_backend(which: Any, backend: Any) -> None:
    with pytest.raises(InputError, match="relu: expected forward or backward, and a backend of c, triton, torch; got"):
        relu.kernel(which, backend=backend)


@settings(max_examples=60)
@given(
    OBJECTS | st.sampled_from(list(NO_TENSORS.values())),
    OBJECTS | st.sampled_from(list(NO_TENSORS.values())),
    st.booleans(),
)
def test_the_standard_deviation_of_what_is_no_pair_of_tensors_is_refused(mean: Any, var: Any, real: bool) -> None:
    mean = torch.ones(2, 3) if real else mean
    if isinstance(mean, Tensor) and isinstance(var, int | float):
        beyond = abs(var) > torch.finfo(torch.float32).max and abs(var) != math.inf
        assume(beyond)  # else it is a variance
        with pytest.raises(InputError, match=r"Moments: expected a variance that torch.float32 holds"):
            Moments(mean, var)
        return
    moments = Moments(mean, var)
    if isinstance(moments.mean, Tensor) and isinstance(moments.var, Tensor):
        assume(not moments.var.is_floating_point())
    with pytest.raises(InputError, match=r"Moments.std: expected (two tensors|variances of floating point)"):
        moments.std  # noqa: B018 - a property


@given(st.sampled_from([(3,), (2, 2), (4, 2, 3)]))
def test_a_variance_of_another_shape_has_no_standard_deviation(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"Moments.std: expected mean and variance of one shape, got \(2, 5\) and"):
        Moments(torch.ones(2, 5), torch.ones(shape)).std  # noqa: B018 - a property


@settings(max_examples=80)
@given(st.floats(width=32), st.floats(0, width=32))
def test_scalars_from_numpy_and_python_are_the_same_tensor(mean: float, var: float) -> None:
    tensors = torch.tensor(mean), torch.tensor(var)
    arrays = torch.from_numpy(np.array(mean, np.float32)), torch.from_numpy(np.array(var, np.float32))
    for found, wanted in zip(relu(*arrays), relu(*tensors), strict=True):
        assert_same(found, wanted)
    if math.isfinite(mean) and math.isfinite(var):
        assert not any(moment.isnan() for moment in relu(*tensors))
