"""Noise that all examples have in common: drawn weights, and noise that the network draws for a parameter.

A row draws such a value once, and every example meets the same draw.  A has a row for each output of each example.  So
such noise has one derivative per example, of the value's shape: a per-example gradient.  The *lift* of a value in
common is 0, of one more dimension in front, that of the examples.  It carries these derivatives, from a leaf
``(batch, *shape)``.  A function of such values alone acts on each example's lift by itself, under ``torch.vmap``.  A
function that also takes values with the batch in front takes each example's part of these.

A linear map of one vector per example needs no such leaf.  If its weight is used once in a row, its noise is noise of
the outputs.  It is independent for each, except for neighbours in flattened order with a covariance.

Per-example gradients take memory.  Beyond a bound the noise of a weight is in the rows alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.controlled.state import Call, Own, Phase, Source, State, drawn_beside
from momentgen.laws.table import names
from momentgen.laws.weights import Between, Computed

#: values that the per-example gradients of all noise in common may have together
LARGEST: Final = 2**25
#: values of a weight whose sums in outputs count as normal, at least
_SUMS: Final = 2**12
#: functions of each value by itself that are of no kind where all are
_BY_THEMSELVES = frozenset(names("addcmul addcdiv clone contiguous to float double half bfloat16 type_as"))


#: computes the lift of a value in common; None where it is not known
Lift = Callable[[], Tensor | None]


@dataclass(slots=True)
class Root:
    """A value in common as it was drawn: its mean and noise.

    Attributes:
        var: computes *variances*, of this shape.
        neighbour: computes covariances of neighbours, or says None.
        own: draws noise that is not normal; None for others.
        draws: noise by row.
        uses: how often it has been used in the present row.
        used: how often it was in the row before.
    """

    shape: torch.Size
    var: Callable[[], Tensor | float]
    neighbour: Callable[[], Tensor | None]
    own: Own | None = None
    draws: dict[int, Tensor] = field(default_factory=dict)
    uses: int = 0
    used: int = 0

    def drawn(self, rows: range) -> list[Tensor]:
        """The noise of each row."""
        drawn = (self.draws.get(row) for row in rows)
        return [drawn_beside(self.shape, self.var(), self.own) if one is None else one for one in drawn]


class _Value(NamedTuple):
    """A value in common of the present row.

    Attributes:
        lift: computes its lift where the network is linearised.
        root: its noise, value by value, if it is that of one root times a scale.
        scale: computes the scale; None for 1.
    """

    lift: Lift
    root: Root | None = None
    scale: Callable[[], Tensor] | None = None


class Common:
    """Values in common while rows run.

    Args:
        state: of the rows.
        batch: number of examples; 1 where all of the network's values belong to one.
        inputs: certain inputs, which have the batch in front if anything has.

    Attributes:
        products: how many rows A will have for an example.
        left_out: values whose noise is in no leaf because there is too much of it.
    """

    def __init__(self, state: State, batch: int, inputs: Iterable[Tensor]) -> None:
        self.state, self.batch, self.products, self.left_out = state, batch, 1, 0
        self._inputs = {id(value): value for value in inputs}
        self._roots: list[Root] = []
        self._next = 0
        self._of_parameters: dict[int, weakref.ref[Tensor]] = {}
        self._refused: set[int] = set()
        self._spent = 0

    def begin(self) -> None:
        """The next row begins."""
        for root in self._roots:
            root.uses, root.used = 0, root.uses
        self._next = 0
        self._of_parameters.clear()

    def forget_draws(self) -> None:
        """What was drawn so far is not needed any more."""
        for root in self._roots:
            root.draws.clear()

    # ----------------------------------------------------------------- noise

    def weight(self, mean: Tensor, var: Computed, neighbour: Between, draw: Computed) -> Tensor:
        """A weight of the present row, as :data:`momentgen.laws.weights.ROW`; pairs of rows reflect about the mean."""
        row = self.state.row
        with torch._C.DisableTorchFunction():
            root = self._root(mean.shape, var, neighbour)
            if self.state.phase is Phase.AVERAGES:
                value = mean.clone()
            elif self.state.phase.linearises:
                value = mean + root.draws[row] if row in root.draws else draw()
            else:
                before = root.draws.get(row - 1) if row % 2 else None
                value = draw() if before is None else mean - before
                root.draws[row] = value - mean
            return self._began(value, root)

    def drawn(self, value: Tensor, noise: Tensor, var: float, scale: Computed | None, own: Own | None) -> Tensor:
        """A value that the network drew, and all examples have in common; where it is linearised, that with its noise.

        Args:
            value: the result.
            noise: what was drawn, less its mean.
            var: its *variance*.
            scale: computes the factor of the noise in the result.
            own: draws noise that is not normal.
        """
        root = self._root(noise.shape, lambda: var, lambda: None, own)
        if not self.state.phase.linearises:
            root.draws[self.state.row] = noise
        if self.state.phase is Phase.AVERAGES:
            value = value - (noise if scale is None else noise * scale())
        return self._began(value, root, scale)

    def _root(self, shape: torch.Size, var: Callable[[], Any], neighbour: Between, own: Own | None = None) -> Root:
        """The next one of the present row."""
        place, self._next = self._next, self._next + 1
        if place == len(self._roots):
            self._roots.append(Root(shape, var, neighbour, own))
        elif self._roots[place].shape != shape:  # another than in the rows before
            self._roots[place] = Root(shape, var, neighbour, own)
        return self._roots[place]

    def _began(self, value: Tensor, root: Root, scale: Callable[[], Tensor] | None = None) -> Tensor:
        if self.state.phase is Phase.DRAWS:
            return value

        def lift() -> Tensor | None:
            leaf = self._leaf(root, value)
            return leaf if leaf is None or scale is None else leaf * scale()

        if self.batch > 1:
            self.state.follow(value, _Value(lift, root, scale))
            return value
        with torch.enable_grad():
            own = lift() if self.state.phase.linearises else None
            value = value if own is None else value + own[0]
        self.state.follow(value)
        return value

    def _leaf(self, root: Root, like: Tensor) -> Tensor | None:
        """Where the derivatives of each example begin, shape ``(batch, *shape)``; None where it would take too much."""
        size = root.shape.numel()

        def make() -> Tensor | None:
            cost = size * self.batch * self.products
            if self._spent + cost > LARGEST:
                self.left_out += 0 if id(root) in self._refused else size
                self._refused.add(id(root))
                return None
            self._spent += cost
            return torch.zeros((), dtype=like.dtype, device=like.device).expand(self.batch, *root.shape)

        return self.state.leaf(
            id(root), make, lambda leaf: Source(leaf, root.drawn, root.var(), None, root.neighbour(), root.own is None)
        )

    # ----------------------------------------------------------------- calls

    def is_parameter(self, value: Any) -> bool:
        """Whether a tensor is a parameter or buffer of the network, or made of such alone."""
        if not isinstance(value, Tensor):
            return False
        made = self._of_parameters.get(id(value))
        if made is not None:
            return made() is value
        return self.state.constant(value) and id(value) not in self._inputs

    def certain(self, out: Any, given: list[Tensor]) -> None:
        """A function of certain values has been computed."""
        if self.batch > 1 and isinstance(out, Tensor) and given and all(map(self.is_parameter, given)):
            self._of_parameters[id(out)] = weakref.ref(out)

    def rule(self, call: Call) -> Lift | None:
        """What values in common add to the derivatives of a result that has been computed."""
        common = list({id(value): value for value in call.common}.values())
        blocks = self._blocks([value for value in call.given if self.state.common(value) is None])
        noise = call.entry is not None and call.entry.kind == "noise"
        if blocks is None or noise or (blocks and not isinstance(call.out, Tensor)):
            self._used(common)
            return None
        if not blocks:
            self._of_common(call, common)
            return None
        return self._with_batch(call, common, blocks)

    def _known(self, value: Tensor) -> _Value:
        known: _Value = self.state.common(value)
        return known

    def _used(self, common: list[Tensor], times: int = 2) -> None:
        """Count uses; what is used twice has no noise of the outputs."""
        for value in common:
            root = self._known(value).root
            if root is not None:
                root.uses += times

    def _blocks(self, others: list[Tensor]) -> list[Tensor] | None:
        """The tensors with the batch in front, or examples and what belongs to each folded there; None if unclear."""
        random = [value for value in others if self.state.knows(value)]
        if any(not value.dim() or value.shape[0] % self.batch or not value.numel() for value in random):
            return None
        sizes = {self.batch, *(value.shape[0] for value in random)}
        certain = [
            value
            for value in others
            if not self.state.knows(value) and value.dim() and value.shape[0] in sizes and not self.is_parameter(value)
        ]
        return random + certain

    def _of_common(self, call: Call, common: list[Tensor]) -> None:
        """A function of values in common alone: its result is one, and so are several."""
        out, root, scale = call.out, None, None
        lifts = [self._known(value).lift for value in common]
        if len(common) == 1 and _is_by_itself(call, common[0]):
            _, root, before = self._known(common[0])

            def scale() -> Tensor:
                factor = torch.ones_like(common[0]) if before is None else before().expand_as(common[0])
                found: Tensor = call.derivative(common, common, [factor])
                return found

        else:
            self._used(common)
        known: list[Any] = []

        def part(place: int | None) -> Lift:
            def lift() -> Tensor | None:
                if not known:
                    known.append(_lifted(call, self.batch, common, lifts, []))
                return known[0] if known[0] is None or place is None else known[0][place]

            return lift

        for place, value in enumerate(out) if isinstance(out, list | tuple) else [(None, out)]:
            if isinstance(value, Tensor) and value.is_floating_point() and value is not common[0]:
                self.state.follow(value, _Value(part(place), root, scale))

    def _with_batch(self, call: Call, common: list[Tensor], blocks: list[Tensor]) -> Lift:
        """A function of values in common and of such with the batch in front: its result has the batch in front."""
        call.place = -len(blocks)  # apart from what a rule averages
        means = [call.average(value) if self.state.knows(value) else (lambda value=value: value) for value in blocks]
        x, weight = call.argument(0, "input"), call.argument(1, "weight")
        by_outputs = call.name == "linear" and x is blocks[0] and x.dim() == 2 and len(x) == self.batch
        known = self.state.common(weight) if by_outputs else None
        root = None if known is None else known.root
        rest = common if root is None else [value for value in common if value is not weight]
        self._used(rest)
        if root is not None:
            self._used([weight], 1)
            rest = rest if root.used == 1 else common

        def lift() -> Tensor | None:
            total = None
            if known is not None and root is not None and root.used == 1:
                total = _of_outputs(self.state, root, known.scale, means[0](), call.out)
            if rest:
                lifts = [self._known(value).lift for value in rest]
                given = [(value, mean()) for value, mean in zip(blocks, means, strict=True)]
                found = _lifted(call, self.batch, rest, lifts, given)
                if found is not None:
                    found = found.reshape(call.out.shape)
                    total = found if total is None else total + found
            return total

        return lift


def _is_by_itself(call: Call, value: Tensor) -> bool:
    """Whether a function acts on each value by itself, so that independent noise stays independent."""
    entry, out = call.entry, call.out
    known = entry is not None and (entry.kind in ("pointwise", "arithmetic") or entry.name in _BY_THEMSELVES)
    return known and isinstance(out, Tensor) and out.shape == value.shape


def _of_outputs(
    state: State, root: Root, scaled: Callable[[], Tensor] | None, mean: Tensor, out: Tensor
) -> Tensor | None:
    """The noise that a weight makes in the outputs of a linear map of one vector an example."""
    with torch.set_grad_enabled(state.keeps_graph):
        scale = None if scaled is None else scaled()
        var = torch.as_tensor(root.var(), dtype=mean.dtype, device=mean.device).expand(root.shape)
        neighbour = root.neighbour()
        var = var if scale is None else var * scale.square()
        total = F.linear(mean.square(), var.to(mean.dtype))
        between = None
        if neighbour is not None:
            if scale is not None:
                flat = scale.reshape(-1)
                neighbour = neighbour * flat[1:] * flat[:-1]
            pairs = F.pad(neighbour, (0, 1)).view(root.shape).to(mean.dtype)
            total = total + 2 * F.linear(mean[:, :-1] * mean[:, 1:], pairs[:, :-1])
            between = (mean[:, -1] * mean[:, 0])[:, None] * pairs[:-1, -1]

    def draws(rows: range) -> list[Tensor]:
        drawn = [noise if scale is None else noise * scale for noise in root.drawn(rows)]
        return [F.linear(mean, noise.to(mean.dtype)) for noise in drawn]

    def source(leaf: Tensor) -> Source:
        normal = root.own is None or root.shape.numel() > _SUMS
        return Source(leaf, draws, total.clamp_min(0), None, between, normal)

    return state.leaf((id(root), "outputs"), lambda: torch.zeros_like(out), source)


def _lifted(
    call: Call, batch: int, common: list[Tensor], lifts: list[Lift], blocks: list[tuple[Tensor, Tensor]]
) -> Any:
    """The derivative of a function along the lifts of its values in common, of each example."""
    found = [lift() for lift in lifts]
    tangents = tuple(lift for lift in found if lift is not None)
    if not tangents:
        return None
    common = [value for value, lift in zip(common, found, strict=True) if lift is not None]
    sizes = [(batch, len(value) // batch, *value.shape[1:]) for value, _ in blocks]
    folded = tuple(mean.reshape(size) for (_, mean), size in zip(blocks, sizes, strict=True))
    given = [value for value, _ in blocks]

    def of_example(parts: tuple[Tensor, ...], directions: tuple[Tensor, ...]) -> Any:
        return call.derivative(common, common, directions, dict(zip(map(id, given), parts, strict=True)))

    return torch.vmap(of_example, in_dims=(0 if folded else None, 0))(folded, tangents)
