"""A network with the arguments of one call, run for values of its random inputs, and the draws of these.

There is one draw per row and example, the first in antithetic pairs.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode

from momentgen.errors import InputError
from momentgen.laws.border import entered, run
from momentgen.laws.convert import Function
from momentgen.laws.methods import CURRENT, Method, method
from momentgen.laws.nests import Kept, Nest, flattened, leaves_of
from momentgen.laws.numerics.root import square_root
from momentgen.laws.weights import ROW, WeightOf
from momentgen.runtime import JointMoments, Moments

#: what counts as a number that is no tensor
_NUMBERS: Final = (bool, int, float, complex, np.ndarray, np.generic)
#: added to the seed of what the network draws; torch's generator of the CPU takes the last 32 bits of a seed
_OWN_SEED: Final = 0x9E3779B9
#: rows in antithetic pairs whatever the network: those that A is made of
PAIRED_ROWS: Final = 16
#: rows from this number on are in no answer: what tells of the noise alone draws them together
BESIDE: Final = 2**29
#: numbers of a call that are drawn once, and not anew for each use
_CACHED: Final = 2**22


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
        settings: arguments that are numbers, flags or texts, with their types.
    """

    def __init__(self, where: Any, forward: Callable[..., Any], leaves: list[Any], form: Nest) -> None:
        self.where, self._forward, self.leaves, self._form = where, forward, leaves, form
        #: what the module had kept before the first call, to which every call goes back; None where it keeps nothing
        self.kept: Kept | None = None
        #: the same of a module that kept nothing of an earlier call, to which no call goes back
        self.before: Kept | None = None
        self.settings = [(type(value), value) for value in form.values() if isinstance(value, int | float | str)]
        distinct = {_identity(leaf): leaf for leaf in leaves if isinstance(leaf, Moments)}
        self.inputs: list[Moments] = list(distinct.values())
        values = [value.mean for value in self.inputs] or [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        first = next(filter(torch.is_floating_point, values), values[0] if values else torch.empty(()))
        self.batch, self.device = first.shape[0] if first.dim() else 0, first.device
        self._devices = [self.device] if self.device.type == "cuda" else []
        #: numbers that a function returned beside tensors, in its first call
        self._numbers: list[Any] | None = None
        #: whether it has layers of torch that compute padded places only where a mode of torch functions is active
        self._has_attention = self.has(torch.nn.MultiheadAttention)
        #: certain inputs with the batch in front, repeated for the rows of a stack
        self._repeated: dict[tuple[int, int], Tensor] = {}
        #: certain inputs as they were given, by place; the network gets copies, and their versions when they were made
        self._given = {place: leaf for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        self._copies: list[tuple[Tensor, int | None]] = []
        self._grows = torch.is_grad_enabled()
        self._copy()

    def part(self, examples: range) -> Network:
        """The network with some of the examples, of arguments that have as many entries in front."""
        made: dict[int, Any] = {}  # an argument that is there twice is one object

        def chosen(leaf: Any) -> Any:
            if id(leaf) not in made:
                made[id(leaf)] = _of_examples(leaf, slice(examples.start, examples.stop), self.batch)
            return made[id(leaf)]

        return Network(self.where, self._forward, [chosen(leaf) for leaf in self.leaves], self._form)

    def call(self, values: list[Tensor], rows: int = 1, weight: WeightOf | None = None) -> Any:
        """What the network returns for these values of its random inputs.

        Args:
            values: in a stack the rows' values, one after another.  The network may write to them.
            rows: of the stack.
            weight: what stands for a random parameter; None for a draw of it.
        """
        if self.kept is not None:
            self.kept.restore()
        if any(version is None or copy._version != version for copy, version in self._copies):
            self._copy()
        places = {_identity(value): tensor for value, tensor in zip(self.inputs, values, strict=True)}
        leaves = [places[_identity(leaf)] if isinstance(leaf, Moments) else leaf for leaf in self.repeated(rows)]
        args, kwargs = self._form.of(leaves)
        mode = BaseTorchFunctionMode() if self._has_attention else nullcontext()
        with entered(beside={CURRENT: "sample", ROW: weight}), mode:
            found = self._forward(*args, **kwargs)
        if isinstance(self.where, Function) and not isinstance(found, Tensor):
            self._check_numbers(found)
        return found

    def _check_numbers(self, found: Any) -> None:
        """Raise where numbers that a function returns, which are no tensors, follow from the draw."""
        numbers = [value for value in flattened(found)[1].values() if isinstance(value, _NUMBERS)]
        if self._numbers is None:
            self._numbers = numbers
        for value, first in zip(numbers, self._numbers, strict=True):
            if not np.array_equal(value, first, equal_nan=True):
                raise InputError(
                    f"{self.where.extra_repr()} returns {type(value).__name__}, which depends on the noise and is no "
                    "tensor. Compute it with torch: write torch.sin in the place of math.sin and of numpy, and leave "
                    "out float(), int() and .item()"
                )

    def by(self, name: Method) -> Any:
        """What the network returns by a method that runs it on laws."""
        args, kwargs = self._form.of(self.leaves)
        with method(name):
            return run(self.where, self._forward, name, args, kwargs)

    def repeated(self, rows: int) -> list[Any]:
        """The leaves of the arguments, certain tensors with the batch in front so many times."""
        if rows == 1:
            return self.leaves
        found = list(self.leaves)
        for place, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == self.batch:
                if (place, rows) not in self._repeated:
                    with torch.set_grad_enabled(self._grows):
                        self._repeated[place, rows] = leaf.repeat(rows, *[1] * (leaf.dim() - 1))
                    self._copies.append((self._repeated[place, rows], _version(self._repeated[place, rows])))
                found[place] = self._repeated[place, rows]
        return found

    def _copy(self) -> None:
        """New copies of the certain inputs for the network to write to."""
        with torch.set_grad_enabled(self._grows):  # the first use may be a look that needs no derivative
            made = {id(given): given.clone() for given in self._given.values()}
        self.leaves = list(self.leaves)
        for place, given in self._given.items():
            self.leaves[place] = made[id(given)]
        self._copies = [(copy, _version(copy)) for copy in made.values()]
        self._repeated.clear()

    def own_draws(self) -> AbstractContextManager[None]:
        """Within the context, what the network draws leaves the draws that follow as they are."""
        return torch.random.fork_rng(self._devices)

    def seed(self, seed: int) -> None:
        """Seed what the network draws, otherwise than the noise of its inputs, and than a network seeds itself."""
        seed = (seed + _OWN_SEED) % 2**63
        if self.device.type == "cpu":  # torch's own also keeps a record of every call, for devices not in use
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def and_draws(self, values: list[Tensor]) -> tuple[Any, bool]:
        """What the network returns for these values, and whether it drew from generators of torch, Python or NumPy."""
        before = generators(self._devices)
        found = self.call(values)
        return found, before != generators(self._devices)

    def certain_inputs(self) -> Iterator[Tensor]:
        """The tensors among the arguments."""
        return (leaf for leaf in self.leaves if isinstance(leaf, Tensor))

    def certain_tensors(self) -> Iterator[Tensor]:
        """Tensors that are the same in every row."""
        if isinstance(self.where, torch.nn.Module):
            yield from self.where.parameters()
            yield from self.where.buffers()
        yield from self.certain_inputs()

    def has(self, kind: type[torch.nn.Module]) -> bool:
        """Whether a part of it is of that class."""
        where = self.where
        return isinstance(where, torch.nn.Module) and any(isinstance(part, kind) for part in where.modules())

    @property
    def spans_examples(self) -> bool:
        """Whether the covariance of an input is that of all its examples together."""
        return any(isinstance(value, JointMoments) and value.factor.dim() == 2 for value in self.inputs)

    @cached_property
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
            found = leaves_of(self.call([value.mean.clone() for value in self.inputs]))
        return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in found)


def generators(devices: Sequence[Any] = ()) -> bytes:
    """The states of the generators that networks draw from: torch's, also of these devices, Python's and NumPy's."""
    numbers = [state.numpy() for state in (torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices))]
    of_numpy = np.random.get_state(legacy=False)  # noqa: NPY002 - what networks draw from
    return pickle.dumps((numbers, random.getstate(), of_numpy))


