"""`momentgen verify`: certificates that hold pass, and what breaks them is found in the committed C itself."""

import dataclasses
import functools
import json
import re
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from real_rules import ROOT, rules

from momentgen.build.built import Built, CommittedKernel, read_built
from momentgen.commands.verify import OutputCheck, VariantCheck, stables_of, verify, verify_variant
from momentgen.compiler.certify.evidence import Evidence, Run, read_evidence
from momentgen.compiler.derive import derive
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.strategies import stabilise
from momentgen.errors import MomentgenError, RuleError
from momentgen.native.c_compiler import find_compiler
from momentgen.rule import Rule, load_rules

sys.path.append(str(ROOT / "benchmarks"))

from exhaust import Reference, Sweep, exhausted, updated

RULES, GENERATED = ROOT / "rules", ROOT / "generated"


@functools.lru_cache
def stables() -> dict[str, Stable]:
    return {stable.variant: stable for stable in stabilise(derive(rules()["heaviside"]))}


def check(package: Path, variant: str = "exact", points: int = 400) -> VariantCheck:
    built = {b.variant: b for b in read_built(package, "heaviside")}
    return verify_variant(built[variant], stables()[variant], points=points)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    shutil.copytree(GENERATED / "heaviside", tmp_path / "generated" / "heaviside")
    return tmp_path / "generated"


def stated(package: Path, change: Callable[[dict[str, Any]], object], variant: str = "exact") -> None:
    """Change a certificate."""
    file = package / "heaviside" / f"{variant}.json"
    certificate = json.loads(file.read_text())
    change(certificate)
    file.write_text(json.dumps(certificate))


def edit(file: Path, pattern: str, replacement: str) -> None:
    text = file.read_text()
    changed = re.sub(pattern, replacement, text)
    assert changed != text
    file.write_text(changed)


def test_committed_certificates_hold_at_fresh_points() -> None:
    for variant in ("exact", "tight"):
        found = check(GENERATED, variant, points=2000)
        assert found.broken == []
        # The certificate's own worst points are among those measured, so its bounds are nearly reached.
        assert all(output.measured > 0.9 * output.certified for output in found.outputs)


@pytest.mark.parametrize("rule", rules().values(), ids=rules())
def test_every_committed_kernel_is_given_as_many_values_as_it_reads(rule: Rule) -> None:
    for built in read_built(GENERATED, rule.name):
        built.parameters(rule.defaults)


def test_a_variant_without_float64_code_of_its_own_is_measured_with_the_scalars_of_the_one_that_serves_it() -> None:
    (built,) = [b for b in read_built(GENERATED, "leaky_relu") if b.variant == "tight"]
    assert not (built.folder / "tight_torch.py").exists()
    mean, var, slope = np.float32(-94.20133209), np.float32(38879.0078125), 0.3  # beside the mean's zero
    found = CommittedKernel(built, {"negative_slope": slope}).outputs(np.array([mean]), np.array([var]))
    with mpmath.workdps(50):
        mu, sigma = mpmath.mpf(float(mean)), mpmath.sqrt(float(var))
        positive = mu * mpmath.ncdf(mu / sigma) + sigma * mpmath.npdf(mu / sigma)
        exact = slope * mu + (1 - mpmath.mpf(slope)) * positive
        assert abs(found["mean"][0] / exact - 1) < 2 * 2.0**-23


def test_a_kernel_that_would_read_beyond_what_it_is_given_is_refused(package: Path) -> None:
    edit(package / "heaviside" / "exact.c", r"in_ptr params,", "in_ptr params, // params[3]\n")
    (built,) = [b for b in read_built(package, "heaviside") if b.variant == "exact"]
    with pytest.raises(MomentgenError, match="expected the 4 values that the C reads as params, got 0"):
        built.parameters({})


def test_a_bound_that_is_too_good_to_be_true_is_found(package: Path) -> None:
    stated(package, lambda found: found["bounds"]["dvar_dmu"].update(ulp=found["bounds"]["dvar_dmu"]["ulp"] / 2))
    (line,) = check(package).broken
    assert re.match(r"heaviside exact dvar_dmu: \S+ ulp at mean = .*; certified ", line)


