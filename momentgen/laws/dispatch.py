"""Dispatch: how torch's functions reach the rules of laws.

torch hands ``Law.__torch_function__`` a function and its arguments; methods and operators of a tensor are given to
``Law`` here and go the same way.  The law of highest rank among the arguments has the rule, by the function's name or
else by its kind.  Dispatch also does what all laws share: half precision, writes in place, ``debug``.

Random values are never of half precision, which has too few digits for a variance, a difference of squares.  Tensors of
half precision that meet them are taken in float32.

A function of ``torch.autograd.Function`` that is handed laws would silently lose gradients (:func:`refuse`).  torch
looks for tensors among the arguments of ``apply``, finds none in a law, and records nothing.  A law can only see that
``forward`` is called without gradients, where the network was called with them.  ``apply`` itself is a Python function
in some versions of torch and none in others, so it is not looked for.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from momentgen.errors import InputError, UnsupportedError
from momentgen.laws import debug
from momentgen.laws.law import Law, laws_in, rule_of
from momentgen.laws.notes import unsupported
from momentgen.laws.table import METHODS, TABLE, Entry
from momentgen.runtime.inputs import HALVES

#: functions that change a tensor's shape in place, as ``unsqueeze_``
_RESHAPED = frozenset(["squeeze", "unsqueeze", "transpose", "t", "swapaxes", "swapdims"])

#: what torch.compile makes of an operator on a law and a tensor, swapped; of these only the name tells what they are
_REVERSED = frozenset(["__rsub__", "__rdiv__", "__rmatmul__", "__rpow__", "__rmod__", "__rfloordiv__"])

#: what torch.compile makes of a checkpoint, which cannot see into laws: its function runs as it is
_CHECKPOINT: Any = getattr(torch.ops.higher_order, "tag_activation_checkpoint", None)
_OF_CHECKPOINT = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")

#: why a tensor cannot be the target of a write
OVERWRITTEN = "a tensor cannot be overwritten by a random value; allocate it with torch.zeros_like(x)"


def dispatch(entry: Entry | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute a function on laws by the rule of the highest-ranking one.

    Raises:
        UnsupportedError: if the law has no rule for the function.
    """
    if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        refuse(func if entry is None else entry.name)
    law: Law | None = None
    is_half = entry is not None and entry.name in _HALVING
    for value in args if not kwargs else (*args, *kwargs.values()):
        # Written out, not by laws_in: this is the way of every function.
        for item in value if type(value) in (tuple, list) else (value,):
            if isinstance(item, Law):
                if item._view is not None:
                    item._refresh()  # it may become another law
                if law is None or item.RANK > law.RANK:
                    law = item
            elif isinstance(item, Tensor | torch.dtype) and getattr(item, "dtype", item) in HALVES:
                is_half = True
    if law is None:
        raise InputError(f"{func}: a law was expected among the arguments, one level of tuples and lists deep")
    if entry is None:
        raise unsupported(func, law)
    if is_half and law._noise is not None:
        return _in_float32(entry, func, args, kwargs)
    rule = rule_of(type(law), entry.name, entry.kind)
    if rule is None:
        raise unsupported(entry, law)
    overwrites = entry.overwrites
    if entry.flag is not None:
        overwrites = bool(kwargs.get("inplace", len(args) > entry.flag and args[entry.flag]))
        if len(args) > entry.flag:
            args = (*args[: entry.flag], False, *args[entry.flag + 1 :])
        if "inplace" in kwargs:
            kwargs = {name: value for name, value in kwargs.items() if name != "inplace"}
    if kwargs:
        if "out" in kwargs:
            if kwargs["out"] is not None:
                raise unsupported(entry, law, "`out=` cannot be written to; use the result")
            kwargs = {name: value for name, value in kwargs.items() if name != "out"}
        args, kwargs = entry.ordered(args, kwargs)
        if "axis" in kwargs or "keepdims" in kwargs:
            kwargs = {_NUMPY.get(name, name): value for name, value in kwargs.items()}
    result = rule(entry, args, kwargs)
    if debug.active.value is True:
        debug.inspect(entry, rule, args, kwargs, laws_in(result if isinstance(result, tuple | list) else (result,)))
    if overwrites and entry.kind != "write":
        target = args[0]
        if isinstance(target, Law):
            if entry.kind == "movement" and result is not target and entry.name in _RESHAPED:
                target._reshape(entry, args[1:], kwargs, result)
            else:
                target._overwrite(result)
            return target
        if not entry.rebinds:
            raise unsupported(entry, law, OVERWRITTEN)
    return result


