"""Inputs without a batch, for methods that run a network example by example: all is one example, a batch of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from momentgen.laws.example_arguments import first_tensor, is_moments
from momentgen.laws.examples import has_batch
from momentgen.laws.law import Law
from momentgen.laws.nests import each_part, flattened, mapped

__all__ = ["of_any_batch"]


#: a method: of the network (for errors), what runs on laws, and its arguments
Propagation = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def of_any_batch(propagation: Propagation) -> Propagation:
    """A method that runs a network example by example, for inputs without a batch too."""

    def propagate(where: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if has_batch(where, forward, args, kwargs):
            return propagation(where, forward, args, kwargs)
        found = propagation(where, *_as_one_example(forward, args, kwargs))
        return mapped(lambda value: each_part(lambda part: part[0], value), found)

    return propagate


def _as_one_example(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The same network on the same arguments with a batch of one in front, which it does not see.

    Args:
        forward: what runs on laws.
        args: tensors and moments of any shape.
        kwargs: likewise.
    """
    leaves, form = flattened((args, kwargs))
    first = first_tensor(leaves)
    places = [place for place, leaf in enumerate(leaves) if is_moments(leaf) or place == first]

    def inner(*own_args: Any, **own_kwargs: Any) -> Any:
        values, own_form = flattened((own_args, own_kwargs))
        _change(values, places, lambda value: value.squeeze(0))
        own_args, own_kwargs = own_form.of(values)
        return mapped(
            lambda value: value.unsqueeze(0) if isinstance(value, Law | Tensor) else value,
            forward(*own_args, **own_kwargs),
        )

    _change(leaves, places, lambda value: each_part(lambda part: part[None], value))
    return inner, *form.of(leaves)


def _change(leaves: list[Any], places: list[int], function: Callable[[Any], Any]) -> None:
    """Put ``function`` of them in the place of some leaves: of what is there twice, one value."""
    known = {id(leaves[place]): function(leaves[place]) for place in places}
    for place in places:
        leaves[place] = known[id(leaves[place])]
