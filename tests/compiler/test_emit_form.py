"""What the float64 renderers make of a graph: polynomials and loops are found, and mean what the graph means."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from momentgen.compiler.emit._c_float64_forms import has_long_loops, with_fused_products, with_roots
from momentgen.compiler.emit._form import (
    Form,
    Loop,
    Section,
    Surfaces,
    Tables,
    cells_of,
    numbered,
    offset_in,
)
from momentgen.compiler.emit._loops import form_of
from momentgen.compiler.ir.graph import Graph, Patch, outputs_float64

F64 = npt.NDArray[np.float64]

_OPERATIONS: Mapping[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "madd": lambda a, b, c: a * b + c,
    "msub": lambda a, b, c: a * b - c,
    "nmadd": lambda a, b, c: c - a * b,
    "recip": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
    "neg": np.negative,
    "abs": np.abs,
    "exp_mantissa": np.exp,
    "lt": np.less,
    "le": np.less_equal,
    "select": np.where,
    "same": lambda a: a,
}


def surface(kind: str, y: F64, z: F64, cell: F64, patches: Sequence[Patch]) -> F64:
    """A polynomial of two values for each cell, or its derivative, by NumPy."""
    values = []
    for patch in patches:
        table = np.zeros((len(patch.table), max(map(len, patch.table))))
        for j, row in enumerate(patch.table):
            table[j, : len(row)] = row
        if kind == "surface_y":
            table = np.polynomial.polynomial.polyder(table, axis=1) * patch.y[0]
        elif kind == "surface_z":
            table = np.polynomial.polynomial.polyder(table, axis=0) * patch.z[0]
        at_y, at_z = y * patch.y[0] + patch.y[1], z * patch.z[0] + patch.z[1]
        values.append(np.polynomial.polynomial.polyval2d(at_z, at_y, table))
    return np.choose(np.broadcast_to(cell, np.shape(y)).astype(int), values)


def evaluated(form: Form, tables: Tables, point: Mapping[str, F64]) -> dict[str, F64]:
    """The outputs, by the plainest reading of a form."""
    values: dict[int, Any] = {}
    row: Sequence[float] = ()

    def value(index: int) -> Any:
        item = form.items[index]
        if item.kind == "const":
            return item.payload
        if item.kind == "column":
            return row[item.payload]
        return point[item.payload] if item.kind in ("input", "param") else values[index]

    def run(items: Sequence[int]) -> None:
        for index in items:
            item = form.items[index]
            args = [value(a) for a in item.args]
            if item.kind == "polynomial":
                values[index] = functools.reduce(lambda v, c, x=args[0]: v * x + c, [*args[1:], *item.payload])
            else:
                values[index] = _OPERATIONS[item.kind](*args)

    for part in form.parts:
        if isinstance(part, Section):
            run(part.items)
            continue
        if isinstance(part, Surfaces):
            for index in part.items:
                item = form.items[index]
                values[index] = surface(item.kind, *np.broadcast_arrays(*map(value, item.args)), item.payload)
            continue
        for constants in tables.rows()[part.turns]:
            row = constants
            run(part.items)
            for accumulator, pairs in part.sums.items():
                for a, b in pairs:
                    values[accumulator] = values.get(accumulator, 0.0) + value(a) * value(b)
    return {name: np.asarray(value(index)) for name, index in form.outputs.items()}


def sum_of_atoms(atoms: int, derivatives: int, *, irregular: bool = False) -> Graph:
    """As an activation's moments: sums of atoms and of their derivatives, and something made of the sums."""
    g = Graph(inputs=("mean", "var"))
    rng = random.Random(7)
    mean, var = g.input("mean"), g.input("var")
    side = g.lt(mean, g.const(0))
    size = g.abs(mean)
    families = []
    for k in range(atoms):
        width = g.add(var, g.const(0.3 + 0.17 * k))
        root = g.sqrt(width)
        t = g.mul(size, g.recip(root))
        e = g.exp_mantissa(g.mul(g.mul(t, t), g.const(-0.5)))
        u = g.recip(g.madd(t, g.const(0.25), g.const(1)))
        family = [g.mul(e, g.horner(u, [0.1, 0.2, -0.3, 0.4, 0.5])), g.mul(e, root)]
        for n in range(derivatives + (2 if irregular and k == 0 else 1)):
            family.append(g.madd(t, family[-1], g.mul(g.mul(g.const(-n - 1), g.recip(width)), family[-2])))
        families.append(family)
    sums = []
    for j in range(derivatives):
        total = None
        for n, family in itertools.product(reversed(range(3)), families):
            weight = g.const(rng.uniform(-1, 1)) if n else g.select(side, g.const(rng.random()), g.const(rng.random()))
            total = g.mul(weight, family[n + j]) if total is None else g.madd(weight, family[n + j], total)
        assert total is not None
        sums.append(total)
    if irregular:
        sums.append(g.mul(families[0][-1], families[1][0]))
    result = g.const(0)
    for total in sums:
        result = g.madd(total, total, g.mul(g.mul(var, g.const(0.5)), result))
    g.output("mean", g.add(sums[0], mean))
    g.output("var", result)
    return g


