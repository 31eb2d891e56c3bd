"""Twins: the modules of a network anew, over the same parameters and buffers.

A network may hold its parts otherwise than as modules: by bound methods, partials, closures, lists of layers or of
weights, or a replaced ``forward``.  In the twin these lead to the twin's own parts.  Compiled parts run
eagerly there, since ``torch.compile`` cannot trace the modes of torch functions in which networks run.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any, Final

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from momentgen.errors import InputError

#: name of a twin's attribute: (plain part, the twin's) of those that something outside of the network leads to
OUTSIDE: Final = "_plain_parts"
#: name of the attribute of compiled functions that holds what was compiled
_EAGER: Final = "_torchdynamo_orig_callable"


def twin(module: torch.nn.Module, replaced: Mapping[int, Any]) -> torch.nn.Module:
    """The module's tree anew: other module objects, each over the same dictionaries of parameters and buffers.

    Training flags, hooks and children are its own.  So are attributes that hold parts of the network: they hold parts
    of the twin.  All other attributes are shared.

    Args:
        module: the network.
        replaced: by the id of a part or a parameter, what takes its place: wherever it is a child or an attribute
            holds it.  Parameters of modules stay.
    """
    seen = dict(replaced)
    found: torch.nn.Module = _copied(module, seen)
    rebinding = _Rebinding(seen)
    for copy in [part for key, part in seen.items() if key not in replaced]:
        own = copy.__dict__
        own.update({name: rebinding.of(value) for name, value in own.items() if name not in _OWN})
    if rebinding.outside:
        found.__dict__[OUTSIDE] = [(part, seen[id(part)]) for part in rebinding.outside]
    return found


def check_flags(network: torch.nn.Module) -> None:
    """Raise if a plain part that the twin runs through a global variable has another training flag than the twin's.

    Raises:
        InputError: naming the part.
    """
    for plain, own in vars(network).get(OUTSIDE, ()):
        for (path, one), other in zip(plain.named_modules(), own.modules(), strict=False):
            if one.training is not other.training:
                raise InputError(
                    f"{type(network).__name__}: expected training={other.training} of every part, got {one.training} "
                    f"of {path or type(plain).__name__}. A global variable or an object leads to the plain part. "
                    f"Call {'train' if other.training else 'eval'}() of the plain network too, or hold the part as an "
                    "attribute"
                )


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether ``torch.compile`` runs the module; it runs none of a twin."""
    return module._compiled_call_impl is not None or hasattr(vars(module).get("forward"), _EAGER)


def is_torchs_own(network: torch.nn.Module) -> bool:
    """Whether only code of torch runs in the network, which finds parts and parameters in modules alone.

    >>> is_torchs_own(torch.nn.Sequential(torch.nn.Linear(1, 1)))
    True
    """

    def is_torchs(name: str, value: Any) -> bool:
        if "hooks" in name:
            return not value
        return not callable(value) or str(getattr(value, "__module__", "")).startswith("torch.")

    return all(
        type(part).__module__.startswith("torch.nn.") and all(is_torchs(*one) for one in vars(part).items())
        for part in network.modules()
    )


def _copied(module: torch.nn.Module, seen: dict[int, Any]) -> Any:
    """A module and its children anew; attributes are shared."""
    if id(module) in seen:
        return seen[id(module)]
    copy: Any = object.__new__(type(module))  # which classes that make one of another class for a new module leave
    seen[id(module)] = copy
    for name, value in module.__dict__.items():
        copy.__dict__[name] = value.copy() if "hooks" in name and hasattr(value, "copy") else value
    copy.__dict__.pop("_compiled_call_impl", None)
    if isinstance(module, LazyModuleMixin) and "_initialize_hook" in module.__dict__:
        # The first call removes its hook by a handle, which knows the module that it was made for.
        copy._forward_pre_hooks.pop(module.__dict__["_initialize_hook"].id, None)
        infer: Any = copy._infer_parameters
        copy.__dict__["_initialize_hook"] = copy.register_forward_pre_hook(infer, with_kwargs=True)
    copy.__dict__["_modules"] = {
        name: None if child is None else _copied(child, seen) for name, child in module._modules.items()
    }
    if "_orig_mod" in copy._modules and is_compiled(copy):  # by torch.compile(module)
        copy.__dict__["forward"] = copy._modules["_orig_mod"].__call__  # which deepcopy can follow
    return copy