def _in_float32(entry: Entry, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with tensors and dtypes of half precision, which are float32 in their places."""
    copies: list[tuple[Tensor, Tensor]] = []

    def wide(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype in HALVES:
            copies.append((value, value.float()))
            return copies[-1][1]
        if type(value) in (tuple, list):
            return type(value)([wide(item) for item in value])
        return torch.float32 if isinstance(value, torch.dtype) and value in HALVES else value

    entry = TABLE[Tensor.float] if entry.name in _HALVING else entry
    found = dispatch(entry, func, tuple([wide(value) for value in args]), {key: wide(kwargs[key]) for key in kwargs})
    if entry.name == "batch_norm":
        for statistics, copy in copies:
            if not copy.requires_grad:
                statistics.copy_(copy)
    return found


#: functions that make a value one of half precision
_HALVING = frozenset(["half", "bfloat16"])

#: names of numpy that torch takes for its own
_NUMPY = {"axis": "dim", "keepdims": "keepdim"}


# ------------------------------------------------------------------- methods


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """A function of torch, of arguments that have laws among them."""
    is_reversed = torch.compiler.is_dynamo_compiling() and func.__name__ in _REVERSED
    entry = METHODS[func.__name__] if is_reversed else TABLE.get(func)
    if entry is None and func is _CHECKPOINT:
        own = {name: value for name, value in (kwargs or {}).items() if name not in _OF_CHECKPOINT}
        return args[0](*args[1:], **own)
    return dispatch(entry, func, args, {} if kwargs is None else kwargs)


def _torch_function(
    cls: type[Law], func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    return call(func, args, kwargs)


def _method(name: str) -> Callable[..., Any]:
    # Looked up at a call, and not bound: torch.compile takes an object in a closure only if the law has a source.
    def method(self: Law, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not torch._C._is_torch_function_mode_enabled():
            return dispatch(METHODS.get(name), name, (self, *args), kwargs)
        mode = torch._C._pop_torch_function_stack()  # as where torch hands a function to a mode
        try:
            if (check := getattr(mode, "check", None)) is not None:  # of ``Reads``
                check(name, args, kwargs)
                return method(self, *args, **kwargs)
            return dispatch(METHODS.get(name), name, (self, *args), kwargs)
        finally:
            torch._C._push_on_torch_function_stack(mode)

    return method


def _complete(cls: Any) -> None:
    """Give ``cls`` the methods of a tensor, and let torch ask it for its functions."""
    cls.__torch_function__ = classmethod(_torch_function)
    own = {*dir(object), *vars(cls), "__dict__", "__weakref__", "__module__", "__annotations__", "__setstate__"}
    own |= {"__deepcopy__", "__torch_dispatch__", "__dlpack_c_exchange_api__", "_reduce_ex_internal", "__dir__"}
    for name in dir(Tensor):
        if name in own or not callable(getattr(Tensor, name)):
            continue
        method = _method(name)
        method.__name__ = name
        setattr(cls, name, method)
    for name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
        setattr(cls, name, _method(name))


_complete(Law)


#: whether the network that runs was called with gradients enabled
RECORDING: ContextVar[bool] = ContextVar("momentgen_recording", default=False)

_BORDER = f"{__name__.rpartition('.')[0]}.border"


def _subclasses(base: Any) -> Iterator[Any]:
    for function in base.__subclasses__():
        yield function
        yield from _subclasses(function)


@functools.cache  # 0.5 ms; a class exists before its forward first runs
def _function_of(code: CodeType) -> str | None:
    """The full name of the ``torch.autograd.Function`` whose ``forward``, without decorators, has this code."""
    for function in _subclasses(torch.autograd.Function):
        forward = inspect.unwrap(function.forward)
        if getattr(forward, "__code__", None) is code:
            return f"{function.__module__}.{function.__qualname__}"
    return None


def refuse(name: str) -> None:
    """Raise if the function ``name`` of a law, which runs without gradients, loses some that were asked for.

    Raises:
        UnsupportedError: if it is called by a reentrant checkpoint or another ``torch.autograd.Function``.
    """
    if not RECORDING.get():
        return
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not (frame.f_code.co_name == "run" and frame.f_globals.get("__name__") == _BORDER):
        function = _function_of(frame.f_code)
        if function is not None:
            if function.endswith(".CheckpointFunction"):
                raise UnsupportedError(
                    f"{name} of a random value in a reentrant checkpoint, which would lose its gradients; pass "
                    "use_reentrant=False to torch.utils.checkpoint.checkpoint"
                )
            raise UnsupportedError(
                f"{name} of a random value in {function}.apply, whose backward "
                "torch would not call. Write it with functions of torch, or build a rule and register it with "
                "momentgen.laws.register_activation"
            )
        frame = frame.f_back


#: in what torch says of a float64 value that meets a float32 one
_MIXED = ("same dtype", "should be the same", "expected scalar type")


def explained(error: Exception) -> UnsupportedError | InputError | None:
    """The error of a function that was given a law or two precisions, as one that says what to write; else None."""
    first = str(error).partition("\n")[0]
    if "ouble" in first and any(words in first for words in _MIXED):
        return InputError(
            f"{first}. momentgen.noisy makes float64 of numbers and lists: write momentgen.noisy(torch.tensor(x), ...) "
            "for a network in float32, or convert network.double()"
        )
    if not any(words in first for words in ("found type '", ", not ", "cannot convert", " is not an instance of ")):
        return None
    for law in (kind.__name__ for kind in _subclasses(Law)):
        if f"'{law}'" in first or f"not {law}" in first or first.startswith(f"{law}("):
            return UnsupportedError(
                f"{first}: it takes tensors only, as a function by torch.jit.script does, or functional_call; a random "
                f"value, {law}, needs the Python function of which it was made"
            )
    return None
