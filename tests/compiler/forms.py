"""What a strategy made of an f, computed: by its float64 graphs, by its float32 programs, and by quadrature of f."""

from __future__ import annotations

import ctypes
import functools
import importlib
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import sympy as sp
from quadrature_truth import moments, partials

from momentgen.compiler.certify.bounds import kernel_params
from momentgen.compiler.derive import derive
from momentgen.compiler.emit._text import Header
from momentgen.compiler.emit.torch import render_torch
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.kinds import CONDITIONS
from momentgen.compiler.ir.stable import OUTPUTS, Stable
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.lower.words import lower
from momentgen.compiler.pipeline import CompiledRule
from momentgen.compiler.strategies import stabilise
from momentgen.compiler.toolchain.c_libraries import compiled
from momentgen.rule import Rule, x

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


@functools.lru_cache
def stable_of(f: sp.Expr, way: str = "") -> Stable:
    """The variant of an f without parameters, by the first strategy or by a named one."""
    (stable,) = stabilise(derive(Rule("mine", f=f)), way)
    return stable


def by_quadrature(
    f: sp.Expr,
    mean: float,
    var: float,
    digits: int = 15,
    setting: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The six exact values at a point, as mpmath numbers."""
    exact = dict(zip(OUTPUTS, moments(f, mean, var, setting, digits), strict=True))
    return exact | partials(f, mean, var, setting, digits)


def in_float64(stable: Stable, mean: Any, var: Any, setting: Mapping[str, float] | None = None) -> dict[str, F64]:
    """By the graphs for float64."""
    at = {"mean": np.asarray(mean, np.float64), "var": np.asarray(var, np.float64), **(setting or {})}
    values = outputs_float64(stable.forward64, at) | outputs_float64(stable.partials64, at)
    return {name: np.broadcast_to(value, at["mean"].shape) for name, value in values.items()}


def in_float32(
    stable: Stable, mean: F32, var: F32, setting: Mapping[str, float] | None = None, *, double: bool = True
) -> dict[str, F32]:
    """By the float32 programs, with double-floats or single floats throughout."""
    values: dict[str, F32] = {}
    for graph in (stable.forward, stable.partials):
        every = frozenset(i for i in graph.live() if graph.nodes[i].kind not in CONDITIONS) if double else frozenset()
        program = lower(graph, "mine", every, {})
        params = kernel_params(program, setting or {}, stable.scalars(setting or {}) if program.params else ())
        values |= evaluate(program, {"mean": mean, "var": var}, params)
    return values


def by_c(
    source: str, name: str, which: str, arrays: Sequence[F64], params: Sequence[float] = (), flags: Any = None
) -> list[F64]:
    """What a function of float64 C, a rule's forward or backward one, makes of arrays."""
    library = compiled(source, flags)
    outputs = [np.empty_like(arrays[0]) for _ in range(2 if which == "forward" else len(arrays) - 2)]
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*arrays, *outputs)]
    block = (ctypes.c_double * max(1, len(params)))(*params)
    inputs = len(arrays)
    library[f"{name}_{which}"](ctypes.c_int64(arrays[0].size), *pointers[:inputs], block, *pointers[inputs:])
    return outputs


def torch_form(stable: Any, kernels: Any, source: str) -> ModuleType:
    """The PyTorch form of a rule, whose coefficients are in the C beside it."""
    module = ModuleType("rule")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "exact_float64.c").write_text(source, encoding="utf-8")
        module.__file__ = str(Path(folder, "exact_torch.py"))
        exec(render_torch(stable, kernels, Header("rule", "exact"), "For a test."), module.__dict__)
    return module


def op_in(folder: Path, compiled: CompiledRule, package: str) -> Any:
    """The op of what was compiled, imported from a package in a folder, as a user imports it."""
    (folder / package).mkdir(parents=True)
    for file, text in compiled.files.items():
        (folder / package / file).write_text(text, encoding="utf-8")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return getattr(importlib.import_module(package), compiled.rule)


def cubic(seed: int) -> sp.Expr:
    """A continuous piecewise cubic of moderate size with an exponential tail on the left and a line on the right."""
    rng = random.Random(seed)
    knots = [sp.Rational(k, 2) for k in sorted(rng.sample(range(-3, 4), rng.choice((2, 3))))]
    value = sp.Rational(rng.randint(-5, 5), 10)
    scale = sp.Rational(rng.choice((-1, 1)) * rng.randint(3, 12), 10)
    branches: list[tuple[sp.Expr, object]] = [(value + scale * (sp.exp(x - knots[0]) - 1), x < knots[0])]
    for low, high in pairwise(knots):
        width = high - low
        cubic = value + sum(sp.Rational(rng.randint(-8, 8), 10) * (x - low) ** k / width ** (k - 1) for k in (1, 2, 3))
        branches.append((sp.expand(cubic), x < high))
        value = cubic.subs(x, high)
    slope = sp.Rational(rng.randint(-5, 10), 10)
    return sp.Piecewise(*branches, (sp.expand(value + slope * (x - knots[-1])), True))


def function(expr: Any, names: Any) -> Any:
    """An expression as a function of mpmath's numbers."""
    known = {"Phi": mpmath.ncdf, "phi": mpmath.npdf, "S": lambda z: 1 / (1 + mpmath.exp(-z))}
    return sp.lambdify(list(names), expr, [known, "mpmath"])
