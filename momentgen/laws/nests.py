"""Nests: the containers in which networks take and return values.

A container is a tuple, list or dictionary, also of a class of its own (named tuples, ``UserDict``).  Containers that
torch's pytrees know, and objects with attributes, such as a dataclass or a cache, count too, also callable ones.
Modules, functions and classes are values.  Containers are never changed: where something in one changes, it is copied.
:func:`hidden` finds moments that such values hold, which no walk replaces.

What a module keeps from call to call, such as running statistics or a recurrent state, and a way back to it.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from operator import is_
from typing import Any, Final

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._ops import OperatorBase
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.rnn import PackedSequence

from momentgen.errors import InputError
from momentgen.laws.law import Law
from momentgen.runtime import Moments

#: a function of one value of a nest
Function = Callable[[Any], Any]

_VALUES: tuple[type, ...] = (Tensor, Law, Moments, bool, int, float, complex, str, bytes, type(None), PackedSequence)
#: functions in the wide sense; other callable objects are containers
_FUNCTIONS: tuple[type, ...] = (
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType,
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
    functools.partial, OperatorBase,
)  # fmt: skip
#: what has attributes and is no container
_OPAQUE = (torch.nn.Module, type, types.ModuleType, Enum, BaseException, Iterator, *_FUNCTIONS)


def mapped(function: Function, nest: Any, values: tuple[type, ...] = ()) -> Any:
    """The nest with ``function`` of each value in its place.

    Args:
        function: of a value: a tensor, moments, a law, and whatever is no container.
        nest: of any depth; an object that is in it twice is one object in the result.
        values: further classes that are no containers.
    """
    return _Walk(function, values).of(nest)


class Nest:
    """The form of a nest, whose tensors, moments and laws have been taken out."""

    __slots__ = ("_form",)

    def __init__(self, form: Any) -> None:
        self._form = form

    def of(self, leaves: list[Any]) -> Any:
        """A nest of this form with other values, as many as it had."""
        return mapped(lambda value: leaves[value.place] if isinstance(value, _Place) else value, self._form, (_Place,))

    def values(self) -> list[Any]:
        """The values that it keeps.

        >>> flattened((torch.zeros(1), {"deep": True}))[1].values()
        [True]
        """
        found: list[Any] = []
        mapped(lambda value: None if isinstance(value, _Place) else found.append(value), self._form, (_Place,))
        return found


class _Place:
    """Stands for a value in the form of a nest."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


def flattened(nest: Any, values: tuple[type, ...] = ()) -> tuple[list[Any], Nest]:
    """The tensors, moments and laws of a nest, and its form, which keeps all other values.

    Args:
        nest: of any depth.
        values: further classes of what is taken out.

    >>> leaves, form = flattened({"a": (torch.zeros(1), [2.0])})
    >>> leaves, form.of(["first"])
    ([tensor([0.])], {'a': ('first', [2.0])})
    """
    leaves: list[Any] = []

    def take(value: Any) -> Any:
        if not isinstance(value, (Tensor, Law, Moments, *values)):
            return value
        leaves.append(value)
        return _Place(len(leaves) - 1)

    return leaves, Nest(mapped(take, nest, values))


def leaves_of(nest: Any) -> list[Any]:
    """The tensors, moments and laws of a nest."""
    return flattened(nest)[0]


def held_by_objects(nest: Any) -> list[bool]:
    """For each leaf, in the order of :func:`flattened`, whether an object holds it that is no collection or dataclass.

    >>> class Cache:
    ...     def __init__(self):
    ...         self.keys = torch.zeros(1)
    >>> held_by_objects((torch.zeros(1), Cache()))
    [False, True]
    """
    found: list[bool] = []

    def look(value: Any) -> Any:
        if isinstance(value, (Tensor, Law, Moments)):
            found.append(walk.objects > 0)
        return value

    walk = _Walk(look, ())
    walk.of(nest)
    return found


def hidden(values: Iterable[Any]) -> list[Any]:
    """What holds moments that no walk replaces: functions, modules, sets, iterators and the like within the values.

    >>> x = Moments(torch.zeros(1), torch.ones(1))
    >>> len(hidden([x, {"callback": lambda own=x: own}])), hidden([x, [x]])
    (1, [])
    """
    nests = [value for value in values if not isinstance(value, _VALUES)]
    if not nests:
        return []
    found: list[Any] = []
    seen: dict[int, Any] = {}

    def holds(value: Any) -> bool:
        if isinstance(value, Moments):
            return True
        if isinstance(value, _VALUES) or id(value) in seen:
            return False
        seen[id(value)] = value
        inner: list[Any] = []

        def keep(part: Any) -> Any:
            inner.append(part)
            return part

        mapped(keep, value)
        parts = _held_by(value) if len(inner) == 1 and inner[0] is value else inner
        return any(holds(part) for part in parts)

    def look(value: Any) -> Any:
        if not isinstance(value, _VALUES) and holds(value):
            found.append(value)
        return value

    mapped(look, nests)
    return found


