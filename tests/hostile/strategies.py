"""What hostile users hand over: tensors in odd memory, tensors that are none, and values that are no parameters."""

import decimal
import fractions
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

from momentgen import Moments

#: few examples, always the same ones
FAST = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NAN, INF = float("nan"), float("inf")
#: numbers that arithmetic goes wrong at first: zeros, the ends of float32, subnormal ones, and none at all
SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 2.0**-126, -(2.0**-126), 2.0**-149, 3.4028235e38, -3.4028235e38, 1e-20, 1e20, NAN, INF, -INF,
)  # fmt: skip


class Subclass(torch.Tensor):
    """A subclass without a will of its own."""


# --- tensors that are taken ------------------------------------------------------
def _spread(t: Tensor) -> Tensor:
    spread = range(max(0, t.dim() - 3), t.dim())  # thirty dimensions with gaps are petabytes
    wide = torch.full([2 * size + 1 if i in spread else size for i, size in enumerate(t.shape)], 7.0, dtype=t.dtype)
    view = wide[tuple(slice(1, None, 2) if i in spread else slice(None) for i in range(t.dim()))]
    return view.copy_(t)


def _reversed(t: Tensor) -> Tensor:
    return t.permute(tuple(range(t.dim()))[::-1])


def _expanded(t: Tensor) -> Tensor:
    return t[:1].expand(t.shape) if t.dim() else t.expand(())


def _overlapping(t: Tensor) -> Tensor:
    flat = t.reshape(-1)
    reach = sum(size - 1 for size in t.shape) + 1
    return flat[:reach].as_strided(t.shape, (1,) * t.dim()) if t.numel() else t


def _channels_last(t: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t


def _negated_view(t: Tensor) -> Tensor:
    if t.dtype not in (torch.float32, torch.float64):
        return t
    return torch.complex(t, -t).conj().imag


#: of a contiguous tensor one of the same shape and dtype in other memory, perhaps with other values
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "reversed dimensions": lambda t: _reversed(_reversed(t).contiguous()),
    "strided with gaps": _spread,
    "offset": lambda t: torch.cat([t.new_zeros(3), t.reshape(-1)])[3:].view(t.shape),
    "expanded": _expanded,
    "overlapping": _overlapping,
    "channels last": _channels_last,
    "negated view": _negated_view,
    "lazily cloned": torch._lazy_clone,
    "subclass": lambda t: t.as_subclass(Subclass),
    "parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
}
SHAPES = ((), (0,), (1,), (7,), (3, 0, 2), (2, 5), (2, 3, 4), (2, 3, 2, 3), (1, 2, 2, 3, 2), (1,) * 30 + (3,), (33,))


@st.composite
def odd_pairs(draw: st.DrawFn, count: int = 2, negative: bool = True) -> tuple[Tensor, ...]:
    """``count`` tensors of one shape and dtype, every second one of variances, each in memory of its own."""
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(FLOATS))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    specials = torch.tensor(SPECIAL)
    tensors = []
    for i in range(count):
        values = 3 * torch.randn(shape, generator=generator)
        odd = specials[torch.randint(len(SPECIAL), shape, generator=generator)]
        values = torch.where(torch.rand(shape, generator=generator) < draw(st.sampled_from((0.0, 0.3))), odd, values)
        if i % 2 and not (negative and draw(st.booleans())):
            values = values.abs()
        tensors.append(LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](values.to(dtype)))
    return tuple(tensors)


def plain(t: Tensor) -> Tensor:
    """The same numbers in a plain, contiguous tensor."""
    return t.detach().as_subclass(torch.Tensor).clone(memory_format=torch.contiguous_format)


# --- what is not taken -----------------------------------------------------------
def _nested() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])


def _jagged() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)


#: tensors that ops refuse, and what the message says of them
BAD_TENSORS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "int32": (lambda: torch.ones(2, 3, dtype=torch.int32), "int32"),
    "int64": (lambda: torch.ones(2, 3, dtype=torch.int64), "int64"),
    "uint16": (lambda: torch.ones(2, 3, dtype=torch.uint16), "uint16"),
    "bool": (lambda: torch.ones(2, 3, dtype=torch.bool), "bool"),
    "complex": (lambda: torch.ones(2, 3, dtype=torch.complex64), "complex64"),
    "conjugated": (lambda: torch.ones(2, 3, dtype=torch.complex64).conj(), "complex64"),
    "float8": (lambda: torch.ones(2, 3).to(torch.float8_e4m3fn), "float8_e4m3fn"),
    "sparse": (lambda: torch.ones(2, 3).to_sparse(), "sparse_coo"),
    "sparse rows": (lambda: torch.ones(2, 3).to_sparse_csr(), "sparse_csr"),
    "sparse columns": (lambda: torch.ones(2, 3).to_sparse_csc(), "sparse_csc"),
    "sparse blocks": (lambda: torch.ones(2, 4).to_sparse_bsr((2, 2)), "sparse_bsr"),
    "mkldnn": (lambda: torch.ones(2, 3).to_mkldnn(), "_mkldnn"),
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8), "qint8"),
    "nested": (_nested, "nested"),
    "jagged": (_jagged, "nested"),
    "uninitialised": (torch.nn.UninitializedParameter, "UninitializedParameter"),
}
NO_TENSORS: dict[str, Any] = {
    "number": 1.0,
    "integer": 3,
    "none": None,
    "text": "mean",
    "list": [1.0, 2.0],
    "tuple": (1.0,),
    "dictionary": {},
    "array": np.ones((2, 3), np.float32),
    "moments": Moments(torch.zeros(2, 3), torch.ones(2, 3)),
    "class": torch.Tensor,
    "ellipsis": ...,
}

#: anything at all, for parameters and choices by name
OBJECTS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.integers(),
    st.integers().map(lambda n: n * 10**400),
    st.fractions(),
    st.fractions().map(lambda q: q * fractions.Fraction(10) ** 400),
    st.decimals().map(decimal.Decimal),
    st.complex_numbers(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.floats(), max_size=2),
    st.builds(dict),
    st.builds(object),
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.integers(-100, 100).map(np.int8),
    st.booleans().map(np.bool_),
    st.floats().map(lambda x: np.array([x, x])),
    st.floats().map(torch.tensor),
    st.sampled_from([float, slice(1), ..., range(2), torch.float32]),
)
