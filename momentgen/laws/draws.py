"""Draws that meet no law: what a network draws of a certain tensor, or of nothing, while it runs on laws.

torch asks a law of functions that it is an argument of.  Of ``dropout(weight)`` or ``torch.randn(3)`` it is not, and
their numbers would count as certain.  Within :class:`Draws`, a mode of torch functions, a draw whose moments are known
is a law, and any other is refused.  What initialises parameters, such as those of lazy modules, is drawn as it is.

``torch.tensor`` and its like ask no law either; within the mode they hand it back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from momentgen.errors import UnsupportedError
from momentgen.laws import noise as moments_of_noise
from momentgen.laws.dispatch import call, dispatch
from momentgen.laws.half import marked, widened
from momentgen.laws.law import Law, laws_in
from momentgen.laws.point import Point, point
from momentgen.laws.table import TABLE, list_for_compile
from momentgen.laws.unsupported import DEFAULT_INSTEAD, place, unsupported

__all__ = ["Draws", "TracedDraws"]

#: what noise makes of a certain value: a class of laws; None to take noise at its mean
Noise = type[Law] | None


class Draws(TorchFunctionMode):
    """Within the mode draws of certain tensors are laws, or refused.

    Args:
        noise: the class of laws that draws are; None for their means.

    Raises:
        UnsupportedError: from the network, for draws whose moments are not known, that write into a tensor, or that
            have a generator of their own.

    >>> from momentgen.laws.diagonal import Diagonal
    >>> with Draws(Diagonal):
    ...     torch.nn.functional.dropout(torch.ones(2), 0.5).moments().var
    tensor([1., 1.])
    """

    def __init__(self, noise: Noise) -> None:
        super().__init__()
        self._noise = noise

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Written out: this is the way of every function, most of them of laws.
        if types and _are_laws(types):
            entry = TABLE.get(func)
            if entry is None:
                return call(func, args, kwargs)
            return dispatch(entry, func, args, {} if kwargs is None else kwargs)
        rule = _RULES.get(func)
        if rule is None:
            return func(*args) if kwargs is None else func(*args, **kwargs)
        return rule(self._noise, func, args, {} if kwargs is None else kwargs)


class TracedDraws(Draws):
    """:class:`Draws` for code that ``torch.compile`` traces, which looks for laws in lists only, and not in tuples."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func in _CONVERSIONS:  # for which the compiler asks laws
            return _converted(self._noise, func, args, named)
        listed = args
        if func in _OF_LISTS:
            listed = tuple([list(value) if type(value) is tuple and laws_in(value) else value for value in args])
        if _are_laws(types):
            return call(func, listed, named)
        rule = _RULES.get(func)
        return func(*listed, **named) if rule is None else rule(self._noise, func, listed, named)


def _are_laws(types: Any) -> bool:
    """Whether a function has laws among its arguments, and no other class that asks for it."""
    if len(types) == 1:
        return issubclass(types[0], Law)
    others = [kind for kind in types if not issubclass(kind, Law)]
    return len(others) < len(types) and not [kind for kind in others if kind not in (Tensor, torch.nn.Parameter)]


#: what a function does within the mode
Rule = Callable[[Noise, Any, tuple[Any, ...], dict[str, Any]], Any]


def _refusal(name: str, why: str) -> UnsupportedError:
    return UnsupportedError(f"{name} draws numbers that no law meets{place()}: {why}; {DEFAULT_INSTEAD}")


def _initialises() -> bool:
    """Whether what runs initialises parameters, which is no noise of the network."""
    if torch.compiler.is_compiling():
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.nn.init" or frame.f_code.co_name in _INITIALISING:
            return True
        frame = frame.f_back
    return False


_INITIALISING = ("reset_parameters", "initialize_parameters")


def _check(name: str, kwargs: dict[str, Any]) -> None:
    """Raise for a draw with a generator of its own, or into a tensor that is given."""
    if kwargs.get("generator") is not None or kwargs.get("out") is not None:
        raise _refusal(name, "it has a rule without a generator and without `out=`")