def held_by_function(function: types.FunctionType) -> tuple[Any, ...]:
    """What is in a function's closure and defaults."""
    kept = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    return *kept, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()


def _held_by(value: Any) -> Iterable[Any]:
    """What a value holds that is no container."""
    if isinstance(value, types.FunctionType):
        return held_by_function(value)
    if isinstance(value, torch.nn.Module):
        return tuple(vars(value).values())
    if isinstance(value, types.MethodType):
        return (value.__self__,)
    if isinstance(value, (type, types.ModuleType, Enum, OperatorBase)):
        return ()
    return gc.get_referents(value)


class _Walk:
    """One walk through a nest."""

    def __init__(self, function: Function, values: tuple[type, ...]) -> None:
        self.function, self.values = function, values
        #: how many objects that are no collections it is in
        self.objects = 0
        #: what has been met, by its identity, and what was made of it; held, so that the identity stays its own
        self._known: dict[int, tuple[Any, Any]] = {}

    def of(self, nest: Any, in_object: bool = False) -> Any:
        """What is made of a nest; objects may hold one value under several names, which is then mapped once."""
        if isinstance(nest, _VALUES) or (self.values and isinstance(nest, self.values)):
            if not in_object:
                return self.function(nest)
            if id(nest) not in self._known:
                self._known[id(nest)] = nest, self.function(nest)
            return self._known[id(nest)][1]
        kind = type(nest)
        if kind in (tuple, list):
            return kind([self.of(item, in_object) for item in nest])
        if kind is dict:
            return {key: self.of(item, in_object) for key, item in nest.items()}
        return self._other(nest, in_object)

    def _other(self, nest: Any, in_object: bool) -> Any:
        """Of what is neither a value of a known class nor one of Python's own containers."""
        kind = type(nest)
        node = pytree.SUPPORTED_NODES.get(kind)
        if node is not None and (torch.compiler.is_compiling() or not hasattr(nest, "__dict__")):
            children, context = node.flatten_fn(nest)
            return node.unflatten_fn([self.of(child, in_object) for child in children], context)
        if isinstance(nest, tuple):
            items = [self.of(item, in_object) for item in nest]
            return kind(*items) if hasattr(kind, "_fields") else kind(items)
        if isinstance(nest, _OPAQUE):
            return self.function(nest)
        if isinstance(nest, Mapping) and not isinstance(nest, dict) and not hasattr(nest, "__dict__"):
            return kind({key: self.of(item, in_object) for key, item in nest.items()})
        if id(nest) not in self._known:
            self._known[id(nest)] = nest, None
            self._known[id(nest)] = nest, self._object(nest)
        elif self._known[id(nest)][1] is None:  # it holds itself
            self._known[id(nest)] = nest, copy.copy(nest)
        return self._known[id(nest)][1]

    def _object(self, nest: Any) -> Any:
        """A copy of an object with its items and attributes mapped; the object itself where none of them changes."""
        attributes = dict(_attributes(nest))
        if not attributes and not isinstance(nest, dict | list):
            return self.function(nest)
        other = not (isinstance(nest, Collection) or dataclasses.is_dataclass(nest))
        self.objects += other
        found = {name: self.of(value, True) for name, value in attributes.items()}
        self.objects -= other
        own = list(nest.items()) if isinstance(nest, dict) else list(enumerate(nest)) if isinstance(nest, list) else []
        items = [(key, self.of(item, True)) for key, item in own]
        pairs = [*zip(found.values(), attributes.values(), strict=True)]
        pairs += [(new, old) for (_, new), (_, old) in zip(items, own, strict=True)]
        if all(new is old for new, old in pairs):
            return nest
        made = self._known[id(nest)][1]
        made = copy.copy(nest) if made is None else made
        # By the base classes' own methods: classes that keep items and attributes alike would change one by the other.
        put = dict.__setitem__ if isinstance(nest, dict) else list.__setitem__
        for key, item in items:
            put(made, key, item)
        variables = getattr(made, "__dict__", {})
        for name, value in found.items():
            if name in variables:
                variables[name] = value
            else:
                object.__setattr__(made, name, value)
        return made


def _attributes(nest: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(nest, "__dict__", {}).items()
    for kind in type(nest).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(nest, name):
                yield name, getattr(nest, name)


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments, and those in lists and tuples among them."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(tensors_in(value))
    return found


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
