"""``Covariance``: mean, and the full covariance of all values of one example.

A network runs on it example by example (:mod:`momentgen.laws.covariance_outputs`).  So all values of a tensor, which
has a batch of one, have one matrix.  What laws have to do with each other is in
:mod:`~momentgen.laws.covariance_graph`; what the rules share is in :mod:`~momentgen.laws.covariance_functions`.
"""

from __future__ import annotations

import weakref
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from momentgen.laws.covariance_graph import Node, current, options
from momentgen.laws.law import Law, new_law
from momentgen.laws.numerics.bounds import at_least
from momentgen.laws.numerics.hermite import Expansion, Function, expansion
from momentgen.laws.numerics.hermite import covariance as hermite_covariance
from momentgen.laws.numerics.pairs import PairOp, pairwise_covariance
from momentgen.laws.unsupported import unsupported
from momentgen.runtime import Moments

__all__ = ["Covariance", "covariance", "fixed", "options", "source", "symmetric"]


class Covariance(Law):
    """Mean and covariance of all values of one example, whose batch of one is among the dimensions.

    Made by the method ``covariance``, and alive while the network runs.
    """

    __slots__ = ()
    RANK = 3
    BY_PARTS = False
    RULES: ClassVar[dict[str, Any]] = {}

    @property
    def node(self) -> Node:
        """The law's place in the graph."""
        return cast(Node, self._joint[0])

    @property
    def cov(self) -> Tensor:
        """Covariance of the values in the order of the memory, shape ``(N, N)``."""
        return cast(Tensor, self.node.cov)

    def moments(self) -> Moments:
        """Mean and variance."""
        return Moments(*self._parts())

    def by_moments(self, function: Function, terms: int | None = None, pairs: PairOp | None = None) -> Covariance:
        """A function of one value at a time, given by its mean and variance.

        Args:
            function: mean and variance, from those of the value.
            terms: of the Hermite sum; None for as many as the run is set to.
            pairs: the covariance of the function of two values, in place of that sum where the run says so.
        """
        run = current()
        exact = pairs if run.exact and terms is None else None
        found = expansion(function, self._mean, self._var, 1 if exact else run.terms if terms is None else terms)
        mean, var, slope = (part.reshape(-1) for part in found[:3])
        if exact is not None:
            cov = pairwise_covariance(exact, self._mean.reshape(-1), self._var.reshape(-1), self.cov, var)
        else:
            flat = Expansion(mean, var, slope, tuple(part.reshape(-1) for part in found.higher))
            cov = hermite_covariance(flat, self._var.reshape(-1), self.cov)
        return covariance(found.mean, Node(cov, [(self.node, lambda rows: rows * slope)]), found.var)

    def _like(self, *parts: Tensor) -> Law:
        raise unsupported(Tensor.copy_, self, "a value with a covariance is more than its mean and variance")

    # Writing in place: other names of the memory that is written to must see it.

    def _sharing(self) -> list[Covariance]:
        laws = (known() for known in self._joint[1])
        return [law for law in laws if law is not None and law is not self and law._joint[1] is self._joint[1]]

    def _assign(self, new: Any) -> None:
        if new is self:
            return
        if not isinstance(new, Covariance):
            new = fixed(new._form() if isinstance(new, Law) else new)
        if new.shape != self.shape:
            new = new.expand(self.shape)  # raises as torch does if it would grow
        if new.dtype is not self.dtype:
            new = new.to(self.dtype)
        for other in self._sharing():
            if other.node is not self.node:
                why = "a part of it, or what it is a part of, has another name that is in use; write it out of place"
                raise unsupported(Tensor.copy_, self, why)
            _become(other, new._mean.reshape(other.shape), new._var.reshape(other.shape), new.node)
        _become(self, new._mean, new._var, new.node)

    def _earlier(self) -> Law:
        return covariance(self._mean, self.node, self._var)

    def _reshape(self, entry: Any, args: Any, kwargs: Any, new: Law) -> None:
        self._mean, self._var = new._parts()
        self._joint = new._joint
        self._version += 1

    def _written_into(self, target: Law) -> None:
        """Let ``target``, a certain value, become this one."""
        if target._view is not None:
            raise unsupported(Tensor.copy_, self, "it cannot be written into a part of a certain value by a view")
        mean = self if target.shape == self.shape else self.expand(target.shape)
        target.__class__ = Covariance
        target._joint = (None, [weakref.ref(target)])
        _become(cast(Covariance, target), mean._mean, mean._var, mean.node)


def _become(law: Covariance, mean: Tensor, var: Tensor, node: Node) -> None:
    law._mean, law._var, law._joint = mean, var, (node, law._joint[1])
    law._history = None
    law._version += 1
    current().register(law, node)


def covariance(mean: Tensor, node: Node, var: Tensor | None = None, of: Covariance | None = None) -> Covariance:
    """A law.

    Args:
        mean: any shape.
        node: of the values in the order of the memory.
        var: *variance*; None for the diagonal of the covariance.
        of: the law with which it shares memory, as a view does.
    """
    law: Covariance = new_law(
        Covariance, mean, cast(Tensor, node.cov).diagonal().view(mean.shape) if var is None else var
    )
    law._noise = Covariance
    aliases = [] if of is None else of._joint[1]
    aliases.append(weakref.ref(law))
    law._joint = (node, aliases)
    current().register(law, node)
    return law


def source(mean: Tensor, var: Tensor, factor: Tensor | None = None, name: str = "the input") -> Covariance:
    """A law of values that are independent of all others, and of each other without ``factor`` of shape ``(r, N)``."""
    current().check_room(name, mean.numel(), mean.dtype)
    flat = var.reshape(-1)
    cov = torch.diag_embed(flat) if factor is None else torch.diagonal_scatter(symmetric(factor.mT @ factor), flat)
    return covariance(mean, Node(cov), var)


def fixed(value: Tensor) -> Covariance:
    """A certain value, as a law of variance 0."""
    return source(value, torch.zeros_like(value))


def symmetric(matrix: Tensor) -> Tensor:
    """The symmetric part of a matrix that is symmetric up to rounding, its diagonal at least 0."""
    found = (matrix + matrix.mT) / 2
    return torch.diagonal_scatter(found, at_least(found.diagonal(), 0))
