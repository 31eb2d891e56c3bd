"""``convert``: a plain torch network, or a function of tensors, behind the border, over the same parameters."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from momentgen.errors import InputError, UnsupportedError
from momentgen.laws.border import Border, behind_border, set_method
from momentgen.laws.law import Law
from momentgen.laws.methods import Accuracy, Method, asked
from momentgen.laws.nests import held_by_function, hidden, leaves_of
from momentgen.laws.notes import DEFAULT_INSTEAD
from momentgen.laws.twins import twin
from momentgen.runtime import Moments


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
        beside = [one for one in named if getattr(one, "__globals__", None) is value.__globals__]  # of the same file
        return *(one for one in named if isinstance(one, torch.nn.Module)), *beside, *held_by_function(value)
    if isinstance(value, types.MethodType):
        return value.__self__, value.__func__
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return value.values()
    return vars(value).values() if hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType) else ()


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


def convert(
    module: torch.nn.Module | Callable[..., Any],
    method: Method | None = None,
    *,
    rtol: float | None = None,
    max_rows: int | None = None,
    seed: int | None = None,
    memory: float | None = None,
) -> torch.nn.Module:
    """The network over moments that computes what ``module`` computes, over the same parameters and buffers.

    The network runs as it is, on laws.  Nothing is traced, so every call decides anew on shapes, flags and arguments.
    A function without a rule raises when it is met, and names its place.

    Without a method it uses ``ap2`` in training mode, which is cheap and takes the units of a layer as independent.  In
    evaluation mode it uses ``controlled``: draws of the plain network with a linear map as control variate.  That runs
    whatever torch runs and states the standard errors of its answers, as ``.std_error`` and ``.mean_error``.  It costs
    as much as some tens of plain forward passes; where nothing is random, one.  The flag of the outermost network
    decides.

    Args:
        module: a plain torch module, or any function of tensors.  It is not changed.  A scripted one is a black box,
            which methods run that call the plain network: ``controlled``, ``sample``, ``local``.  The result then holds
            it as ``scripted``.  The module of an exported program is held as ``exported``, and runs by the same
            methods.  A function is held as ``function``, and the modules that it uses as ``parts``.
        method: how it propagates where no :class:`momentgen.method` context says otherwise; ``None`` for the above.
        rtol: of the method ``controlled``: how exact its answers are to be, as for :class:`momentgen.method`.
        max_rows: likewise.
        seed: likewise.
        memory: likewise.

    Returns:
        A module, also an instance of ``module``'s class, that takes tensors or :class:`~momentgen.Moments` where the
        original takes tensors, and returns moments in the place of tensors.  Parameters and buffers are the same
        objects, state dicts have the same keys; training and evaluation mode are its own.

    Raises:
        InputError: for another method, something that is neither a module nor callable, or a function that holds
            moments.
        UnsupportedError: when it is called by ``ap1`` or ``ap2``, at a function that a law has no rule for.

    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> network = convert(plain)
    >>> network(torch.zeros(1, 2)).mean.shape, network.state_dict().keys() == plain.state_dict().keys()
    (torch.Size([1, 3]), True)
    """
    if not isinstance(module, torch.nn.Module):
        if isinstance(module, type) or not callable(module):
            came = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
            instead = "make a network of it, " if isinstance(module, type) else ""
            raise InputError(
                f"convert: expected a torch.nn.Module or a function of tensors, got {came}; {instead}"
                "momentgen.convert(network)(momentgen.noisy(x, std=0.1))"
            )
        module = Function(module)
    accuracy = asked("convert", method, rtol, max_rows, seed, memory)
    if isinstance(module, Border):
        if accuracy is not None:
            module.accuracy = accuracy
        return module if method is None else set_method(module, method)
    if isinstance(module, torch.jit.ScriptModule):
        module = _Held("scripted", module)
    elif isinstance(module, torch.fx.GraphModule) and module._forward_pre_hooks:
        module = _Held("exported", module)
    network = twin(module, {})
    network.__class__ = behind_border(type(module))  # type: ignore[arg-type]
    if "forward" in network.__dict__:  # replaced on the instance, as some libraries do
        network.__dict__["_plain_forward"] = network.__dict__.pop("forward")
    network.__dict__["propagation"] = None
    if accuracy is not None:
        network.__dict__["accuracy"] = accuracy
    return set_method(network, method)


#: options of :func:`propagate`
_OPTIONS: Final = ("method", *Accuracy._fields)


def propagate(
    f: Callable[..., Any],
    *inputs: Any,
    method: Method | None = None,
    rtol: float | None = None,
    max_rows: int | None = None,
    seed: int | None = None,
    memory: float | None = None,
    **named: Any,
) -> Any:
    """Moments of ``f`` of noisy inputs: ``momentgen.convert(f)(*inputs)`` in one line.

    Args:
        f: a function of tensors, written with torch: a lambda, closure, bound method, or a network.  It may return
            tensors in tuples, dictionaries and dataclasses.
        inputs: moments of :func:`momentgen.noisy`, tensors, numbers, and containers of these.
        method: as for :func:`momentgen.convert`; None for draws with a linear control variate, or cubature for few
            noisy values.
        rtol: relative standard error of the standard deviations at which draws end, 0.05 by default.
        max_rows: the largest number of calls of ``f``.
        seed: of the draws.
        memory: bytes that a call may take.
        named: further arguments of ``f``, by name.

    Returns:
        What ``f`` returns, with :class:`~momentgen.Moments` in the place of tensors.

    Raises:
        InputError: if ``f`` is no callable, holds noisy values itself, or has an argument of the name of an option.
        UnsupportedError: by ``ap1`` or ``ap2``, at a function that has no rule.

    >>> import momentgen
    >>> R = propagate(lambda V, I: V / I, momentgen.noisy(5.0, std=0.05), momentgen.noisy(0.02, std=1e-4))
    >>> R.mean.round(decimals=2), R.std.round(decimals=2)
    (tensor(250.0100, dtype=torch.float64), tensor(2.8000, dtype=torch.float64))
    """
    if not isinstance(f, torch.nn.Module) and callable(f):
        taken = [name for name in _OPTIONS if name in parameters(f)]
        if taken:
            raise InputError(
                f"propagate: {taken[0]} is an option of propagate and an argument of {name_of(f)}; write "
                "momentgen.convert(f)(...), which passes all arguments on"
            )
    made = convert(f, method, rtol=rtol, max_rows=max_rows, seed=seed, memory=memory)
    return made(*inputs, **named)


class _Held(torch.nn.Module):
    """A scripted or exported module as the only part of a plain one, whose class can be put behind the border.

    Args:
        name: of the attribute that holds it.
        module: a scripted one, or that of an exported program, which checks what it is called with.
    """

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        super().__init__()
        self.add_module(name, module)
        # The graph of an exported one is that of one mode, whatever its flag says.
        self._name, self.training = name, name == "scripted" and module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns.

        Raises:
            UnsupportedError: for laws, which an exported graph of operators of ATen has no rules for.
        """
        if self._name == "exported" and any(isinstance(leaf, Law) for leaf in leaves_of((args, kwargs))):
            raise UnsupportedError(
                "the module of an exported program takes tensors only; convert the network that was exported, or use "
                f"a method that draws: {DEFAULT_INSTEAD}"
            )
        return self.get_submodule(self._name)(*args, **kwargs)
