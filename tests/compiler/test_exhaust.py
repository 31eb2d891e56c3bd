"""The sweep over all float32 means sees what there is to see, and the generated kernels pass it."""

from __future__ import annotations

import dataclasses
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from momentgen.commands.exhaustive import exhaust_rules
from momentgen.compiler.certify.evidence import ALL_INPUTS, Evidence, read_evidence, stated_digest
from momentgen.compiler.certify.sweep import CHUNKS, Reference, Sweep
from momentgen.compiler.derive import derive
from momentgen.compiler.exhaust import exhaust
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.measure.ulp import ulp_error
from momentgen.compiler.native import NativeKernel
from momentgen.compiler.strategies.homogeneous import kink
from momentgen.compiler.toolchain.float32 import split_float32
from momentgen.errors import BuildError, MomentgenError, RuleError
from momentgen.native.c_compiler import find_compiler
from momentgen.rule import load_rules

ROOT = Path(__file__).parents[2]
CASES = [(rule, variant) for rule in ("relu", "leaky_relu", "abs", "heaviside") for variant in ("exact", "tight")]
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C compiler")


@cache
def stable_of(rule: str, variant: str) -> Stable:
    (loaded,) = load_rules(ROOT / "rules" / f"{rule}.py")
    return next(s for s in kink.stable_variants(derive(loaded)) if s.variant == variant)


@cache
def reference_of(rule: str) -> Reference:
    stable = stable_of(rule, "exact")
    return Reference(stable, stable.settings[0])


def source_of(rule: str, variant: str) -> str:
    return (ROOT / "generated" / rule / f"{variant}.c").read_text()


def params_of(stable: Stable) -> list[float]:
    setting = stable.settings[0]
    return [word for value in setting.values() for word in split_float32(value)] + list(stable.scalars(setting))


@pytest.mark.parametrize("rule", ["relu", "leaky_relu", "abs", "heaviside"])
def test_the_reference_is_within_a_ten_thousandth_of_an_ulp_of_the_balls(rule: str) -> None:
    reference = reference_of(rule)
    assert reference.points > 19_000
    assert reference.error < 1e-4


def test_the_sweep_measures_what_the_exported_kernels_and_the_balls_say() -> None:
    rule, stride = "leaky_relu", 1_048_573  # it has a parameter
    stable = stable_of(rule, "tight")
    params, reference = params_of(stable), reference_of(rule)
    sweep = Sweep(source_of(rule, "tight"), f"{rule}_tight", params, reference, stride)
    tally = sweep(np.flatnonzero(reference.piece >= 0).astype(np.uint32))
    mean = np.arange(0, ALL_INPUTS, stride, dtype=np.int64).astype(np.uint32).view(np.float32)
    mean = mean[np.isfinite(mean)]
    assert tally.inputs == mean.size
    forward = NativeKernel(source_of(rule, "tight"), f"{rule}_tight_forward", 2, len(params), 2)
    exact = stable.truth(mean, np.ones_like(mean), stable.settings[0])
    for k, (name, computed) in enumerate(
        zip(("mean", "var"), forward(mean, np.ones_like(mean), params=params), strict=True)
    ):
        error = ulp_error(computed, exact[name])
        assert tally.worst[:, k].max() == pytest.approx(error.max(), abs=1e-4)
        worst = mean.view(np.uint32) == tally.where[tally.worst[:, k].argmax(), k]
        assert error[worst] == pytest.approx(error.max(), abs=1e-4)


def test_one_wrong_input_among_4_billion_is_found() -> None:
    stable, source = stable_of("relu", "tight"), source_of("relu", "tight")
    start = source.index("relu_tight_forward_element")
    at = source.index("*out_var = ", start)
    name = source[at:].split(" = ")[1].split(";")[0]
    planted = f"{source[:at]}*out_var = as_bits(mean) == 0xbf9e0652u ? {name} * 1.000002f : {name};"
    planted += source[source.index("\n", at) :]
    sweep = Sweep(planted, "relu_tight", params_of(stable), reference_of("relu"))
    tally = sweep(np.array([0xBF9E0652 >> 15], np.uint32))
    assert tally.inputs == 1 << 15
    assert tally.where[0, 1] == 0xBF9E0652
    assert tally.worst[0, 1] > 8
    assert int(tally.counts[1, -2:].sum()) == 1  # the one input above 8 ulp


def test_a_number_from_nan_breaks_the_check() -> None:
    stable, source = stable_of("relu", "tight"), source_of("relu", "tight")
    stride, bits = 65_793, 0x7FC00000 // 65_793 * 65_793
    assert np.isnan(np.array([bits], np.uint32).view(np.float32))
    broken = source.replace("*out_mean = ", f"*out_mean = as_bits(mean) == {bits}u ? 1.0f : ", 1)
    with pytest.raises(BuildError, match=r"1 of 25\d NaN means give a number"):
        exhaust("relu", stable, broken, {}, stride=stride, reference=reference_of("relu"))


