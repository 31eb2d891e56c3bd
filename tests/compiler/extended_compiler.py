"""The compiler as ``docs/extending.md`` extends it, at work; a process of its own, which prints what it found.

It runs in a folder with the extended package and the page's rules.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from momentgen.compiler.emit import Header, render_triton
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.values import evaluate_mpmath
from momentgen.compiler.lower.words import lower
from momentgen.compiler.pipeline import CompiledRule, compile_rule
from momentgen.native.c_compiler import find_compiler
from momentgen.rule import load_rules

#: CUDA's names, to a C compiler
_CUDA = """
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#define __device__
#define __fmaf_rn fmaf
#define __fsqrt_rn sqrtf
static unsigned __float_as_uint(float f) { unsigned u; __builtin_memcpy(&u, &f, 4); return u; }
static float __uint_as_float(unsigned u) { float f; __builtin_memcpy(&f, &u, 4); return f; }
"""


def primitive() -> dict[str, Any]:
    """The new primitive in the real graph, in NumPy and in Triton."""
    from momentgen.compiler.ir.graph import floor  # type: ignore[attr-defined]  # pytest imports this file unextended

    graph = Graph(("x",))
    graph.output("y", floor(graph.input("x")))
    program = lower(graph, "below", (), {})
    x = np.array([-2.5, -0.0, 0.5, 3.0, 1e9, np.inf, np.nan], np.float32)
    return {
        "meaning": float(evaluate_mpmath(graph, {"x": -2.5})["y"]),
        "numpy": evaluate(program, {"x": x})["y"].tobytes() == np.floor(x).tobytes(),
        "triton": "tl.floor" in render_triton([program], Header("below", "exact")),
    }


def backend(compiled: CompiledRule) -> list[int]:
    """How many of 200 elements have other bits in the new backend's code than in NumPy, by output."""
    forward = compiled.programs["exact"][0]
    Path("it.c").write_text(_CUDA + compiled.files["exact.cu"], encoding="utf-8")
    flags = ["-shared", "-fPIC", "-ffp-contract=off", "-lm"]
    subprocess.run([*(find_compiler() or ()), "it.c", "-o", "it.so", *flags], check=True)
    function = ctypes.CDLL(str(Path("it.so").resolve()))[forward.name]
    function.argtypes = [ctypes.c_float] * 2 + [ctypes.c_void_p] * 2
    draw = np.random.default_rng(0)
    inputs = {
        "mean": draw.normal(size=200).astype(np.float32),
        "var": draw.exponential(size=200).astype(np.float32),
    }
    out = np.empty((200, 2), np.float32)
    for row, mean, var in zip(out, inputs["mean"], inputs["var"], strict=True):
        function(mean, var, row[:1].ctypes.data, row[1:].ctypes.data)
    numpy = evaluate(forward, inputs)
    return [int((out[:, k] != numpy[name]).sum()) for k, (name, _) in enumerate(forward.outputs)]


if __name__ == "__main__":
    built = {rule.name: compile_rule(rule) for rule in load_rules(Path("rules"))}
    certificates = {name: json.loads(compiled.files["exact.json"]) for name, compiled in built.items()}
    print(json.dumps({"certificates": certificates, "primitive": primitive(), "backend": backend(built["wave"])}))
