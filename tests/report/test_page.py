"""The page: self-contained, complete, and honest about what it does not show."""

import dataclasses
import functools
import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import mpmath
import numpy as np
import pytest
import sympy
from quadrature_truth import moments

from momentgen.commands.report.formula import mathml
from momentgen.commands.report.measurements import compare, moment_curves, relative_errors
from momentgen.commands.report.page import blocks_of, render_page
from momentgen.commands.report.section import Section, section_of
from momentgen.commands.report.subject import Subject, activation, subject_of
from momentgen.commands.report.write import write_report
from momentgen.rule import load_rules
from momentgen.rule.symbols import Phi, S, x

ROOT = Path(__file__).parents[2]
RULES, GENERATED = ROOT / "rules", ROOT / "generated"
_VOID = {"meta", "img", "br", "hr", "link", "input"}


class Reader(HTMLParser):
    """Checks that tags are balanced, and keeps links, anchors and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        self.anchors |= {value or "" for name, value in attrs if name == "id"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data.replace("\N{WORD JOINER}", ""))


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@functools.lru_cache
def heaviside() -> Section:
    (rule,) = load_rules(RULES / "heaviside.py")
    return section_of(rule, GENERATED)


def test_the_page_needs_nothing_but_itself() -> None:
    page = render_page([heaviside()])
    reader = read(page)
    assert all(link.startswith(("data:image/", "#")) for link in reader.links)
    assert {link[1:] for link in reader.links if link.startswith("#")} <= reader.anchors
    assert "<script" not in page
    assert "@import" not in page


def test_a_rule_s_section_has_formula_pictures_certificates_and_comparison() -> None:
    section = heaviside()
    assert len(section.formulas) == 3
    kinds = {head: [p.uri.partition(";")[0] for p in pictures] for head, pictures in section.pictures.items()}
    assert kinds == {"Mean and standard deviation": ["data:image/svg+xml"], "Accuracy": ["data:image/png"]}
    certificate = json.loads((GENERATED / "heaviside" / "exact.json").read_text())
    worst = max(bound["ulp"] for bound in certificate["bounds"].values())
    assert section.worst == pytest.approx(worst / 8)
    assert [row[0] for row in section.certificates["exact"].rows] == list(certificate["bounds"])
    assert section.comparison is not None
    assert [row[0] for row in section.comparison.rows] == ["exact", "tight"]
    text = "".join(read(render_page([section])).text)
    assert certificate["method"]["promises"]["checked"][0] in text


def test_a_goal_of_one_tolerance_says_what_it_is_and_certificates_promise_in_words() -> None:
    said = "mean 1e-06*max(1, |m|); var 1e-05*L^2*v; L = 1"
    section = dataclasses.replace(heaviside(), unit="tolerance", goal=1.0, tolerance=said)
    text = "".join(read(render_page([section])).text)
    assert f"1 tolerance: {said}" in text
    assert "does not bound the relative error" in " ".join(text.split())
    assert "Errors are at most 8 ulp of the exact value" in text
    assert "8 ulp:" not in "".join(read(render_page([heaviside()])).text)


def test_every_block_is_in_the_report() -> None:
    report = render_page([heaviside()]).replace("\N{WORD JOINER}", "")
    blocks = list(blocks_of(heaviside()))
    assert all((f">{content}</h{level + 1}>" if level else content) in report for content, level in blocks)
    assert sum(content.startswith("<figure") for content, _ in blocks) == 2
    assert sum(content.startswith('<div class="scrolls"><table>') for content, _ in blocks) == 3


def test_no_number_breaks_in_two() -> None:
    said = "mean 1e-06*max(1, |m|); var 1e-05*L^2*v; least 2^-126"
    page = render_page([dataclasses.replace(heaviside(), unit="tolerance", tolerance=said)])
    assert not re.search(r"\d[e^]-\d", page)
    assert "1e-\N{WORD JOINER}06*max" in page
    assert "td { white-space: nowrap; }" in page


def test_a_function_of_two_inputs_is_shown_without_pictures_of_one(tmp_path: Path) -> None:
    shutil.copytree(GENERATED / "heaviside", tmp_path / "heaviside")
    two = [f"in_ptr {name}" for name in ("mean", "var")]
    four = [f"in_ptr {name}" for name in ("mean1", "var1", "mean2", "var2")]
    for variant in ("exact", "tight"):
        file = tmp_path / "heaviside" / f"{variant}.c"
        text = file.read_text()
        file.write_text(text.replace(", ".join(two), ", ".join(four)))
    (rule,) = load_rules(RULES / "heaviside.py")
    section = section_of(rule, tmp_path)
    assert section.inputs == "mean1, var1, mean2, var2"
    assert section.notes == ["A function of two inputs: no pictures over one mean and one variance."]
    assert sum(map(len, section.pictures.values())) == 0
    assert set(section.certificates) == {"exact", "tight"}
    assert "two inputs" in "".join(read(render_page([section])).text)


def test_a_rule_whose_second_moment_has_no_closed_form_says_so_in_its_section() -> None:
    (rule,) = load_rules(RULES / "normal_cdf.py")
    section = section_of(rule, GENERATED)
    assert any("outside the closed algebra" in note for note in section.notes)


@pytest.mark.parametrize(
    "f",
    [
        S(x) * Phi(-x) + sympy.Max(x, 0) ** 2 / 3,
        sympy.Piecewise((x, x > 0), (sympy.exp(x) - 1, True)),
        sympy.Abs(sympy.erf(x)),
    ],
)
def test_formulas_are_well_formed_mathml(f: sympy.Expr) -> None:
    text = mathml("<mi>f</mi>", f)
    entities = {"&InvisibleTimes;": "", "&ExponentialE;": "e", "&PlusMinus;": "±", "&infin;": "∞"}
    for entity, plain in entities.items():
        text = text.replace(entity, plain)
    root = ElementTree.fromstring(text)
    assert root.tag == "math"
    assert "x" in [element.text for element in root.iter("mi")]
    assert ("if " in [e.text for e in root.iter("mtext")]) == f.has(sympy.Piecewise)


def test_a_formula_too_long_to_be_looked_at_is_left_out() -> None:
    assert mathml("<mi>f</mi>", sympy.Add(*(sympy.sin(k * x) ** k for k in range(2, 200)))) == ""


def test_a_missing_extra_is_named_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, said: Callable[..., Any]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else real(name))
    code, _, error = said("report", RULES)
    assert code == 1
    assert error.startswith("Error: `momentgen report` needs matplotlib")
    assert "pip install 'momentgen[report]'" in error


def test_the_command_writes_the_page(tmp_path: Path, said: Callable[..., Any]) -> None:
    out = tmp_path / "page.html"
    code, text, _ = said("report", RULES, "--page", out, "--only", "heaviside")
    assert code == 0
    assert re.match(r"wrote .*page\.html: 1 rule, \d\.\d MB", text)
    assert "heaviside" in read(out.read_text(encoding="utf-8")).anchors


@pytest.mark.slow
def test_the_whole_library_s_page_has_every_rule(tmp_path: Path) -> None:
    write_report(RULES, tmp_path / "report.html")
    anchors = read((tmp_path / "report.html").read_text(encoding="utf-8")).anchors
    assert {rule.name for rule in load_rules(RULES)} <= anchors


# What the report measures, against quadrature and definitions evaluated in mpmath.
@functools.lru_cache
def subject(name: str, package: Path = GENERATED) -> Subject:
    (rule,) = load_rules(ROOT / "rules" / f"{name}.py")
    return subject_of(rule, package)


def kl_by_definition(m: float, v: float, n: float, w: float) -> mpmath.mpf:
    def integrand(x: mpmath.mpf) -> mpmath.mpf:
        p, q = mpmath.npdf(x, m, mpmath.sqrt(v)), mpmath.npdf(x, n, mpmath.sqrt(w))
        return p * (mpmath.log(p) - mpmath.log(q))

    s = mpmath.sqrt(v)
    return mpmath.quad(integrand, [m - 12 * s, m - 3 * s, m, m + 3 * s, m + 12 * s])


def test_the_curves_are_f_and_the_moments_of_f() -> None:
    drawn = moment_curves(subject("relu"), points=13)
    assert np.array_equal(drawn.f, np.maximum(drawn.mu, 0))
    for i in (0, 5, 6, 12):
        mean, var = moments(subject("relu").rule.f, float(drawn.mu[i]), 1, digits=20)
        assert drawn.means[1][i] == pytest.approx(float(mean), rel=1e-6)
        assert drawn.deviations[1][i] == pytest.approx(float(mpmath.sqrt(var)), rel=1e-6)


def test_f_is_drawn_with_the_upper_value_at_a_jump() -> None:
    f = activation(subject("heaviside").rule, {})
    assert f(np.array([-1.0, 0.0, 1.0])).tolist() == [0.0, 1.0, 1.0]


def test_relative_errors_show_an_error_put_into_the_committed_c(tmp_path: Path) -> None:
    shutil.copytree(GENERATED / "heaviside", tmp_path / "heaviside")
    file = tmp_path / "heaviside" / "exact.c"
    file.write_text(re.sub(r"\*out_var = (\w+);", r"*out_var = \1 * 1.0001f;", file.read_text()))
    (rule,) = load_rules(ROOT / "rules" / "heaviside.py")
    found = relative_errors(subject_of(rule, tmp_path), grid=(9, 5))
    assert np.nanmedian(found.errors["var"]) == pytest.approx(1e-4, rel=0.01)
    assert np.nanmax(found.errors["mean"]) < 1e-5


def test_the_comparison_finds_the_worst_points_of_each_variant_and_rounding_alone_in_exact_ones() -> None:
    found = {c.variant: c for c in compare(subject("relu"))}
    assert set(found) == {"exact", "tight", "fitted", "identity_delta"}
    assert max(found["exact"].kl[0], found["tight"].kl[0]) < 1e-12
    assert found["identity_delta"].kl[0] == np.inf  # its variance is 0 for mu <= 0
    t = mpmath.mpf("0.3703294866")
    assert found["fitted"].mean[0] < 1e-6
    with mpmath.workdps(30):
        for worst, (mean, sigma) in (found["fitted"].kl, found["fitted"].var):
            exact_mean, exact_var = moments(subject("relu").rule.f, mean, sigma**2, digits=20)
            fitted = sigma**2 / (1 + mpmath.exp(-mean / sigma / t))
            kl = kl_by_definition(exact_mean, exact_var, exact_mean, fitted)
            of_var = abs(fitted / exact_var - 1)
            assert min(abs(worst / float(kl) - 1), abs(worst / float(of_var) - 1)) < 1e-5
