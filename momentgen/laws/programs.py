"""Functions of one value: each law knows of which value it is a function, element by element, and of which.

``x * sigmoid(x)`` is not a product of independent values.  ``relu(x) ** 2`` closed function by function takes
``relu(x)`` for a normal value, which it is not.  A law remembers the call that made it.  Calls that compute each
element alone, one after another, are a program in the value that the first one takes (:class:`Function`).  Two laws
with one such value compose to one program.  :mod:`~momentgen.laws.closed_forms` has its moments.

A value may be moved on the way: ``sigmoid(x)[:, 1:]`` is a function of ``x[:, 1:]``.  Programs are computed when their
moments are needed, since a longer program may have an op.  A single function keeps its op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.laws import closed_forms
from momentgen.laws.analysis import CLOSED
from momentgen.laws.closed_forms import Function, Move, number_of
from momentgen.laws.law import DEPTH, History, Later, Law, laws_in, new_law, versions
from momentgen.laws.movement import RESHAPES
from momentgen.laws.notes import are_heard, note
from momentgen.laws.table import TABLE, Entry, names

__all__ = [
    "CHOICES",
    "IDENTITIES",
    "affine_in",
    "alike",
    "applied",
    "integrated",
    "is_curved",
    "note_if_related",
    "reshapes",
    "same_value",
]

#: functions that choose, by a mask, among the values of one place
CHOICES = frozenset(names("where masked_fill"))
#: movements that leave every value in its place
IDENTITIES = frozenset(("clone", "contiguous", "detach", "positive", "data"))
#: movements that put other values beside those that they move
_FILLING = frozenset(names("tril triu diag_embed diag diagflat unfold pad"))
#: a program of more steps is integrated at once, and one of still more counts as a value of its own
_LONGEST, _MOST = 12, 24


def applied(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of laws that are functions of one value, as one function of that; None if it is not, or is alone.

    Args:
        entry: of the function.
        args: of the call, laws among them.
        kwargs: of the call.
    """
    if all(law._history is None for law in laws_in(args)) and len({id(law) for law in laws_in(args)}) > 1:
        return None
    for closed in (False, True):
        found = _composed(entry, args, kwargs, closed)
        if found is None or (len(found.steps) == 1 and len(laws_in(args)) == 1):
            continue
        if closed_forms.is_defined(found):
            return _pending(entry, args, kwargs, found)
    return None


