"""Loops and polynomials of a real graph: what a float64 renderer writes in place of thousands of operations.

A graph for float64 may have thousands of nodes, most of which say the same again with other constants: polynomials,
the atoms of a sum, the nodes of a quadrature.  Here they are found by their shape alone, and become a
:class:`momentgen.compiler.emit._form.Form`:

- a chain of multiply-adds by one value is a *polynomial*, with its coefficients in a table;
- what a graph says is a polynomial of two values is one operation, with those in a table;
- parts of a graph that differ in constants alone, and that are only summed up (products of their values, with constants
  or each other), are one *loop*, with those constants in the rows of a table and the sums as accumulators.

Sums are therefore taken part by part.  Nothing else is changed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from copy import deepcopy
from graphlib import CycleError, TopologicalSorter
from typing import Any

from momentgen.compiler.emit._chains import Chain, chains_of, is_weight
from momentgen.compiler.emit._connected import connected
from momentgen.compiler.emit._form import SURFACES, Form, Item, Loop, Section, Surfaces, Tables
from momentgen.compiler.emit._turns import Turn, families
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.kinds import KINDS

__all__ = ["form_of"]

_SHORTEST_POLYNOMIAL = 3  # multiply-adds
_SMALLEST_BODY = 6  # operations
_PASSES = 3  # kinds of loops, one after the other
_TRIED = 12  # numbers of like values that are tried as that of a loop's turns


def form_of(graph: Graph, tables: Tables | None = None, cells: Mapping[int, int] | None = None) -> Form:
    """Polynomials and loops of a graph; the constants of the loops go to ``tables``.

    ``cells`` are the nodes that are numbers of cells, by how many there are, where what calls the form computes them.

    >>> g = Graph(inputs=("x",))
    >>> g.output("y", g.horner(g.input("x"), [1, 2, 3, 4]))
    >>> form = form_of(g)
    >>> [form.items[i].payload for i in form.parts[0].items]
    [(4.0, 3.0, 2.0, 1.0)]
    """
    tables = Tables() if tables is None else tables
    for passes in (_PASSES, 1):
        own = deepcopy(tables)
        try:
            form = _Finder(graph, own, cells or {}).form(passes)
        except CycleError:  # what a loop would add up is needed within it
            continue
        tables.take(own)
        return form
    return _Finder(graph, tables, cells or {}).form(0)


def _live(graph: Graph) -> list[int]:
    """What the outputs need, in order; of a polynomial of two values these alone."""
    needed: set[int] = set()
    stack = list(graph.outputs.values())
    while stack:
        index = stack.pop()
        if index not in needed:
            needed.add(index)
            surface = graph.surfaces.get(index)
            stack.extend(graph.nodes[index].args if surface is None else (surface.y, surface.z, surface.cell))
    return sorted(needed)


class _Finder:
    def __init__(self, graph: Graph, tables: Tables, cells: Mapping[int, int]) -> None:
        self.graph, self.tables = graph, tables
        self.items: dict[int, Item] = {}
        #: what stands for a node: another, where an operation does nothing
        stands: dict[int, int] = {}
        for index in _live(graph):
            node = graph.nodes[index]
            stands[index] = index
            if index in graph.surfaces:
                surface = graph.surfaces[index]
                args = tuple(stands[a] for a in (surface.y, surface.z, surface.cell))
                self.items[index] = Item(surface.kind, args, surface.patches)
                continue
            if index in cells:
                self.items[index] = Item("cell", (), list(cells).index(index))
                continue
            args = tuple(stands[a] for a in node.args)
            if node.kind == "exp_factor":  # the mantissa carries the whole exponential here
                self.items[index] = Item("const", (), 1.0)
                continue
            if node.kind == "const":
                self.items[index] = Item("const", (), float(node.payload))
                continue
            if node.kind == "mul" and (one := next((a for a in args if self._is_one(a)), None)) is not None:
                stands[index] = args[0] if args[1] == one else args[1]
                continue
            if node.kind in KINDS and KINDS[node.kind].commutes:  # constants behind, so that like looks alike
                args = (*sorted(args[:2], key=lambda a: self.items[a].kind == "const"), *args[2:])
            self.items[index] = Item(node.kind, args, node.payload)
        self.outputs = {name: stands[index] for name, index in graph.outputs.items()}
        self.fresh = itertools.count(len(graph.nodes))
        self.one = next(self.fresh)
        self.items[self.one] = Item("const", (), 1.0)
        self.zero = next(self.fresh)
        self.items[self.zero] = Item("const", (), 0.0)
        self.columns: dict[Item, int] = {}
        self.inside: dict[int, Item] = {}  # what loops compute, and their columns
        self.reads: Counter[int] = Counter()  # what they read beside
        #: of a new item: which it comes before, which that comes before, and so on, the last first
        self.before: dict[int, tuple[int, ...]] = {self.one: (0,), self.zero: (0,)}

    def _is_one(self, index: int) -> bool:
        item = self.items[index]
        return item.kind == "const" and item.payload == 1.0

    def _const(self, index: int) -> bool:
        return self.items[index].kind == "const"

    def _uses(self) -> Counter[int]:
        found: Counter[int] = Counter(self.outputs.values()) + self.reads
        for index in self._live():
            found.update(self.items[index].args)
        return found

    def _live(self) -> list[int]:
        needed: set[int] = set()
        stack = [*self.outputs.values(), *self.reads, self.one, self.zero]
        while stack:
            index = stack.pop()
            if index not in needed:
                needed.add(index)
                stack.extend(self.items[index].args)
        return sorted(needed, key=self._place)

    def _place(self, index: int) -> tuple[float, ...]:
        """Where an operation stands: by number, but what is new before what it is for."""
        return (*self.before.get(index, ()), index, math.inf)

    def form(self, passes: int) -> Form:
        """The form, with loops found one kind after the other in so many passes."""
        self._polynomials()
        self._weights_behind()
        made: list[Loop] = []
        for _ in range(passes):
            self.items = {index: self.items[index] for index in self._live()}
            if not (found := self._take(*self._groups())):
                break
            made += found
        self.items = {index: self.items[index] for index in self._live()} | self.inside
        form = Form(self.graph.inputs, self.graph.params, self.items, self._parts(made), self.outputs)
        form.comments = {i: text for i, text in self.graph.comments.items() if i in self.items}
        return form

    def _take(self, groups: list[list[Turn]], chains: Mapping[int, Chain]) -> list[Loop]:
        """The loops of these turns, which the sums take in from then on."""
        summed: dict[int, set[frozenset[int]]] = defaultdict(set)  # of a sum: the products that loops add to it
        for turn in itertools.chain(*groups):
            for root, pairs in turn.taken.items():
                summed[root] |= set(map(frozenset, pairs))
        loops = [self._loop(group) for group in groups]
        for loop in loops:
            read = [a for index in loop.items for a in self.items[index].args]
            read += itertools.chain(*itertools.chain(*loop.sums.values()))
            self.inside |= {a: self.items[a] for a in (*loop.items, *read) if self.items[a].kind == "column"}
            self.inside |= {index: self.items[index] for index in loop.items}
            self.reads.update(a for a in read if a not in self.inside)
        sums = {root: self._accumulator(root, chains[root], products) for root, products in summed.items()}
        return [Loop(each.turns, each.items, {sums[r]: p for r, p in each.sums.items()}) for each in loops]

    def _groups(self) -> tuple[list[list[Turn]], dict[int, Chain]]:
        """Turns of loops, and the sums that take them in."""
        # What all turns read may have its like, too, but not as often as there are turns.
        best: tuple[int, list[list[Turn]], dict[int, Chain]] = (0, [], {})
        items = before = self.items
        for least in self._counts():
            self.items = dict(before)
            clusters, chains = self._clusters(least)
            groups = families(self.items, self._turns(clusters, chains), self.zero, self._new)
            saved = sum((len(group) - 1) * len(group[0].items) for group in groups)
            if saved > best[0]:
                best, items = (saved, groups, chains), self.items
        self.items = items
        return best[1:]

    def _counts(self) -> list[int]:
        """How many values may be alike at least: 2, half of the terms of a sum, or of the values that are."""
        chains = chains_of(self.items, self._uses(), self._place, self.one)
        shapes = self._shapes(set().union(*(chain.links for chain in chains.values())))
        alike = Counter(Counter(shapes[index] for index, item in self.items.items() if item.args).values())
        common = [count for count, _ in alike.most_common(_TRIED) if count > 1]
        return sorted({2, *(max(len(chain.terms) // 2, 2) for chain in chains.values()), *common})

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
            if item.kind not in ("mul", "madd"):
                continue
            if is_weight(self.items, item.args[0]) and not is_weight(self.items, item.args[1]):
                self.items[index] = Item(item.kind, (item.args[1], item.args[0], *item.args[2:]), item.payload)

    def _clusters(self, least: int) -> tuple[list[set[int]], dict[int, Chain]]:
        """Parts that are alike, made of what has at least so many likes, and the sums that take them in."""
        chains = chains_of(self.items, self._uses(), self._place, self.one)
        for _ in range(3):
            adders: set[int] = set().union(*(chain.links for chain in chains.values()))
            clusters = self._components(adders, least)
            member = {index: number for number, cluster in enumerate(clusters) for index in cluster}
            kept = {
                index: chain
                for index, chain in chains.items()
                if len({member[value] for term in chain.terms for value in term if value in member}) > 1
            }
            if len(kept) == len(chains):
                break
            chains = kept
        return clusters, chains

    def _shapes(self, adders: set[int]) -> dict[int, int]:
        """What tells values apart by their expressions, constants aside."""
        shapes: dict[Any, int] = {}
        shape: dict[int, int] = {}
        for index in sorted(self.items, key=self._place):
            item = self.items[index]
            key: Any = (item.kind, tuple(shape[a] for a in item.args), item.payload)
            if item.kind == "const":
                key = "const"
            elif index in adders:
                key = index
            shape[index] = shapes.setdefault(key, len(shapes))
        return shape

    def _components(self, adders: set[int], least: int) -> list[set[int]]:
        shape = self._shapes(adders)
        classes: dict[int, list[int]] = defaultdict(list)
        for index in sorted(self.items):
            if self.items[index].args and index not in adders and not self._is_surface(index):
                classes[shape[index]].append(index)
        many = {index for members in classes.values() if len(members) >= least for index in members}
        clusters = connected(many, lambda index: self.items[index].args)
        return [cluster for cluster in clusters if len(cluster) >= _SMALLEST_BODY]

    # --- what comes when ---------------------------------------------------------
    def _turns(self, clusters: list[set[int]], chains: Mapping[int, Chain]) -> list[Turn]:
        """Each cluster that is only summed up: its operations in order, and what they add to which sum."""
        uses = self._uses()
        sums: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        member = {index: number for number, cluster in enumerate(clusters) for index in cluster}
        for root, chain in chains.items():
            for pair in reversed(chain.terms):
                value, weight = pair if pair[0] in member else pair[::-1]
                if value in member and member.get(weight, member[value]) == member[value]:
                    sums[member[value]][root].append((value, weight))
        found: list[Turn] = []
        for number, cluster in enumerate(clusters):
            items = sorted(cluster, key=self._place)
            added = [pair for pairs in sums[number].values() for pair in pairs]
            read = Counter(a for index in items for a in self.items[index].args)
            read.update(value for pair in added for value in pair if value in cluster)
            for product in (chains[root].product for root in sums[number]):
                if product is not None and product in cluster:  # which the sum reads, in place of its factors
                    read[product] += 1
                    read.subtract(a for a in self.items[product].args if a in cluster)
            if not added or any(uses[index] != read[index] for index in items):
                continue
            weights = Counter(weight for _, weight in added if not self._const(weight))
            items += [weight for weight, count in weights.items() if weight not in member and uses[weight] == count]
            added_to = {root: tuple(pairs) for root, pairs in sums[number].items()}
            found.append(Turn(items, added_to, added_to))
        return found

    def _loop(self, group: list[Turn]) -> Loop:
        """One loop for parts that are alike: their constants are the rows of its table."""
        first = group[0]

        def constants(turn: Turn) -> list[int]:
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

    def _accumulator(self, root: int, chain: Chain, summed: set[frozenset[int]]) -> int:
        """What loops add up of a sum; its node becomes that, other products, and what the sum begins with."""
        accumulator = at = self._new(Item("accumulator"), root)
        for value, weight in reversed(chain.terms):
            if frozenset((value, weight)) not in summed:
                at = self._new(Item("madd", (value, weight, at)), root)
        self.items[root] = Item("same", (at,)) if chain.rest is None else Item("add", (at, chain.rest))
        return accumulator

    def _is_surface(self, index: int) -> bool:
        return index >= 0 and self.items[index].kind in SURFACES

    def _new(self, item: Item, before: int) -> int:
        index = next(self.fresh)
        self.items[index] = item
        self.before[index] = (*self.before.get(before, ()), before)
        return index

    def _parts(self, loops: list[Loop]) -> list[Section | Loop | Surfaces]:
        """Sections, polynomials of two values and loops, each as early as what it needs."""
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
            level[index] = max((level[a] + (a < 0 or self._is_surface(a)) for a in waits[index]), default=0)
        straight: dict[int, list[int]] = defaultdict(list)
        for index in sorted(waits, key=self._place):
            if index >= 0 and self.items[index].args:
                straight[level[index]].append(index)
        parts: list[Section | Loop | Surfaces] = []
        for at in range(1 + max(level.values(), default=0)):
            if section := tuple(index for index in straight[at] if not self._is_surface(index)):
                parts.append(Section(section))
            alike: dict[Any, list[int]] = defaultdict(list)
            for index in filter(self._is_surface, straight[at]):
                alike[self.items[index].args, self.items[index].payload].append(index)
            parts += [Surfaces(tuple(each)) for each in alike.values()]
            parts += [loop for number, loop in enumerate(loops) if level[~number] == at]
        return parts
