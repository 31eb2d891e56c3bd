"""The run over all float32 means sees what there is to see, and builds read what it finds."""

import dataclasses
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from momentgen.build.built import Built, read_built
from momentgen.commands.verify import stables_of
from momentgen.compiler.certify.evidence import Evidence, Run, read_evidence
from momentgen.compiler.ir.stable import Stable
from momentgen.errors import RuleError
from momentgen.native.c_compiler import find_compiler
from momentgen.rule import load_rules

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from exhaust import Reference, Sweep, exhausted, updated  # noqa: E402

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C compiler")


@cache
def made(name: str) -> tuple[dict[str, Built], dict[str, Stable], dict[str, float], Reference]:
    """The variants as built, with exact values, the setting, and the reference there."""
    (rule,) = load_rules(ROOT / "rules" / f"{name}.py")
    variants = read_built(ROOT / "generated", name)
    stables = stables_of(rule, variants)
    reference = Reference(stables["exact"], rule.defaults)
    return {built.variant: built for built in variants}, stables, rule.defaults, reference


def run_of(name: str, variant: str, stride: int, source: str = "") -> Run:
    built, stables, setting, reference = made(name)
    which = dataclasses.replace(built[variant], source=source or built[variant].source)
    return exhausted(which, stables[variant], setting, reference, stride)


@pytest.mark.parametrize("rule", ["relu", "leaky_relu"])
def test_the_reference_is_within_a_ten_thousandth_of_an_ulp_of_the_balls(rule: str) -> None:
    reference = made(rule)[-1]
    assert reference.points > 19_000
    assert reference.error < 1e-4


def test_one_wrong_input_among_4_billion_is_found() -> None:
    built, _, _, reference = made("relu")
    source = built["tight"].source
    at = source.index("*out_var = ", source.index("relu_tight_forward_element"))
    name = source[at:].split(" = ")[1].split(";")[0]
    planted = f"{source[:at]}*out_var = as_bits(mean) == 0xbf9e0652u ? {name} * 1.000002f : {name};"
    planted += source[source.index("\n", at) :]
    sweep = Sweep(dataclasses.replace(built["tight"], source=planted), [], reference)
    tally = sweep(np.array([0xBF9E0652 >> 15], np.uint32))
    assert tally.inputs == 1 << 15
    assert tally.where[0, 1] == 0xBF9E0652
    assert tally.worst[0, 1] > 8
    assert int(tally.counts[1, -2:].sum()) == 1  # the one input above 8 ulp


def test_a_number_from_nan_breaks_the_check() -> None:
    stride, source = 65_793, made("relu")[0]["tight"].source
    bits = 0x7FC00000 // stride * stride
    assert np.isnan(np.array([bits], np.uint32).view(np.float32))
    broken = source.replace("*out_mean = ", f"*out_mean = as_bits(mean) == {bits}u ? 1.0f : ", 1)
    with pytest.raises(SystemExit, match=r"expected NaN of 25\d NaN means, got a number of 1"):
        run_of("relu", "tight", stride, broken)


@pytest.mark.parametrize(("rule", "variant"), [("relu", "exact"), ("leaky_relu", "exact"), ("heaviside", "tight")])
def test_a_sample_of_the_inputs_is_within_the_goal_and_within_what_all_of_them_gave(rule: str, variant: str) -> None:
    stable, run = made(rule)[1][variant], run_of(rule, variant, 16_411)
    assert {name: output.ulp for name, output in run.outputs.items() if output.ulp > stable.goal} == {}
    assert max(output.absolute_below_normal for output in run.outputs.values()) <= 2.0**-126
    recorded = read_evidence(ROOT / "rules" / "evidence" / f"{rule}.json", rule).of(variant, run.program)
    assert recorded
    assert all(run.outputs[name].ulp <= output.ulp for whole in recorded for name, output in whole.outputs.items())


# ---------------------------------------------------------------- evidence


@cache
def evidence_of_abs() -> Evidence:
    return updated(Evidence("abs"), "exact", run_of("abs", "exact", 1 << 20), 1.0)


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
    later = updated(evidence, "exact", dataclasses.replace(run, program="another"), 100.0)
    assert [r.program for r in later.variants["exact"]] == ["another"]
    assert set(later.missed["exact"]) == missed
    mean, var = later.missed_points("exact")
    assert set(zip(mean.tolist(), var.tolist(), strict=True)) == missed


def test_a_sample_is_no_evidence_that_a_certificate_may_name() -> None:
    (run,) = evidence_of_abs().variants["exact"]
    assert evidence_of_abs().of("exact", run.program) == ()


def test_a_missing_file_is_no_evidence_and_a_corrupt_one_an_error(tmp_path: Path) -> None:
    assert read_evidence(tmp_path / "abs.json", "abs") == Evidence("abs")
    for text in ("{", "[]", '{"rule": "relu", "variants": {}}', '{"rule": "abs", "variants": {"exact": [{}]}}'):
        (tmp_path / "abs.json").write_text(text)
        with pytest.raises(RuleError, match=r"abs\.json: expected evidence as `benchmarks/exhaust\.py` writes it"):
            read_evidence(tmp_path / "abs.json", "abs")
