"""Certain and independent values, what moves their parts, and arguments with other values in the place of laws.

A ``Point`` is certain: the rule of every function is the function itself, bit for bit.  It also decides what becomes of
it where the network itself is random (dropout in training, injected noise).  Under AP2 it becomes a ``Diagonal``.
Under AP1 noise is taken at its mean, so that a point stays one.

A ``Diagonal`` has mean and variance of each value, taken as independent and, where a function is not affine, normal
(AP2, Shekhovtsov & Flach 2018).  The rules are in :mod:`momentgen.laws.rules`; variances there are sums of non-negative
terms.  A value met with itself, or with a function of itself, is not taken as independent: see
:mod:`~momentgen.laws.programs` and :mod:`~momentgen.laws.patterns`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from momentgen.errors import UnsupportedError
from momentgen.laws.law import Law, MomentsOf, Rule, new_law, remember
from momentgen.laws.notes import DEFAULT_INSTEAD, place
from momentgen.laws.table import Entry, names
from momentgen.runtime import Moments
from momentgen.runtime.inputs import HALVES

if TYPE_CHECKING:
    from jaxtyping import Float


def replaced(value: Any, change: Callable[[Law], Any]) -> Any:
    """``change`` of a law, tuples and lists item by item; anything else as it is."""
    if isinstance(value, Law):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)([replaced(item, change) for item in value])
    return value


def all_replaced(
    args: Any, kwargs: dict[str, Any], change: Callable[[Law], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with what ``change`` makes of each law in its place."""
    own = tuple([replaced(value, change) for value in args])
    return own, {name: replaced(value, change) for name, value in kwargs.items()}


def rebuilt(found: Any, parts: list[Any]) -> Any:
    """A tuple or list as ``found`` is one, also of a class of its own, of these items."""
    return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)


def _form(law: Law) -> Tensor:
    return law._form()


def tensor_of(value: Any) -> Any:
    """The first part (mean, or value) of a law; anything else as it is, tuples and lists item by item."""
    return replaced(value, _form)


