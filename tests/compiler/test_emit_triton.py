"""Generated Triton in its interpreter: the bits of the NumPy evaluation, in every element type.

The interpreter is chosen when a kernel is decorated, so it runs in a process of its own.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compiler.program_strategies import adversarial_inputs, different_bits, random_program

from momentgen.compiler.emit._text import Header
from momentgen.compiler.emit.triton import render_triton
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.passes import optimise
from momentgen.compiler.ir.program import Builder, Program

needs_triton = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("triton", "torch"))), reason="no triton, or no torch to hold its tensors"
)

SIZE = 12_345  # not a multiple of the block
SLOPE = 0.1

_RUN = """
import importlib.util, sys
import numpy as np, torch, triton
import triton.language as tl

folder, size, slope = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
spec = importlib.util.spec_from_file_location("kernels", folder + "/kernels.py")
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)
inputs = np.load(folder + "/inputs.npz")
x, y = (torch.from_numpy(inputs[name]) for name in ("x", "y"))
results = {}
with np.errstate(all="ignore"):
    for name in [name for name in vars(kernels) if name.endswith("_kernel")]:
        for dtype in (torch.float32, torch.float16):
            if dtype is not torch.float32 and not name.startswith("leaky"):
                continue
            outputs = [torch.full((size,), 7.0, dtype=dtype) for _ in range(3)]
            grid = (triton.cdiv(size, 4096),)
            getattr(kernels, name)[grid](x.to(dtype), y.to(dtype), *outputs, size, slope, BLOCK=4096)
            for number, output in enumerate(outputs):
                results[f"{name} {dtype} {number}"] = output.float().numpy()
np.savez(folder + "/results.npz", **results)
"""


def leaky() -> Program:
    """A program like a real one: a parameter in a comparison, both signs of zero, a division, a root."""
    b = Builder("leaky", inputs=("x", "y"), params=("p",))
    x, y, p, zero = b.input("x"), b.input("y"), b.param("p"), b.f32(0.0)
    b.comment(x, "the mean")
    folded = b.select(b.both(b.lt(x, zero), b.le(zero, p)), b.mul(x, p), x)
    b.output("value", b.comment(folded, "f at the mean"))
    b.output("ratio", b.div(b.fma(x, x, b.neg(y)), b.sqrt(b.abs(y))))
    b.output("slope", b.select(b.invert(b.lt(x, zero)), b.f32(1.0), b.select(b.lt(p, zero), b.f32(-0.0), p)))
    return b.build()


PROGRAMS = [leaky()] + [optimise(random_program(random.Random(seed), f"program{seed}", 60)) for seed in range(24)]
HEADER = Header("random", "test")


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    return adversarial_inputs(SIZE)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp("triton")
    (folder / "kernels.py").write_text(render_triton(PROGRAMS, HEADER))
    (folder / "run.py").write_text(_RUN)
    np.savez(folder / "inputs.npz", **inputs)
    command = [sys.executable, str(folder / "run.py"), str(folder), str(SIZE), str(SLOPE)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    with np.load(folder / "results.npz") as archive:
        return dict(archive)


def _interpreter_fuses() -> bool:
    """Whether this version's interpreter rounds ``tl.fma`` once; 3.6 rounds twice (its compiler is right)."""
    spec = importlib.util.find_spec("triton")
    source = Path(str(spec and spec.origin)).parent / "runtime" / "interpreter.py"
    return "x.data * y.data + z.data" not in source.read_text()


@needs_triton
def test_interpreter_has_the_bits_of_the_evaluation(
    results: dict[str, np.ndarray], inputs: dict[str, np.ndarray]
) -> None:
    if not _interpreter_fuses():
        pytest.skip("this Triton's interpreter rounds fma twice")
    for program in PROGRAMS:
        for number, (name, want) in enumerate(evaluate(program, inputs, {"p": SLOPE}).items()):
            got = results[f"{program.name}_kernel torch.float32 {number}"]
            assert different_bits(got, want).size == 0, (program.name, name)


@needs_triton
def test_narrow_types_are_widened_computed_and_rounded_once(
    results: dict[str, np.ndarray], inputs: dict[str, np.ndarray]
) -> None:
    # float16 only: the interpreter truncates to bfloat16, where compiled code rounds (see test_machine_code).
    with np.errstate(over="ignore"):
        wide = {name: x.astype(np.float16).astype(np.float32) for name, x in inputs.items()}
        for number, (name, value) in enumerate(evaluate(leaky(), wide, {"p": SLOPE}).items()):
            if name == "ratio" and not _interpreter_fuses():
                continue
            want = value.astype(np.float16).astype(np.float32)
            assert different_bits(results[f"leaky_kernel torch.float16 {number}"], want).size == 0, name


def test_module_parses_and_its_lines_are_short() -> None:
    source = render_triton(PROGRAMS, HEADER)
    assert max(map(len, source.splitlines())) < 120
    functions = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert functions == {name for p in PROGRAMS for name in (p.name, f"{p.name}_kernel")}
    assert source == render_triton(PROGRAMS, HEADER)


def test_only_correctly_rounded_functions_are_called() -> None:
    tree = ast.parse(render_triton(PROGRAMS, HEADER))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    called = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "tl"
    }
    allowed = {"abs", "arange", "div_rn", "fma", "full", "load", "program_id", "sqrt_rn", "store", "where"}
    assert called <= allowed


def test_readers_see_the_header_and_the_comments() -> None:
    source = render_triton([leaky()], HEADER)
    assert source.startswith("# random, variant test. Generated by momentgen; do not edit.")
    assert "# f at the mean" in source


@pytest.mark.parametrize(("values", "elements"), [(40, 2), (150, 1)])
def test_a_lane_works_on_one_element_where_two_would_not_stay_in_registers(values: int, elements: int) -> None:
    b = Builder("crowd", inputs=("x",))
    x = b.input("x")
    powers = [x]
    for _ in range(values):
        powers.append(b.mul(powers[-1], x))
    total = powers[-1]
    for power in reversed(powers[:-1]):  # from the highest: all must wait for it
        total = b.div(power, total)
    b.output("y", total)
    assert f"\nLANE_ELEMENTS = {elements}\n" in render_triton([b.build()], HEADER)
