"""How layers propagate: means only, means and variances, or samples.

The method in force belongs to the running thread.  ``torch.compile`` does not
guard on thread-local state, so a method also enters a torch function mode that
does nothing: torch keeps its modes per thread and guards compiled code on them,
so code compiled under one method is never run under another.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Final, Literal, get_args

import torch
from torch.overrides import BaseTorchFunctionMode

from momentgen.errors import InputError

__all__ = ["METHODS", "Method", "current_method", "method", "set_method"]

Method = Literal["ap1", "ap2", "sample"]
#: what a user may ask for.
METHODS: Final[tuple[str, ...]] = get_args(Method)
#: besides, the pass of :mod:`momentgen.nn.normalize`: statistics a channel, without batch and space.
STATISTICS: Final = "statistics"


class _Active(threading.local):
    name: str | None = None


_active = _Active()
_MODES: dict[str, type[BaseTorchFunctionMode]] = {
    name: type(f"_Mode_{name}", (BaseTorchFunctionMode,), {"__doc__": f"Marks that {name} is in force."})
    for name in (*METHODS, STATISTICS)
}


class method:  # noqa: N801 - a context manager, named as it is used
    """How every layer called within the context propagates.

    Args:
        name: ``ap1``: means only, the ordinary network bit for bit, stochastic layers by their mean.
            ``ap2``: means and variances, analytically.  ``sample``: every stochasticity is drawn.
            (Shekhovtsov & Flach 2018, section 4.)

    A context outranks what :func:`set_method` gave a module; within contexts, the innermost counts.  It holds for
    the thread that entered it, and code under ``torch.compile`` is compiled once a method.

    Raises:
        InputError: for another name.

    >>> import torch, momentgen
    >>> layer = momentgen.nn.ReLU()
    >>> x = momentgen.Moments(torch.zeros(1), torch.ones(1))
    >>> with momentgen.method("ap1"):
    ...     layer(x).mean
    tensor([0.])
    >>> layer(x).mean
    tensor([0.3989])
    """

    def __init__(self, name: Method) -> None:
        _known(name)
        self._name: str = name
        self._entered: list[tuple[str | None, Any]] = []

    def __enter__(self) -> None:
        mode = _MODES[self._name]()
        self._entered.append((_active.name, mode))
        _active.name = self._name
        mode.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outer, mode = self._entered.pop()
        mode.__exit__(kind, error, trace)
        _active.name = outer


def set_method(module: torch.nn.Module, name: Method | None) -> torch.nn.Module:
    """Set how ``module`` and every layer in it propagate when no :class:`method` context says otherwise.

    Args:
        module: a layer, or any module that holds layers.
        name: as for :class:`method`; ``None`` goes back to the default, ``ap2``.

    Returns:
        ``module``.

    Raises:
        InputError: for another name.
    """
    if name is not None:
        _known(name)
    for part in module.modules():
        if hasattr(part, "propagation"):
            part.propagation = name  # type: ignore[assignment]
    return module


def current_method(own: str | None = None) -> str:
    """The method in force: the context's, else the module's ``own``, else ``ap2``."""
    return _active.name or own or "ap2"


class statistics(method):  # noqa: N801
    """The pass that propagates a data set's statistics; see :mod:`momentgen.nn.normalize`."""

    def __init__(self) -> None:
        self._name = STATISTICS
        self._entered = []


def _known(name: str) -> None:
    if name not in METHODS:
        raise InputError(f"method: expected one of {', '.join(METHODS)}, got {name!r}")