@pytest.mark.parametrize("stride", [65_536, 999_983])
def test_every_input_is_run_once(stride: int) -> None:
    stable = stable_of("abs", "exact")
    run = exhaust("abs", stable, source_of("abs", "exact"), {}, stride=stride, reference=reference_of("abs"))
    assert run.inputs == -(-ALL_INPUTS // stride)
    nans = (np.arange(0, ALL_INPUTS, stride, dtype=np.int64) & 0x7FFFFFFF) > 0x7F800000
    assert run.nan_inputs == nans.sum()
    # Every normal mean has a normal mean and variance of |X|, up to the largest number.
    normal = (np.arange(0, ALL_INPUTS, stride, dtype=np.int64) & 0x7FFFFFFF) >= 0x00800000
    infinite = (np.arange(0, ALL_INPUTS, stride, dtype=np.int64) & 0x7FFFFFFF) == 0x7F800000
    for name in ("mean", "var"):
        assert sum(run.outputs[name].histogram_ulp.values()) == normal.sum() - infinite.sum() - nans.sum()


@pytest.mark.parametrize(("rule", "variant"), [CASES[0], CASES[3], CASES[4], CASES[7]])  # `make slow` has all
def test_generated_kernels_are_within_their_goal_on_every_16411th_input(rule: str, variant: str) -> None:
    stable = stable_of(rule, variant)
    run = exhaust(
        rule, stable, source_of(rule, variant), stable.settings[0], stride=16_411, reference=reference_of(rule)
    )
    assert {name: output.ulp for name, output in run.outputs.items() if output.ulp > stable.goal} == {}
    assert max(output.absolute_below_normal for output in run.outputs.values()) <= 2.0**-126
    recorded = read_evidence(ROOT / "rules" / "evidence" / f"{rule}.json", rule)
    for whole in recorded.of(variant, run.program):
        if whole.setting == run.setting:
            assert all(run.outputs[name].ulp <= output.ulp for name, output in whole.outputs.items())


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "variant"), CASES)
def test_generated_kernels_are_within_their_goal_on_every_input(rule: str, variant: str) -> None:
    # The same as `momentgen exhaust rules/ --only RULE --variant VARIANT`, which also records what it finds.
    stable = stable_of(rule, variant)
    run = exhaust(rule, stable, source_of(rule, variant), stable.settings[0], reference=reference_of(rule))
    assert run.inputs == ALL_INPUTS
    assert {name: output.ulp for name, output in run.outputs.items() if output.ulp > stable.goal} == {}


# ---------------------------------------------------------------- evidence


@cache
def evidence_of_abs() -> Evidence:
    stable = stable_of("abs", "exact")
    run = exhaust("abs", stable, source_of("abs", "exact"), {}, stride=1 << 20, reference=reference_of("abs"))
    return Evidence("abs").updated("exact", run, goal=1.0)


def test_evidence_reads_back_as_it_was_written(tmp_path: Path) -> None:
    evidence = evidence_of_abs()
    (tmp_path / "abs.json").write_text(evidence.to_json())
    again = read_evidence(tmp_path / "abs.json", "abs")
    assert again == evidence
    assert again.to_json() == evidence.to_json()
    mean, var = again.worst_points("exact")
    assert mean.size > 10
    assert set(var) == {1.0}


def test_inputs_that_missed_the_goal_are_kept_whatever_comes_after() -> None:
    evidence = evidence_of_abs()
    (run,) = evidence.variants["exact"]
    missed = {(m, run.var) for output in run.outputs.values() for m, ulp in output.worst if ulp > 1.0}
    assert missed
    assert set(evidence.missed["exact"]) == missed
    later = evidence.updated("exact", dataclasses.replace(run, program="another"), goal=100.0)
    assert [r.program for r in later.variants["exact"]] == ["another"]
    assert set(later.missed["exact"]) == missed
    mean, var = later.missed_points("exact")
    assert set(zip(mean.tolist(), var.tolist(), strict=True)) == missed


def test_a_sample_is_no_evidence_that_a_certificate_may_name() -> None:
    evidence = evidence_of_abs()
    assert evidence.of("exact", stated_digest(source_of("abs", "exact"))) == ()


def test_a_missing_file_is_no_evidence_and_a_corrupt_one_an_error(tmp_path: Path) -> None:
    assert read_evidence(tmp_path / "abs.json", "abs") == Evidence("abs")
    for text in ("{", "[]", '{"rule": "relu", "variants": {}}', '{"rule": "abs", "variants": {"exact": [{}]}}'):
        (tmp_path / "abs.json").write_text(text)
        with pytest.raises(RuleError, match=r"abs\.json: expected evidence as `momentgen exhaust` writes it"):
            read_evidence(tmp_path / "abs.json", "abs")


def test_chunks_cover_all_bit_patterns_and_numbers_have_a_piece() -> None:
    piece = reference_of("relu").piece
    assert piece.size == CHUNKS
    is_number = (np.arange(CHUNKS) >> 8 & 0xFF) < 255
    assert np.array_equal(piece >= 0, is_number)


# ---------------------------------------------------------------- the command's errors


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"only": "gelu"}, "no such rule"),
        ({"variant": "best"}, "no variant 'best'"),
        ({"settings": {"slope": 1.0}}, "no parameter is called slope"),
        ({"only": "relu"}, "run `momentgen build` first"),
    ],
)
def test_the_command_says_what_is_missing(tmp_path: Path, options: dict[str, object], told: str) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    for name in ("relu", "leaky_relu"):
        shutil.copy(ROOT / "rules" / f"{name}.py", rules)
    with pytest.raises(MomentgenError, match=told):
        exhaust_rules(rules, **options)  # type: ignore[arg-type]


def test_a_parameter_outside_its_range_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"negative_slope = 7 is outside its range"):
        exhaust_rules(
            ROOT / "rules", ROOT / "generated", only="leaky_relu", variant="exact", settings={"negative_slope": 7.0}
        )
