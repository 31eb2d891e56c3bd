"""The arguments of a network, split by example.

:mod:`momentgen.laws.examples` runs a network on each of them; ``example_check`` sees whether it may.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from momentgen.errors import MomentgenError
from momentgen.laws.nests import flattened
from momentgen.laws.notes import note
from momentgen.laws.numerics.root import square_root
from momentgen.laws.values import readable
from momentgen.runtime import JointMoments, Moments

__all__ = ["Examples", "Run", "first_tensor", "halves", "is_moments", "is_real", "parts_of"]

#: a network on laws of one example: (arguments, keyword arguments) -> a nest of tuples, lists, dicts and tensors
Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def is_moments(value: object) -> bool:
    """Whether a value is moments, which are one leaf of the arguments."""
    return isinstance(value, Moments)


def is_real(value: object) -> bool:
    """Whether a value is a tensor of floating point."""
    return isinstance(value, Tensor) and value.is_floating_point()


def first_tensor(leaves: list[Any]) -> int | None:
    """The position of the argument whose first dimension is the batch: moments, else a tensor; None without any."""
    for belongs in (is_moments, is_real, lambda leaf: isinstance(leaf, Tensor)):
        for place, leaf in enumerate(leaves):
            if belongs(leaf):
                return place
    return None


class Examples:
    """The arguments of a network, split by example: a tensor is split if its first dimension is the batch.

    Attributes:
        leaves: the tensors and moments among the arguments.
        batch: the number of examples.
    """

    def __init__(self, where: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.where = where
        self.leaves, self._form = flattened((args, kwargs))
        place = first_tensor(self.leaves)
        first = None if place is None else parts_of(self.leaves[place])[0]
        self.batch = first.shape[0] if isinstance(first, Tensor) and first.dim() else 1
        self._split: list[Tensor] = []
        self._places: list[tuple[int, slice]] = []
        known: dict[tuple[int, ...], slice] = {}
        for place, leaf in enumerate(self.leaves):
            parts = parts_of(leaf)
            if not all(isinstance(part, Tensor) and part.dim() and part.shape[0] == self.batch for part in parts):
                continue
            key = tuple(map(id, parts))
            if key not in known:
                known[key] = slice(len(self._split), len(self._split) + len(parts))
                self._split.extend(parts)
            self._places.append((place, known[key]))

    @property
    def readable(self) -> bool:
        """Whether the values of the arguments can be read."""
        return all(map(readable, self._split))

    @property
    def device(self) -> str:
        """The type of the device on which the examples are."""
        return self._split[0].device.type

    def arguments(self, tensors: list[Tensor] | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with these tensors in the place of those that are split."""
        mine = list(self.leaves)
        made: dict[int, Any] = {}
        for place, own in self._places:
            if own.start not in made:
                made[own.start] = _whole((self._split if tensors is None else tensors)[own])
            mine[place] = made[own.start]
        own_args, own_kwargs = self._form.of(mine)
        return own_args, own_kwargs

    def first(self, count: int) -> Examples:
        """The first ``count`` of the examples, each at a draw: of equal ones nothing would tell that they interact."""
        parts = [part[:count] for part in self._split]
        with torch.no_grad():
            for own in {place: own for place, own in self._places if is_moments(self.leaves[place])}.values():
                mean, var = parts[own.start : own.start + 2]
                drawn = torch.randn(mean.shape, generator=torch.Generator().manual_seed(own.start), dtype=torch.float32)
                parts[own.start] = mean + square_root(var) * drawn.to(mean)
        return Examples(self.where, *self.arguments(parts))

    def beside_nan(self, kept: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, random ones, or without any the first, NaN in all examples but those that ``kept`` flags."""
        parts, first = list(self._split), first_tensor(self.leaves)
        for place, own in self._places:
            if (place == first and is_real(self.leaves[place])) or is_moments(self.leaves[place]):
                part = self._split[own.start]
                parts[own.start] = torch.where(kept.to(part.device).view(-1, *[1] * (part.dim() - 1)), part, torch.nan)
        return self.arguments(parts)

    def alone(self, run: Run, chunk_size: int | None) -> Any:
        """What ``run`` returns for each of them as a batch of one, stacked."""

        def one(*own: Tensor) -> Any:
            return run(*self.arguments([part.unsqueeze(0) for part in own]))

        return _mapped(self.where, one, self._split, chunk_size)


def halves(batch: int) -> list[Tensor]:
    """Random halves of the examples, flags of shape ``(batch,)``: of any two examples one is in some half alone."""
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(0))
    return [order >> bit & 1 > 0 for bit in range(max((batch - 1).bit_length(), 1))]


def parts_of(leaf: Any) -> tuple[Any, ...]:
    """The tensors of a leaf."""
    return (*leaf, leaf.factor) if isinstance(leaf, JointMoments) else tuple(leaf) if is_moments(leaf) else (leaf,)


def _whole(parts: list[Tensor]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return Moments(*parts) if len(parts) == 2 else JointMoments.of(*parts)


def _mapped(where: object, one: Callable[..., Any], split: list[Tensor], chunk_size: int | None) -> Any:
    """``one`` of the parts of each example, stacked."""
    batch = len(split[0]) if split else 1
    if batch > 1:
        try:
            with _quiet():
                return torch.vmap(one, randomness="different", chunk_size=chunk_size)(*split)
        except (RuntimeError, IndexError) as error:
            # of a number torch.vmap takes its own dimension for that of the number: an IndexError of flip
            is_vmaps = isinstance(error, IndexError) or any(words in str(error) for words in _OF_VMAP)
            if isinstance(error, MomentgenError) or not is_vmaps:
                raise
            note(f"{type(where).__name__}: run one example after another, since torch.vmap cannot run it")
    found = [one(*[tensor[example] for tensor in split]) for example in range(batch)]
    return pytree.tree_map(lambda *parts: torch.stack(parts), *found)


#: in messages of what torch.vmap cannot run
_OF_VMAP = ("vmap", "Batching rule not implemented")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings of functions that vmap loops over, which change no number.  Private in torch."""
    functorch: Any = getattr(torch._C, "_functorch", None)
    enabled = getattr(functorch, "_is_vmap_fallback_warning_enabled", None)
    if enabled is None or not enabled():
        yield
        return
    functorch._set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_warning_enabled(True)
