"""What the float64 renderers share: a real graph as straight sections and loops over tables of coefficients.

A graph for float64 may have thousands of nodes, most of which say the same again with other constants: polynomials,
and the atoms of a sum.  Here they are found by their shape alone:

- a chain of multiply-adds by one value is a *polynomial*, with its coefficients in a table;
- parts of a graph that differ in constants alone, and that are only summed up (each value times a constant), are one
  *loop*, with those constants in the rows of a table and the sums as accumulators.

Sums are therefore taken atom by atom.  Nothing else is changed.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from momentgen.compiler.real import CONDITIONS, Graph

__all__ = ["Form", "Item", "Loop", "Section", "Tables", "form_of"]

_SHORTEST_POLYNOMIAL = 3  # multiply-adds
_SMALLEST_BODY = 6  # operations
_COMMUTATIVE = frozenset({"add", "mul", "and", "or", "eq"})


@dataclass(frozen=True)
class Item:
    """One operation: a node of the graph, or one of these.

    - ``polynomial`` of its first argument, ``payload`` the coefficients from high to low; with a second argument, that
      is the value before the first coefficient;
    - ``column``, the constant number ``payload`` in the row of a loop;
    - ``accumulator``, what loops have added up; ``same``, its argument.
    """

    kind: str
    args: tuple[int, ...] = ()
    payload: Any = None


@dataclass(frozen=True)
class Section:
    """Operations one after the other."""

    items: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """The same operations for every row of a table.

    Attributes:
        turns: how many rows the table has, which is its key among the :class:`Tables`.
        items: the operations of a turn.
        sums: accumulator -> pairs of values whose products it takes in at each turn, from 0 on.
    """

    turns: int
    items: tuple[int, ...]
    sums: Mapping[int, tuple[tuple[int, int], ...]]


class Tables:
    """The tables of the loops of some forms: one for each number of rows, whose columns the loops share."""

    def __init__(self) -> None:
        self._columns: dict[int, dict[tuple[float, ...], int]] = defaultdict(dict)

    def column(self, values: tuple[float, ...]) -> int:
        """The number of a column, made where there is none of these values."""
        columns = self._columns[len(values)]
        return columns.setdefault(values, len(columns))

    def rows(self) -> dict[int, list[tuple[float, ...]]]:
        """Number of rows -> rows."""
        return {turns: list(zip(*columns, strict=True)) for turns, columns in self._columns.items()}


@dataclass
class Form:
    """A graph for the float64 renderers.

    Attributes:
        inputs, params: as of the graph.
        items: all operations, by number.
        parts: what is to be computed, in order.
        outputs: name -> number.
        comments: number -> what it is.
    """

    inputs: tuple[str, ...]
    params: tuple[str, ...]
    items: dict[int, Item]
    parts: list[Section | Loop] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)
    comments: dict[int, str] = field(default_factory=dict)

    def uses(self) -> Counter[int]:
        """How often each value is read: in a loop, by an accumulator, or as an output."""
        found: Counter[int] = Counter(self.outputs.values())
        for part in self.parts:
            for index in part.items:
                found.update(self.items[index].args)
            if isinstance(part, Loop):
                for pairs in part.sums.values():
                    found.update(itertools.chain(*pairs))
        return found

    def crossing(self) -> list[int]:
        """Values that are read in another part than they are made in, in order; outputs are read in the last."""
        made = {index: number for number, part in enumerate(self.parts) for index in part.items}
        found: dict[int, None] = {}

        def read(number: int, indices: Iterable[int]) -> None:
            found.update(dict.fromkeys(index for index in indices if made.get(index, number) != number))

        for number, part in enumerate(self.parts):
            read(number, itertools.chain(*(self.items[index].args for index in part.items)))
            if isinstance(part, Loop):
                read(number, itertools.chain(*itertools.chain(*part.sums.values())))
        read(len(self.parts) - 1, self.outputs.values())
        return list(found)

    def is_condition(self, index: int) -> bool:
        """Whether a value is true or false."""
        return self.items[index].kind in CONDITIONS


def form_of(graph: Graph, tables: Tables | None = None) -> Form:
    """Polynomials and loops of a graph; the constants of the loops go to ``tables``.

    >>> g = Graph(inputs=("x",))
    >>> g.output("y", g.horner(g.input("x"), [1, 2, 3, 4]))
    >>> form = form_of(g)
    >>> [form.items[i].payload for i in form.parts[0].items]
    [(4.0, 3.0, 2.0, 1.0)]
    """
    tables = Tables() if tables is None else tables
    try:
        return _Finder(graph, tables).form()
    except CycleError:  # what a loop would add up is needed within it
        return _Finder(graph, tables).form(loops=False)


@dataclass(frozen=True)
class _Chain:
    """A sum of products by constants: pairs, the last added first; what it begins with; the nodes that add."""

    terms: list[tuple[int, int]]
    rest: int | None
    links: set[int]


@dataclass(frozen=True)
class _Turn:
    """What may be one turn of a loop: operations, and what they add to which sum."""

    items: list[int]
    sums: dict[int, tuple[tuple[int, int], ...]]


class _Finder:
    def __init__(self, graph: Graph, tables: Tables) -> None:
        self.graph, self.tables = graph, tables
        self.items: dict[int, Item] = {}
        #: what stands for a node: another, where an operation does nothing
        stands: dict[int, int] = {}
        for index in graph.live():
            node = graph.nodes[index]
            args = tuple(stands[a] for a in node.args)
            stands[index] = index
            if node.kind == "exp_factor":  # the mantissa carries the whole exponential here
                self.items[index] = Item("const", (), 1.0)
                continue
            if node.kind == "const":
                self.items[index] = Item("const", (), float(node.payload))
                continue
            if node.kind == "mul" and (one := next((a for a in args if self._is_one(a)), None)) is not None:
                stands[index] = args[0] if args[1] == one else args[1]
                continue
            if node.kind in _COMMUTATIVE or node.kind == "madd":  # constants behind, so that like looks alike
                args = (*sorted(args[:2], key=lambda a: self.items[a].kind == "const"), *args[2:])
            self.items[index] = Item(node.kind, args, node.payload)
        self.outputs = {name: stands[index] for name, index in graph.outputs.items()}
        self.fresh = itertools.count(len(graph.nodes))
        self.columns: dict[Item, int] = {}
        self.before: dict[int, int] = {}  # of a new item: which it comes before

    def _is_one(self, index: int) -> bool:
        item = self.items[index]
        return item.kind == "const" and item.payload == 1.0

    def _const(self, index: int) -> bool:
        return self.items[index].kind == "const"

    def _uses(self) -> Counter[int]:
        found: Counter[int] = Counter(self.outputs.values())
        for index in self._live():
            found.update(self.items[index].args)
        return found

    def _live(self) -> list[int]:
        needed: set[int] = set()
        stack = list(self.outputs.values())
        while stack:
            index = stack.pop()
            if index not in needed:
                needed.add(index)
                stack.extend(self.items[index].args)
        return sorted(needed)

    def form(self, loops: bool = True) -> Form:
        self._polynomials()
        self._weights_behind()
        self.items = {index: self.items[index] for index in self._live()}
        groups, chains = self._groups() if loops else ([], {})
        summed: dict[int, set[int]] = defaultdict(set)  # of a sum: the values that loops add to it
        for turn in itertools.chain(*groups):
            for root, pairs in turn.sums.items():
                summed[root] |= {value for value, _ in pairs}
        made = [self._loop(group) for group in groups]
        accumulators = {root: self._accumulator(root, chains[root], values) for root, values in summed.items()}
        made = [Loop(each.turns, each.items, {accumulators[r]: p for r, p in each.sums.items()}) for each in made]
        form = Form(self.graph.inputs, self.graph.params, self.items, self._parts(made), self.outputs)
        form.comments = {i: text for i, text in self.graph.comments.items() if i in self.items}
        return form

    def _groups(self) -> tuple[list[list[_Turn]], dict[int, _Chain]]:
        """Turns of loops, and the sums that take them in."""
        longest = max((len(chain.terms) for chain in self._chains().values()), default=0)
        for least in sorted({2, max(longest // 2, 2)}):
            clusters, chains = self._clusters(least)
            if groups := self._alike(self._turns(clusters, chains)):
                return groups, chains
            # What all turns read may have its like, too, but not as often as there are turns.
        return [], {}

    # --- polynomials -------------------------------------------------------------
    def _polynomials(self) -> None:
        uses, taken = self._uses(), set()
        for index in reversed(self._live()):
            if index not in taken and (found := self._polynomial(index, uses)):
                item, links = found
                taken |= links
                self.items[index] = item

    def _polynomial(self, index: int, uses: Counter[int]) -> tuple[Item, set[int]] | None:
        """The longest chain of multiply-adds by one value that ends here."""
        item = self.items[index]
        if item.kind != "madd" or not self._const(item.args[2]):
            return None
        best: tuple[Item, set[int]] | None = None
        for x in dict.fromkeys(item.args[:2]):
            coefficients, links, at = [], set(), index
            while True:
                link = self.items[at]
                chained = link.kind == "madd" and self._const(link.args[2]) and x in link.args[:2]
                if not chained or (at != index and uses[at] > 1):
                    start = at
                    break
                links.add(at)
                coefficients.append(self.items[link.args[2]].payload)
                at = link.args[1] if link.args[0] == x else link.args[0]
            if len(links) < _SHORTEST_POLYNOMIAL or (best and len(best[1]) >= len(links)):
                continue
            high = [self.items[start].payload] if self._const(start) else []
            args = (x,) if high else (x, start)
            best = Item("polynomial", args, (*high, *reversed(coefficients))), links
        return best

    # --- loops -------------------------------------------------------------------
    def _weights_behind(self) -> None:
        for index, item in list(self.items.items()):
            if item.kind in ("mul", "madd") and self._weight(item.args[0]) and not self._weight(item.args[1]):
                self.items[index] = Item(item.kind, (item.args[1], item.args[0], *item.args[2:]), item.payload)

    def _chain(self, index: int, uses: Counter[int]) -> _Chain:
        """Products by constants that are added up here, the rest, and the nodes that add."""
        terms: list[tuple[int, int]] = []
        links: set[int] = set()
        at: int | None = index
        while at is not None and (at == index or uses[at] == 1):
            item = self.items[at]
            if item.kind not in ("madd", "mul") or not self._weight(item.args[1]) or self._weight(item.args[0]):
                break
            terms.append((item.args[0], item.args[1]))
            links.add(at)
            at = item.args[2] if item.kind == "madd" else None
        return _Chain(terms, at, links)

    def _weight(self, index: int) -> bool:
        """A constant, or one on either side."""
        item = self.items[index]
        return item.kind == "const" or (item.kind == "select" and all(map(self._const, item.args[1:])))

    def _chains(self) -> dict[int, _Chain]:
        """Sums of products by constants, by where they end."""
        uses = self._uses()
        chains: dict[int, _Chain] = {}
        inside: set[int] = set()
        for index in sorted(self.items, reverse=True):
            if index not in inside:
                chain = self._chain(index, uses)
                if len(chain.terms) > 1:
                    chains[index] = chain
                    inside |= chain.links
        return chains

    def _clusters(self, least: int) -> tuple[list[set[int]], dict[int, _Chain]]:
        """Parts that are alike, made of what has at least so many likes, and the sums that take them in."""
        chains = self._chains()
        for _ in range(3):
            adders: set[int] = set().union(*(chain.links for chain in chains.values()))
            clusters = self._components(adders, least)
            member = {index: number for number, cluster in enumerate(clusters) for index in cluster}
            kept = {
                index: chain
                for index, chain in chains.items()
                if len({member.get(term[0], -1) for term in chain.terms} - {-1}) > 1
            }
            if len(kept) == len(chains):
                break
            chains = kept
        return clusters, chains

    def _components(self, adders: set[int], least: int) -> list[set[int]]:
        shapes: dict[Any, int] = {}
        shape: dict[int, int] = {}
        classes: dict[int, list[int]] = defaultdict(list)
        for index in sorted(self.items):
            item = self.items[index]
            key: Any = (item.kind, tuple(shape[a] for a in item.args), item.payload)
            if item.kind == "const":
                key = "const"
            elif index in adders:
                key = index
            shape[index] = shapes.setdefault(key, len(shapes))
            if item.args and index not in adders:
                classes[shape[index]].append(index)
        many = {index for members in classes.values() if len(members) >= least for index in members}
        parent = {index: index for index in many}

        def root(index: int) -> int:
            while parent[index] != index:
                parent[index] = parent[parent[index]]
                index = parent[index]
            return index

        for index in sorted(many):
            for a in self.items[index].args:
                if a in many:
                    parent[root(index)] = root(a)
        found: dict[int, set[int]] = defaultdict(set)
        for index in sorted(many):
            found[root(index)].add(index)
        return [cluster for _, cluster in sorted(found.items()) if len(cluster) >= _SMALLEST_BODY]

    # --- what comes when ---------------------------------------------------------
    def _turns(self, clusters: list[set[int]], chains: Mapping[int, _Chain]) -> list[_Turn]:
        """Each cluster that is only summed up: its operations in order, and what they add to which sum."""
        uses = self._uses()
        sums: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        member = {index: number for number, cluster in enumerate(clusters) for index in cluster}
        for root, chain in chains.items():
            for value, weight in reversed(chain.terms):
                if value in member:
                    sums[member[value]][root].append((value, weight))
        found: list[_Turn] = []
        for number, cluster in enumerate(clusters):
            items = sorted(cluster)
            added = [pair for pairs in sums[number].values() for pair in pairs]
            read = Counter(a for index in items for a in self.items[index].args)
            read.update(value for value, _ in added)
            if not added or any(uses[index] != read[index] for index in items):
                continue
            weights = Counter(weight for _, weight in added if not self._const(weight))
            items += [weight for weight, count in weights.items() if weight not in member and uses[weight] == count]
            found.append(_Turn(items, {root: tuple(pairs) for root, pairs in sums[number].items()}))
        return found

    def _alike(self, turns: list[_Turn]) -> list[list[_Turn]]:
        """Those that differ in constants alone, together; what has no like stays where it is."""
        groups: dict[Any, list[_Turn]] = defaultdict(list)
        for turn in turns:
            place = {index: number for number, index in enumerate(turn.items)}

            def mark(index: int, place: Mapping[int, int] = place) -> Any:
                return "#" if self._const(index) else (place[index],) if index in place else index

            items = (self.items[index] for index in turn.items)
            body = tuple((item.kind, item.payload, tuple(map(mark, item.args))) for item in items)
            added = tuple((root, tuple((mark(v), mark(w)) for v, w in pairs)) for root, pairs in turn.sums.items())
            groups[body, added].append(turn)
        return [group for group in groups.values() if len(group) > 1]

    def _loop(self, group: list[_Turn]) -> Loop:
        """One loop for parts that are alike: their constants are the rows of its table."""
        first = group[0]

        def constants(turn: _Turn) -> list[int]:
            args = [a for index in turn.items for a in self.items[index].args]
            args += [weight for pairs in turn.sums.values() for pair in pairs for weight in pair]
            return [a for a in args if self._const(a)]

        values = zip(*([self.items[a].payload for a in constants(turn)] for turn in group), strict=True)
        stand = iter([self._column(column) for column in values])

        def place(index: int) -> int:
            if not self._const(index):
                return index
            column = next(stand)
            return index if column is None else column

        for index in first.items:
            item = self.items[index]
            self.items[index] = Item(item.kind, tuple(map(place, item.args)), item.payload)
        sums = {root: tuple((place(v), place(w)) for v, w in pairs) for root, pairs in first.sums.items()}
        return Loop(len(group), tuple(first.items), sums)

    def _column(self, values: tuple[float, ...]) -> int | None:
        """What stands for constants of all turns; None where they are the same."""
        if len({value.hex() for value in values}) == 1:
            return None
        item = Item("column", (), self.tables.column(values))
        if item not in self.columns:
            self.columns[item] = next(self.fresh)
            self.items[self.columns[item]] = item
        return self.columns[item]

    def _accumulator(self, root: int, chain: _Chain, summed: set[int]) -> int:
        """What loops add up of a sum; its node becomes that, other products, and what the sum begins with."""
        accumulator = at = self._new(Item("accumulator"), root)
        for value, weight in reversed(chain.terms):
            if value not in summed:
                at = self._new(Item("madd", (value, weight, at)), root)
        self.items[root] = Item("same", (at,)) if chain.rest is None else Item("add", (at, chain.rest))
        return accumulator

    def _new(self, item: Item, before: int) -> int:
        index = next(self.fresh)
        self.items[index] = item
        self.before[index] = before
        return index

    def _parts(self, loops: list[Loop]) -> list[Section | Loop]:
        """Sections and loops, each as early as what it needs."""
        inside = {index for loop in loops for index in loop.items}
        feeds: dict[int, list[int]] = defaultdict(list)
        needs: list[set[int]] = []
        for number, loop in enumerate(loops):
            read = itertools.chain(
                *(self.items[index].args for index in loop.items), *itertools.chain(*loop.sums.values())
            )
            needs.append({a for a in read if a not in inside and self.items[a].kind != "column"})
            for accumulator in loop.sums:
                feeds[accumulator].append(number)
        # A loop is the number below 0 of its place.
        waits: dict[int, set[int]] = {}
        stack = list(self.outputs.values())
        while stack:
            index = stack.pop()
            if index not in waits:
                waits[index] = needs[~index] if index < 0 else {*self.items[index].args, *(~n for n in feeds[index])}
                stack.extend(waits[index])
        level: dict[int, int] = {}
        for index in TopologicalSorter(waits).static_order():
            level[index] = max((level[a] + (a < 0) for a in waits[index]), default=0)
        straight: dict[int, list[int]] = defaultdict(list)
        for index in sorted(waits, key=lambda index: (self.before.get(index, index), index not in self.before, index)):
            if index >= 0 and self.items[index].args:
                straight[level[index]].append(index)
        parts: list[Section | Loop] = []
        for at in range(1 + max(level.values(), default=0)):
            if straight[at]:
                parts.append(Section(tuple(straight[at])))
            parts += [loop for number, loop in enumerate(loops) if level[~number] == at]
        return parts
