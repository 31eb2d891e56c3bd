"""Generated C in float64: as accurate as the PyTorch form, the same bits under every setting, in vectors."""

from __future__ import annotations

import ctypes
import functools
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
import torch
from c_vectors import gcc_flags, scalar_kernels, scalar_loops
from compiler.forms import by_c, torch_form
from compiler.test_emit_c import AVX2, BUILDS
from real_rules import stables

from momentgen.compiler.emit._text import Header
from momentgen.compiler.emit.c_float64 import render_c_float64
from momentgen.compiler.ir.graph import Graph, exp_mantissa, madd, select, sqrt
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.ir.values import evaluate_mpmath
from momentgen.compiler.lower.float64 import kernels_of
from momentgen.compiler.toolchain.c_libraries import compiled
from momentgen.native.c_compiler import find_compiler
from momentgen.native.includes import FLOAT64, whole
from momentgen.rule.inputs import partial_names

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")

F64 = npt.NDArray[np.float64]
HEADER = Header("rule", "exact")
#: elements of a block, and elements that are put in order
LANES, CHUNK = (int(re.findall(rf"#define {name} (\d+)", whole(FLOAT64))[0]) for name in ("LANES", "CHUNK"))

#: of every kind: closed forms, parameters, two inputs, trigonometric, a draw of 0 or 1, and
#: polynomials of two values
QUICK = ("relu", "sin", "threshold", "maximum_correlated", "bernoulli_noise", "elu", "erf")
SLOW = ("hardtanh", "gelu", "silu", "tanh", "softplus", "rrelu", "logistic_transform", "maximum", "softsign")
EACH = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def stable_of(name: str) -> Stable:
    return next(iter(stables(name).values()))


def rendered(stable: Stable, name: str) -> str:
    return whole(render_c_float64(kernels_of(stable, name), HEADER))


@functools.lru_cache
def source_of(name: str) -> str:
    return rendered(stable_of(name), name)


def called(
    name: str, which: str, arrays: Sequence[F64], params: Sequence[float] = (), flags: Sequence[str] | None = None
) -> list[F64]:
    return by_c(source_of(name), name, which, arrays, params, flags)


def points_of(name: str, count: int) -> list[F64]:
    rng = np.random.default_rng(5)
    made: dict[str, F64] = {}
    for symbol in stable_of(name).forward64.inputs:
        if symbol.startswith("mean"):
            made[symbol] = rng.normal(0, 1, count) * np.exp(rng.uniform(-6, 4, count))
        elif symbol.startswith("var"):
            made[symbol] = np.exp(rng.uniform(-12, 6, count))
        else:
            made[symbol] = rng.uniform(-0.99, 0.99, count) * np.sqrt(made["var1"] * made["var2"])
    if name == "bernoulli_noise":
        made["mean"] = rng.uniform(0.05, 1, count)
    return list(made.values())


def six(name: str, points: Sequence[F64], setting: Mapping[str, float], *, by_torch: bool) -> dict[str, F64]:
    """Outputs and partials, by C or by PyTorch."""
    stable = stable_of(name)
    one, zero = np.ones_like(points[0]), np.zeros_like(points[0])

    def run(which: str, *arrays: F64) -> list[F64]:
        if not by_torch:
            return called(name, which, arrays, [setting[p] for p in stable.forward64.params])
        tensors = [torch.from_numpy(array) for array in arrays]
        module = torch_form(stable, kernels_of(stable, name), source_of(name))
        return [result.numpy() for result in getattr(module, which)(*tensors, **setting)]

    found = dict(zip(stable.forward64.outputs, run("forward", *points), strict=True))
    pairs = partial_names(stable.partials64.inputs).values()
    for place, seeds in enumerate(((one, zero), (zero, one))):
        found |= {pair[place]: got for pair, got in zip(pairs, run("backward", *points, *seeds), strict=True)}
    return found


def rounding_of_tables(stable: Stable) -> float:
    """What polynomials of two values may lose by rounding: it grows with their coefficients."""
    surfaces = [surface for graph in (stable.forward64, stable.partials64) for surface in graph.surfaces.values()]
    return 2.0**-50 * max(
        (sum(abs(c) for row in patch.table for c in row) for one in surfaces for patch in one.patches), default=0.0
    )


@pytest.mark.parametrize("name", EACH)
def test_c_is_as_near_to_the_graph_in_50_digits_as_the_pytorch_form(name: str) -> None:
    stable, points = stable_of(name), points_of(name, 60)
    for setting in stable.settings[:2]:
        by_c, by_torch = (six(name, points, setting, by_torch=by_torch) for by_torch in (False, True))
        exact: dict[str, list[mpmath.mpf]] = {}
        with mpmath.workdps(50):
            for place in range(points[0].size):
                at = {s: mpmath.mpf(float(p[place])) for s, p in zip(stable.forward64.inputs, points, strict=True)}
                at |= {p: mpmath.mpf(value) for p, value in setting.items()}
                for graph in (stable.forward64, stable.partials64):
                    for output, value in evaluate_mpmath(graph, at).items():
                        exact.setdefault(output, []).append(value)
            for output, want in exact.items():
                scale = [max(1, abs(w)) for w in want]
                of_c, of_torch = (
                    max(
                        float(abs(mpmath.mpf(float(g)) - w) / s)
                        for g, w, s in zip(got[output], want, scale, strict=True)
                    )
                    for got in (by_c, by_torch)
                )
                assert of_c < 2e-14 + rounding_of_tables(stable), (output, setting)
                assert of_c <= 2 * of_torch + 1e-15, (output, setting)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", ["sin", "hardtanh", "erf"])  # in each order of ORDERS