def integrated(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of one law that has no op."""
    found = _composed(entry, args, kwargs, False)
    if found is None or not closed_forms.is_defined(found):
        found = _Program(True).single(entry, args, kwargs)
    return _pending(entry, args, kwargs, found)


def alike(*laws: Law) -> bool:
    """Whether laws are functions, element by element, of one value."""
    program = _Program(False)
    return all(program.place(law, ()) is not None for law in laws)


def is_curved(law: Law) -> bool:
    """Whether a law is a function of one value that is not affine."""
    program = _Program(False)
    program.place(law, ())
    return any(not (len(_places(step)) == 1 and _is_affine(step, _places(step)[0][1])) for step in program.steps)


def affine_in(law: Law) -> tuple[Law, Tensor, Tensor] | None:
    """The value that a law is affine in, with the factor and the summand, each element alone; None if it is not."""
    program = _Program(False)
    program.place(law, ())
    source, moves = program.leaf  # type: ignore[misc]
    if moves or any(not _is_affine(step, number) for number, step in enumerate(program.steps)):
        return None
    found = Function(source, moves, tuple(program.steps), tuple(program.calls), tuple(program.tensors))
    zero = torch.zeros(law.shape, dtype=law.dtype, device=law.device)
    shift = closed_forms.value(found, zero)
    return source, closed_forms.value(found, zero + 1) - shift, shift


def same_value(a: Law, b: Law) -> bool:
    """Whether two laws are one value: the same object, or moved from one in the same way."""
    if a is b:
        return True
    program = _Program(False)
    return program.place(a, ()) == program.place(b, ()) == ("value", 0)


def _composed(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], closed: bool) -> Function | None:
    program = _Program(closed)
    last = program.call(entry, args, kwargs, ())
    return None if last is None else program.trimmed()


def _pending(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], found: Function) -> Any:
    """A law of that program, whose moments are computed when somebody asks for them."""
    source = found.source
    mean, var = closed_forms.start(found)
    law: Any = new_law(type(source), None)  # type: ignore[arg-type]
    law._noise = source._noise
    # The tensors are held here, and not read from the source: it may be written to before they are needed.
    later = Later(mean, lambda: closed_forms.moments(found, mean, var))
    law._history = History((entry, args, kwargs), source, source._depth + 1, versions(args), later)
    is_long = len(found.steps) > _LONGEST
    if is_long or found.tensors or (not torch.is_grad_enabled() and (mean.requires_grad or var.requires_grad)):
        law._parts()  # at once: tensors may be written to, and gradients may be enabled again later
    if len(found.steps) > _MOST or source._depth >= DEPTH:
        law._parts()
        note(f"{entry.name}: a function of many functions of one value, which is taken as normal from there on")
        law._history = None  # what it is a function of is let go
    return law


class _Program:
    """Collects the steps from one value to what is computed of it; places are those of values among the steps.

    Args:
        closed: whether a root or a quotient by a law counts as a value of its own.
    """

    def __init__(self, closed: bool) -> None:
        self.closed = closed
        self.leaf: tuple[Law, tuple[Move, ...]] | None = None
        self.steps: list[Any] = []
        self.calls: list[Callable[..., Any]] = []
        self.laws: list[tuple[Law, tuple[Move, ...]] | None] = []
        self.tensors: list[Tensor] = []

    def place(self, law: Law, moves: tuple[Move, ...]) -> Any:
        """Where the value of ``law``, moved so, is among the steps; None if it is a function of another value."""
        for number, known in enumerate((self.leaf, *self.laws)):
            if known is not None and known[0] is law and _same_moves(known[1], moves):
                return "value", number
        made = law._made
        if made is None:
            return self._is_leaf(law, moves)
        entry, args, kwargs = made
        if entry.kind == "movement" and entry.name not in CHOICES:
            if entry.name in IDENTITIES:
                return self.place(args[0], moves)
            inner = args[0]
            if entry.name not in _FILLING and isinstance(inner, Law) and law._of is inner:
                return self.place(inner, _moved_by(law, moves))
        elif (
            _is_by_value(entry)
            and all(own.shape == law.shape for own in laws_in((*args, *kwargs.values())))
            and not (self.closed and _is_closed(entry, args))
        ):
            before = self.leaf, len(self.steps)
            found = self.call(entry, args, kwargs, moves)
            if found is not None:
                self.laws[-1] = (law, moves)
                return found
            self.leaf = before[0]  # it is a function of several values: one of its own
            del self.steps[before[1] :], self.calls[before[1] :], self.laws[before[1] :]
        return self._is_leaf(law, moves)

    def _is_leaf(self, law: Law, moves: tuple[Move, ...]) -> Any:
        if self.leaf is None:
            self.leaf = (law, moves)
            return "value", 0
        return None

    def call(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], moves: tuple[Move, ...]) -> Any:
        """Adds a call, after its arguments; returns its place, None if they are functions of several values."""
        if any(isinstance(value, tuple | list) for value in (*args, *kwargs.values())):
            return None
        if entry.name == "prelu":  # its slope is a tensor, also where that is one number
            own = [self._argument(args[0], moves), ("tensor", len(self.tensors))]
            self.tensors.append(args[1] if len(args) > 1 else kwargs["weight"])
            kwargs = {}
        else:
            own = [self._argument(value, moves) for value in args]
        named = [(name, self._argument(kwargs[name], moves)) for name in sorted(kwargs)]
        if any(value is _NONE for value in (*own, *(value for _, value in named))):
            return None
        self.steps.append((entry.name, tuple(own), tuple(named)))
        self.calls.append(entry.call)
        self.laws.append(None)
        return "value", len(self.steps)

    def _argument(self, value: Any, moves: tuple[Move, ...]) -> Any:
        if isinstance(value, Law) and value.RANK == 0:
            value = value._form()
        if isinstance(value, Law):
            place = self.place(value, moves)
            return _NONE if place is None else place
        if not isinstance(value, Tensor):
            return value
        number = number_of(value)
        if number is not None:
            return number
        if moves and value.numel() != 1:
            return _NONE
        self.tensors.append(value)
        return "tensor", len(self.tensors) - 1

    def single(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Function:
        """The program of one call on a law that counts as a value of its own."""
        self.leaf = (laws_in(args)[0], ())
        self.call(entry, args, kwargs, ())
        return self.trimmed()

    def trimmed(self) -> Function:
        """The program from the value on that its first affine steps make, where nothing else needs the earlier one."""
        steps, first = self.steps, 0
        while first < len(steps) - 1 and self.laws[first] is not None and _is_affine(steps[first], first):
            if any(("value", first) in _places(step) for step in steps[first + 1 :]):
                break
            self.leaf = self.laws[first]
            first += 1
        source, moves = self.leaf  # type: ignore[misc]
        used = sorted({place[1] for step in steps[first:] for place in _places(step) if place[0] == "tensor"})

        def renamed(value: Any) -> Any:
            if type(value) is not tuple:
                return value
            return (value[0], value[1] - first if value[0] == "value" else used.index(value[1]))

        renumbered = [
            (name, tuple(map(renamed, args)), tuple((key, renamed(value)) for key, value in named))
            for name, args, named in steps[first:]
        ]
        tensors = tuple(self.tensors[k] for k in used)
        return Function(source, moves, tuple(renumbered), tuple(self.calls[first:]), tensors)


#: an argument that is a function of another value
_NONE = object()


def _places(step: Any) -> list[Any]:
    return [value for value in (*step[1], *(value for _, value in step[2])) if type(value) is tuple]


def _is_affine(step: Any, first: int) -> bool:
    """Whether a step is affine in the value of that place, and a function of no other."""
    name, args, _ = step
    values = [value for value in _places(step) if value[0] == "value"]
    return values == [("value", first)] and name in _AFFINE and not (name == "div" and args[0] != values[0])


_AFFINE = frozenset(names("add sub rsub mul div neg"))


def _is_by_value(entry: Entry) -> bool:
    """Whether a function makes each value of its result from the values in that place."""
    return entry.kind in ("pointwise", "arithmetic") or entry.name in CHOICES


def _is_closed(entry: Entry, args: tuple[Any, ...]) -> bool:
    """Whether a law may be made by a root or a quotient, by a rule of its own."""
    return entry.name in CLOSED and (entry.name != "div" or isinstance(args[1], Law))


def _moved_by(law: Law, moves: tuple[Move, ...]) -> tuple[Move, ...]:
    """The moves of what ``law`` was moved from: reshapes in a row are one."""
    entry, (inner, *rest, place), named = law._made  # type: ignore[misc]
    if not reshapes(law._made):
        return (Move(entry, tuple(rest), named, place), *moves)
    if moves and moves[0].entry is _RESHAPE:
        return moves[1:] if moves[0].rest[0] == inner.shape else moves
    return moves if law.shape == inner.shape else (Move(_RESHAPE, (law.shape,), {}, None), *moves)


def reshapes(made: tuple[Entry, tuple[Any, ...], dict[str, Any]] | None) -> bool:
    """Whether a call changes a shape alone, also as an index that does nothing but add dimensions."""
    if made is None or made[0].name != "getitem":
        return made is not None and made[0].name in RESHAPES
    parts = made[1][1] if isinstance(made[1][1], tuple) else (made[1][1],)
    return all(part is None or part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in parts)


_RESHAPE: Final = TABLE[torch.reshape]


def _same_moves(a: tuple[Move, ...], b: tuple[Move, ...]) -> bool:
    return len(a) == len(b) and all(
        p.entry.name == q.entry.name
        and p.place == q.place
        and same_arguments(p.rest, q.rest)
        and same_arguments([*p.named.items()], [*q.named.items()])
        for p, q in zip(a, b, strict=True)
    )


def same_arguments(a: Any, b: Any) -> bool:
    """Whether two arguments are the same, tensors by identity."""
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(same_arguments(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a is b
    return type(a) is type(b) and bool(a == b)


# ------------------------------------------------------------- independence


def note_if_related(entry: Entry, a: Any, b: Any) -> None:
    """Note that two laws are taken as independent, where both depend on one value and are no pieces of it."""
    if not (isinstance(a, Law) and isinstance(b, Law) and are_heard()):
        return
    others = {id(law) for law in _chain(b)}
    if any(id(law) in others for law in _chain(a)) and not _cut_apart(a, b):
        note(f"{entry.name}: two values that depend on one value are taken as independent", where=True)


def _chain(law: Law) -> list[Law]:
    """The law, the law that it is a function of, and so on."""
    found: list[Law] = [law]
    while found[-1]._source is not None:
        found.append(found[-1]._source)
    return found


def _cut_apart(a: Law, b: Law) -> bool:
    """Whether two laws come from different pieces of one, as the halves of a gated unit or queries and keys do."""
    first, second = ({id(law._of): law for law in _chain(own) if law._of is not None} for own in (a, b))
    return any(_are_apart(first[base], second[base]) for base in first.keys() & second.keys())


def _are_apart(p: Law, q: Law) -> bool:
    read = []
    for entry, args, kwargs in (p._made, q._made):  # type: ignore[misc]
        if entry.name not in _CUTS:
            return False
        base, *rest, place = args
        found = entry.call(torch.arange(base.numel()).view(base.shape), *rest, **kwargs)
        read.append(found if place is None else found[place])
    return not bool(torch.isin(*read).any())


#: functions that cut a value into pieces
_CUTS = frozenset(names("getitem narrow select chunk split split_with_sizes tensor_split unbind hsplit vsplit dsplit"))
