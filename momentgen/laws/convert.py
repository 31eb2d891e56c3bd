"""``convert``: a plain torch network behind the border, over the same parameters."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import torch

from momentgen.errors import InputError, UnsupportedError
from momentgen.laws.accuracy import Accuracy, asked
from momentgen.laws.border import Border, Method, set_method
from momentgen.laws.functions import Function, name_of, parameters
from momentgen.laws.law import Law
from momentgen.laws.nests import leaves_of
from momentgen.laws.twins import twin
from momentgen.laws.unsupported import DEFAULT_INSTEAD

__all__ = ["convert", "propagate"]


def convert(
    module: torch.nn.Module | Callable[..., Any],
    method: Method | None = None,
    *,
    rtol: float | None = None,
    max_rows: int | None = None,
    seed: int | None = None,
    memory: int | None = None,
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
        module = Scripted(module)
    elif isinstance(module, torch.fx.GraphModule) and module._forward_pre_hooks:
        module = Exported(module)
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
    memory: int | None = None,
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


class Scripted(torch.nn.Module):
    """A scripted module as the only part of a plain one, whose class can be put behind the border."""

    def __init__(self, scripted: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.scripted = scripted
        self.training = scripted.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the scripted module returns."""
        return self.scripted(*args, **kwargs)


class Exported(torch.nn.Module):
    """A module of an exported program as the only part of a plain one: it checks what it is called with."""

    def __init__(self, exported: torch.fx.GraphModule) -> None:
        super().__init__()
        self.exported = exported
        self.training = False  # its graph is that of one mode, whatever its flag says

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the exported module returns.

        Raises:
            UnsupportedError: for laws, which its graph of operators of ATen has no rules for.
        """
        if any(isinstance(leaf, Law) for leaf in leaves_of((args, kwargs))):
            raise UnsupportedError(
                "the module of an exported program takes tensors only; convert the network that was exported, or use "
                f"a method that draws: {DEFAULT_INSTEAD}"
            )
        return self.exported(*args, **kwargs)


@functools.cache
def behind_border(kind: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """A class of modules with the border before its forward."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._cross_border(self._forward_inside, args, kwargs)

    # torch.compile keeps eight versions of one piece of code: each class has its own.
    forward.__code__ = forward.__code__.replace(co_qualname=f"Moments{kind.__name__}.forward")
    with contextlib.suppress(TypeError, ValueError):  # torch.export goes by the names of the arguments
        forward.__signature__ = inspect.signature(kind.forward)  # type: ignore[attr-defined]
    body = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,  # transformers looks its models up by str(type(model))
        "__reduce_ex__": _reduce,
        "forward": forward,
    }
    if kind.__name__ == "OptimizedModule":  # of torch.compile, which would compile a copy anew
        body["_initialize"] = lambda self: None
    return type(f"Moments{kind.__name__}", (Border, kind), body)


def _reduce(self: Any, protocol: int) -> tuple[Any, ...]:
    own = getattr(type(self), "__getstate__", None)
    state = dict(self.__dict__) if own in (None, getattr(object, "__getstate__", None)) else self.__getstate__()
    return _rebuilt, (type(self).__mro__[2],), state


def _rebuilt(kind: type[torch.nn.Module]) -> Any:
    made = behind_border(kind)  # type: ignore[arg-type]
    return object.__new__(made)
