"""docs/misprints.md: what is printed, and what holds, by quadrature of f itself."""

import itertools
import runpy
from pathlib import Path

import mpmath
import pytest
import sympy
import torch

from momentgen import class_posterior
from momentgen.generated import maximum
from momentgen.rule import S, a, load_rules
from momentgen.runtime import Moments

ROOT = Path(__file__).parents[1]
LOGISTIC = runpy.run_path(str(ROOT / "examples" / "logistic_approximations.py"))
PAGE = (ROOT / "docs" / "misprints.md").read_text(encoding="utf-8")


def spread(a: mpmath.mpf) -> mpmath.mpf:
    cdf, density = mpmath.ncdf(a), mpmath.npdf(a)
    return a * density + (a**2 + 1) * cdf - (a * cdf + density) ** 2


def logistic(z: mpmath.mpf) -> mpmath.mpf:
    return 1 / (1 + mpmath.exp(-z))


def test_table_1_holds_but_for_one_entry() -> None:
    a, b = 2 * mpmath.log(19), -3 * mpmath.log(19)
    printed = {(0, 0): "0.00015", (0, 1): "0.05", (1, 1): "0.95", (0.25, 0.25): "0.077", (0.5, 0.5): "0.26"}
    printed[0.75, 0.75] = "0.55"
    wrong = {}
    for (p1, p2), text in printed.items():
        total = mpmath.mpf(0)
        for x1, x2 in itertools.product((0, 1), repeat=2):
            total += (p1 if x1 else 1 - p1) * (p2 if x2 else 1 - p2) * logistic(a * (x1 + x2) + b)
        digits = len(text.partition(".")[2])
        if abs(total - mpmath.mpf(text)) > mpmath.mpf(10) ** -digits / 2:
            wrong[p1, p2] = mpmath.nstr(total, 3)
    assert wrong == {(0.25, 0.25): "0.0782"}
    assert "0.0782" in PAGE


def test_the_example_says_the_same() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "and_gate.py"))
    row = example["rows"]()[3]
    assert row["E[Y]"] == pytest.approx(0.0782, abs=5e-5)
    assert f"{row['ap1']:.5f}" == "0.00276"  # 0.0027 printed
    # The exact rule for a normal pre-activation is near the unit's own expectation, AP1 is not.
    assert abs(row["exact"] - row["E[Y]"]) < 0.2 * abs(row["ap1"] - row["E[Y]"])


def test_approximations_of_a_logistic_unit_are_as_good_as_fifty_samples() -> None:
    """Figure C.2: it holds for two inputs and more; with one input they are up to 2.6 times as far off."""
    bias = torch.linspace(-8, 8, 17, dtype=torch.float64)
    for inputs in (1, 2, 5):
        found = {
            name: values.max().item()
            for name, values in LOGISTIC["curves"](inputs, bias - 0.5 * sum(LOGISTIC["WEIGHTS"][:inputs])).items()
        }
        best = min(found[name] for name in ("AP2a", "AP2b", "PEA"))
        worst = max(found[name] for name in ("AP2a", "AP2b", "PEA"))
        assert found["AP1"] > 10 * best
        assert worst < (2.6 if inputs == 1 else 1.5) * found["50 samples"]


def test_the_variance_of_the_piecewise_exponential_function_is_that_by_quadrature() -> None:
    z = torch.linspace(-12, 12, 400_001, dtype=torch.float64)
    for mean, std in ((0.0, 1.0), (1.5, 0.5), (-3.0, 2.0)):
        x, tail = mean + std * z, torch.exp2(-(mean + std * z).abs()) / 2
        true = torch.cov(torch.where(x < 0, tail, 1 - tail), correction=0, aweights=torch.exp(-z.square() / 2))
        found = LOGISTIC["pea_variance"](*torch.tensor([[mean], [std]], dtype=torch.float64))
        torch.testing.assert_close(found, true[None], rtol=1e-7, atol=0)