def _of_certain(noise: Noise, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of the table that draws, of tensors: that of a law in the place of the first of them."""
    entry = TABLE[func]
    if laws_in((*args, *kwargs.values())) or not moments_of_noise.active(entry, args, kwargs) or _initialises():
        return func(*args, **kwargs)
    _check(entry.name, kwargs)
    if entry.writes(args, kwargs):
        raise _refusal(entry.name, "it overwrites a tensor; draw out of place, as torch.randn_like does")
    named = dict(kwargs)
    values = list(args)
    for box, place_of in [*((values, k) for k in range(len(values))), *((named, key) for key in named)]:
        if isinstance(box[place_of], Tensor):  # type: ignore[index]
            box[place_of] = _point(box[place_of], noise)  # type: ignore[index]
            break
    return _value(noise, dispatch(entry, func, tuple(values), named))


def _point(value: Tensor, noise: Noise) -> Point:
    return point(value) if noise is None else marked(point(widened(value), noise), value.dtype)


def _value(noise: Noise, found: Any) -> Any:
    """What is drawn: a law, or a tensor of means."""
    if noise is None and isinstance(found, tuple):
        return tuple([_value(noise, item) for item in found])
    return found._form() if noise is None and isinstance(found, Law) else found


def _created(noise: Noise, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.randn``, ``rand`` and ``normal``, as the noise of a tensor of that size."""
    if laws_in((*args, *kwargs.values())) or _initialises():
        return func(*args, **kwargs)
    _check(func.__name__, kwargs)
    named = {name: value for name, value in kwargs.items() if name not in ("generator", "out", "requires_grad")}
    if func is not torch.normal:
        like = torch.rand_like if func is torch.rand else torch.randn_like
        return _of_certain(noise, like, (torch.zeros(*args, **named),), {})
    bound = {"mean": 0.0, "std": 1.0, **dict(zip(("mean", "std", "size"), args, strict=False)), **named}
    mean, std, size = bound.pop("mean"), bound.pop("std"), bound.pop("size", None)
    form = mean + torch.zeros_like(std) if isinstance(std, Tensor) else mean
    form = torch.zeros(size, **bound) if size is not None else torch.zeros_like(form)
    return mean + std * _of_certain(noise, torch.randn_like, (form,), {})


def _refused(noise: Noise, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if laws_in((*args, *kwargs.values())) or _initialises():
        return func(*args, **kwargs)
    raise _refusal(func.__name__, "its moments have no rule")


# -------------------------------------------------------------------- conversions


def _converted(noise: Noise, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.tensor``, ``as_tensor`` and ``asarray``, of a law."""
    named = dict(kwargs)
    value = args[0] if args else named.pop("data", named.pop("obj", None))
    if not isinstance(value, Law):
        if isinstance(value, list | tuple) and (laws := _laws_within(value)):
            raise unsupported(func, laws[0], "it is one of a list, which torch.stack makes one value of")
        return func(*args, **kwargs)
    bound = {**dict(zip(("dtype", "device"), args[1:], strict=False)), **named}
    wanted = {name: bound[name] for name in ("dtype", "device") if bound.get(name) is not None}
    found: Any = value.to(**wanted) if wanted else value
    return found.detach().clone() if func is torch.tensor else found.clone() if bound.get("copy") else found


def _laws_within(nest: Any) -> list[Law]:
    if isinstance(nest, list | tuple):
        return [law for item in nest for law in _laws_within(item)]
    return [nest] if isinstance(nest, Law) else []


_CONVERSIONS = (torch.tensor, torch.as_tensor, torch.asarray)
#: functions of several values in one tuple
_OF_LISTS = frozenset(
    func
    for func, entry in TABLE.items()
    if entry.name in ("cat", "stack", "hstack", "vstack", "dstack", "column_stack", "einsum", "broadcast_tensors")
)
#: functions that may draw within, by name in the table
_COMPOSITES = ("scaled_dot_product_attention", "multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu")
TABLE.setdefault(moments_of_noise.UNIT.call, moments_of_noise.UNIT)
_RULES: dict[Any, Rule] = {
    **{func: _of_certain for func, entry in TABLE.items() if entry.kind == "noise" or entry.name in _COMPOSITES},
    **{func: _refused for func, entry in TABLE.items() if entry.kind == "draw"},
    **dict.fromkeys((torch.randn, torch.rand, torch.normal), _created),
    **dict.fromkeys(_CONVERSIONS, _converted),
}
list_for_compile(_RULES)