@pytest.mark.parametrize(
    ("pattern", "replacement", "broken"),
    [
        (r"\*out_mean = (\w+);", r"*out_mean = \1 * 1.00001f;", "heaviside exact mean: .* the goal is 8"),
        (r"\*out_var = (\w+);", r"*out_var = mean > 0.0f ? \1 / 0.0f * 0.0f : \1;", "heaviside exact var: inf"),
        # No error is measured there: a point without randomness is outside the domain of the bounds.
        (
            r"\*out_var = (\w+);",
            r"*out_var = var == 0.0f ? -1.0f : \1;",
            r"heaviside exact: var = -1\.0 at mean = \S+, var = 0$",
        ),
    ],
    ids=["an error", "a NaN", "a negative variance at a variance of 0"],
)
def test_what_is_wrong_in_the_committed_c_is_found(package: Path, pattern: str, replacement: str, broken: str) -> None:
    edit(package / "heaviside" / "exact.c", pattern, replacement)
    assert any(re.match(broken, line) for line in check(package).broken)


@pytest.mark.parametrize(
    ("goal", "certified", "measured", "broken"),
    [
        *((8.0, 5.0, measured, broken) for measured, broken in ((5.0, 0), (5.09, 0), (5.11, 1), (float("nan"), 1))),
        # beside a bound far below the goal a thousandth of the goal is let pass
        *((1.0, 0.01, measured, broken) for measured, broken in ((0.0109, 0), (0.0111, 1), (1.2, 1))),
    ],
)
def test_an_excess_within_the_margin_breaks_nothing(
    goal: float, certified: float, measured: float, broken: int
) -> None:
    output = OutputCheck("mean", measured, certified, {"mean": 0.0})
    assert len(VariantCheck("f", "exact", "ulp", goal, 1, (output,)).broken) == broken
    assert np.isnan(measured) or output.excess == pytest.approx(measured / certified - 1)


def test_a_certificate_of_another_rule_file_is_refused(package: Path, tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    text = (RULES / "heaviside.py").read_text()
    (tmp_path / "rules" / "heaviside.py").write_text(text + "# changed\n")
    with pytest.raises(MomentgenError, match="another state of the rule file"):
        verify(tmp_path / "rules", package)


def test_an_unbuilt_rule_and_an_unknown_one_are_errors(tmp_path: Path) -> None:
    with pytest.raises(MomentgenError, match="expected the built rule heaviside"):
        verify(RULES, tmp_path, only="heaviside")
    with pytest.raises(RuleError, match="no such rule"):
        verify(RULES, only="swish")


@pytest.mark.parametrize(("halved", "code"), [(False, 0), (True, 1)])
def test_the_command_prints_a_table_and_exits_1_on_a_broken_bound(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., Any], halved: bool, code: int
) -> None:
    (tmp_path / "rules").mkdir()
    shutil.copy(RULES / "heaviside.py", tmp_path / "rules")
    if halved:
        stated(package, lambda found: found["bounds"]["mean"].update(ulp=found["bounds"]["mean"]["ulp"] / 2), "tight")
    monkeypatch.setenv("COLUMNS", "140")
    shown = said("verify", tmp_path / "rules", "--out", package)
    assert shown.code == code
    assert "2 variants measured at" in shown.out
    assert re.search(r"heaviside +exact +mean +\d", shown.out)
    assert (re.search(r"mean .*\+\d+ %", shown.out) and "tight mean" in shown.err) or not halved


# The run over all float32 means sees what there is to see, and builds read what it finds.


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
    assert evidence.of("exact", run.program) == ()  # a sample is none that a certificate may name
    missed = {(m, run.var) for output in run.outputs.values() for m, ulp in output.worst if ulp > 1.0}
    assert missed
    assert set(evidence.missed["exact"]) == missed
    later = updated(evidence, "exact", dataclasses.replace(run, program="another"), 100.0)
    assert [r.program for r in later.variants["exact"]] == ["another"]
    assert set(later.missed["exact"]) == missed
    mean, var = later.missed_points("exact")
    assert set(zip(mean.tolist(), var.tolist(), strict=True)) == missed


def test_a_missing_file_is_no_evidence_and_a_corrupt_one_an_error(tmp_path: Path) -> None:
    assert read_evidence(tmp_path / "abs.json", "abs") == Evidence("abs")
    for text in ("{", "[]", '{"rule": "relu", "variants": {}}', '{"rule": "abs", "variants": {"exact": [{}]}}'):
        (tmp_path / "abs.json").write_text(text)
        with pytest.raises(RuleError, match=r"abs\.json: expected evidence as `benchmarks/exhaust\.py` writes it"):
            read_evidence(tmp_path / "abs.json", "abs")