POINTS = {"mean": np.linspace(-4, 4, 81), "var": np.geomspace(0.01, 30, 81)}


@pytest.mark.parametrize(("atoms", "derivatives", "irregular"), [(4, 3, False), (9, 6, False), (5, 4, True)])
def test_atoms_are_a_loop_and_mean_the_same(atoms: int, derivatives: int, irregular: bool) -> None:
    graph, tables = sum_of_atoms(atoms, derivatives, irregular=irregular), Tables()
    form = form_of(graph, tables)
    (loop,) = (part for part in form.parts if isinstance(part, Loop))
    assert loop.turns >= atoms - 2 * irregular
    assert len(loop.sums) == derivatives
    want = outputs_float64(graph, POINTS)
    for name, got in evaluated(form, tables, POINTS).items():
        np.testing.assert_allclose(got, want[name], rtol=1e-11, atol=1e-14)


def uneven_atoms(orders: Sequence[int], *, twice: bool) -> Graph:
    """Atoms with as many derivatives as given for each, and a sum for each order; perhaps of two terms of each."""
    g = Graph(inputs=("mean", "var"))
    rng = random.Random(3)
    sums: dict[int, int] = {}
    for order in orders:
        t = g.mul(g.input("mean"), g.recip(g.sqrt(g.add(g.input("var"), g.const(rng.uniform(1, 9))))))
        values = [g._add("exp_mantissa", g.mul(g.mul(t, t), g.const(-0.5)))]
        for _ in range(order):
            values.append(g.mul(g.madd(t, values[-1], t), g.const(rng.uniform(-1, 1))))
        for k, value in enumerate(values):
            for _ in range(1 + twice):
                c = g.const(rng.uniform(-1, 1))
                sums[k] = g.madd(c, value, sums[k]) if k in sums else g.mul(c, value)
    for k, total in sums.items():
        g.output(f"s{k}", total)
    return g


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("orders", [(6, 6, 6), (6, 5, 6, 5, 5), (7, 6, 5, 4, 5, 6, 7), (9, 2, 9, 2, 5)])
def test_atoms_that_do_less_than_others_are_filled_up_and_mean_the_same(orders: Sequence[int], twice: bool) -> None:
    graph, tables = uneven_atoms(orders, twice=twice), Tables()
    found = evaluated(form_of(graph, tables), tables, POINTS)
    for name, want in outputs_float64(graph, POINTS).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-12, atol=1e-15)


def test_atoms_of_nearly_the_same_order_are_one_loop() -> None:
    form = form_of(uneven_atoms((9, 8, 9, 8, 8), twice=False))
    assert [part.turns for part in form.parts if isinstance(part, Loop)] == [5]


@pytest.mark.parametrize("nodes", [7, 12])
def test_nodes_of_a_quadrature_are_a_loop_also_where_products_of_their_values_are_summed(nodes: int) -> None:
    g = Graph(inputs=("mean", "var"))
    first = second = weights = None
    for k in range(nodes):
        z = g.const(-2 + 4 * (k + 0.37) / nodes)
        weight = g.mul(g._add("exp_mantissa", g.mul(z, g.input("var"))), g.const(0.1 + 0.01 * k))
        value = g.recip(g.add(g.abs(g.madd(z, g.sqrt(g.input("var")), g.input("mean"))), g.const(1)))
        product = g.mul(weight, value)
        first = product if first is None else g.madd(weight, value, first)
        second = g.mul(value, product) if second is None else g.madd(value, product, second)
        weights = weight if weights is None else g.add(weights, weight)
    for name, index in {"first": first, "second": second, "weights": weights}.items():
        assert index is not None
        g.output(name, index)
    tables = Tables()
    form = form_of(g, tables)
    assert [part.turns for part in form.parts if isinstance(part, Loop)] == [nodes]
    for name, want in outputs_float64(g, POINTS).items():
        np.testing.assert_allclose(evaluated(form, tables, POINTS)[name], want, rtol=1e-12)


