"""Measured ablation: which real nodes must be double-floats for the program to be as accurate as asked.

Starts from a program in which every node is a double-float, measures how much
worse each node makes the result when it is carried as one float32, and demotes
nodes as long as the error over the calibration points stays within the goal,
cheapest error per operation saved first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from momentgen.compiler.evaluate import compile_program
from momentgen.compiler.lower import lower, orders_of
from momentgen.compiler.program import Program
from momentgen.compiler.real import CONDITIONS, Graph, evaluate_float64

__all__ = ["Calibration", "Choice", "choose"]

_LEAVES = frozenset({"input", "param", "scalar", "exp_factor"})


@dataclass(frozen=True)
class Calibration:
    """Points at one setting of the parameters, and a measure of error there.

    Attributes:
        inputs: name -> float32 array.
        params: what the program's parameters are set to (hi and lo words).
        real: what the graph's parameters are set to.
        error: output name, computed float32 array -> largest error, in the unit of the goal.
    """

    inputs: Mapping[str, npt.NDArray[np.float32]]
    params: Mapping[str, float]
    real: Mapping[str, float]
    error: Callable[[str, npt.NDArray[np.float32]], float]


@dataclass(frozen=True)
class Choice:
    """What ablation found: the nodes to carry as double-floats, and the error reached with and without them."""

    double: frozenset[int]
    orders: Mapping[int, int]
    error: Mapping[str, float]
    all_double: Mapping[str, float]
    all_single: Mapping[str, float]
    trials: int


class _Search:
    def __init__(self, graph: Graph, name: str, calibrations: Sequence[Calibration]) -> None:
        self.graph, self.name, self.calibrations = graph, name, calibrations
        self.trials = 0
        orders: dict[int, int] = {}
        for calibration in calibrations:
            points = {**calibration.inputs, **calibration.real}
            found = orders_of(graph, evaluate_float64(graph, points))
            orders = {k: w if orders.get(k, w) == w else 0 for k, w in found.items()}
        self.orders = orders
        self.varying = self._varying()

    def _varying(self) -> set[int]:
        """Nodes that depend on an input; the rest are computed once a call and cost nothing an element."""
        varying: set[int] = set()
        for index in self.graph.live():
            node = self.graph.nodes[index]
            if node.kind == "input" or any(a in varying for a in node.args):
                varying.add(index)
        return varying

    def candidates(self) -> list[int]:
        nodes = self.graph.nodes
        return [i for i in self.graph.live() if nodes[i].kind not in _LEAVES and nodes[i].kind not in CONDITIONS]

    def program(self, double: frozenset[int]) -> Program:
        return lower(self.graph, self.name, double, self.orders)

    def measure(self, double: frozenset[int]) -> dict[str, float]:
        self.trials += 1
        run = compile_program(self.program(double))
        worst = dict.fromkeys(self.graph.outputs, 0.0)
        for calibration in self.calibrations:
            result = run(calibration.inputs, calibration.params)
            for output in worst:
                worst[output] = max(worst[output], calibration.error(output, result[output]))
        return worst

    def cost(self, double: frozenset[int]) -> int:
        return self.program(double).operations


def choose(graph: Graph, name: str, calibrations: Sequence[Calibration], goal: float) -> Choice:
    """The double-float nodes that keep every output of ``graph`` within ``goal``.

    Args:
        graph: what to compute.
        name: of the program, for messages.
        calibrations: points and error measures.
        goal: largest error allowed at the calibration points.

    Returns:
        The choice; where even the all-double program misses the goal, that program (its error says so).
    """
    search = _Search(graph, name, calibrations)
    candidates = search.candidates()
    everything = frozenset(candidates)
    best = search.measure(everything)
    all_double, all_single = best, search.measure(frozenset())

    def chosen(double: frozenset[int], error: Mapping[str, float]) -> Choice:
        return Choice(double, search.orders, error, all_double, all_single, search.trials)

    if max(all_single.values()) <= goal:
        return chosen(frozenset(), all_single)
    if max(best.values()) > goal:
        return chosen(everything, best)
    double, error = everything, best
    # Whatever costs nothing to lose goes first and at once: most nodes of a graph do.
    base = max(best.values())
    full_cost = search.cost(everything)
    ranked: list[tuple[float, int]] = []
    for index in candidates:
        without = everything - {index}
        loss = max(search.measure(without).values()) - base
        saved = full_cost - search.cost(without)
        ranked.append((max(loss, 0.0) / max(saved, 0.1) if saved >= 0 else float("inf"), index))
    order = [index for _, index in sorted(ranked)]
    double, error = _demote(search, double, error, order, goal)
    # Demoting changes what its neighbours are worth: go over the rest once more, latest nodes first.
    rest = sorted(double, reverse=True)
    for index in rest:
        without = double - {index}
        if search.cost(without) < search.cost(double):
            trial = search.measure(without)
            if max(trial.values()) <= goal:
                double, error = without, trial
    return chosen(double, error)


def _demote(
    search: _Search, double: frozenset[int], error: Mapping[str, float], order: list[int], goal: float
) -> tuple[frozenset[int], Mapping[str, float]]:
    """Demote along ``order`` as long as the goal holds, in halving batches."""
    while order:
        size = len(order)
        while size:
            batch = order[:size]
            trial = search.measure(double - frozenset(batch))
            if max(trial.values()) <= goal:
                double, error = double - frozenset(batch), trial
                break
            size //= 2
        order = order[max(size, 1) :]
    return double, error
