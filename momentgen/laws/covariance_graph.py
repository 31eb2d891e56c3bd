"""What the laws of one pass know of each other: a graph of nodes, and covariances of two that are computed from it.

A :class:`Node` has the covariance matrix of a law's values, and the nodes that these are a linear function of,
independent noise aside.  The covariance of two laws that meet (the branches of a residual block) follows from that.  It
is computed only when it is needed.  Modules hold their inputs as long as they run, and a matrix for each pair of living
laws would cost more than the network.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.context import within
from momentgen.laws.numerics.hermite import MOST_TERMS
from momentgen.laws.unsupported import place

__all__ = ["CURRENT", "Narrower", "Node", "Push", "Run", "current", "memory_allowed", "options"]

#: a linear map of values, on rows: shape (K, N) -> (K, M)
Push = Callable[[Tensor], Tensor]

_ages = itertools.count()


class Node:
    """Values with a covariance, as a linear function of others plus what is independent of all that came before.

    Args:
        cov: shape ``(N, N)``; None once no law can ask for it any more.
        parents: the nodes of which this is a linear function, each with the map; None is the identity.
    """

    __slots__ = ("__weakref__", "age", "cov", "parents", "roots")

    def __init__(self, cov: Tensor, parents: Sequence[tuple[Node, Push | None]] = ()) -> None:
        self.cov: Tensor | None = cov
        self.age, self.parents = next(_ages), tuple(parents)
        #: ages of the nodes without parents from which this comes
        self.roots: frozenset[int] = frozenset((self.age,)).union(*[parent.roots for parent, _ in parents])


class options(within):  # noqa: N801 - a context manager, named as it is used
    """How the method ``covariance`` propagates, within the context.

    Args:
        terms: of the Hermite sum for covariances of activations, from 1 (linearised by the expected slope) to 4.  None
            for exact covariances where a rule has them (ReLU, Heaviside, Phi and GELU), and 4 terms elsewhere.
        memory: bytes that the covariances of one layer may take.  Examples are computed as many at a time as fit; a
            layer of which not even one example fits is an error.

    Raises:
        InputError: for another number of terms, or memory that is not positive.

    >>> import momentgen
    >>> net = momentgen.convert(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), "covariance")
    >>> with options(terms=1):
    ...     out = net(momentgen.Moments(torch.zeros(1, 2), torch.ones(1, 2)))
    >>> out.covariance.shape
    torch.Size([1, 2, 2])
    """

    def __init__(self, terms: int | None = None, memory: int = 2**30) -> None:
        if terms is not None and (not isinstance(terms, int) or not 1 <= terms <= MOST_TERMS):
            raise InputError(f"options: expected from 1 to {MOST_TERMS} terms, or None, got {terms!r}")
        if not memory > 0:
            raise InputError(f"options: expected a positive number of bytes, got {memory!r}")
        self.terms, self.memory = terms, memory
        super().__init__(_options, self)


_options: ContextVar[options] = ContextVar("momentgen_covariance_options")
_DEFAULT = options()


def memory_allowed() -> int:
    """Bytes that one layer may take, by the options in force."""
    return _options.get(_DEFAULT).memory


CURRENT: ContextVar[Run] = ContextVar("momentgen_covariance_run")


class Narrower(Exception):  # noqa: N818 - not an error: the network is run again
    """So many examples at a time do not fit; ``batch`` do."""

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self.batch = batch


class Run:
    """One pass through a network: its laws, and covariances between them.

    Args:
        batch: how many examples are computed at a time.
    """

    def __init__(self, batch: int) -> None:
        chosen = _options.get(_DEFAULT)
        #: whether covariances are exact where a rule has them, and how many Hermite terms there are elsewhere
        self.exact, self.terms = chosen.terms is None, chosen.terms or MOST_TERMS
        self.memory, self.batch = chosen.memory, batch
        self._laws: list[weakref.ref[Any]] = []
        self._nodes: list[weakref.ref[Node]] = []
        self._made = 0
        self._kept: OrderedDict[tuple[int, int], Tensor] = OrderedDict()

    # ------------------------------------------------------------- memory

    def check_room(self, name: str, values: int, dtype: torch.dtype) -> None:
        """Whether the covariance of so many values may be made.

        Raises:
            InputError: if it would take more memory than allowed.
        """
        need = values * values * dtype.itemsize
        if need > self.memory:
            raise InputError(
                f"{name}{place()}: the covariance of {values:,} values takes {need / 2**30:.3g} GiB for each example, "
                f"more than the {self.memory / 2**30:.3g} GiB allowed. Use method='controlled', which needs no such "
                "matrix, or allow more by momentgen.laws.covariance.options(memory=...)"
            )
        if self.batch > 1 and need * self.batch > self.memory:
            raise Narrower(max(1, self.memory // need))

    def register(self, law: Any, node: Node) -> None:
        """Know of a law and its node, and forget matrices that no law can ask for, when they are too many."""
        self._laws.append(weakref.ref(law))
        self._nodes.append(weakref.ref(node))
        self._made += _bytes(node.cov)
        if self._made * self.batch > self.memory:
            self._made = 0
            self._sweep()

    def _sweep(self) -> None:
        laws = [law for law in (known() for known in self._laws) if law is not None]
        alive = list({id(law.node): law.node for law in laws}.values())
        wanted = {id(node) for node in alive}
        seen: set[tuple[int, int]] = set()
        stack = list(itertools.combinations(alive, 2))
        while stack:
            a, b = stack.pop()
            if a is b:
                wanted.add(id(a))
                continue
            older, younger = (a, b) if a.age < b.age else (b, a)
            if (older.age, younger.age) not in seen and older.roots & younger.roots:
                seen.add((older.age, younger.age))
                stack.extend((older, parent) for parent, _ in younger.parents)
        nodes = [node for node in (known() for known in self._nodes) if node is not None and node.cov is not None]
        for node in nodes:
            if id(node) not in wanted:
                node.cov = None
        self._laws = [weakref.ref(law) for law in laws]
        self._nodes = [weakref.ref(node) for node in nodes if node.cov is not None]

    # -------------------------------------------------- covariances of two

    def cross(self, a: Node, b: Node) -> Tensor | None:
        """Covariance of two laws' values, shape ``(N_a, N_b)``; None if they are independent."""
        needed: dict[tuple[int, int], tuple[Node, Node]] = {}
        found: dict[tuple[int, int], Tensor | None] = {}
        uses: Counter[tuple[int, int]] = Counter()
        stack = [(a, b)]
        while stack:
            older, younger = _ordered(*stack.pop())
            key = (older.age, younger.age)
            uses[key] += 1
            if older is younger or key in needed or key in found or not older.roots & younger.roots:
                continue
            if key in self._kept:
                found[key] = self._kept[key]
                continue
            needed[key] = (older, younger)
            stack.extend((older, parent) for parent, _ in younger.parents)
        for key in sorted(needed, key=lambda key: key[::-1]):
            older, younger = needed[key]
            total: Tensor | None = None
            for parent, push in younger.parents:
                of = self._known(older, parent, found, uses)
                if of is not None:
                    of = of if push is None else push(of)
                    total = of if total is None else total + of
            found[key] = total
            if total is not None:
                self._keep(key, total)
        return self._known(a, b, found, uses)

    def _known(
        self, a: Node, b: Node, found: dict[tuple[int, int], Tensor | None], uses: Counter[tuple[int, int]]
    ) -> Tensor | None:
        if a is b:
            return a.cov
        older, younger = _ordered(a, b)
        if not older.roots & younger.roots:
            return None
        key = (older.age, younger.age)
        value = found[key]
        uses[key] -= 1
        if not uses[key]:
            del found[key]
        return value if value is None or older is a else value.mT

    def _keep(self, key: tuple[int, int], value: Tensor) -> None:
        """Keep the latest, which a recurrent network asks for again."""
        self._kept[key] = value
        total = sum(map(_bytes, self._kept.values())) * self.batch
        while total > self.memory and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            total -= _bytes(oldest) * self.batch


def _bytes(matrix: Tensor | None) -> int:
    return 0 if matrix is None else matrix.numel() * matrix.element_size()


def _ordered(a: Node, b: Node) -> tuple[Node, Node]:
    return (a, b) if a.age <= b.age else (b, a)


def current() -> Run:
    """The pass that is under way."""
    return CURRENT.get()