def test_atoms_that_all_read_values_that_are_alike_are_a_loop() -> None:
    """What does not change from atom to atom may have its like, too: twice and six times the mean."""
    g, tables = Graph(inputs=("mean", "var")), Tables()
    twice, sixfold = (g.mul(g.input("mean"), g.const(factor)) for factor in (2, 6))
    total = g.const(0)
    for k in range(8):
        root = g.sqrt(g.add(g.input("var"), g.const(0.3 + 0.2 * k)))
        e = g.exp_mantissa(g.mul(g.mul(root, root), g.const(-0.5)))
        value = g.add(g.mul(e, twice), g.mul(g.add(e, root), sixfold))
        total = g.madd(g.const(0.4 - 0.1 * k), value, total)
    g.output("mean", total)
    form = form_of(g, tables)
    (loop,) = (part for part in form.parts if isinstance(part, Loop))
    assert loop.turns >= 7
    want, got = outputs_float64(g, POINTS), evaluated(form, tables, POINTS)
    np.testing.assert_allclose(got["mean"], want["mean"], rtol=1e-11, atol=1e-14)


def test_a_sum_that_its_own_atoms_wait_for_is_no_loop() -> None:
    g, tables = Graph(inputs=("mean", "var")), Tables()
    widths = [g.sqrt(g.add(g.input("var"), g.const(0.1 * k))) for k in range(1, 6)]
    atoms = []
    for width in widths:
        t = g.mul(g.input("mean"), g.recip(width))
        e = g.exp_mantissa(g.mul(g.mul(t, t), g.const(-0.5)))
        atoms.append((g.mul(e, t), g.mul(e, width)))
    first = g.const(0)
    for k, (value, _) in enumerate(atoms):
        first = g.madd(g.const(0.2 + k), value, first)
    positive, second = g.lt(g.const(0), first), g.const(1)
    for k, (_, value) in enumerate(atoms):
        second = g.madd(g.select(positive, g.const(0.3 + k), g.const(0.4 + k)), value, second)
    g.output("mean", first)
    g.output("var", second)
    want, got = outputs_float64(g, POINTS), evaluated(form_of(g, tables), tables, POINTS)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-12)


def test_two_forms_share_the_columns_of_their_tables() -> None:
    graph, tables = sum_of_atoms(6, 3), Tables()
    form_of(graph, tables)
    columns = len(tables.rows()[6][0])
    form_of(graph, tables)
    assert len(tables.rows()[6][0]) == columns


def test_what_does_not_repeat_is_left_in_order() -> None:
    g = Graph(inputs=("x",))
    x = g.input("x")
    g.output("y", g.add(g.horner(x, [1, 2, 3, 4, 5]), g.sqrt(g.madd(x, x, g.const(1)))))
    (section,) = form_of(g).parts
    assert isinstance(section, Section)
    assert list(section.items) == sorted(section.items)


def test_a_polynomial_that_begins_with_a_value_keeps_it() -> None:
    g, tables = Graph(inputs=("x", "y")), Tables()
    value = g.input("y")
    for c in (1, 2, 3, 4):
        value = g.madd(value, g.input("x"), g.const(c))
    g.output("z", value)
    form = form_of(g, tables)
    point = {"x": np.array([0.5, 2.0]), "y": np.array([3.0, -1.0])}
    assert evaluated(form, tables, point)["z"].tolist() == outputs_float64(g, point)["z"].tolist()


def test_values_that_are_read_twice_are_no_link_of_a_polynomial() -> None:
    g = Graph(inputs=("x",))
    x = g.input("x")
    inner = g.horner(x, [1, 2, 3, 4])
    g.output("y", g.madd(g.madd(inner, x, g.const(5)), x, inner))
    kinds = [form_of(g).items[i].kind for part in form_of(g).parts for i in part.items]
    assert kinds == ["polynomial", "madd", "madd"]


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_keep_their_meaning(seed: int) -> None:
    rng = random.Random(seed)
    g, tables = Graph(inputs=("x", "y")), Tables()
    values = [g.input("x"), g.input("y")]
    for _ in range(120):
        a, b, c = (rng.choice(values[-12:]) for _ in range(3))
        weight = g.const(round(rng.uniform(-1, 1), 2))
        made = [
            lambda a=a, b=b: g.mul(g.const(0.5), g.add(a, b)),
            lambda a=a, b=b: g.sub(a, b),
            lambda a=a, c=c, weight=weight: g.madd(weight, a, c),
            lambda a=a, b=b: g.recip(g.madd(a, a, g.const(1))),
            lambda a=a, b=b, c=c: g.select(g.lt(a, b), b, c),
            lambda a=a: g.sqrt(g.abs(a)),
        ]
        values.append(rng.choice(made)())
    g.output("u", g.add(values[-1], values[-2]))
    g.output("w", values[-3])
    form = form_of(g, tables)
    point = {"x": np.linspace(-2, 2, 50), "y": np.linspace(3, -1, 50)}
    want = outputs_float64(g, point)
    for name, got in evaluated(form, tables, point).items():
        np.testing.assert_allclose(got, np.broadcast_to(want[name], 50), rtol=1e-9, atol=1e-12)


