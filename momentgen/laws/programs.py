"""Functions of one value: each law knows of which value it is a function, element by element, and of which function.

``x * sigmoid(x)`` is not a product of independent values.  ``relu(x) ** 2`` closed function by function takes
``relu(x)`` for a normal value, which it is not.  A law remembers the call that made it.  Calls that compute each
element alone, one after another, are a :class:`Program` in the value that the first one takes.  Two laws with one such
value compose to one program.  :mod:`~momentgen.laws.analysis` has its moments.

A value may be moved on the way: ``sigmoid(x)[:, 1:]`` is a function of ``x[:, 1:]``.  Programs are computed when their
moments are needed, since a longer program may have an op.  A single function keeps its op.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from momentgen.laws import analysis
from momentgen.laws.analysis import CLOSED, Code
from momentgen.laws.diagonal import RESHAPES, moved_part
from momentgen.laws.law import DEPTH, History, Later, Law, laws_in, new_law, versions
from momentgen.laws.notes import are_heard, note
from momentgen.laws.table import TABLE, Entry, names

#: functions that choose, by a mask, among the values of one place
CHOICES = frozenset(names("where masked_fill"))
#: movements that leave every value in its place
IDENTITIES = frozenset(("clone", "contiguous", "detach", "positive", "data"))
#: movements that repeat values
EXPANSIONS = frozenset(("expand", "expand_as", "broadcast_to"))
#: movements that put other values beside those that they move
_FILLING = frozenset(names("tril triu diag_embed diag diagflat unfold pad"))
_AFFINE = frozenset(names("add sub rsub mul div neg"))
#: a program of more steps is integrated at once, and one of still more counts as a value of its own
_LONGEST, _MOST = 12, 24
_RESHAPE: Final = TABLE[torch.reshape]


class Source:
    """A value that others are functions of, as it was when it was first read: it may be written to."""

    def __init__(self, law: Law) -> None:
        self.kind, self.noise, self.parts = type(law), law._noise, law._parts()
        self.history, self.depth = law._history, law._depth


class Move(NamedTuple):
    """A movement: entry, arguments after the first, keyword arguments, which of several results, the shape before."""

    entry: Entry
    rest: tuple[Any, ...]
    named: dict[str, Any]
    place: int | None
    before: torch.Size


class Program(NamedTuple):
    """A function of one value, each element alone.

    Attributes:
        source: the value.
        moves: how it was moved before.
        code: of the function.
        seen: tensors among the arguments of moves and steps, and how often each had been written to.
        is_affine: whether each step is affine in the one before it alone.
    """

    source: Source
    moves: tuple[Move, ...] = ()
    code: Code = Code()
    seen: tuple[tuple[Any, int], ...] = ()
    is_affine: bool = True

    def starts_as(self, other: Program) -> bool:
        """Whether both are functions of one value, moved alike."""
        return self.source is other.source and _same(self.moves, other.moves)

    def only_reshapes(self) -> bool:
        """Whether its moves leave values in their order, or repeat them."""
        return all(move.entry is _RESHAPE or move.entry.name in EXPANSIONS for move in self.moves)

    def start(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of its value, after the moves."""
        mean, var = self.source.parts
        for entry, rest, named, place, _ in self.moves:
            mean, var = (moved_part(entry, part, rest, named) for part in (mean, var))
            mean, var = (mean, var) if place is None else (mean[place], var[place])
        return mean, var