def test_the_fitted_t_is_near_the_best_one() -> None:
    alpha = mpmath.mpf("0.01")

    def worst(t: float) -> float:
        largest = mpmath.mpf(0)
        for k in range(-100, 101):
            a = mpmath.mpf(k) / 10
            exact = alpha**2 + 2 * alpha * (1 - alpha) * mpmath.ncdf(a) + (1 - alpha) ** 2 * spread(a)
            ratio = exact / (alpha**2 + (1 - alpha**2) * logistic(a / t))
            largest = max(largest, (ratio - 1 - mpmath.log(ratio)) / 2)
        return float(largest)

    (rule,) = load_rules(ROOT / "rules" / "leaky_relu.py")
    (ours,) = (float(sympy.simplify(a / z.args[0])) for z in rule.variants["fitted"].var.atoms(S))
    assert (f"{ours:.4f}", f"{worst(ours):.4f}", f"{worst(0.3729):.4f}") == ("0.3758", "0.0334", "0.0337")


def test_52_is_right_and_the_mean_s_x_is_a() -> None:
    """Over x1 given x2: E max(x1, c) and its square by quadrature, then over c."""
    m1, v1, m2, v2 = mpmath.mpf(1), mpmath.mpf(1), mpmath.mpf(0), mpmath.mpf(1)

    def inner(z: mpmath.mpf, power: int) -> mpmath.mpf:
        c = m2 + mpmath.sqrt(v2) * z
        a = (m1 - c) / mpmath.sqrt(v1)
        cdf, density, s = mpmath.ncdf(a), mpmath.npdf(a), mpmath.sqrt(v1)
        above = m1 * cdf + s * density if power == 1 else (m1**2 + v1) * cdf + (m1 + c) * s * density
        return (above + c**power * (1 - cdf)) * mpmath.npdf(z)

    mean, second = (mpmath.quad(lambda z, n=n: inner(z, n), [-10, -1, 1, 10]) for n in (1, 2))
    s = mpmath.sqrt(v1 + v2)
    a = (m1 - m2) / s
    assert mpmath.almosteq(mean, m2 + s * (a * mpmath.ncdf(a) + mpmath.npdf(a)), 1e-12)
    assert mpmath.nstr(mean, 5) == "1.1996"
    printed = v1 * spread(a) + v2 * (mpmath.ncdf(-a) + spread(a) - mpmath.ncdf(a))
    assert mpmath.almosteq(second - mean**2, printed, 1e-12)
    assert mpmath.almosteq(printed, v1 * spread(a) + v2 * spread(-a), 1e-12)
    ours = maximum(*(torch.tensor(float(p), dtype=torch.float64) for p in (m1, v1, m2, v2)))
    assert ours.var.item() == pytest.approx(float(printed), rel=1e-13)


def test_the_normal_softmax_does_not_recover_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    zero = torch.zeros_like(logits)
    standard = torch.softmax(logits, -1)[2].item()
    assert standard == pytest.approx(0.665, abs=5e-4)
    approximations = ("logistic", "normal", "simplified")
    found = {one: class_posterior(Moments(logits, zero), -1, one)[2].item() for one in approximations}
    assert found["logistic"] == pytest.approx(standard, rel=1e-12)
    assert found["simplified"] == pytest.approx(standard, rel=1e-12)
    assert f"{found['normal']:.3f}" in PAGE


def test_33_errs_by_more_than_it_says() -> None:
    for mu, excess in ((12, "84 %"), (20, "397 %")):
        points = [mu - 10, mu - 4, mu, mu + 4, mu + 10]
        first, second = (
            mpmath.quad(lambda z, n=n, mu=mu: logistic(-z) ** n * mpmath.npdf(z, mu, 1), points) for n in (1, 2)
        )
        mean = logistic(-mu / mpmath.sqrt(1 + 3 / mpmath.pi**2))
        exact, *found = mpmath.sqrt(second - first**2), *(mpmath.sqrt(0.8) * m * (1 - m) for m in (mean, first))
        assert f"{float(100 * (found[0] / exact - 1)):.0f} %" == excess
        assert f"{float(100 * (1 - found[1] / exact)):.0f} %" == "32 %"
        assert excess in PAGE
