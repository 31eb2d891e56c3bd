"""Calls of one function that differ in numbers alone, as a loop over a table of these.

Nodes of a quadrature are such calls (:mod:`momentgen.compiler.emit._outline` finds them).  Inserted
forty times, a function takes a C compiler a minute; in a loop over the rows of a table it is inserted once.  What the
loops are given comes from a body before them, and another one reads what they give: sums of one result of all rows,
each times a number, and results by themselves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from momentgen.compiler.emit._body import Body, Call, Result, Step
from momentgen.compiler.ir.op import Op, Type

#: operations that a loop leaves out at least: with fewer, compilers are quick
_LEAST_SAVED = 400


@dataclass
class Rows:
    """A loop over calls of a function.

    Attributes:
        function: its name.
        args: of each operand the name of the value that it is, or None where it is the next number of the row.
        table: a row for each call: the numbers that it takes, and those that its results are multiplied by.
        results: how many values a call gives.
        sums: name of a sum -> which results it takes in, each times the number in a column, or, where there is none,
            another result.
        kept: which results are read by themselves.
    """

    function: str
    args: tuple[str | None, ...]
    table: list[list[float]]
    results: int
    sums: dict[str, list[tuple[int, int | None, int]]] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Split:
    """A body as one before some loops, these, and one after them.

    Attributes:
        before: with ``given``, the names of its outputs.
        rows: the loops, which read inputs of the body and what ``before`` gives.
        after: it reads these, the loops' sums, and results by the names that ``split`` was told.
    """

    before: Body
    given: tuple[str, ...]
    rows: tuple[Rows, ...]
    after: Body


#: a function, its operands, None for a number, and the sums that take in which of its results
_Key = tuple[str, tuple[int | None, ...], frozenset[tuple[int, int]]]
#: a result of a loop: number of the loop, row and result
_Place = tuple[int, int, int]
#: what a sum takes in: of a loop, a result, and another that it is multiplied by, or -1 for a number
_Term = tuple[int, int, int]


def split(body: Body, functions: Mapping[str, Body], name_of: Callable[[int, int, int], str]) -> Split | None:
    """The loops of a body; None if there are none.  A loop that would need what comes of another stays as it is.

    Args:
        body: what is computed.
        functions: those that it calls, by name.
        name_of: what stands for a result: of loop, row and result.
    """
    steps = body.steps
    chosen, first = _chosen(body, functions)
    if not chosen:
        return None
    rows = [
        Rows(
            function,
            (),
            [[float(steps[a].value) for a in steps[i].args if steps[a].is_constant] for i in calls],
            len(functions[function].outputs),
        )
        for (function, *_), calls in chosen.items()
    ]
    place_of = _places(body, chosen.values())
    summed = _Sums(replace(body, steps=dict(steps)), place_of).by_loops(rows)
    passed = {i for i in first if _is_value(steps[i]) and steps[i].type is not Type.BOOL}
    read = _needed(summed, summed.outputs, {*place_of, *passed})
    for number, _, result in (place_of[index] for index in read if index in place_of):
        rows[number].kept.add(result)
    given = [a for _, args, _ in chosen for a in args if a is not None and _is_value(steps[a])]
    given = list(dict.fromkeys([*given, *(index for index in steps if index in read and index in passed)]))
    names = {index: f"b{k}" for k, index in enumerate(given)}
    for one, (_, args, _) in zip(rows, chosen, strict=True):
        one.args = tuple(None if a is None else names.get(a) or steps[a].name for a in args)
    names |= {index: name_of(*place) for index, place in place_of.items()}
    before = replace(body, steps={i: s for i, s in steps.items() if i in first}, outputs=tuple(given))
    after = {i: Step(Op.INPUT, type=s.type, name=names[i]) if i in names else s for i, s in summed.steps.items()}
    after = {i: step for i, step in after.items() if i in read}
    return Split(
        _with_inputs(before), tuple(names[i] for i in given), tuple(rows), _with_inputs(replace(summed, steps=after))
    )


def _chosen(body: Body, functions: Mapping[str, Body]) -> tuple[dict[_Key, list[int]], set[int]]:
    """The calls that become loops, by what they have in common; and the steps that they need."""
    steps = body.steps
    calls_of: dict[tuple[str, tuple[int | None, ...]], list[int]] = defaultdict(list)
    for index, step in steps.items():
        if isinstance(step.op, Call):
            args = tuple(None if steps[a].is_constant else a for a in step.args)
            calls_of[step.op.function, args].append(index)
    # Some calls may do less than others: each kind is a loop.
    alike = [calls for calls in calls_of.values() if len(calls) > 1]
    taken = _Sums(body, _places(body, alike)).taken()
    groups: dict[_Key, list[int]] = defaultdict(list)
    for (function, args), calls in calls_of.items():
        for index in calls:
            groups[function, args, frozenset(taken[index])].append(index)
    chosen: dict[_Key, list[int]] = {}
    first, looped = set[int](), set[int]()
    for key, calls in groups.items():
        size = sum(bool(step.args) for step in functions[key[0]].steps.values())
        needs = _needed(body, (a for a in key[1] if a is not None))
        if (len(calls) - 1) * size >= _LEAST_SAVED and looped.isdisjoint(needs) and first.isdisjoint(calls):
            chosen[key] = calls
            first |= needs
            looped.update(calls)
    return chosen, first


def _places(body: Body, groups: Iterable[Sequence[int]]) -> dict[int, _Place]:
    """The results of calls, by loop, row and result."""
    of_call = {index: (number, k) for number, calls in enumerate(groups) for k, index in enumerate(calls)}
    found: dict[int, _Place] = {}
    for index, step in body.steps.items():
        if isinstance(step.op, Result) and step.args[0] in of_call:
            found[index] = (*of_call[step.args[0]], step.op.number)
        elif index in of_call and step.is_operation:
            found[index] = (*of_call[index], 0)
    return found


class _Sums:
    """Sums of products of a loop's results and numbers."""

    def __init__(self, body: Body, place_of: Mapping[int, _Place]) -> None:
        self.body, self.place_of, self.uses = body, place_of, body.uses()
        self.rows: list[Rows] = []
        self.count = 0

    def taken(self) -> dict[int, set[tuple[int, int]]]:
        """Of each call the sums that take in results of it, with which of them."""
        found: dict[int, set[tuple[int, int]]] = defaultdict(set)
        links: set[int] = set()
        for root in reversed(list(self.body.steps)):
            if root in links:
                continue
            more, terms, _ = self._chain(root)
            links |= set(more)
            for value in (value for term in terms if self._weighted(term) for value in term if value in self.place_of):
                step = self.body.steps[value]
                call = step.args[0] if isinstance(step.op, Result) else value
                found[call].add((root, self.place_of[value][2]))
        return found

    def by_loops(self, rows: list[Rows]) -> Body:
        """Let loops take what they can of all sums; the body that reads these."""
        self.rows = rows
        links: set[int] = set()
        for root in reversed(list(self.body.steps)):
            if root not in links:
                links |= self._take(root)
        self.body.tidy()
        return self.body

    def _take(self, root: int) -> set[int]:
        """Let loops take what they can of a sum, whose links are returned."""
        steps = self.body.steps
        links, terms, start = self._chain(root)
        weights: dict[_Term, dict[int, float]] = defaultdict(dict)
        where: dict[_Term, list[tuple[int, int]]] = defaultdict(list)
        for term in terms:
            if found := self._weighted(term):
                row, key, weight = found
                if row not in weights[key]:
                    weights[key][row] = weight
                    where[key].append(term)
        whole = {key for key, of in weights.items() if len(of) == len(self.rows[key[0]].table)}
        if not whole:
            return set(links)
        total: int | None = None
        for number in dict.fromkeys(key[0] for key in whole):
            rows, name = self.rows[number], f"a{self.count}"
            self.count += 1
            rows.sums[name] = []
            for key in sorted(key for key in whole if key[0] == number):
                _, result, other = key
                rows.sums[name].append((result, other if other >= 0 else None, len(rows.table[0])))
                for row, line in enumerate(rows.table if other < 0 else ()):
                    line.append(weights[key][row])
            total = self._added(total, self._new(Step(Op.INPUT, type=Type.F64, name=name)))
        gone = Counter(term for key in whole for term in where[key])
        for value, weight in reversed(terms):
            if gone[value, weight]:
                gone[value, weight] -= 1
            elif weight < 0:
                total = self._added(total, value)
            elif total is not None:
                total = self._new(Step(Op.FMA, (value, weight, total), Type.F64))
        if start is not None:
            total = self._added(total, start)
        if total is not None:
            steps[root] = steps.pop(total)
        return set(links)

    def _chain(self, root: int) -> tuple[list[int], list[tuple[int, int]], int | None]:
        """What a sum is made of: links, the last first; pairs that are multiplied, of -1 for 1; what it begins with."""
        steps, links, terms, at = self.body.steps, list[int](), list[tuple[int, int]](), root
        while steps[at].op in (Op.FMA, Op.ADD, Op.MUL) and (not links or self.uses[at] == 1):
            args = steps[at].args
            if steps[at].op is Op.ADD:
                one = next((a for a in args if a in self.place_of), None)
                if one is None:
                    break
                terms.append((one, -1))
                links.append(at)
                at = args[1] if args[0] == one else args[0]
                continue
            if steps[at].op is Op.MUL and not self._weighted((args[0], args[1])):
                break
            terms.append((args[0], args[1]))
            links.append(at)
            if steps[at].op is Op.MUL:
                return links, terms, None
            at = args[2]
        if links and at in self.place_of:
            return links, [*terms, (at, -1)], None
        return links, terms, at

    def _weighted(self, term: tuple[int, int]) -> tuple[int, _Term, float] | None:
        """Of a loop's result times a number, or times another of its row: the row, what it is, and the number."""
        steps, place_of = self.body.steps, self.place_of
        for value, weight in (term, term[::-1]):
            if value in place_of:
                number, row, result = place_of[value]
                if weight < 0 or steps[weight].is_constant:
                    return row, (number, result, -1), 1.0 if weight < 0 else float(steps[weight].value)
                if place_of.get(weight, ())[:2] == (number, row):
                    least, most = sorted((result, place_of[weight][2]))
                    return row, (number, least, most), 1.0
        return None

    def _added(self, total: int | None, value: int) -> int:
        return value if total is None else self._new(Step(Op.ADD, (value, total), Type.F64))

    def _new(self, step: Step) -> int:
        index = max(self.body.steps) + 1
        self.body.steps[index] = step
        return index


def _is_value(step: Step) -> bool:
    """Whether it is computed, and one value."""
    return bool(step.args) and not (isinstance(step.op, Call) and step.op.results > 1)


def _needed(body: Body, wanted: Iterable[int], stops: Collection[int] = ()) -> set[int]:
    """The steps that some need; of ``stops`` themselves alone."""
    found, stack = set[int](), list(wanted)
    while stack:
        index = stack.pop()
        if index not in found:
            found.add(index)
            if index not in stops:
                stack.extend(body.steps[index].args)
    return found


def _with_inputs(body: Body) -> Body:
    """The same, with what it reads for inputs."""
    return replace(body, inputs=tuple(step.name for step in body.steps.values() if step.name is not None))
