"""Values of float16 and bfloat16: their moments are computed in float32.

Numbers of half precision have too few digits for a variance, which is a difference of squares.  So a value of half
precision is a law in float32 that knows its dtype.  Dispatch converts the tensors of half precision that meet it to
float32.  The network sees the dtypes of its plain run.  Its moments are returned in float32.  A rounded mean would be
further off than its stated error.  float16 does not hold the variance of a σ of 256.  Methods that run the plain
network (``ap1``, ``sample``, ``local``) compute in its dtype and return it.  So do single layers and functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from momentgen.laws.arguments import rebuilt
from momentgen.laws.law import Law, laws_in
from momentgen.laws.nests import each_part
from momentgen.laws.precision import HALVES, internally
from momentgen.laws.table import TABLE, Entry
from momentgen.runtime import JointMoments, Moments

__all__ = ["computed", "is_cast", "marked", "narrowed", "widened"]

_Law = TypeVar("_Law", bound=Law)


def widened(value: Any) -> Any:
    """Moments, or a tensor, in float32 if they are of half precision."""
    return each_part(Tensor.float, value) if _dtype_of(value) in HALVES else value


def marked(law: _Law, dtype: torch.dtype) -> _Law:
    """A law in float32 that knows that the plain network's value is of that dtype."""
    law._dtype = dtype if dtype in HALVES else None
    return law


def narrowed(value: Any, dtype: torch.dtype) -> Any:
    """Moments, or a tensor, in a dtype of half precision; as they are for others.

    A variance that is positive stays so, and one beyond range is the largest number.
    """
    if dtype not in HALVES:
        return value
    if isinstance(value, JointMoments):
        return JointMoments.of(value.mean.to(dtype), _variance(value.var, dtype), value.factor.to(dtype))
    if isinstance(value, Moments):
        return Moments(value.mean.to(dtype), _variance(value.var, dtype))
    return value.to(dtype)


def _variance(var: Tensor, dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
    return torch.where(var > 0, var.clamp(info.smallest_normal * info.eps, info.max), var).to(dtype)


def _dtype_of(value: Any) -> torch.dtype | None:
    """The dtype of a value in the plain network; None of what has none."""
    if isinstance(value, Law):
        return value._dtype or value._form().dtype
    if isinstance(value, Moments):
        value = value.mean
    return value.dtype if isinstance(value, Tensor) else None


# ------------------------------------------------------------------------ dispatch


def is_cast(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function that changes dtypes makes a value one of half precision."""
    return bool(args[0].is_floating_point()) and _dtype_of_result(entry, args, kwargs) in HALVES


def computed(
    dispatch: Callable[..., Any], entry: Entry, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A function of laws of which some are of half precision: its rule on float32, with its dtype known.

    Args:
        dispatch: runs a function on laws.
        entry: of the function.
        func: the function.
        args: of the call.
        kwargs: likewise.
    """
    dtype = _dtype_of_result(entry, args, kwargs)
    if entry.name in ("half", "bfloat16"):
        entry, func, args, kwargs = TABLE[Tensor.float], Tensor.float, args[:1], {}
    copies: list[tuple[Tensor, Tensor]] = []

    def wide(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype in HALVES:
            copies.append((value, value.float()))
            return copies[-1][1]
        if type(value) in (tuple, list):
            return type(value)([wide(item) for item in value])
        return torch.float32 if isinstance(value, torch.dtype) and value in HALVES else value

    own, named = tuple([wide(value) for value in args]), {name: wide(value) for name, value in kwargs.items()}
    found = internally(dispatch, entry, func, own, named)
    for tensor, copy in copies:
        if _is_written(entry, copy):
            with torch.no_grad():
                tensor.copy_(copy)
    if entry.writes(args, kwargs):  # which changes no dtype
        return found
    if isinstance(found, tuple | list):
        parts = [_of_dtype(item, dtype, own) for item in found]
        return rebuilt(found, parts)
    return _of_dtype(found, dtype, own)


def _is_written(entry: Entry, copy: Tensor) -> bool:
    """Whether a function has written to an argument, as batch norm does to its statistics."""
    if torch.compiler.is_compiling():
        return entry.name == "batch_norm" and not copy.requires_grad
    return copy._version > 0


def _of_dtype(found: Any, dtype: torch.dtype, args: tuple[Any, ...]) -> Any:
    """A result with its dtype known; of an argument that is handed back as it is, a copy."""
    if not isinstance(found, Law) or found._form().dtype is not torch.float32 or _dtype_of(found) is dtype:
        return found
    is_argument = any(law is found for law in laws_in(args))
    return marked(internally(found.clone) if is_argument else found, dtype)


#: functions that make one dtype of those of all their arguments
_PROMOTING = ("arithmetic", "pointwise", "maximum")
_TOGETHER = ("cat", "stack", "hstack", "vstack", "dstack", "column_stack", "where")
_CASTS = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}


def _dtype_of_result(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    """The dtype of what plain torch would return."""
    if entry.name in _CASTS:
        return _CASTS[entry.name]
    values = [*args, *kwargs.values()]
    wanted = [value for value in values if isinstance(value, torch.dtype)]
    if wanted:
        return wanted[0]
    real = _real(values)
    if entry.name in ("to", "type_as"):
        return real[-1][0]
    if entry.kind not in _PROMOTING and entry.name not in _TOGETHER:
        return real[0][0]
    # A number alone does not decide beside values of one dimension and more.
    dtypes = [dtype for dtype, dimensions in real if dimensions] or [dtype for dtype, _ in real]
    return functools.reduce(torch.promote_types, dtypes)


def _real(values: list[Any]) -> list[tuple[torch.dtype, int]]:
    """Dtypes and dimensions of the laws and tensors of floating point among arguments, one level deep."""
    found: list[tuple[torch.dtype, int]] = []
    for value in values:
        for item in value if type(value) in (tuple, list) else (value,):
            dtype = None if isinstance(item, Moments) else _dtype_of(item)
            if dtype is not None and dtype.is_floating_point:
                found.append((dtype, item.dim()))
    return found