def test_bits_are_the_same_under_every_setting_of_the_compiler(name: str, build: str) -> None:
    points = points_of(name, 1000)
    params = [stable_of(name).settings[0][p] for p in stable_of(name).forward64.params]
    for which, arrays in (("forward", points), ("backward", [*points, np.ones(1000), np.ones(1000)])):
        for got, want in zip(
            called(name, which, arrays, params, BUILDS[build]), called(name, which, arrays, params), strict=True
        ):
            assert got.tobytes() == want.tobytes()


#: one element after the other, in blocks, and by cell
ORDERS = ("relu", "hardtanh", "erf")


@pytest.mark.parametrize("name", ORDERS)
def test_every_size_gives_each_element_the_same_bits(name: str) -> None:
    mean, var = points_of(name, CHUNK + 3 * LANES)
    params = [stable_of(name).settings[0][p] for p in stable_of(name).forward64.params]
    whole = called(name, "forward", [mean, var], params)
    for size in (0, 1, LANES - 1, LANES, LANES + 1, 2 * LANES + 7, CHUNK - 1, CHUNK, CHUNK + LANES + 5):
        part = called(name, "forward", [mean[:size].copy(), var[:size].copy()], params)
        for got, want in zip(part, whole, strict=True):
            assert got.tobytes() == want[:size].tobytes()


@pytest.mark.parametrize("name", ORDERS)
def test_an_element_does_not_depend_on_those_around_it(name: str) -> None:
    """Not on their number, their cells, nor on what among them is no number."""
    points, rng = points_of(name, 700), np.random.default_rng(8)
    arrays = [*points, rng.normal(size=700), rng.normal(size=700)]
    arrays[0][13], arrays[1][77], arrays[1][400] = np.nan, -1.0, np.inf
    params = [stable_of(name).settings[0][p] for p in stable_of(name).forward64.params]
    order = rng.permutation(700)
    for which, count in (("forward", 2), ("backward", 4)):
        straight = called(name, which, arrays[:count], params)
        mixed = called(name, which, [array[order] for array in arrays[:count]], params)
        for got, want in zip(mixed, straight, strict=True):
            assert got.tobytes() == want[order].tobytes()


def test_the_exponential_is_within_one_unit_in_the_last_place_and_0_below_1e_307() -> None:
    source = source_of("relu") + "\nvoid exponential(const double *x, double *y) { *y = exp64(*x); }\n"
    exponential = compiled(source)["exponential"]

    def of(x: float) -> float:
        y = ctypes.c_double()
        exponential(ctypes.byref(ctypes.c_double(x)), ctypes.byref(y))
        return y.value

    rng = np.random.default_rng(2)
    worst = 0.0
    with mpmath.workdps(40):
        for x in [*rng.uniform(-708, 709.7, 2000).tolist(), *rng.normal(0, 1, 1000).tolist()]:
            exact = mpmath.exp(mpmath.mpf(x))
            worst = max(worst, float(abs(mpmath.mpf(of(x)) - exact) / math.ulp(float(exact))))
    assert worst < 1
    assert [of(x) for x in (*rng.uniform(-1e4, -708, 300).tolist(), -1e300, -math.inf)] == [0.0] * 302
    assert [of(math.inf), of(710.5), of(0.0)] == [math.inf, math.inf, 1.0]
    assert math.isnan(of(math.nan))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize("name", ["relu", "hardtanh", "maximum_correlated"])
def test_gcc_vectorises_every_loop_and_warns_of_nothing_and_lines_are_short(name: str) -> None:
    source, flags = source_of(name), [*AVX2, "-Wall", "-Wextra", "-Werror"]
    assert max(map(len, source.splitlines())) <= 120
    if "over_cells(hardtanh" not in source:
        assert scalar_kernels(source, flags) == []
        return
    own = len(source.partition(whole(FLOAT64))[0].splitlines()) + len(whole(FLOAT64).splitlines())
    assert [number for number in scalar_loops(source, flags) if number > own] == []


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_gcc_vectorises_a_long_program() -> None:
    graph = Graph(("mean", "var"))
    total = graph.const(0)
    for place in range(100):
        density = exp_mantissa(graph.input("mean") * (-1 - place / 7))
        share = 1 / madd(graph.input("var"), density, 1 + place / 5)
        root = sqrt(madd(share, share, density))
        value = root * (share * density)
        for _ in range(8):
            value = madd(value, share, root * (0.5 + place))
        small = density < place / 9
        total = select(small, place / 3, -place) * value + total
    graph.output("mean", sqrt(abs(total)))
    graph.output("var", total * total)
    partials = Graph(("mean", "var"))
    for name in ("dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar"):
        partials.output(name, partials.input("mean"))
    stable = SimpleNamespace(forward64=graph, partials64=partials)
    source = rendered(stable, "rule")  # type: ignore[arg-type]
    assert scalar_kernels(source, gcc_flags()) == []
