"""Checks of the tensors given to ops, and the messages for those that ops refuse."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from momentgen.errors import InputError

__all__ = [
    "DTYPES",
    "HALVES",
    "alike",
    "autocast_in_force",
    "has_elements",
    "kind",
    "least",
    "readable",
    "reconciled",
    "transforming",
]

#: dtypes that have too few digits for variances
HALVES = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, torch.float64, *HALVES)
#: whether a torch.func transform is active; private in torch, and where it is gone one may be
transforming: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)


def alike(inputs: Sequence[Any]) -> bool:
    """Whether the inputs are tensors as kernels take them, of one shape, dtype and device."""
    shape = dtype = device = None
    for tensor in inputs:
        if not isinstance(tensor, Tensor) or not has_elements(tensor) or tensor.layout is not torch.strided:
            return False
        if shape is None:
            shape, dtype, device = tensor.shape, tensor.dtype, tensor.device
            if dtype not in DTYPES:
                return False
        elif tensor.shape != shape or tensor.dtype is not dtype or tensor.device != device:
            return False
    return True


def has_elements(tensor: Tensor) -> bool:
    """Whether all elements are here: nested and uninitialised tensors have no shape, distributed ones are elsewhere."""
    if tensor.is_nested:
        return False
    return type(tensor) is Tensor or not (isinstance(tensor, UninitializedTensorMixin) or _is_distributed(tensor))


def _is_distributed(tensor: Tensor) -> bool:
    return type(tensor).__module__.startswith("torch.distributed.")  # which takes 0.3 s to import


def least(dtype: torch.dtype) -> float:
    """The least *variance* that a dtype holds to half of its digits: below its normal numbers each power costs one."""
    info = torch.finfo(dtype)
    return float(info.tiny * info.eps**0.5)


def readable(value: Tensor) -> bool:
    """Whether the numbers of a tensor can be looked at: not in compiled code, nor in ``torch.func`` transforms."""
    return (
        not torch.compiler.is_compiling()
        and type(value) in (Tensor, torch.nn.Parameter)
        and not value.is_meta
        and not transforming()
        and not torch._C._len_torch_dispatch_stack()
    )


def kind(tensor: Tensor) -> str:
    """What sort of tensor it is, for messages: its layout, ``nested``, or the class of one without elements here.

    >>> kind(torch.eye(2).to_sparse())
    'sparse_coo'
    """
    if isinstance(tensor, UninitializedTensorMixin):
        return type(tensor).__name__
    if _is_distributed(tensor):
        return f"{type(tensor).__name__} (pass its full_tensor() or to_local())"
    return "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")


def reconciled(op: str, names: Sequence[str], inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Inputs that are not :func:`alike`, as a kernel takes them: under autocast, those of several dtypes.

    Args:
        op: for messages.
        names: of the inputs.
        inputs: as they came.

    Raises:
        InputError: saying what was expected and what came.
    """
    for name, tensor in zip(names, inputs, strict=True):
        if not isinstance(tensor, Tensor):
            raise InputError(f"{op}: {name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.dtype not in DTYPES:
            raise InputError(f"{op}: {name} must be float32, float64, bfloat16 or float16, got {_short(tensor.dtype)}")
        if not has_elements(tensor) or tensor.layout is not torch.strided:
            raise InputError(f"{op}: expected strided tensors, got {kind(tensor)} for {name}")
    for what, read in _COMPARED.items():
        if len({str(read(tensor)) for tensor in inputs}) == 1:
            continue
        if what == "dtype" and autocast_in_force(inputs[0].device.type):
            # As torch's own elementwise operators of two arguments do under autocast.
            widest = functools.reduce(torch.promote_types, [tensor.dtype for tensor in inputs])
            inputs = tuple(tensor.to(widest) for tensor in inputs)
            continue
        came = ", ".join(f"{name} {read(tensor)}" for name, tensor in zip(names, inputs, strict=True))
        raise InputError(f"{op}: expected tensors of one {what}, got {came}")
    return inputs


def autocast_in_force(device: str) -> bool:
    """Whether autocast is on for a type of device."""
    return device != "meta" and torch.is_autocast_enabled(device)  # torch knows no autocast of meta, and raises


_COMPARED: dict[str, Callable[[Tensor], object]] = {
    "shape": lambda tensor: tuple(tensor.shape),
    "dtype": lambda tensor: _short(tensor.dtype),
    "device": lambda tensor: tensor.device,
}


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