#: attributes of every module that hold no part of the network, or have been made anew
_OWN: Final = frozenset(
    name for name in vars(torch.nn.Module()) if "hooks" not in name and name != "_compiled_call_impl"
) | {"_initialize_hook"}
#: classes of most attributes, which hold nothing
_PLAIN: Final = frozenset([bool, int, float, complex, str, bytes, type(None), torch.Tensor, torch.nn.Parameter, type])
_LISTS: Final = frozenset([list, tuple, set, frozenset, collections.deque])
_DICTIONARIES: Final = frozenset([dict, collections.OrderedDict])


class _Rebinding:
    """Makes of what an attribute holds the same over a twin.

    Args:
        seen: what takes the place of a part or parameter, by its id.
    """

    def __init__(self, seen: Mapping[int, Any]) -> None:
        self._seen = seen
        #: by identity: a value and what was made of it; held, so that the identity stays
        self._known: dict[int, tuple[Any, Any]] = {}
        #: parts that functions find by global variables, or objects hold whose methods are called
        self.outside: list[torch.nn.Module] = []

    def of(self, value: Any) -> Any:
        """What an attribute holds, with parts of the twin in the places of parts of the network."""
        if id(value) in self._seen:
            return self._seen[id(value)]
        kind = type(value)
        if kind in _PLAIN:
            return value
        if id(value) not in self._known:
            self._known[id(value)] = value, value  # it may hold itself
            self._known[id(value)] = value, self._inside(value, kind)
        return self._known[id(value)][1]

    def _inside(self, value: Any, kind: type) -> Any:
        """The same for what may hold a part."""
        if kind in _LISTS or (isinstance(value, tuple) and hasattr(kind, "_fields")):
            items = [self.of(item) for item in value]
            if all(map(is_, items, value)):
                return value
            return kind(*items) if hasattr(kind, "_fields") else kind(items)
        if kind in _DICTIONARIES:
            pairs = {key: self.of(item) for key, item in value.items()}
            return value if all(map(is_, pairs.values(), value.values())) else kind(pairs)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            owner = self.of(value.__self__)
            if owner is value.__self__ and not isinstance(owner, (torch.nn.Module, type)):
                self._note(getattr(owner, "__dict__", {}).values())
            return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        if isinstance(value, functools.partial):
            parts = value.func, value.args, value.keywords
            function, args, named = (self.of(part) for part in parts)
            return value if all(map(is_, (function, args, named), parts)) else kind(function, *args, **named)
        if _is_object(value, kind):
            return self._object(value, kind)
        return value

    def _function(self, function: Any) -> Any:
        """A function over other cells, where its closure or its defaults hold parts; a compiled one as it was."""
        eager: Callable[..., Any] | None = getattr(function, _EAGER, None)
        if eager is not None:
            return self.of(eager)
        self._note([function.__globals__.get(name) for name in function.__code__.co_names])
        cells = tuple([self._cell(cell) for cell in function.__closure__ or ()])
        defaults, named = self.of(function.__defaults__), self.of(function.__kwdefaults__)
        before = (*(function.__closure__ or ()), function.__defaults__, function.__kwdefaults__)
        if all(map(is_, (*cells, defaults, named), before)):
            return function
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells or None)
        made.__kwdefaults__, made.__qualname__, made.__doc__ = named, function.__qualname__, function.__doc__
        made.__dict__.update(function.__dict__)
        return made

    def _note(self, values: Iterable[Any]) -> None:
        """Note the parts of the network among values that cannot be rebound."""
        self.outside += [one for one in values if isinstance(one, torch.nn.Module) and id(one) in self._seen]

    def _cell(self, cell: types.CellType) -> types.CellType:
        if cell == types.CellType():  # nothing in it
            return cell
        content = self.of(cell.cell_contents)
        return cell if content is cell.cell_contents else types.CellType(content)

    def _object(self, value: Any, kind: Any) -> Any:
        """An object with other attributes."""
        attributes = {name: self.of(item) for name, item in vars(value).items()}
        if all(map(is_, attributes.values(), vars(value).values())):
            return value
        made = kind.__new__(kind)
        made.__dict__.update(attributes)
        return made


def _is_object(value: Any, kind: Any) -> bool:
    """Whether it is a simple object that stands for a function or a record."""
    if kind is types.SimpleNamespace:
        return True
    if isinstance(value, (torch.nn.Module, type, types.ModuleType)) or kind.__new__ is not object.__new__:
        return False
    return hasattr(value, "__dict__") and (callable(value) or dataclasses.is_dataclass(value))
