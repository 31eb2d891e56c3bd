"""Certification refuses programs that are wrong, wherever and however little, and says where."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import sympy as sp
from real_rules import F32, stables

from momentgen.compiler.certify.bounds import Bound, Runner, check_promises, kernel_params, measure
from momentgen.compiler.certify.variant import _activation
from momentgen.compiler.ir.op import Op
from momentgen.compiler.ir.passes import optimise
from momentgen.compiler.ir.program import Builder, Program, f32_bits
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.lower.words import lower
from momentgen.compiler.strategies.elementary.entire_graph import Edge
from momentgen.errors import BuildError
from momentgen.rule import Rule, x


@functools.lru_cache
def stable() -> Stable:
    return stables("relu")["exact"]


@functools.lru_cache
def programs() -> tuple[Program, Program]:
    """ReLU with every node in double: right, if slow."""
    made = []
    for graph, backward in ((stable().forward, False), (stable().partials, True)):
        name = "relu_backward" if backward else "relu_forward"
        made.append(optimise(lower(graph, name, set(range(len(graph.nodes))), {}, backward=backward)))
    return made[0], made[1]


def errors(runner: Runner) -> dict[str, Bound]:
    measured = measure(stable(), runner, lambda setting: {}, points=500, seed=0)
    return dict(measured.bounds)


def changed(program: Program, index: int, factor: float) -> Program:
    """One constant multiplied."""
    instructions = list(program.instructions)
    value = float(np.float32(instructions[index].value * factor))
    instructions[index] = dataclasses.replace(instructions[index], bits=f32_bits(value))
    return dataclasses.replace(program, instructions=tuple(instructions))


def rewritten(program: Program, output: str, write: str) -> Program:
    """One output replaced by an expression of it: ``neg``, ``flush`` (0 for NaN)."""
    b = Builder(program.name, program.inputs, program.params)
    new: list[int] = []
    for ins in program.instructions:
        args = tuple(new[a] for a in ins.args)
        new.append(b.fma(*args) if ins.op is Op.FMA else b.emit(ins.op, *args, bits=ins.bits, name=ins.name))
    for name, index in program.outputs:
        value = new[index]
        if name == output:
            value = b.neg(value) if write == "neg" else b.select(b.eq(value, value), value, b.f32(0.0))
        b.output(name, value)
    return b.build()


def coefficients(program: Program) -> list[int]:
    """Constants of the fitted polynomials, by their size."""
    return [
        i
        for i, ins in enumerate(program.instructions)
        if ins.op is Op.CONST_F32 and 0.02 < abs(float(ins.value)) < 0.9 and ins.bits is not None and ins.bits & 0xFFF
    ]


def test_a_right_program_is_well_within_the_goal() -> None:
    for name, bound in errors(Runner(*programs())).items():
        assert 0.3 < bound.error < 2, name
        assert sum(bound.histogram) > 100, name
        assert set(bound.at) == {"mean", "var"}, name


def test_a_nudged_coefficient_breaks_the_bound_and_the_points_are_kept() -> None:
    forward, backward = programs()
    found = 0
    for index in coefficients(forward)[:8]:
        wrong = Runner(changed(forward, index, 1 + 1e-5), backward)
        measured = measure(stable(), wrong, lambda setting: {}, points=300, seed=0)
        bad = [name for name, bound in measured.bounds.items() if bound.error > stable().goal]
        assert set(bad) <= set(OUTPUTS)
        assert bool(bad) == bool(measured.hard)
        found += bool(bad)
    assert found >= 4


def test_errors_are_found_without_a_c_compiler_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("momentgen.compiler.ir.interpreter.find_compiler", lambda: None)
    runner = Runner(*programs())
    mean, var = np.float32([-1.0, 0.5]), np.float32([1.0, 2.0])
    results = runner(mean, var, {})
    assert tuple(results) == (*OUTPUTS, *PARTIALS)
    monkeypatch.undo()
    for name, values in Runner(*programs())(mean, var, {}).items():
        np.testing.assert_array_equal(values, results[name])


def promises(forward: Program, backward: Program, f: object = None) -> int:
    relu: Any = f or (lambda x: np.maximum(x, 0))
    variant = dataclasses.replace(stable(), goal=8.0)
    return check_promises("relu", variant, Runner(forward, backward), {}, {}, relu, seed=0)


def test_promises_hold_for_a_right_program() -> None:
    assert promises(*programs()) > 100_000


@pytest.mark.parametrize(
    ("output", "write", "promise"),
    [("var", "neg", "variance that is not negative"), ("var", "flush", "NaN"), ("mean", "flush", "mean to be NaN")],
)
def test_a_broken_promise_names_rule_stage_and_point(output: str, write: str, promise: str) -> None:
    forward, backward = programs()
    with pytest.raises(BuildError, match=promise) as caught:
        promises(rewritten(forward, output, write), backward)
    assert (caught.value.rule, caught.value.stage) == ("relu", "certify")
    assert "mean = " in str(caught.value)


def test_another_activation_at_zero_variance_is_a_broken_promise() -> None:
    with pytest.raises(BuildError, match=r"the mean f\(mean\) at var = 0"):
        promises(*programs(), f=np.abs)


def test_infinite_gradients_are_a_broken_promise() -> None:
    b = Builder("relu_backward", inputs=("mean", "var", "grad_mean", "grad_var"))
    b.output("grad_mean", b.mul(b.input("grad_mean"), b.div(b.f32(1.0), b.input("var"))))
    b.output("grad_var", b.mul(b.input("grad_var"), b.f32(0.0)))
    with pytest.raises(BuildError, match="finite dmean_dmu"):
        promises(programs()[0], b.build())


def test_parameters_reach_the_kernel_as_pairs_and_then_derived_scalars() -> None:
    b = Builder("f", inputs=("x",), params=("p_hi", "p_lo", "d_hi", "d_lo"))
    b.output("y", b.add(b.input("x"), b.param("p_hi")))
    params = kernel_params(b.build(), {"p": 0.1}, (2.0, 3.0))
    assert list(params) == ["p_hi", "p_lo", "d_hi", "d_lo"]
    assert params["p_hi"] == float(np.float32(0.1))
    assert abs(params["p_hi"] + params["p_lo"] - 0.1) < 1e-16
    assert (params["d_hi"], params["d_lo"]) == (2.0, 3.0)
    with pytest.raises(ValueError, match="zip"):
        kernel_params(b.build(), {"p": 0.1})


def test_a_bound_is_rounded_up_and_keeps_its_worst_point() -> None:
    bound = Bound()
    exact = np.array([1.0, 1.0])
    computed: F32 = np.float32([1.0, 1.0 + 3 * 2.0**-23])
    points = np.float32([5.0, 6.0]), np.float32([7.0, 8.0])
    bound.update(np.array([0.12345678, 3.00001]), computed, exact, points, {"p": 0.5})
    assert bound.at == {"mean": 6.0, "var": 8.0, "p": 0.5}
    data = bound.as_data("ulp")
    assert data["ulp"] == 3.001
    assert data["histogram_ulp"]["<= 0.5"] == 1
    assert sum(data["histogram_ulp"].values()) == 2


def test_the_reference_at_variance_0_is_f_of_the_number_itself() -> None:
    """exp(x) - 1 at 1e-33: 30 digits of the exponential leave nothing of it."""
    rule = Rule("mine", f=sp.exp(x) - 1)
    reference = _activation(rule, stables("relu")["exact"], {})
    assert reference is not None
    assert reference(np.array([1e-33, -(2.0**-126)])) == pytest.approx([1e-33, -(2.0**-126)], rel=1e-15)


def test_a_program_may_be_nan_beyond_its_edge_and_nowhere_else() -> None:
    b = Builder("mine_forward", inputs=("mean", "var"))
    mean, var, one = b.input("mean"), b.input("var"), b.f32(1.0)
    far = b.lt(b.f32(1e6), b.abs(mean))
    lost = b.sqrt(b.select(b.either(far, b.lt(var, b.f32(0.0))), b.f32(-1.0), one))
    b.output("mean", b.mul(b.mul(mean, lost), b.select(b.eq(var, var), one, var)))
    b.output("var", b.mul(b.mul(var, lost), b.select(b.eq(mean, mean), one, mean)))
    forward = b.build()
    b = Builder("mine_backward", inputs=("mean", "var", "grad_mean", "grad_var"))
    b.output("grad_mean", b.mul(b.input("grad_mean"), b.f32(1.0)))
    b.output("grad_var", b.mul(b.input("grad_var"), b.f32(1.0)))
    runner = Runner(forward, b.build())
    assert check_promises("mine", dataclasses.replace(stable(), edge=Edge(1.0)), runner, {}, {}, None, seed=1) > 1000
    with pytest.raises(BuildError, match="no NaN in mean"):
        check_promises("mine", stable(), runner, {}, {}, None, seed=1)
