"""Layers in hostile hands: the right moments, an error of our own, or what torch itself says of a plain tensor.

A layer stands on torch's class of its name.  What that class does not take, an argument of its constructor or a plain
tensor, it refuses in its own words, and these are left to it; moments are ours to check.
"""

import math
import numbers
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hostile.strategies import BAD_TENSORS, NO_TENSORS, OBJECTS, plain
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from momentgen import Moments, nn
from momentgen.errors import InputError, MomentgenError

#: what torch computes where it has no class of the name
TWINS: dict[str, Callable[[Tensor], Tensor]] = {
    "BowTie": lambda x: x * torch.sigmoid(x / 0.1),
    "LogisticBernoulli": torch.sigmoid,
    "ProbitBernoulli": torch.special.ndtr,
    "InjectedNoise": lambda x: x,
    "Normalize": lambda x: x / math.sqrt(1 + 1e-5),
}
ACTIVATIONS = sorted(name for name in nn.LAYERS if hasattr(nn.LAYERS[name], "row"))
#: layers with arguments for 3 features in the last dimension, or channels in the first but one
OTHERS: dict[str, tuple[Any, ...]] = {
    "Linear": (3, 2),
    "Identity": (),
    "Dropout": (),
    "LayerNorm": (3,),
    "RMSNorm": (3,),
    "Softmax": (-1,),
    "LogSoftmax": (-1,),
    "Flatten": (),
    "PReLU": (),
    "RReLU": (),
    "BowTie": (),
    "LogisticBernoulli": (),
    "ProbitBernoulli": (),
    "InjectedNoise": (),
    "Normalize": (3,),
    "Threshold": (0.1, 20.0),
}
FEW = [
    "ReLU", "LeakyReLU", "GELU", "Sigmoid", "Tanh", "Linear", "LayerNorm", "Softmax", "LogisticBernoulli", "BowTie",
    "InjectedNoise",
]  # fmt: skip
#: random by themselves
RANDOM = ("BowTie", "InjectedNoise", "LogisticBernoulli", "ProbitBernoulli")
LAYERS = sorted({*ACTIVATIONS, *OTHERS})
each_layer = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in LAYERS]
)