def tensors_of(args: Any, kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with the first part of each law in its place."""
    return all_replaced(args, kwargs, _form)


def _flatten(law: Law) -> tuple[list[Tensor], tuple[type[Law], Any]]:
    return list(law._parts()), (type(law), law._noise)


def _flatten_with_keys(law: Law) -> tuple[list[tuple[Any, Tensor]], tuple[type[Law], Any]]:
    parts, context = _flatten(law)
    keys = ("mean", "var")[: len(parts)]
    return [(pytree.GetAttrKey(f"_{key}"), part) for key, part in zip(keys, parts, strict=True)], context


def _of_parts(parts: Any, context: tuple[type[Law], Any]) -> Law:
    """A law of its parts; ``torch.vmap`` puts axes in the place of tensors."""
    if any(isinstance(part, int) for part in parts):
        raise UnsupportedError(
            f"vmap of a random value{place()}: the deterministic methods have no rule for it; {DEFAULT_INSTEAD}"
        )
    law: Law = new_law(context[0], *parts)
    law._noise = context[1]
    return law


def register_pytree(cls: type[Law]) -> type[Law]:
    """Let vmap, export and their like see the tensors of a law; a decorator of its class."""
    pytree.register_pytree_node(
        cls,
        _flatten,
        _of_parts,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        flatten_with_keys_fn=_flatten_with_keys,
    )
    return cls


@register_pytree
class Point(Law):
    """A certain value.

    >>> import torch
    >>> x = point(torch.tensor([-1.0, 2.0]))
    >>> x.shape, x.value
    (torch.Size([2]), tensor([-1.,  2.]))
    """

    __slots__ = ()
    RANK = 0

    @property
    def value(self) -> Tensor:
        """The value itself."""
        return self._form()


def point(value: Tensor, noise: type[Law] | None = None) -> Point:
    """A certain value.

    Args:
        value: any tensor.
        noise: the class of laws that noise of the network's own makes of it; None takes noise at its mean.  With a
            class, half precision becomes float32.
    """
    if noise is not None and value.dtype in HALVES:
        value = value.float()
    law: Point = new_law(Point, value)
    law._noise = noise
    return law


@register_pytree
class Diagonal(Law):
    """Mean and variance of independent values.

    >>> x = diagonal(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
    >>> (2 * x + 1).moments().var
    tensor([4., 0.])
    """

    __slots__ = ()
    RANK = 1

    def moments(self) -> Moments:
        """Mean and variance."""
        return Moments(*pair(self))

    def _form(self) -> Tensor:
        if self._view is not None:
            self._refresh()
        return self._mean if self._mean is not None else cast(Any, self._history).later.form

    def _parts(self) -> tuple[Tensor, ...]:
        if self._view is not None:
            self._refresh()
        if self._mean is None:
            self._mean, self._var = cast(Any, self._history).later.moments()
        return (self._mean, self._var)

    def by_moments(self, function: MomentsOf) -> Diagonal:
        """A function of one value at a time, given by its mean and variance from those of the value."""
        return made(*function(*self._parts()))


def diagonal(mean: Float[Tensor, "*shape"], var: Float[Tensor, "*shape"]) -> Diagonal:
    """Independent values of that mean and variance, two tensors of one shape, dtype and device; halves as float32."""
    if mean.dtype in HALVES:
        mean, var = mean.float(), var.float()
    law: Diagonal = new_law(Diagonal, mean, var)
    law._noise = Diagonal
    return law


def pair(value: Any) -> tuple[Any, Any]:
    """Mean and variance of a law, a tensor or a number; certain values have the variance None."""
    if isinstance(value, Diagonal):
        parts = value._parts()
        return parts[0], parts[1]
    if isinstance(value, Point):
        return value._form(), None
    return value, None


def mean_of(value: Any) -> Any:
    """The mean; tuples and lists item by item."""
    return replaced(value, lambda law: law._parts()[0])


def var_of(value: Any) -> Any:
    """The variance, 0 of what is certain; tuples and lists item by item."""
    if isinstance(value, Diagonal):
        return value._parts()[1]
    if type(value) in (tuple, list):
        return type(value)([var_of(item) for item in value])
    mean = tensor_of(value)
    return torch.zeros_like(mean) if isinstance(mean, Tensor) else 0.0


def made(mean: Tensor, var: Tensor) -> Diagonal:
    """A law of an output: the variance in the mean's dtype and shape."""
    if var.dtype is not mean.dtype:
        var = var.to(mean.dtype)
    if var.shape != mean.shape:
        var = var.expand(mean.shape)
    return diagonal(mean, var)


def is_random(value: Any) -> bool:
    """Whether there is anything uncertain in an argument."""
    if type(value) in (tuple, list):
        return any(is_random(item) for item in value)
    return isinstance(value, Law) and value.RANK > 0


#: functions that change a shape and leave the order of the values
RESHAPES = frozenset(names("view reshape view_as reshape_as unsqueeze squeeze flatten unflatten"))

#: functions whose result shares memory with their input, where torch does not copy
_VIEWS = frozenset(
    names(
        "view reshape view_as reshape_as flatten ravel unflatten permute transpose t swapaxes swapdims movedim "
        "moveaxis squeeze unsqueeze expand expand_as broadcast_to narrow select chunk split split_with_sizes "
        "tensor_split hsplit vsplit dsplit unbind diagonal detach getitem unfold positive data atleast_1d atleast_2d "
        "atleast_3d real adjoint"
    )
)


def of_numbers(own: Rule) -> Rule:
    """A rule along dimensions that takes numbers too: torch lets a number have one dimension there, of one value."""

    @functools.wraps(own)
    def with_numbers(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args or not isinstance(args[0], Law) or args[0].ndim:
            return own(entry, args, kwargs)
        found = own(entry, (args[0].reshape(1), *args[1:]), kwargs)
        return tuple(part.reshape(()) for part in found) if isinstance(found, tuple) else found.reshape(())

    return with_numbers


def dims_of(ndim: int, given: Any) -> tuple[int, ...]:
    """The dimensions that an argument names, in order: all for none, and none of a number."""
    dims = (given,) if isinstance(given, int) else given or range(ndim)
    return tuple(sorted(d % ndim for d in dims)) if ndim else ()


def moved(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The rule of every law for functions that move values of their first argument: the same on each part."""
    law = args[0]
    if not isinstance(law, Law):
        return NotImplemented
    rest, named = tensors_of(args[1:], kwargs)
    results = [moved_part(entry, part, rest, named) for part in law._parts()]
    first = results[0]
    if isinstance(first, Tensor):
        if first is law._mean:
            return law
        made = law._like(*results)
        _remember_view(made, law, entry, rest, named, None, first)
        return made
    outputs = []
    for number, parts in enumerate(zip(*results, strict=True)):
        made = law._like(*parts)
        _remember_view(made, law, entry, rest, named, number, parts[0])
        outputs.append(made)
    return type(first)(outputs) if type(first) in (tuple, list) else tuple(outputs)


def moved_part(entry: Entry, part: Tensor, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What a movement makes of one tensor."""
    if entry.name in ("view", "view_as") and not part.is_contiguous():
        if torch.compiler.is_compiling():  # it can catch no error; reshape copies where view raises one
            return (part.reshape_as if entry.name == "view_as" else part.reshape)(*rest, **named)
        try:
            return entry.call(part, *rest, **named)
        except (RuntimeError, ValueError):  # a fake tensor's is the latter
            part = part.contiguous()  # its strides are this package's doing, as those of an expanded variance
    return entry.call(part, *rest, **named)


def _remember_view(
    made: Law, law: Law, entry: Entry, rest: tuple[Any, ...], named: dict[str, Any], place: int | None, part: Tensor
) -> None:
    remember(made, entry, (law, *rest, place), named, law)
    if shares_memory(entry, law._mean, part, rest):
        made._view = (law, entry, tuple(rest), named, place, law._version)


def shares_memory(entry: Entry, whole: Tensor, part: Tensor, rest: tuple[Any, ...]) -> bool:
    """Whether ``part``, a result of the function of ``whole`` and the arguments ``rest``, is a view of it."""
    if entry.name not in _VIEWS or entry.call is torch.nn.functional.unfold:
        return False
    if entry.name in ("reshape", "flatten", "ravel", "reshape_as") and not whole.is_contiguous():
        if torch.compiler.is_compiling():
            return False  # it can catch no error: most are copies
        try:
            whole.view(part.shape)
        except (RuntimeError, ValueError):  # a fake tensor's is the latter
            return False  # torch copies
    return entry.name != "getitem" or _basic(rest[0])


def _basic(index: Any) -> bool:
    """Whether an index makes a view, as numbers and slices do, and not a copy, as tensors and lists do."""
    if type(index) is tuple:
        return all(_basic(item) for item in index)
    return index is None or index is Ellipsis or isinstance(index, int | slice)
