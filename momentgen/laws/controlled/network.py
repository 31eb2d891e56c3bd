"""A network with the arguments of one call: run for values of its random inputs, and which examples are independent."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.laws.border import entered, method
from momentgen.laws.controlled.noise import InputNoise
from momentgen.laws.examples import first_tensor
from momentgen.laws.nests import Nest, leaves_of
from momentgen.runtime import Moments

__all__ = ["Network", "outputs_by_example"]


class Network:
    """A network with the arguments of one call.

    Args:
        where: the network or function.
        forward: its code.
        leaves: tensors and moments among the arguments.
        form: where they stand.

    Attributes:
        inputs: the moments among the arguments, each once.
        batch: the size of the first dimension of the first input; 0 without one.
        device: of the first input.
    """

    def __init__(self, where: Any, forward: Callable[..., Any], leaves: list[Any], form: Nest) -> None:
        self.where, self._forward, self.leaves, self._form = where, forward, leaves, form
        distinct = {_identity(leaf): leaf for leaf in leaves if isinstance(leaf, Moments)}
        self.inputs: list[Moments] = list(distinct.values())
        place = first_tensor(leaves)
        first = torch.empty(()) if place is None else leaves[place]
        first = first.mean if isinstance(first, Moments) else first
        self.batch, self.device = first.shape[0] if first.dim() else 0, first.device

    def call(self, values: list[Tensor]) -> Any:
        """What the network returns for these values of its random inputs."""
        places = {_identity(value): tensor for value, tensor in zip(self.inputs, values, strict=True)}
        leaves = [places[_identity(leaf)] if isinstance(leaf, Moments) else leaf for leaf in self.leaves]
        args, kwargs = self._form.of(leaves)
        with entered(), method("sample"):
            return self._forward(*args, **kwargs)

    def own_draws(self) -> AbstractContextManager[None]:
        """Within the context, what the network draws leaves the draws that follow as they are."""
        return torch.random.fork_rng([self.device] if self.device.type == "cuda" else [])

    def certain_inputs(self) -> Iterator[Tensor]:
        """The tensors among the arguments."""
        return (leaf for leaf in self.leaves if isinstance(leaf, Tensor))

    def certain_tensors(self) -> Iterator[Tensor]:
        """Tensors that are the same in every row."""
        if isinstance(self.where, torch.nn.Module):
            yield from self.where.parameters()
            yield from self.where.buffers()
        yield from self.certain_inputs()

    @property
    def has_scripts(self) -> bool:
        """Whether a part of it is scripted, of which no function is seen."""
        return isinstance(self.where, torch.nn.Module) and any(
            isinstance(part, torch.jit.ScriptModule) for part in self.where.modules()
        )

    @property
    def differentiable(self) -> bool:
        """Whether the answer may be differentiated."""
        if not torch.is_grad_enabled():
            return False
        if any(part.requires_grad for value in self.inputs for part in value) or any(
            tensor.requires_grad for tensor in self.certain_tensors()
        ):
            return True
        # What the network holds otherwise, as posteriors of its weights, its result tells.
        with self.own_draws():
            found = leaves_of(self.call([value.mean for value in self.inputs]))
        return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in found)


def _identity(value: Moments) -> tuple[int, int]:
    return id(value.mean), id(value.var)


#: of modules: shapes of the arguments -> which outputs have the examples in front
_BY_EXAMPLE: Final[weakref.WeakKeyDictionary[Any, dict[Any, list[bool]]]] = weakref.WeakKeyDictionary()


def outputs_by_example(network: Network, seed: int) -> list[bool]:
    """For each tensor of the outputs, whether dimension 0 counts examples, as that of the inputs, each by itself.

    The noise of a random half of the examples is changed, and then that of the other half; the outputs of those whose
    noise stays must stay.  Either half is needed: a causal network hands noise on in one direction only.  Three plain
    forward passes, once for each network, mode and shapes of arguments.  Where examples interact in any output, none is
    by example, and the list is empty.
    """
    batch = network.batch
    shapes = [(tuple(value.mean.shape), value.mean.dtype) for value in network.inputs]
    if not batch or any(not shape or shape[0] != batch for shape, _ in shapes):
        return []
    known: dict[Any, list[bool]] = {}
    key = (
        getattr(network.where, "training", None),
        *shapes,
        *[(tuple(leaf.shape), leaf.dtype) for leaf in network.leaves if isinstance(leaf, Tensor)],
    )
    if isinstance(network.where, torch.nn.Module):
        known = _BY_EXAMPLE.setdefault(network.where, {})
    if key not in known:
        with torch.no_grad():
            known[key] = _by_example(network, seed)
    return known[key]


def _by_example(network: Network, seed: int) -> list[bool]:
    batch = network.batch
    noise = [InputNoise(value, place, seed, False) for place, value in enumerate(network.inputs)]
    generator = torch.Generator().manual_seed(seed)
    half = (torch.randperm(batch, generator=generator) < batch // 2).to(network.device)
    first, second = ([one.value.mean + one.row(row) for one in noise] for row in (0, 2))
    base = _tensors(network, first, seed)
    for changed in (half, ~half) if batch > 1 else (half,):
        values = [
            torch.where(changed.to(value.device).view(-1, *[1] * (value.dim() - 1)), other, value)
            for value, other in zip(first, second, strict=True)
        ]
        if not _still(base, _tensors(network, values, seed), changed, batch):
            return []
    flags = [_has_batch(leaf, batch) for leaf in base]
    return flags if any(flags) else []


def _has_batch(leaf: Tensor, batch: int) -> bool:
    return bool(leaf.dim()) and leaf.shape[0] == batch


def _tensors(network: Network, values: list[Tensor], seed: int) -> list[Tensor]:
    """The tensors among the outputs, the noise of the network's own held fixed."""
    with network.own_draws():
        torch.manual_seed(seed)
        return [leaf for leaf in leaves_of(network.call(values)) if isinstance(leaf, Tensor)]


def _still(base: list[Tensor], found: list[Tensor], changed: Tensor, batch: int) -> bool:
    """Whether outputs with the batch in front are the same for examples that were not changed."""
    if [leaf.shape for leaf in base] != [leaf.shape for leaf in found]:
        return False
    for one, other in zip(base, found, strict=True):
        if not _has_batch(one, batch) or not one.is_floating_point() or not one.numel():
            continue
        change = (one.double() - other.double()).abs().reshape(batch, -1).nan_to_num().amax(1)
        own = changed.to(change.device)
        if batch > 1 and bool(change[~own].amax() > 1e-4 * change[own].amax()):
            return False
    return True
