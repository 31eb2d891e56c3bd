"""Functions of torch as networks: what :func:`momentgen.convert` makes of a callable."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from momentgen.errors import InputError
from momentgen.laws.nests import held_by_function, hidden, leaves_of
from momentgen.runtime import Moments

__all__ = ["Function", "name_of", "parameters"]


class Function(torch.nn.Module):
    """A function as a module, whose parts are the modules that the function holds.

    In evaluation mode unless all its parts train, so that a formula is answered by ``controlled``.

    Args:
        function: any callable of tensors.

    Raises:
        InputError: if it holds moments, which would count as certain.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        if hidden([function]):
            raise InputError(f"convert: {name_of(function)} holds noisy values; {_AS_ARGUMENTS}")
        self.parts = torch.nn.ModuleList(_modules(function))
        self.function = function
        self.parts.training = self.training = bool(self.parts) and all(part.training for part in self.parts)

    def train(self, mode: bool = True) -> Function:
        super().train(mode)
        self.parts.training = self.training = mode and bool(self.parts)
        return self

    def extra_repr(self) -> str:
        return name_of(self.function)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns.

        Raises:
            InputError: for moments, of noisy values that are no arguments.
        """
        found = self.function(*args, **kwargs)
        if any(isinstance(leaf, Moments) for leaf in leaves_of(found)):
            raise InputError(f"{name_of(self.function)} returned moments of a noisy value; {_AS_ARGUMENTS}")
        return found


_AS_ARGUMENTS: Final = "pass it as an argument: momentgen.propagate(lambda a, b: a * b, x, y)"


def name_of(function: Any) -> str:
    """What messages call a function."""
    return str(getattr(function, "__qualname__", type(function).__name__))


def _modules(function: Any) -> list[torch.nn.Module]:
    """The modules that a function holds: in its closure, defaults, globals, object, or bound arguments."""
    found: dict[int, torch.nn.Module] = {}
    seen: dict[int, Any] = {}

    def look(value: Any) -> None:
        if id(value) in seen:
            return
        seen[id(value)] = value
        if isinstance(value, torch.nn.Module):
            found[id(value)] = value
        else:
            for part in _held(value):
                look(part)

    look(function)
    return list(found.values())


def _held(value: Any) -> Iterable[Any]:
    """What a function, bound method, partial, container, or callable object holds."""
    if isinstance(value, types.FunctionType):
        named = [value.__globals__.get(name) for name in _names(value.__code__)]
        own = [one for one in named if isinstance(one, torch.nn.Module) or _is_beside(one, value)]
        return *own, *held_by_function(value)
    if isinstance(value, types.MethodType):
        return value.__self__, value.__func__
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return value.values()
    return vars(value).values() if hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType) else ()


def _is_beside(value: Any, function: types.FunctionType) -> bool:
    """Whether a value is a function of the same file."""
    return isinstance(value, types.FunctionType) and value.__globals__ is function.__globals__


def _names(code: types.CodeType) -> set[str]:
    """The global names in a function and in those that it defines."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def parameters(f: Callable[..., Any]) -> Iterable[str]:
    """The names of a function's arguments; none where Python does not know them."""
    try:
        return inspect.signature(f).parameters
    except (TypeError, ValueError):  # of a builtin
        return ()