def of_surfaces(tables: Sequence[Sequence[Sequence[float]]], wanted: str, cells: int = 1) -> Graph:
    """Polynomials of two values, of which some derivatives are wanted; what comes of one goes into the next."""
    graph = Graph(inputs=("mean", "var"))
    y, z = graph.sub(graph.input("mean"), graph.const(0.5)), graph.mul(graph.input("var"), graph.const(0.75))
    cell = graph.const(0)
    for number in range(1, cells):
        beyond = graph.lt(graph.const(2 * number / cells - 1), graph.input("mean"))
        cell = graph.add(cell, graph.select(beyond, graph.const(1), graph.const(0)))
    total = graph.const(0)
    for rows in tables:
        table = tuple(map(tuple, rows))
        others = [Patch(table[k:] or table, (1 + k / 8, k / 16), (1 - k / 8, -k / 16)) for k in range(1, cells)]
        found = graph.surface(y, z, [Patch(table), *others], slopes=wanted != "surface", cell=cell)
        for kind, node in zip(("surface", "surface_y", "surface_z"), found, strict=True):
            if kind in wanted.split():
                total = graph.add(total, graph.mul(node, graph.input("mean")))
        y = graph.mul(graph.recip(graph.add(graph.const(3), graph.mul(total, total))), graph.const(0.5))
    graph.output("out", graph.add(total, graph.mul(y, y)))
    return graph


def random_table(seed: int, rows: int) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    lengths = sorted(rng.integers(1, 9, rows), reverse=True)
    return [rng.normal(0, 1, n).round(6).tolist() for n in lengths]


@pytest.mark.parametrize("wanted", ["surface", "surface surface_y", "surface_z", "surface surface_y surface_z"])
@pytest.mark.parametrize("cells", [1, 3])
@pytest.mark.parametrize("rows", [2, 5, 8])
def test_polynomials_of_two_values_are_one_operation_each_and_mean_the_same(rows: int, cells: int, wanted: str) -> None:
    graph, tables = of_surfaces([random_table(rows, rows), random_table(rows + 20, 6)], wanted, cells), Tables()
    form = form_of(graph, tables)
    parts = [part for part in form.parts if isinstance(part, Surfaces)]
    kinds = [{form.items[index].kind for index in part.items} for part in parts]
    assert len(parts) == 2
    assert kinds[1] == set(wanted.split())
    rng = np.random.default_rng(rows)
    point = {"mean": rng.uniform(-1, 1, 50), "var": rng.uniform(0, 1, 50)}
    found, want = evaluated(form, tables, point)["out"], outputs_float64(graph, point)["out"]
    assert np.abs(found - want).max() <= 1e-12 * (1 + np.abs(want).max())


def test_what_the_values_of_a_polynomial_need_is_not_what_its_table_is_made_of() -> None:
    form = form_of(of_surfaces([random_table(3, 7)], "surface surface_y"))
    assert sum(item.kind in ("madd", "polynomial") for item in form.items.values()) <= 1


def test_the_number_of_a_cell_may_be_left_to_the_caller() -> None:
    graph = of_surfaces([random_table(4, 5), random_table(5, 4)], "surface", cells=3)
    assert list(cells_of(graph).values()) == [3]
    form = form_of(graph, cells=cells_of(graph))
    assert [item.payload for item in form.items.values() if item.kind == "cell"] == [0]
    assert not any(item.kind in ("lt", "select") for item in form.items.values())
    point = {"mean": np.linspace(-1, 1, 13), "var": np.linspace(0, 1, 13)}
    number = outputs_float64(numbered(graph), point)["number"]
    assert set(number.tolist()) == {0.0, 1.0, 2.0}


