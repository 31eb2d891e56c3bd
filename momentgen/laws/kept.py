"""What a module keeps from call to call, such as running statistics or a recurrent state, and a way back to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from operator import is_
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from momentgen.errors import InputError
from momentgen.laws.law import Law

__all__ = ["Kept", "same"]

#: containers that a module may fill
_CONTAINERS: Final = (list, dict, deque, set)


class Kept:
    """Attributes and buffers of a module and its parts as they are now.  Parameters are not looked at.

    Args:
        where: the module; anything else keeps nothing.

    Raises:
        InputError: for a random value, which a call by ``ap2`` leaves where another method cannot use it.

    >>> layer = nn.BatchNorm1d(2)
    >>> kept = Kept(layer)
    >>> _ = layer(torch.randn(4, 2))
    >>> sorted(kept.changed())
    ['num_batches_tracked', 'running_mean', 'running_var']
    >>> kept.restore()
    >>> int(layer.num_batches_tracked), kept.changed()
    (0, {})
    """

    def __init__(self, where: Any) -> None:
        #: of each part: its name, its variables or buffers, and what they were
        self._held: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        #: tensors, each once: its name, itself, and a copy; not all functions count a tensor's versions
        self._tensors: dict[int, tuple[str, Tensor, Tensor]] = {}
        #: containers likewise
        self._containers: dict[int, tuple[str, Any, Any]] = {}
        parts: dict[str, Any] = dict(where.named_modules()) if isinstance(where, nn.Module) else {}
        if any(isinstance(part, LazyModuleMixin) for part in parts.values()):
            parts = {}  # a call makes their parameters, which stay
        for name, part in parts.items():
            if isinstance(part, torch.jit.ScriptModule):  # has its variables outside of Python
                for key, value in part.named_buffers(name, recurse=False):
                    self._copy(key, value)
                continue
            for variables in (vars(part), part._buffers):
                own = {key: value for key, value in variables.items() if key not in _OWN}
                self._held.append((f"{name}." if name else "", variables, own))
                for key, value in own.items():
                    self._copy(f"{name}.{key}" if name else key, value)

    def _copy(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            if isinstance(value, nn.Parameter) or not _has_values(value):
                return
            self._tensors.setdefault(id(value), (name, value, value.detach().clone()))
        elif isinstance(value, Law):
            raise InputError(
                f"{name} is a random value, as a call by ap2 may leave one in a network. No other method can use it; "
                "set it anew, or call a copy of the network"
            )
        elif isinstance(value, _CONTAINERS) and id(value) not in self._containers:
            self._containers[id(value)] = name, value, value.copy()
            for part in value.values() if isinstance(value, dict) else value:
                self._copy(name, part)

    def changed(self) -> dict[str, Any]:
        """What has changed, by name."""
        found: dict[str, Any] = {}
        for name, variables, before in self._held:
            for key in {**before, **variables}:
                if key not in _OWN and variables.get(key, _NONE) is not before.get(key, _NONE):
                    found[name + key] = variables.get(key)
        found |= {name: value.copy() for name, value, old in self._containers.values() if not _alike(value, old)}
        written = ((name, value) for name, value, old in self._tensors.values() if not same(value, old))
        return found | {name: value.detach().clone() for name, value in written}

    def restore(self) -> None:
        """Put back what has changed."""
        for _, variables, before in self._held:
            for key in [key for key in variables if key not in before and key not in _OWN]:
                del variables[key]
            variables.update(before)
        for _, value, old in self._containers.values():
            if not _alike(value, old):
                value.clear()
                (value.extend if isinstance(value, list | deque) else value.update)(old)
        with torch.no_grad():
            for _, value, old in self._tensors.values():
                if not same(value, old):
                    value.copy_(old)


#: variables that every module has
_OWN: Final = frozenset(vars(nn.Module())) - {"training"}
_NONE: Final = object()


def _has_values(value: Tensor) -> bool:
    return value.layout is torch.strided and not value.is_meta and not value.is_quantized and not value.is_nested


def _alike(one: Any, other: Any) -> bool:
    """Whether two containers hold the same objects in the same order."""
    if len(one) != len(other):
        return False
    if isinstance(one, Mapping):
        return all(map(is_, one, other)) and all(map(is_, one.values(), other.values()))
    return one == other if isinstance(one, set) else all(map(is_, one, other))


def same(one: Any, other: Any) -> bool:
    """Whether two values, or all values of two dictionaries, are equal as far as can be told."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if not (_has_values(one) and _has_values(other)) or one.shape != other.shape or one.dtype != other.dtype:
            return one is other
        return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
    return one is other or (
        isinstance(one, int | float | str) and isinstance(other, int | float | str) and one == other
    )
