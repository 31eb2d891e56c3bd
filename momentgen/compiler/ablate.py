"""Measured ablation: which real nodes must be double-floats for the program to be as accurate as asked.

Starts from a program in which every node is a double-float, measures how much
worse each node makes the result when it is carried as one float32, and demotes
nodes as long as the error over the calibration points stays within the goal,
cheapest error per operation saved first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from momentgen.compiler.orders import orders_of
from momentgen.compiler.real import CONDITIONS, Graph, evaluate_float64
from momentgen.compiler.trials import Calibration, Trial, Trials

__all__ = ["Calibration", "Choice", "choose"]

_MANY = 300  # suspects: a graph that names more is the general fallback's, and too slow to be tried node by node
_LEAVES = frozenset({"input", "param", "scalar", "exp_factor", "head", "tail"})


@dataclass(frozen=True)
class Choice:
    """What ablation found: the nodes to carry as double-floats, and the error reached with and without them.

    ``order`` is that in which nodes were tried as single floats, cheapest error first.
    """

    double: frozenset[int]
    orders: Mapping[int, int]
    error: Mapping[str, float]
    all_double: Mapping[str, float]
    all_single: Mapping[str, float]
    trials: int
    order: tuple[int, ...] = ()


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
        self.varying = self._varying()
        self.fixed = self.always()

    def _varying(self) -> set[int]:
        """Nodes that depend on an input; the rest are computed once a call and cost nothing an element."""
        varying: set[int] = set()
        for index in self.graph.live():
            node = self.graph.nodes[index]
            if node.kind == "input" or any(a in varying for a in node.args):
                varying.add(index)
        return varying

    def candidates(self, *, suspects: bool = True) -> list[int]:
        """Nodes that can be demoted one by one; a constant follows the node that uses it."""
        kinds, named = CONDITIONS | _LEAVES | {"const"}, self.graph.suspects
        found = [i for i in self.graph.live() if self.graph.nodes[i].kind not in kinds and i in self.varying]
        return [i for i in found if i in named] if named and suspects else found

    def always(self) -> frozenset[int]:
        """Nodes of constants and parameters alone: carried as double-floats, which costs nothing where unused."""
        return frozenset(i for i in self.graph.live() if i not in self.varying)

    def try_(self, double: frozenset[int]) -> Trial:
        """Lower, run and measure."""
        known = self.seen.get(double)
        if known is not None:
            return known
        trial = self.trials.measure(double | self.fixed)
        trial = self.seen[double] = Trial(double, trial.error, trial.operations)
        return trial


def choose(
    graph: Graph, name: str, calibrations: Sequence[Calibration], goal: float, order: Sequence[int] = ()
) -> Choice:
    """The double-float nodes that keep every output of ``graph`` within ``goal``.

    Args:
        graph: what to compute.
        name: of the program, for messages.
        calibrations: points and error measures.
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
    if everything.worst > goal or (graph.suspects and len(search.candidates()) > _MANY):
        return chosen(everything)
    if not order:
        rate: dict[int, float] = {}  # loss for each operation saved
        for index in candidates:
            trial = search.try_(everything.double - {index})
            rate[index] = max(trial.worst - everything.worst, 0.0) / max(everything.operations - trial.operations, 0.1)
        order = sorted(candidates, key=lambda i: (rate[i], i))
    return chosen(_again(search, _demote(search, everything, order, goal), goal))


def _again(search: _Search, best: Trial, goal: float) -> Trial:
    """Demoting changes what a node's neighbours are worth: go over the rest once more, latest nodes first."""
    for index in sorted(best.double, reverse=True):
        trial = search.try_(best.double - {index})
        if trial.worst <= goal and trial.operations < best.operations:
            best = trial
    return best


def _demote(search: _Search, best: Trial, order: Sequence[int], goal: float) -> Trial:
    """Demote along ``order`` as long as the goal holds, in batches, doubled and halved."""
    size = len(order)
    while order:
        trial = search.try_(best.double - frozenset(order[:size]))
        if trial.worst <= goal:
            best, order, size = trial, order[size:], 2 * size
        elif size > 1:
            size //= 2
        else:
            order, size = order[1:], 2
        size = min(size, len(order))
    return best