def layer_of(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return getattr(nn, name)(*OTHERS.get(name, ())).eval()


def twin_of(name: str) -> Callable[[Tensor], Any]:
    """What torch computes of a plain tensor under the name, with the same parameters."""
    if name in TWINS:
        return TWINS[name]
    twin = getattr(torch.nn, name)(*OTHERS.get(name, ())).eval()
    twin.load_state_dict(layer_of(name).state_dict())
    return twin


def said(call: Callable[[], Any]) -> str:
    """The class and first line of the error that a call raises; empty where it raises none."""
    error = error_of(call)
    return "" if error is None else f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def error_of(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


# --- the right moments -----------------------------------------------------------
@st.composite
def odd_moments(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Mean and variance of shape (N, 3) in memory of their own, of moderate numbers."""
    n, dtype = draw(st.integers(1, 4)), draw(st.sampled_from((torch.float32, torch.float64)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    wide = torch.randn(3, 2 * n + 1, generator=generator, dtype=dtype)
    ways = {
        "contiguous": lambda t: t.T[:n].contiguous(),
        "transposed": lambda t: t[:, :n].T,
        "strided": lambda t: t.T[: 2 * n : 2],
        "expanded": lambda t: t[:, 0].expand(n, 3),
        "overlapping": lambda t: t.reshape(-1).as_strided((n, 3), (1, 2)),
        "parameter": lambda t: torch.nn.Parameter(t.T[:n]),
    }
    chosen = [ways[draw(st.sampled_from(sorted(ways)))] for _ in range(2)]
    return chosen[0](wide), chosen[1](wide.roll(1).abs() * draw(st.sampled_from((0.0, 1e-30, 1.0))))


@each_layer
@settings(max_examples=15)
@given(odd_moments())
def test_odd_memory_gives_the_moments_of_plain_memory(name: str, pair: tuple[Tensor, Tensor]) -> None:
    layer, twin = layer_of(name).to(pair[0].dtype), twin_of(name)
    twin = twin.to(pair[0].dtype) if isinstance(twin, torch.nn.Module) else twin
    with torch.no_grad():
        found, wanted = layer(Moments(*pair)), layer(Moments(*map(plain, pair)))
        certain, as_torch = layer(pair[0]), twin(plain(pair[0]))
    exact = name in ACTIVATIONS  # others sum in an order that depends on memory
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(plain(one), plain(other), rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)
    assert not (found.var < 0).any()
    assert not found.mean.isnan().any()
    torch.testing.assert_close(plain(certain.mean), plain(as_torch))
    assert name in RANDOM or not certain.var.any()


# --- moments that are none -------------------------------------------------------
ONES = torch.ones(2, 3)
BAD_MOMENTS: dict[str, Callable[[], Moments]] = {
    **{f"{case}, both": lambda make=make: Moments(make(), make()) for case, (make, _) in BAD_TENSORS.items()},
    **{f"{case}, mean": lambda make=make: Moments(make(), ONES) for case, (make, _) in BAD_TENSORS.items()},
    **{f"{case}, variance": lambda make=make: Moments(ONES, make()) for case, (make, _) in BAD_TENSORS.items()},
    **{f"{case}, both": lambda value=value: Moments(value, value) for case, value in NO_TENSORS.items()},
    **{
        f"{case}, variance": lambda value=value: Moments(ONES, value)
        for case, value in NO_TENSORS.items()
        if case not in ("number", "integer")
    },
    "shapes": lambda: Moments(ONES, torch.ones(3)),
    "dtypes": lambda: Moments(ONES, ONES.double()),
    "devices": lambda: Moments(ONES, ONES.to("meta")),
    "dtypes on meta": lambda: Moments(ONES.to("meta"), ONES.double().to("meta")),
    "negative": lambda: Moments(ONES, -ONES),
    "negative number": lambda: Moments(ONES, -1.0),
}


@each_layer
def test_moments_that_are_none_are_refused_with_what_came(name: str) -> None:
    for case, make in BAD_MOMENTS.items():
        with pytest.raises(InputError, match=r"expected|must not be negative") as caught:
            layer_of(name)(make())
        assert name in str(caught.value), case
        assert "got" in str(caught.value), case


@pytest.mark.parametrize("case", NO_TENSORS)
@pytest.mark.parametrize("name", FEW)
def test_what_is_neither_tensor_nor_moments_is_refused_by_its_type(name: str, case: str) -> None:
    if case == "moments":
        return
    with pytest.raises(
        InputError, match=rf"{name}.*: expected a tensor or Moments, got {type(NO_TENSORS[case]).__name__}"
    ):
        layer_of(name)(NO_TENSORS[case])


# --- plain tensors ---------------------------------------------------------------
@each_layer
@pytest.mark.parametrize("case", BAD_TENSORS)
def test_an_odd_plain_tensor_gives_what_torch_gives_or_says(name: str, case: str) -> None:
    make, came = BAD_TENSORS[case]
    layer, twin = layer_of(name), twin_of(name)
    error = error_of(lambda: layer(make()))
    if isinstance(error, MomentgenError):
        assert "expected" in str(error)
        assert came in str(error)
        return
    if error is not None:
        assert said(lambda: layer(make())) == said(lambda: twin(make()))
        return
    found = layer(make())
    wanted = twin(make())
    if isinstance(found, Moments):
        assert not found.var.any() or name in RANDOM
        found = found.mean
    assert found.dtype is wanted.dtype
    assert torch.equal(
        found.to_dense() if found.layout is not torch.strided else found,
        wanted.to_dense() if wanted.layout is not torch.strided else wanted,
    )


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
@pytest.mark.parametrize("training", [False, True])
def test_units_do_not_draw_where_moments_are_asked_for(name: str, dtype: torch.dtype, training: bool) -> None:
    with pytest.raises(InputError, match=rf"{name}: expected a strided input of floating point, got {dtype}"):
        getattr(nn, name)().train(training)(torch.ones(3, dtype=dtype))


# --- constructors ----------------------------------------------------------------
def is_or_says(make: Callable[[], torch.nn.Module], twin: Callable[[], torch.nn.Module] | None) -> None:
    """Moments without a negative variance, an error of our own, or one where torch has one too."""
    x = Moments(torch.randn(2, 3), torch.rand(2, 3))
    error = error_of(lambda: make()(x))
    if isinstance(error, MomentgenError):
        return
    if error is not None:
        assert twin is not None, error
        assert said(lambda: twin()(x.mean)), error
        return
    out = make()(x)
    assert isinstance(out, Moments)
    assert not (out.var < 0).any()


PARAMETRIC = [
    "LeakyReLU", "ELU", "CELU", "Softplus", "Softshrink", "Hardshrink", "Hardtanh", "Threshold", "GELU", "RReLU",
]  # fmt: skip


OF_SIZES = ["Linear", "LayerNorm", "RMSNorm", "Softmax", "Dropout", "PReLU", "Flatten", "Normalize"]


@settings(max_examples=300)
@given(st.sampled_from([*PARAMETRIC, *OF_SIZES, *RANDOM]), st.lists(OBJECTS, min_size=1, max_size=2))
@example("RReLU", [0j])
def test_arguments_are_taken_or_refused_or_torch_s_error(name: str, arguments: list[Any]) -> None:
    twin = getattr(torch.nn, name, None)
    arguments = arguments if twin else arguments[:1]  # our own layers take one
    large = [value for value in arguments if isinstance(value, numbers.Integral) and abs(int(value)) > 64]
    assume(name not in OF_SIZES or not large)
    is_or_says(lambda: getattr(nn, name)(*arguments), twin and (lambda: twin(*arguments)))
