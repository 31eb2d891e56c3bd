"""Measured ablation: which real nodes must be double-floats for the program to be as accurate as asked.

Starts from a program in which every node is a double-float, measures how much
worse each node makes the result when it is carried as one float32, and demotes
nodes as long as the error over the calibration points stays within the goal,
cheapest error per operation saved first.

What is demoted at a time is a *part*: one node, or in a graph of very many a
group of nodes of like role (the squares of all arguments, the last steps of all
polynomials), so that the number of trials stays bounded.  A group that cannot
be demoted as a whole is split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.kinds import CONDITIONS
from momentgen.compiler.ir.values import evaluate_float64
from momentgen.compiler.lower.trials import Calibration, Trial, Trials, orders_of

_SINGLY = 300  # candidates: where there are more, they are demoted in groups
_GROUPS = 48  # to begin with
_TRIALS = 150  # after so many no group is split any more
_DEEPEST = 5  # how far down two nodes' operands are compared, at the most, to tell their roles apart
_LEAVES = frozenset({"input", "param", "scalar", "exp_factor", "head", "tail"})

#: nodes that are demoted together, in the graph's order
Part = tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """What ablation found: the nodes to carry as double-floats, and the error reached with and without them.

    ``order`` is that in which parts were tried as single floats, cheapest error first.
    """

    double: frozenset[int]
    orders: Mapping[int, int]
    error: Mapping[str, float]
    all_double: Mapping[str, float]
    all_single: Mapping[str, float]
    trials: int
    order: tuple[Part, ...] = ()


class _Search:
    def __init__(self, graph: Graph, name: str, calibrations: Sequence[Calibration]) -> None:
        self.graph = graph
        self.seen: dict[frozenset[int], Trial] = {}
        orders: dict[int, int] = {}
        for calibration in calibrations:
            points = {**calibration.inputs, **calibration.real}
            found = orders_of(graph, evaluate_float64(graph, points))
            orders = {k: w if orders.get(k, w) == w else 0 for k, w in found.items()}
        self.orders = orders
        self.trials = Trials(graph, name, orders, calibrations)
        live, nodes = graph.live(), graph.nodes
        #: nodes that depend on an input; the rest are computed once a call and cost nothing an element
        self.varying: set[int] = set()
        for index in live:
            if nodes[index].kind == "input" or not self.varying.isdisjoint(nodes[index].args):
                self.varying.add(index)
        #: nodes of constants and parameters alone: carried as double-floats, which costs nothing where unused
        self.fixed = frozenset(live) - self.varying

    def candidates(self, *, suspects: bool = True) -> list[int]:
        """Nodes that can be demoted one by one; a constant follows the node that uses it."""
        kinds, named = CONDITIONS | _LEAVES | {"const"}, self.graph.suspects
        found = [i for i in self.graph.live() if self.graph.nodes[i].kind not in kinds and i in self.varying]
        return [i for i in found if i in named] if named and suspects else found

    def try_(self, double: frozenset[int]) -> Trial:
        """Lower, run and measure."""
        if double not in self.seen:
            trial = self.trials.measure(double | self.fixed)
            self.seen[double] = Trial(double, trial.error, trial.operations)
        return self.seen[double]


def choose(
    graph: Graph, name: str, calibrations: Sequence[Calibration], goal: float, order: Sequence[Part] = ()
) -> Choice:
    """The double-float nodes that keep every output of ``graph`` within ``goal``.

    Args:
        goal: largest error allowed at the calibration points.
        order: that of an earlier choice for this graph, at fewer points: half the work is to find it.

    Returns:
        The choice; where even the all-double program misses the goal, that program (its error says so).
    """
    search = _Search(graph, name, calibrations)
    candidates = search.candidates()
    everything, nothing = search.try_(frozenset(candidates)), search.try_(frozenset())

    def chosen(trial: Trial) -> Choice:
        double, tried = trial.double | search.fixed, search.trials.tried
        return Choice(double, search.orders, trial.error, everything.error, nothing.error, tried, tuple(order))

    if nothing.worst <= goal:
        return chosen(nothing)
    if everything.worst > goal and graph.suspects:
        candidates = search.candidates(suspects=False)
        everything = search.try_(frozenset(candidates))
    if everything.worst > goal:
        return chosen(everything)
    roles = _Roles(graph)
    if not order:
        rate: dict[Part, float] = {}  # loss for each operation saved
        for part in roles.parts(candidates):
            trial = search.try_(everything.double.difference(part))
            rate[part] = max(trial.worst - everything.worst, 0.0) / max(everything.operations - trial.operations, 0.1)
        order = sorted(rate, key=lambda part: (rate[part], part))
    trials = _TRIALS if len(candidates) > _SINGLY else math.inf
    return chosen(_again(search, _demote(search, everything, order, goal), order, roles, goal, trials))


class _Roles:
    """What nodes are for: a node's kind, the kinds of its operands, those of theirs, and so on."""

    def __init__(self, graph: Graph) -> None:
        live, nodes = graph.live(), graph.nodes
        kinds: dict[str, int] = {}
        roles = {index: kinds.setdefault(nodes[index].kind, len(kinds)) for index in live}
        self._by_depth = [roles]
        for _ in range(_DEEPEST):
            known: dict[tuple[int, ...], int] = {}
            seen = {index: (roles[index], *(roles[a] for a in nodes[index].args)) for index in live}
            roles = {index: known.setdefault(role, len(known)) for index, role in seen.items()}
            self._by_depth.append(roles)

    def split(self, part: Part) -> list[Part]:
        """The parts of a part: by the first difference between roles, or else the earlier and the later half."""
        for roles in self._by_depth:
            groups: dict[int, list[int]] = {}
            for index in part:
                groups.setdefault(roles[index], []).append(index)
            if len(groups) > 1:
                return [tuple(group) for group in groups.values()]
        half = len(part) // 2
        return [part[:half], part[half:]] if half else [part]

    def parts(self, candidates: Sequence[int]) -> list[Part]:
        """What to demote at a time: single nodes if they are few, else some groups, the largest split first."""
        if len(candidates) <= _SINGLY:
            return [(index,) for index in candidates]
        parts = [tuple(candidates)]
        while len(parts) < _GROUPS:
            largest = max(parts, key=len)
            parts.remove(largest)
            parts += self.split(largest)
        return parts


def _again(search: _Search, best: Trial, order: Sequence[Part], roles: _Roles, goal: float, trials: float) -> Trial:
    """Demoting changes what a node's neighbours are worth: go over the rest once more, latest nodes first.

    A group is split for it, the largest first, and again until ``trials`` have been made.
    """
    left = [part for part in order if best.double.issuperset(part)]
    left += roles.parts(sorted(best.double.difference(*left)))  # an earlier order may be one of suspects alone
    again = True
    while again:
        again = any(len(part) > 1 for part in left)
        left = [smaller for part in left for smaller in roles.split(part)]
        for part in sorted(left, key=lambda part: (len(part), part), reverse=True):
            if search.trials.tried >= trials:
                return best
            trial = search.try_(best.double.difference(part))
            if trial.worst <= goal and trial.operations < best.operations:
                best = trial
                left.remove(part)
    return best


def _demote(search: _Search, best: Trial, order: Sequence[Part], goal: float) -> Trial:
    """Demote along ``order`` as long as the goal holds, in batches, doubled and halved."""
    size = len(order)
    while order:
        trial = search.try_(best.double.difference(*order[:size]))
        if trial.worst <= goal:
            best, order, size = trial, order[size:], 2 * size
        elif size > 1:
            size //= 2
        else:
            order, size = order[1:], 2
        size = min(size, len(order))
    return best