def applied(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of laws that are functions of one value, as one function of that; None if it is not, or is alone.

    Args:
        entry: of the function.
        args: of the call, laws among them.
        kwargs: of the call.
    """
    laws = laws_in(args)
    if all(law._history is None for law in laws) and len({id(law) for law in laws}) > 1:
        return None
    for found in _composed(entry, args, kwargs):
        if len(found.code.steps) == 1 and len(laws) == 1:
            return None
        if analysis.is_defined(found.code):
            return _pending(entry, args, kwargs, found)
    return None


def integrated(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of one law that has no op."""
    defined = (found for found in _composed(entry, args, kwargs) if analysis.is_defined(found.code))
    own = Program(Source(args[0]))
    alone = _called(own, entry, [*args, *kwargs.values()], [*kwargs], [own])
    return _pending(entry, args, kwargs, next(defined, alone))


def alike(first: Law, *others: Law) -> bool:
    """Whether laws are functions, element by element, of one value."""
    return any(
        all(any(program.starts_as(own) for own in programs_of(other)) for other in others)
        for program in programs_of(first)
    )


def same_value(a: Law, b: Law) -> bool:
    """Whether two laws are one value: the same object, or moved from one in the same way."""
    if a is b:
        return True
    return any(one.starts_as(other) for one in own_programs_of(a) for other in own_programs_of(b))


def own_programs_of(law: Law) -> list[Program]:
    """Of which values, and moved how, the law is the value itself."""
    return [program for program in programs_of(law) if not program.code.steps]


def number_of(given: Any) -> float | None:
    """A number, also of a plain tensor of one element; None for anything else."""
    if not isinstance(given, Tensor):
        return given if isinstance(given, int | float) else None
    if torch.compiler.is_compiling() or type(given) is not Tensor or given.numel() != 1 or given.requires_grad:
        return None
    return given.item() if given.is_cpu and not torch._C._functorch.is_functorch_wrapped_tensor(given) else None


def _pending(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], found: Program) -> Any:
    """A law of that program, whose moments are computed when somebody asks for them."""
    (mean, var), code, source = found.start(), found.code, found.source
    law: Any = new_law(source.kind, None)  # type: ignore[arg-type]
    law._noise = source.noise
    later = Later(mean, lambda: analysis.moments(code, mean, var))
    law._history = History((entry, args, kwargs), laws_in(args)[0], source.depth + 1, versions(args), later)
    is_long = len(code.steps) > _LONGEST
    if is_long or code.tensors or (not torch.is_grad_enabled() and (mean.requires_grad or var.requires_grad)):
        law._parts()  # at once: tensors may be written to, and gradients may be enabled again later
    if len(code.steps) > _MOST or source.depth >= DEPTH:
        law._parts()
        note(f"{entry.name}: a function of many functions of one value, which is taken as normal from there on")
        law._history = None  # what it is a function of is let go
    return law


# ------------------------------------------------------- of which values a law is a function


def programs_of(law: Law) -> tuple[Program, ...]:
    """What is known of a law as a function: of the values that are nearest first, at last of itself if of no other.

    What is affine in a normal value is normal, so that it comes first itself.  A root or a quotient has moments of its
    own, and comes last: it may not be defined as a function of another value.
    """
    if law._view is not None:
        law._refresh()
    known = law._programs
    if known is None or not all(tensor._version == version for program in known for tensor, version in program.seen):
        known = law._programs = _found(law)
    return known


def _found(law: Law) -> tuple[Program, ...]:
    found: list[Program] = []
    if (made := law._made) is not None:
        entry, args, kwargs = made
        if entry.kind == "movement" and entry.name not in CHOICES:
            if entry.name in IDENTITIES:
                return programs_of(args[0])
            if entry.name not in _FILLING and isinstance(args[0], Law):
                found = _moved(law, entry, args, kwargs)
        elif entry.kind in ("pointwise", "arithmetic") or entry.name in CHOICES:
            if all(own.shape == law.shape for own in laws_in((*args, *kwargs.values()))):
                found = _composed(entry, args, kwargs)
            if found and law._mean is not None:
                if any(program.is_affine for program in found):
                    return (Program(Source(law)), *found)
                if entry.name in CLOSED and (entry.name != "div" or isinstance(args[1], Law)):
                    return (*found, Program(Source(law)))
    return tuple(found) or (Program(Source(law)),)


def _composed(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Program]:
    """A call as a function of each value that its arguments are functions of."""
    plain = [arg._form() if isinstance(arg, Law) and not arg.RANK else arg for arg in (*args, *kwargs.values())]
    laws = [arg for arg in plain if isinstance(arg, Law)]
    found = []
    for start in programs_of(laws[0]):
        own = [next(filter(start.starts_as, programs_of(law)), None) for law in laws]
        if None not in own and not any(isinstance(arg, tuple | list) for arg in plain):
            found.append(_called(start, entry, plain, [*kwargs], own))
    return found


