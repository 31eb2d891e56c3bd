"""Measured ablation: it finds the nodes that must be double-floats, and only those."""

from __future__ import annotations

import numpy as np
import pytest

from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.lower.ablate import choose
from momentgen.compiler.lower.trials import Calibration
from momentgen.compiler.lower.words import lower
from momentgen.compiler.measure.ulp import ulp_error


def cancelling() -> tuple[Graph, int, int]:
    """(1 + x)·y - y, whose sum must keep what rounding loses; and beside it a product that need not."""
    g = Graph(inputs=("x", "y"))
    x, y = g.input("x"), g.input("y")
    total = x + 1
    harmless = x * x * y
    g.output("difference", total * y - y)
    g.output("harmless", harmless)
    return g, total.index, harmless.index


def operations(graph: Graph, nodes: frozenset[int]) -> set[int]:
    """Without constants, which cost nothing."""
    return {index for index in nodes if graph.nodes[index].args}


def calibration(seed: int = 0) -> Calibration:
    rng = np.random.default_rng(seed)
    x = (np.exp2(rng.uniform(-14, -4, 500))).astype(np.float32)
    y = rng.uniform(1, 4, 500).astype(np.float32)
    wide = {"x": x.astype(np.float64), "y": y.astype(np.float64)}
    exact = {"difference": wide["x"] * wide["y"], "harmless": wide["x"] ** 2 * wide["y"]}
    return Calibration(
        {"x": x, "y": y}, {}, {}, lambda output, computed: float(ulp_error(computed, exact[output]).max())
    )


def test_cancellation_is_found_and_mended() -> None:
    graph, total, harmless = cancelling()
    choice = choose(graph, "f", [calibration()], goal=1.6)
    assert choice.all_single["difference"] > 1000
    assert max(choice.all_double.values()) <= 1.6
    assert max(choice.error.values()) <= 1.6
    assert total in choice.double
    assert harmless not in choice.double
    # What the error says is what the program does, at other points too.
    other = calibration(1)
    out = evaluate(lower(graph, "f", choice.double, choice.orders), other.inputs)
    assert other.error("difference", out["difference"]) <= 2.0


def test_a_loose_goal_leaves_everything_single() -> None:
    graph, _, _ = cancelling()
    choice = choose(graph, "f", [calibration()], goal=1e9)
    assert not operations(graph, choice.double)
    assert choice.error == choice.all_single


def test_an_impossible_goal_gives_all_doubles_and_their_error() -> None:
    graph, total, harmless = cancelling()
    choice = choose(graph, "f", [calibration()], goal=0.01)
    assert {total, harmless} <= choice.double
    assert choice.error == choice.all_double
    assert max(choice.error.values()) > 0.01


def test_every_calibration_counts() -> None:
    graph, total, _ = cancelling()
    easy = calibration()
    large = {"x": np.float32([1.0, 2.0]), "y": np.float32([1.0, 2.0])}
    exact = {"difference": np.array([1.0, 4.0]), "harmless": np.array([1.0, 8.0])}
    harmless = Calibration(large, {}, {}, lambda output, got: float(ulp_error(got, exact[output]).max()))
    assert not operations(graph, choose(graph, "f", [harmless], goal=1.6).double)
    assert total in choose(graph, "f", [harmless, easy], goal=1.6).double


@pytest.mark.parametrize("goal", [1.0, 1.6, 100.0])
def test_the_choice_is_the_same_every_time(goal: float) -> None:
    choices = [choose(cancelling()[0], "f", [calibration()], goal=goal) for _ in range(2)]
    assert choices[0] == choices[1]


def many_terms(count: int) -> tuple[Graph, set[int]]:
    """Σ (1 + c x)·y - y over many c, beside as many products that need no second word; the sums 1 + c x need one."""
    g = Graph(inputs=("x", "y"))
    x, y = g.input("x"), g.input("y")
    difference, harmless = g.const(0), y
    needed = set()
    for k in range(count):
        total = x * (1 + k / 64) + 1
        product = total * y
        needed |= {total.index, product.index}
        difference = difference + (product - y)
        harmless = abs(harmless * (1 + 2.0**-k)) * 1
    g.output("difference", difference)
    g.output("harmless", harmless)
    return g, needed


def test_a_graph_of_very_many_nodes_is_demoted_in_groups() -> None:
    count = 120
    graph, needed = many_terms(count)
    easy = calibration()
    wide = {name: values.astype(np.float64) for name, values in easy.inputs.items()}
    slopes = sum(1 + k / 64 for k in range(count))
    exact = {
        "difference": wide["x"] * wide["y"] * slopes,
        "harmless": wide["y"] * np.prod([1 + 2.0**-k for k in range(count)]),
    }
    points = Calibration(easy.inputs, {}, {}, lambda output, got: float(ulp_error(got, exact[output]).max()))
    choice = choose(graph, "f", [points], goal=90.0)
    assert max(choice.error.values()) <= 90.0 < choice.all_single["difference"]
    assert choice.trials <= 150
    assert choice.double >= needed
    everything, chosen, nothing = (
        lower(graph, "f", double, choice.orders).operations for double in (range(len(graph.nodes)), choice.double, ())
    )
    assert nothing < chosen < 0.6 * everything