def _of_examples(leaf: Any, chosen: slice, batch: int) -> Any:
    """Some examples of a tensor or of moments; what has not as many entries in front is the same for all."""
    if isinstance(leaf, JointMoments):
        return JointMoments.of(leaf.mean[chosen], leaf.var[chosen], leaf.factor[chosen])
    if isinstance(leaf, Moments):
        return Moments(leaf.mean[chosen], leaf.var.expand(leaf.mean.shape)[chosen])
    return leaf[chosen] if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == batch else leaf


def _identity(value: Moments) -> tuple[int, int]:
    return id(value.mean), id(value.var)


def _version(value: Tensor) -> int | None:
    """How often a tensor has been written to; tensors of inference mode do not know it."""
    return None if value.is_inference() else value._version


# ------------------------------------------------------------ noise of the inputs


def jumps(values: Sequence[Moments]) -> bool:
    """Whether the noise of a value is of counts: a function of it is as one that jumps."""
    return any(value.noise is not None and value.noise.is_discrete for value in values)


class InputNoise:
    """Draws of one input's noise.

    Args:
        value: mean and variance, and the covariance where it has one.
        place: of the input among those that are random.
        seed: of the draws.

    Attributes:
        place: of the input.
        is_known: whether its covariance is known; without it noise is in the rows alone.
        paired: whether all rows come in antithetic pairs, which tell the coefficient of the linear part best.  Where
            there is little of that, rows of their own tell more.
    """

    def __init__(self, value: Moments, place: int, seed: int) -> None:
        self.paired = True
        self.value, self.place, self._seed, self._noise = value, place, seed, value.noise
        self.is_known = self._noise is None or bool(self._noise.is_known)
        #: standard normal numbers so far, by the seed of the row or pair, and how many they are
        self._drawn: dict[int, Tensor] = {}
        self._held = 0
        self._std = None if isinstance(value, JointMoments) else square_root(value.var)

    def values(self, rows: range) -> Tensor:
        """The input with the noise of each row, shape ``(rows, *shape)``."""
        return self.value.mean + self.rows(rows)

    def farther(self, rows: range, times: float) -> Tensor:
        """The input with so many times the noise of each row; of counts with that of a normal value."""
        if self._noise is not None and self._noise.is_discrete:
            generator = torch.Generator().manual_seed(self._seed_of(rows.start))
            normal = torch.randn((len(rows), *self.value.mean.shape), generator=generator)
            found = self._noise.of_normal(times * normal.double())
            if found is not None:
                return self.value.mean + found.to(self.value.mean.dtype)
        return self.value.mean + times * (self.values(rows) - self.value.mean)

    def rows(self, rows: range) -> Tensor:
        """The noise of each row, shape ``(rows, *shape)``; in antithetic pairs at first."""
        if self._noise is not None and rows.start >= BESIDE:
            with self._seeded(rows.start):
                found: Tensor = self._noise.draws(len(rows))
            return found
        if self._noise is not None:
            return torch.stack([self._from_distribution(row) for row in rows])
        if self._std is not None:
            return self._std * self._signed(rows)
        assert isinstance(self.value, JointMoments)
        found = self._signed(rows).unsqueeze(-2) @ self.value.factor
        return found.reshape(len(rows), *self.value.mean.shape)

    def _signed(self, rows: range) -> Tensor:
        """Standard normal numbers of rows, in front those of the examples."""
        drawn = [self._normal(row - 1).neg() if self._reflected(row) else self._normal(row) for row in rows]
        return drawn[0].unsqueeze(0) if len(drawn) == 1 else torch.stack(drawn)  # a view costs less than a stack

    def _normal(self, row: int) -> Tensor:
        """A row's own standard normal numbers."""
        if row in self._drawn:
            return self._drawn[row]
        like = self.value.mean
        shape = self.value.factor.shape[:-1] if isinstance(self.value, JointMoments) else like.shape
        generator = torch.Generator().manual_seed(self._seed_of(row))
        # In float32 always: the same draws whatever the network's dtype.
        found = torch.randn(shape, generator=generator, dtype=torch.float32).to(like.device, like.dtype)
        if self._held + found.numel() <= _CACHED:
            self._drawn[row] = found
            self._held += found.numel()
        return found

    def _from_distribution(self, row: int) -> Tensor:
        """A row's draw of a distribution; where that is symmetric the second row of a pair has the first one's."""
        reflected = self._noise.is_symmetric and self._reflected(row)
        with self._seeded(row - 1 if reflected else row):
            found: Tensor = self._noise.draw()
        return -found if reflected else found

    @contextmanager
    def _seeded(self, row: int) -> Iterator[None]:
        """Torch's own generator begins with a row's seed, mixed: its first uniform numbers of small seeds are alike."""
        mean = self.value.mean
        with torch.random.fork_rng([mean.device] if mean.is_cuda else []):
            torch.manual_seed(int(np.random.SeedSequence(self._seed_of(row)).generate_state(1)[0]))
            yield

    def _seed_of(self, number: int) -> int:
        return ((self._seed * 1_000_003 + self.place) * 1_000_003 + number) % 2**62

    def _reflected(self, row: int) -> bool:
        """Whether a row is the second of an antithetic pair."""
        return row % 2 > 0 and (row < PAIRED_ROWS or (self.paired and row < BESIDE))


class Given(InputNoise):
    """An input at given values in the place of draws.

    Args:
        at: computes the values of rows, whose numbers it takes; also of rows beyond those that count.
    """

    def __init__(self, value: Moments, place: int, at: Callable[[Tensor], Tensor]) -> None:
        super().__init__(value, place, 0)
        self._at = at

    def values(self, rows: range) -> Tensor:
        return self._at(torch.arange(rows.start, rows.stop))

    def rows(self, rows: range) -> Tensor:
        return self.values(rows) - self.value.mean
