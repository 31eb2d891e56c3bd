"""The same bits everywhere: C however it is compiled, Triton's interpreter, and the NumPy evaluation of the program."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from contract.library import CASES, OPS, anything, each_variant
from contract.library import settings_of as library_settings
from real_rules import ALL, F32, Programs, Setting, compiled, each, scalars_of, settings_of, source_of
from same_bits import Job, builds, different, interpret, interpreter_fuses, kernel_inputs, run_c

from momentgen.compiler.ir.interpreter import evaluate
from momentgen.native.c_compiler import find_compiler

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
needs_interpreter = pytest.mark.skipif(not interpreter_fuses(), reason="no Triton whose interpreter rounds fma once")

DIRECTIONS = ("forward", "backward")
#: compiling all of them in all ways takes minutes: `make slow` does
ONE_OF_EACH_WAY = [
    ("relu", "exact"),
    ("relu", "fitted"),
    ("leaky_relu", "tight"),
    ("heaviside", "exact"),
    ("logistic_transform", "exact"),
]
FEW, SOME, MANY = 2_000, 100_000, 1_000_000


def by_c(name: str, variant: str, direction: str, n: int, setting: dict[str, float], build: str) -> tuple[F32, ...]:
    source, kernel = source_of(name, variant, ".c"), f"{name}_{variant}_{direction}"
    inputs, params = kernel_inputs(n, direction, seed=n), scalars_of(name, variant, setting)
    return run_c(source, kernel, inputs, params, builds()[build])


def by_op(name: str, variant: str, direction: str, n: int) -> tuple[tuple[F32, ...], tuple[F32, ...], Setting]:
    """Inputs, the outputs of the op's C, and the parameters: forwards their defaults, backwards others."""
    op, inputs = OPS[name], anything(OPS[name], n, direction)
    settings = library_settings(op)[0 if direction == "forward" else -1]
    found = op.kernel(direction, variant=variant, backend="c")(*map(torch.from_numpy, inputs), **settings)
    return inputs, tuple(tensor.numpy() for tensor in found), settings


@functools.lru_cache(maxsize=2)
def interpreted(n: int) -> dict[tuple[str, str, str], int]:
    """Of every kernel of the library, in one process: how many outputs have other bits than the op's C."""
    keys = [(name, variant, direction) for name, variant in CASES for direction in DIRECTIONS]
    jobs, wanted = [], []
    for name, variant, direction in keys:
        inputs, outputs, setting = by_op(name, variant, direction, n)
        source, kernel = source_of(name, variant, "_triton.py"), f"{name}_{variant}_{direction}_kernel"
        jobs.append(Job(source, kernel, inputs, scalars_of(name, variant, setting), len(outputs)))
        wanted.append(outputs)
        assert not np.isnan(outputs[0]).all()
    return {key: different(*pair) for key, *pair in zip(keys, interpret(jobs), wanted, strict=True)}


def test_there_is_a_variant_by_each_way() -> None:
    assert set(ONE_OF_EACH_WAY) <= set(ALL)


def check_c_builds(name: str, variant: str, n: int) -> None:
    for setting in settings_of(name)[:2]:
        for direction in DIRECTIONS:
            want = by_c(name, variant, direction, n, setting, "default")
            assert not np.isnan(want[0]).all()
            for build in builds():
                assert different(by_c(name, variant, direction, n, setting, build), want) == 0, (direction, build)


def check_evaluation(programs: Programs, name: str, variant: str, n: int) -> None:
    """Also that the committed C is that of the programs."""
    assert programs.files[f"{variant}.c"] == source_of(name, variant, ".c"), "run `momentgen build rules/`"
    for setting in settings_of(name)[:2]:
        for program, direction in zip(programs.of[variant], DIRECTIONS, strict=True):
            inputs, params = kernel_inputs(n, direction, seed=n), scalars_of(name, variant, setting)
            named = dict(zip(program.inputs, inputs, strict=True))
            outputs = evaluate(program, named, dict(zip(program.params, params, strict=True)))
            got = tuple(outputs[output] for output, _ in program.outputs)
            assert different(got, by_c(name, variant, direction, n, setting, "default")) == 0, direction


@needs_compiler
@each(ONE_OF_EACH_WAY)
def test_c_has_the_same_bits_however_it_is_compiled(name: str, variant: str) -> None:
    check_c_builds(name, variant, SOME)


@needs_compiler
@needs_interpreter
@pytest.mark.parametrize("n", [FEW, pytest.param(SOME, marks=pytest.mark.slow)])
@each_variant
def test_the_interpreter_has_the_bits_of_c(name: str, variant: str, n: int) -> None:
    assert [interpreted(n)[name, variant, direction] for direction in DIRECTIONS] == [0, 0]


@needs_compiler
def test_the_evaluation_has_the_bits_of_c() -> None:
    check_evaluation(compiled("relu", exact_only=True), "relu", "exact", SOME)


@needs_compiler
@pytest.mark.slow
@each(ALL)
def test_all_have_the_same_bits_at_a_million_inputs(name: str, variant: str) -> None:
    check_c_builds(name, variant, MANY)
    check_evaluation(compiled(name), name, variant, MANY)


def test_one_changed_bit_is_found_and_nan_payloads_are_not() -> None:
    a = np.float32([1.0, -0.0, np.nan, np.inf])
    b = a.copy()
    b.view(np.int32)[2] ^= 1
    assert different([a], [b]) == 0
    b.view(np.int32)[0] ^= 1
    b[1] = 0.0
    assert different([a, a], [b, a]) == 2
