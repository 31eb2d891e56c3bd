"""Graphs as float64 programs: C and PyTorch mean what the graph means, in whatever parts it is computed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from compiler.forms import by_c, torch_form

from momentgen.compiler.emit._text import Header
from momentgen.compiler.emit.c_float64 import render_c_float64
from momentgen.compiler.ir.graph import (
    Graph,
    Patch,
    exp_mantissa,
    first_word,
    half_square,
    madd,
    over_one_plus,
    select,
    sqrt,
)
from momentgen.compiler.ir.op import Type
from momentgen.compiler.ir.program import Builder, ProgramError
from momentgen.compiler.ir.surface import surface_of
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.lower.float64 import kernels_of, numbered
from momentgen.native.c_compiler import find_compiler
from momentgen.native.includes import whole

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")

F64 = npt.NDArray[np.float64]
HEADER = Header("rule", "exact")
PARTIALS = ("dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar")


def points(count: int = 77) -> dict[str, F64]:
    rng = np.random.default_rng(3)
    return {"mean": rng.uniform(-2, 2, count), "var": rng.uniform(0.01, 2, count)}


def stable_of(graph: Graph) -> Any:
    """A variant with these outputs, whose partials are the same values."""
    partials = graph.without_outputs()
    partials.surfaces = dict(graph.surfaces)
    values = list(graph.outputs.values())
    for place, name in enumerate(PARTIALS):
        partials.output(name, partials.real(values[place % 2]))
    return SimpleNamespace(forward64=graph, partials64=partials, scalars_source="")


def both(graph: Graph, at: dict[str, F64], setting: dict[str, float], by: Sequence[str]) -> dict[str, list[F64]]:
    """Outputs by C and by PyTorch: forward, then backward for gradients of 1 and 10."""
    stable = stable_of(graph)
    kernels = kernels_of(stable, "rule")
    source, one = render_c_float64(kernels, HEADER), np.ones_like(at["mean"])
    module = torch_form(stable, kernels, source)
    found: dict[str, list[F64]] = {backend: [] for backend in by}
    for which, arrays in (("forward", [*at.values()]), ("backward", [*at.values(), one, 10 * one])):
        found["c"] += by_c(whole(source), "rule", which, arrays, list(setting.values()))
        if "torch" in by:
            found["torch"] += [r.numpy() for r in getattr(module, which)(*map(torch.from_numpy, arrays), **setting)]
    return found


def check(
    graph: Graph, tolerance: float = 1e-12, setting: dict[str, float] | None = None, by: Sequence[str] = ("c", "torch")
) -> None:
    at, setting = points(), setting or {}
    wanted = outputs_float64(graph, {**at, **setting}).values()
    mean, var = (np.broadcast_to(value, at["mean"].shape) for value in wanted)
    want = [mean, var, mean + 10 * mean, var + 10 * var]
    for backend, got in both(graph, at, setting, by).items():
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance * (1 + np.abs(w).max()), err_msg=backend)


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_keep_their_meaning(seed: int) -> None:
    rng, g = random.Random(seed), Graph(inputs=("mean", "var"))
    values = [g.input("mean"), g.input("var")]
    for _ in range(90):
        a, b, c = (rng.choice(values[-12:]) for _ in range(3))
        weight = g.const(round(rng.uniform(-1, 1), 2))
        made: list[Callable[[], int]] = [
            lambda a=a, b=b: 0.5 * (a + b),  # type: ignore[misc]
            lambda a=a, b=b: a - b,  # type: ignore[misc]
            lambda a=a, c=c, weight=weight: madd(weight, a, c),  # type: ignore[misc]
            lambda a=a, b=b: over_one_plus(b, a * a),  # type: ignore[misc]
            lambda a=a, b=b, c=c: select((a < b) & ~(c <= a), b, c),  # type: ignore[misc]
            lambda a=a: sqrt(abs(a)),  # type: ignore[misc]
            lambda a=a: exp_mantissa(half_square(a)),  # type: ignore[misc]
            lambda a=a, b=b: select(a < b, 0.1, 0.3),  # type: ignore[misc]
        ]
        values.append(rng.choice(made)())
    g.output("mean", values[-1] + values[-2])
    g.output("var", values[-3])
    check(g, 1e-9)


def test_an_output_that_is_a_number_or_an_input_has_the_shape_of_the_inputs_and_its_own_memory() -> None:
    g = Graph(inputs=("mean", "var"))
    g.output("mean", g.const(0.1))
    g.output("var", g.input("var"))
    check(g, 0.0)
    stable = stable_of(g)
    kernels = kernels_of(stable, "rule")
    module = torch_form(stable, kernels, render_c_float64(kernels, HEADER))
    mean = torch.zeros(3, dtype=torch.float64)
    assert all(out.data_ptr() != mean.data_ptr() for out in module.forward(mean, mean))


def of_surfaces(tables: Sequence[Sequence[Sequence[float]]], wanted: str, cells: int = 1) -> Graph:
    """Polynomials of two values, of which some derivatives are wanted, and which share what they are of."""
    g = Graph(inputs=("mean", "var"))
    y, z = (g.input("mean") - 0.5) * 0.25, sqrt(g.input("var"))
    cell = g.const(0)
    for number in range(1, cells):
        beyond = 2 * number / cells - 1 < g.input("mean")
        cell = cell + select(beyond, 1, 0)
    total = g.const(0)
    for rows in tables:
        table = tuple(map(tuple, rows))
        others = [Patch(table[k:] or table, (1 + k / 8, k / 16), (1 - k / 8, -k / 16)) for k in range(1, cells)]
        found = surface_of(y, z, [Patch(table), *others], slopes=wanted != "surface", cell=cell)
        for kind, node in zip(("surface", "surface_y", "surface_z"), found, strict=True):
            if kind in wanted.split():
                total = total + node * g.input("mean")
    g.output("mean", madd(total, z, y * y))
    g.output("var", total)
    return g


def random_table(seed: int, rows: int) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    lengths = sorted(rng.integers(1, 9, rows), reverse=True)
    return [rng.normal(0, 1, n).round(6).tolist() for n in lengths]


@pytest.mark.parametrize("wanted", ["surface", "surface surface_y", "surface_z", "surface surface_y surface_z"])
@pytest.mark.parametrize("cells", [1, 3])
def test_polynomials_of_two_values_stand_between_two_programs_and_mean_the_same(cells: int, wanted: str) -> None:
    graph = of_surfaces([random_table(5, 5), random_table(25, 6)], wanted, cells)
    kernel, _ = kernels_of(stable_of(graph), "rule")
    assert [set(sheet.results) for sheet in kernel.sheets] == [set(wanted.split())] * 2
    assert kernel.cells == cells
    assert kernel.program.operations < 15  # not its coefficients
    check(graph)


@pytest.mark.parametrize("names", [("k", "s"), ("a", "out"), ("surface", "WIDE"), ("number", "s0"), ("r0", "cell")])
def test_parameters_of_any_name_are_not_taken_for_what_the_code_calls_its_own(names: tuple[str, str]) -> None:
    g = Graph(("mean", "var"), names)
    first, second, total = g.param(names[0]), g.param(names[1]), g.const(0)
    for place in range(8):
        away = g.input("mean") - (place / 4 - 1)
        density = exp_mantissa(-(first * (away * away)))
        share = 1 / madd(g.input("var") * second, density, 1)
        total = madd(share * density, 1 + place / 8, total)
    patches = [Patch(((1.5 - k, -0.25), (0.5, 0.125 * k, 2.0))) for k in range(3)]
    cell = select(g.input("mean") < 0, 0, select(g.input("mean") < 1, 1, 2))
    g.output("mean", surface_of(total, g.input("var"), patches, slopes=False, cell=cell)[0] * first)
    g.output("var", total)
    # No rule's parameter is called `surface`: PyTorch code calls its polynomials so.
    check(g, 1e-13, dict(zip(names, (0.7, 1.25), strict=True)), ("c",) if "surface" in names else ("c", "torch"))


def test_a_polynomial_of_what_comes_of_another_is_refused() -> None:
    g = Graph(inputs=("mean", "var"))
    first = surface_of(g.input("mean"), g.input("var"), [Patch(((1.0, 2.0), (3.0,)))], slopes=False)[0]
    g.output("mean", surface_of(first, g.input("var"), [Patch(((1.0, 0.5), (2.0,)))], slopes=False)[0])
    g.output("var", first)
    with pytest.raises(ProgramError, match="is of what comes of another"):
        kernels_of(stable_of(g), "rule")


def test_of_two_grids_there_is_one_number_that_both_are_found_from() -> None:
    first, second = (of_surfaces([random_table(k, 4)], "surface", cells=k) for k in (2, 3))
    g = Graph(inputs=("mean", "var"))
    for name, one in (("mean", first), ("var", second)):
        nodes = g.taken(one)
        g.output(name, nodes[one.outputs["mean"]])
    kernel, _ = kernels_of(stable_of(g), "rule")
    assert sorted(sheet.size for sheet in kernel.sheets) == [2, 3]
    numbers = outputs_float64(numbered(g), points(500))["number"].astype(int)
    assert set(numbers.tolist()) <= set(range(6))
    check(g)


def test_an_operation_for_float32_is_refused() -> None:
    g = Graph(inputs=("mean", "var"))
    g.output("mean", first_word(g.input("mean")))
    g.output("var", g.input("var"))
    with pytest.raises(ProgramError, match="head is an operation for float32"):
        kernels_of(stable_of(g), "rule")


def test_a_program_has_real_numbers_of_one_type() -> None:
    b = Builder("mixed", inputs=("x",), real=Type.F64)
    b.output("y", b.add(b.input("x"), b.f32(1.0)))
    with pytest.raises(ProgramError, match="expected operands"):
        b.build()
    single = Builder("single", inputs=("x",))
    single.output("y", single.exp(single.input("x")))
    with pytest.raises(ProgramError, match="exp"):
        single.build()
    double = Builder("double", inputs=("x",), real=Type.F64)
    double.output("y", double.mul(double.input("x"), double.f64(math.pi)))
    assert double.build().real is Type.F64
