"""Noise that all examples have in common: drawn weights, and noise that the network draws for a parameter.

A row draws such a value once, and every example meets the same draw.  A has a row for each output of each example.  So
such noise has one slope per example, of the value's shape: a per-example gradient.  The shift of a value in common
therefore has one more dimension in front, that of the examples.  It starts at a leaf ``(batch, *shape)``.  A function
of such values alone acts on each example's shift by itself, under ``torch.vmap``.  A function that also takes values
with the batch in front takes each example's part of these, and gives an ordinary shift.

A linear map of one vector per example needs no such leaf.  If its weight is used once in a row, its noise is noise of
the outputs.  It is independent for each, except for neighbours in flattened order with a covariance.

Per-example gradients take memory.  Beyond a bound the noise of a weight is in the rows alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.controlled.noise import Source, drawn_beside
from momentgen.laws.nests import mapped, tensors_in
from momentgen.laws.numerics.forward import forward_derivative
from momentgen.laws.table import names

if TYPE_CHECKING:
    from momentgen.laws.controlled.call import Call
    from momentgen.laws.controlled.shift import Shift

__all__ = ["Common"]

#: values that the per-example gradients of all noise in common may have together
LARGEST: Final = 2**25
#: functions of each value by itself that are of no kind where all are
_BY_THEMSELVES = frozenset(names("addcmul addcdiv clone contiguous to float double half bfloat16 type_as"))


class Root:
    """A value in common as it was drawn: its mean and noise.

    Attributes:
        shape: of the value.
        var: computes *variances*, of this shape.
        neighbour: computes covariances of neighbours, or says None.
        draws: noise by row.
        uses: how often it has been used in the present row.
        used: how often it was in the row before.
    """

    __slots__ = ("_leaf", "draws", "neighbour", "shape", "used", "uses", "var")

    def __init__(
        self, shape: torch.Size, var: Callable[[], Tensor | float], neighbour: Callable[[], Tensor | None]
    ) -> None:
        self.shape, self.var, self.neighbour = shape, var, neighbour
        self.draws: dict[int, Tensor] = {}
        self.uses = self.used = 0
        self._leaf: Tensor | None = None

    def leaf(self, common: Common, like: Tensor) -> Tensor | None:
        """The shift of each example, shape ``(batch, *shape)``; None where it would take too much."""
        if self._leaf is None and common.affords(self.shape.numel()):
            self._leaf = torch.zeros((), dtype=like.dtype, device=like.device).expand(common.batch, *self.shape)
            self._leaf.requires_grad_()
            with torch.set_grad_enabled(common.mode.keeps_graph):
                source = Source(self._leaf, self.drawn, self.var(), None, self.neighbour())
            common.mode.sources.append(source)
        return self._leaf

    def drawn(self, rows: range) -> list[Tensor]:
        """The noise of each row."""
        return [self.draws[row] if row in self.draws else drawn_beside(self.shape, self.var()) for row in rows]


class _Value(NamedTuple):
    """A value in common of the present row.

    Attributes:
        tensor: which it is.
        shift: computes that of each example, in the last row; None where it is not known.
        root: its noise, value by value, if it is that of one root times a scale.
        scale: computes the scale; None for 1.
    """

    tensor: weakref.ref[Tensor]
    shift: Callable[[], Tensor | None]
    root: Root | None = None
    scale: Callable[[], Tensor] | None = None


class Common:
    """Values in common while rows run.

    Args:
        mode: the shift.
        batch: number of examples; 1 where all of the network's values belong to one.
        inputs: certain inputs, which have the batch in front if anything has.

    Attributes:
        products: how many rows A will have for an example.
    """

    def __init__(self, mode: Shift, batch: int, inputs: list[Tensor]) -> None:
        self.mode, self.batch, self.products = mode, batch, 1
        #: noise that was in no leaf because there was too much of it
        self.left_out = 0
        self._inputs = {id(value): value for value in inputs}
        self._roots: list[Root] = []
        self._next = 0
        self._values: dict[int, _Value] = {}
        self._of_parameters: dict[int, weakref.ref[Tensor]] = {}
        self._spent = 0

    def begin(self) -> None:
        """The next row begins."""
        for root in self._roots:
            root.uses, root.used = 0, root.uses
        self._next = 0
        self._values.clear()
        self._of_parameters.clear()

    def forget_draws(self) -> None:
        """What was drawn so far is not needed any more."""
        for root in self._roots:
            root.draws.clear()

    def affords(self, values: int) -> bool:
        """Whether per-example gradients of so many values may be held; they then count as held."""
        cost = values * self.batch * self.products
        if self._spent + cost > LARGEST:
            self.left_out += values
            return False
        self._spent += cost
        return True

    # ----------------------------------------------------------------- noise

    def weight(
        self,
        mean: Tensor,
        draw: Callable[[], Tensor],
        var: Callable[[], Tensor],
        neighbour: Callable[[], Tensor | None],
    ) -> Tensor:
        """A weight of the present row, as :data:`momentgen.laws.weights.ROW`; pairs of rows reflect about the mean."""
        with torch._C.DisableTorchFunction():
            root = self._root(mean.shape, var, neighbour)
            before = root.draws.get(self.mode.row - 1) if self.mode.row % 2 else None
            value = draw() if before is None else mean - before
            root.draws[self.mode.row] = value - mean
        self._began(value, root)
        return value

    def drawn(self, value: Tensor, noise: Tensor, var: float, scale: Callable[[], Tensor] | None) -> None:
        """The network drew a value that all examples have in common.

        Args:
            value: the result.
            noise: what was drawn, less its mean.
            var: its *variance*.
            scale: computes the factor of the noise in the result.
        """
        root = self._root(noise.shape, lambda: var, lambda: None)
        root.draws[self.mode.row] = noise
        self._began(value, root, scale)

    def _root(self, shape: torch.Size, var: Callable[[], Any], neighbour: Callable[[], Tensor | None]) -> Root:
        """The next one of the present row."""
        place, self._next = self._next, self._next + 1
        if place == len(self._roots):
            self._roots.append(Root(shape, var, neighbour))
        elif self._roots[place].shape != shape:  # another than in the rows before
            self._roots[place] = Root(shape, var, neighbour)
        return self._roots[place]

    def _began(self, value: Tensor, root: Root, scale: Callable[[], Tensor] | None = None) -> None:
        if self.mode.draws_only:
            return

        def shift() -> Tensor | None:
            leaf = root.leaf(self, value)
            return leaf if leaf is None or scale is None else leaf * scale()

        if self.batch > 1:
            self._follow(value, _Value(weakref.ref(value), shift, root, scale))
            return
        with torch._C.DisableTorchFunction(), torch.enable_grad():
            own = shift() if self.mode.last else None
            own = None if own is None else own[0]
        self.mode.follow(value, own)

    def _follow(self, value: Tensor, known: _Value) -> None:
        self._values[id(value)] = known
        # To the ordinary rules it is a value that does not move.
        zero = torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape) if self.mode.last else None
        self.mode.follow(value, zero)

    # ----------------------------------------------------------------- calls

    def knows(self, value: Tensor) -> bool:
        """Whether a tensor is a value in common."""
        found = self._values.get(id(value))
        return found is not None and found.tensor() is value

    def is_parameter(self, value: Any) -> bool:
        """Whether a tensor is a parameter or buffer of the network, or made of such alone."""
        if not isinstance(value, Tensor):
            return False
        made = self._of_parameters.get(id(value))
        if made is not None:
            return made() is value
        return self.mode.constant(value) and id(value) not in self._inputs

    def certain(self, out: Any, args: Any, kwargs: Any) -> None:
        """A function of certain values has been computed."""
        if self.batch > 1 and isinstance(out, Tensor):
            given = tensors_in((*args, *kwargs.values()))
            if given and all(map(self.is_parameter, given)):
                self._of_parameters[id(out)] = weakref.ref(out)

    def forget(self, value: Tensor) -> None:
        """The tensor has another value now."""
        self._values.pop(id(value), None)

    def moved(self, value: Tensor, target: Tensor) -> None:
        """A value has been written into another tensor."""
        if value is target:
            return
        self.forget(target)
        if self.knows(value):
            self._values[id(target)] = self._values[id(value)]._replace(tensor=weakref.ref(target))

    def rule(self, call: Call, common: list[Tensor], others: list[Tensor]) -> Callable[[], Tensor | None] | None:
        """What values in common add to the shift of a result.

        Args:
            call: that has been computed.
            common: its values in common.
            others: all its other tensors.
        """
        common = list({id(value): value for value in common}.values())
        blocks = self._blocks(others)
        if blocks is None or (call.entry is not None and call.entry.kind == "noise"):
            self._used(common)
            return None
        if not blocks:
            self._of_common(call, common)
            return None
        if not isinstance(call.out, Tensor):
            self._used(common)
            return None
        return self._with_batch(call, common, blocks)

    def _used(self, common: list[Tensor], times: int = 2) -> None:
        """Count uses; what is used twice has no noise of the outputs."""
        for value in common:
            root = self._values[id(value)].root
            if root is not None:
                root.uses += times

    def _blocks(self, others: list[Tensor]) -> list[Tensor] | None:
        """The tensors with the batch in front, or examples and what belongs to each folded there; None if unclear."""
        random = [value for value in others if self.mode.knows(value)]
        if any(not value.dim() or value.shape[0] % self.batch or not value.numel() for value in random):
            return None
        sizes = {self.batch, *(value.shape[0] for value in random)}
        certain = [
            value
            for value in others
            if not self.mode.knows(value) and value.dim() and value.shape[0] in sizes and not self.is_parameter(value)
        ]
        return random + certain

    def _primal(self, value: Tensor) -> Tensor:
        known = self._values[id(value)]
        if known.root is not None and known.scale is None and self.mode.row in known.root.draws:
            return value - known.root.draws[self.mode.row]
        return value

    def _of_common(self, call: Call, common: list[Tensor]) -> None:
        """A function of values in common alone: its result is one, and so are several."""
        mode, out = self.mode, call.out
        primals = [self._primal(value) for value in common]
        shifts = [self._values[id(value)].shift for value in common]
        root, scale = None, None
        if len(common) == 1 and self._is_by_itself(call, common[0]):
            root, before = self._values[id(common[0])].root, self._values[id(common[0])].scale

            def scale() -> Tensor:
                factor = torch.ones_like(primals[0]) if before is None else before().expand_as(primals[0])
                found: Tensor = forward_derivative(_function(call, common), primals, [factor])
                return found

        else:
            self._used(common)
        known: list[Any] = []

        def lifted() -> Any:
            if not known:
                known.append(self._vmapped(call, common, primals, shifts, []))
            return known[0]

        def part(place: int | None) -> Callable[[], Tensor | None]:
            def shift() -> Tensor | None:
                found = lifted()
                return found if found is None or place is None else found[place]

            return shift

        parts: list[tuple[int | None, Any]] = [(None, out)] if isinstance(out, Tensor) else []
        parts = list(enumerate(out)) if isinstance(out, list | tuple) else parts
        for place, value in parts:
            if isinstance(value, Tensor) and value.is_floating_point() and value is not common[0]:
                self._follow(value, _Value(weakref.ref(value), part(place), root, scale))
            elif isinstance(value, Tensor) and not mode.knows(value):
                mode.forget(value)

    def _is_by_itself(self, call: Call, value: Tensor) -> bool:
        """Whether a function acts on each value by itself, so that independent noise stays independent."""
        entry, out = call.entry, call.out
        return (
            entry is not None
            and (entry.kind in ("pointwise", "arithmetic") or entry.name in _BY_THEMSELVES)
            and isinstance(out, Tensor)
            and out.shape == value.shape
            and self._values[id(value)].root is not None
        )

    def _with_batch(self, call: Call, common: list[Tensor], blocks: list[Tensor]) -> Callable[[], Tensor | None]:
        """A function of values in common and of such with the batch in front: its result has the batch in front."""
        means = [call.average(value) if self.mode.knows(value) else (lambda value=value: value) for value in blocks]
        x, weight = call.argument(0, "input"), call.argument(1, "weight")
        by_outputs = call.name == "linear" and x is blocks[0] and x.dim() == 2 and len(x) == self.batch
        by_outputs = by_outputs and id(weight) in set(map(id, common)) and self._values[id(weight)].root is not None
        self._used([value for value in common if not (by_outputs and value is weight)])
        if by_outputs:
            self._used([weight], 1)
        primals = [self._primal(value) for value in common]

        def shift() -> Tensor | None:
            rest, total = list(range(len(common))), None
            if by_outputs and self._values[id(weight)].root.used == 1:  # type: ignore[union-attr]
                total = self._of_outputs(self._values[id(weight)], means[0](), call.out)
                rest = [place for place in rest if common[place] is not weight]
            if rest:
                found = self._vmapped(
                    call,
                    [common[place] for place in rest],
                    [primals[place] for place in rest],
                    [self._values[id(common[place])].shift for place in rest],
                    [(value, mean()) for value, mean in zip(blocks, means, strict=True)],
                )
                if found is not None:
                    found = found.reshape(call.out.shape)
                    total = found if total is None else total + found
            return total

        return shift

    def _of_outputs(self, known: _Value, mean: Tensor, out: Tensor) -> Tensor:
        """The noise that a weight makes in the outputs of a linear map of one vector an example."""
        root = known.root
        assert root is not None
        with torch.set_grad_enabled(self.mode.keeps_graph):
            scale = None if known.scale is None else known.scale()
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
        leaf = torch.zeros_like(out, requires_grad=True)

        def draws(rows: range) -> list[Tensor]:
            drawn = [noise if scale is None else noise * scale for noise in root.drawn(rows)]
            return [F.linear(mean, noise.to(mean.dtype)) for noise in drawn]

        self.mode.sources.append(Source(leaf, draws, total.clamp_min(0), None, between))
        return leaf.view_as(leaf)

    def _vmapped(
        self,
        call: Call,
        common: list[Tensor],
        primals: list[Tensor],
        shifts: list[Callable[[], Tensor | None]],
        blocks: list[tuple[Tensor, Tensor]],
    ) -> Any:
        """The derivative of a function along the shifts of its values in common, of each example."""
        found = [shift() for shift in shifts]
        tangents = tuple(shift for shift in found if shift is not None)
        if not tangents:
            return None
        common = [value for value, shift in zip(common, found, strict=True) if shift is not None]
        start = tuple(primal for primal, shift in zip(primals, found, strict=True) if shift is not None)
        sizes = [(self.batch, len(value) // self.batch, *value.shape[1:]) for value, _ in blocks]
        folded = tuple(mean.reshape(size) for (_, mean), size in zip(blocks, sizes, strict=True))
        given = [value for value, _ in blocks]

        def of_example(parts: tuple[Tensor, ...], directions: tuple[Tensor, ...]) -> Any:
            function = _function(call, common, dict(zip(map(id, given), parts, strict=True)))
            return forward_derivative(function, start, directions)

        return torch.vmap(of_example, in_dims=(0 if folded else None, 0))(folded, tangents)


def _function(call: Call, common: list[Tensor], parts: dict[int, Tensor] | None = None) -> Callable[..., Any]:
    """The function of a call, of some of its tensors alone."""
    known = parts or {}

    def function(*values: Tensor) -> Any:
        places = {**known, **{id(old): new for old, new in zip(common, values, strict=True)}}

        def changed(value: Any) -> Any:
            return places.get(id(value), value) if isinstance(value, Tensor) else value

        return call.function(*mapped(changed, call.args), **mapped(changed, call.kwargs))

    return function