def _called(start: Program, entry: Entry, plain: list[Any], words: list[str], own: list[Any]) -> Program:
    """The program of a call.

    Args:
        start: one of those of its laws.
        entry: of the function.
        plain: its arguments, by place and then by name.
        words: names of the last ones.
        own: programs of the laws among them, in order, which start alike.
    """
    steps: list[Any] = []
    calls: list[Any] = []
    tensors: list[Tensor] = []
    laws = iter(own)

    def argument(arg: Any) -> Any:
        if isinstance(arg, Law):
            return place_of(next(laws))
        number = number_of(arg) if isinstance(arg, Tensor) and entry.name != "prelu" else None  # which has a tensor
        return number if number is not None else tensor_at(arg) if isinstance(arg, Tensor) else arg

    def place_of(program: Program) -> Any:
        """Of its value, after its steps; those that are there already are there once."""
        places = [0]

        def renamed(arg: Any) -> Any:
            if type(arg) is not tuple:
                return arg
            return ("value", places[arg[1]]) if arg[0] == "value" else tensor_at(program.code.tensors[arg[1]])

        for (name, given, named), call in zip(program.code.steps, program.code.calls, strict=True):
            step = (name, tuple(map(renamed, given)), tuple((key, renamed(arg)) for key, arg in named))
            if step not in steps:
                steps.append(step)
                calls.append(call)
            places.append(1 + steps.index(step))
        return "value", places[-1]

    def tensor_at(tensor: Tensor) -> Any:
        place = next((number for number, one in enumerate(tensors) if one is tensor), len(tensors))
        if place == len(tensors):
            tensors.append(tensor)
        return "tensor", place

    given = [argument(arg) for arg in plain]
    count = len(given) - len(words)
    steps.append((entry.name, tuple(given[:count]), tuple(sorted(zip(words, given[count:], strict=True)))))
    over = entry.name != "div" or isinstance(plain[0], Law)
    seen = [(tensor, version) for program in own for tensor, version in program.seen]
    return Program(
        start.source,
        start.moves,
        Code(tuple(steps), (*calls, entry.call), tuple(tensors)),
        (*seen, *versions(tuple(arg for arg in plain if isinstance(arg, Tensor)))),
        start.is_affine and (entry.name in _AFFINE or entry.name in CHOICES) and len(own) == 1 and over,
    )


def _moved(law: Law, entry: Entry, args: tuple[Any, ...], named: dict[str, Any]) -> list[Program]:
    """The programs of what was moved, of moved values; reshapes in a row are one."""
    inner, *rest, place = args
    found = []
    for program in programs_of(inner):
        moves, before, code = program.moves, inner.shape, program.code
        if any(tensor.numel() != 1 for tensor in code.tensors):
            if not reshapes((entry, args, named)) or any(name == "prelu" for name, *_ in code.steps):
                continue  # tensors are of one shape
            own = (one if one.numel() == 1 else one.expand(before).reshape(law.shape) for one in code.tensors)
            code = code._replace(tensors=tuple(own))
        if reshapes((entry, args, named)):
            if moves and moves[-1].entry is _RESHAPE:
                moves, before = moves[:-1], moves[-1].before
            moves += () if law.shape == before else (Move(_RESHAPE, (law.shape,), {}, None, before),)
        else:
            moves += (Move(entry, tuple(rest), named, place, before),)
        seen = versions(tuple(arg for arg in rest if isinstance(arg, Tensor)))
        found.append(program._replace(moves=moves, code=code, seen=(*program.seen, *seen)))
    return found


def reshapes(made: tuple[Entry, tuple[Any, ...], dict[str, Any]] | None) -> bool:
    """Whether a call changes a shape alone, also as an index that does nothing but add dimensions."""
    if made is None or made[0].name != "getitem":
        return made is not None and made[0].name in RESHAPES
    parts = made[1][1] if isinstance(made[1][1], tuple) else (made[1][1],)
    return all(part is None or part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in parts)


def _same(a: Any, b: Any) -> bool:
    """Whether two arguments are the same, tensors by identity and functions by name."""
    if isinstance(a, dict) and isinstance(b, dict):
        a, b = [*a.items()], [*b.items()]
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Entry) and isinstance(b, Entry):
        return a.name == b.name
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a is b
    return type(a) is type(b) and bool(a == b)


# ------------------------------------------------------------- independence


def note_if_related(entry: Entry, a: Any, b: Any) -> None:
    """Note that two laws are taken as independent, where both depend on one value and are no pieces of it."""
    if not (isinstance(a, Law) and isinstance(b, Law) and are_heard()):
        return
    first, second = _chain(a), _chain(b)
    shared = {id(a), *first} & {id(b), *second}
    # Queries and keys, or the halves of a gated unit, come from different pieces of one.
    if shared and not any(_are_apart(first[base], second[base]) for base in first.keys() & second.keys()):
        note(f"{entry.name}: two values that depend on one value are taken as independent", where=True)


def _chain(law: Law) -> dict[int, Law]:
    """By its identity each law that this one is a function of, the nearest first: the law that is made of it."""
    found: dict[int, Law] = {}
    while law._made is not None:
        of = law._history.of  # type: ignore[union-attr]
        found[id(of)], law = law, of
    return found


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