def test_of_two_grids_there_is_one_number_that_both_are_found_from() -> None:
    first, second = (of_surfaces([random_table(k, 4)], "surface", cells=k) for k in (2, 3))
    graph = Graph(inputs=("mean", "var"))
    for name, one in (("a", first), ("b", second)):
        nodes: dict[int, int] = {}
        for index in one.live():
            node = one.nodes[index]
            nodes[index] = graph._add(node.kind, *(nodes[a] for a in node.args), payload=node.payload)
            if index in one.surfaces:
                found = one.surfaces[index]
                moved = {field: nodes[getattr(found, field)] for field in ("y", "z", "cell")}
                graph.surfaces[nodes[index]] = dataclasses.replace(found, **moved)
        graph.output(name, nodes[one.outputs["out"]])
    cells = cells_of(graph)
    assert sorted(cells.values()) == [2, 3]
    point = {"mean": np.linspace(-1, 1, 50), "var": np.zeros(50)}
    number = outputs_float64(numbered(graph), point)["number"].astype(int)
    for place, (node, count) in enumerate(cells.items()):
        alone = graph.without_outputs()
        alone.output("cell", node)
        text = f"number{offset_in(cells, place)}".replace("/", "//")
        found = [eval(text, {"number": n}) for n in number.tolist()]
        assert set(found) == set(range(count))
        assert found == outputs_float64(alone, point)["cell"].astype(int).tolist()


def test_of_one_power_only_the_polynomial_of_the_other_value_is_left() -> None:
    graph = Graph(inputs=("mean", "var"))
    table = ((0.5, -2.0, 0.25, 3.0),)
    total, by_y, by_z = graph.surface(graph.input("mean"), graph.input("var"), [Patch(table)], slopes=True)
    assert graph.value(by_z) == 0
    graph.output("total", total)
    graph.output("by_y", by_y)
    point = {"mean": np.linspace(-1, 1, 9), "var": np.linspace(0, 1, 9)}
    found, want = evaluated(form_of(graph), Tables(), point), outputs_float64(graph, point)
    assert all(np.abs(found[name] - want[name]).max() <= 1e-14 for name in want)


def quadrature(nodes: int) -> Graph:
    """A sum over nodes of sums and differences of products on either side; beside it, a difference of products."""
    g = Graph(inputs=("mean", "var"))
    mean, var = g.input("mean"), g.input("var")
    total = None
    for k in range(nodes):
        z = g.const(0.1 + k / nodes)
        left = g.add(g.mul(z, mean), var)
        right = g.sub(var, g.mul(z, g.mul(mean, mean)))
        both = g.mul(left, right)
        term = g.sub(g.mul(both, g.abs(left)), right)
        kept = g.mul(term, var)  # read twice: stays as it is
        value = g.mul(g.add(kept, left), g.exp_mantissa(g.neg(g.abs(kept))))
        total = g.mul(value, z) if total is None else g.madd(value, z, total)
    assert total is not None
    g.output("mean", g.sub(g.mul(mean, mean), g.mul(var, total)))
    return g


@pytest.mark.parametrize("nodes", [12, 20])
def test_products_are_fused_with_sums_in_long_loops_alone_and_mean_the_same(nodes: int) -> None:
    tables, graph = Tables(), quadrature(nodes)
    form = form_of(graph, tables)
    fused = with_fused_products(form)
    (loop,) = (part for part in fused.parts if isinstance(part, Loop))
    kinds = [fused.items[index].kind for index in loop.items]
    assert has_long_loops(form) == (nodes > 16)
    assert {kind: kinds.count(kind) for kind in ("nmadd", "msub", "add", "sub")} == (
        {"nmadd": 1, "msub": 1, "add": 1, "sub": 0} if nodes > 16 else {"nmadd": 0, "msub": 0, "add": 2, "sub": 2}
    )
    outside = [form.items[i].kind for part in form.parts if isinstance(part, Section) for i in part.items]
    assert outside == [fused.items[i].kind for part in fused.parts if isinstance(part, Section) for i in part.items]
    want = outputs_float64(graph, POINTS)["mean"]
    np.testing.assert_allclose(evaluated(fused, tables, POINTS)["mean"], want, rtol=1e-12)


def test_one_over_a_root_is_one_operation_and_a_root_that_is_read_itself_stays() -> None:
    g = Graph(inputs=("mean", "var"))
    root = g.sqrt(g.input("var"))
    g.output("mean", g.recip(root))
    g.output("var", g.mul(g.recip(g.sqrt(g.abs(g.input("mean")))), root))
    form = with_roots(form_of(g, Tables()))
    kinds = [form.items[index].kind for part in form.parts for index in part.items]
    assert kinds.count("rsqrt") == 2
    assert kinds.count("sqrt") == 1
