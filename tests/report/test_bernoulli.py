"""Fig. C.2: posteriors and divergences against enumeration in mpmath."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import numpy.typing as npt
import pytest

from momentgen.commands.report.bernoulli import SAMPLES, bernoulli_sums, kl_bits, posterior

F32 = npt.NDArray[np.float32]


def logistic(z: mpmath.mpf) -> mpmath.mpf:
    return 1 / (1 + mpmath.exp(-z))


def true_posterior(weights: list[float], bias: float) -> mpmath.mpf:
    sums = [bias + mpmath.fsum(w for w, on in zip(weights, s, strict=True) if on) for s in states(len(weights))]
    return mpmath.fsum(map(logistic, sums)) / len(sums)


def states(n: int) -> list[tuple[int, ...]]:
    return list(itertools.product((0, 1), repeat=n))


def kl(p: mpmath.mpf, q: mpmath.mpf) -> mpmath.mpf:
    return (p * mpmath.log(p / q) + (1 - p) * mpmath.log((1 - p) / (1 - q))) / mpmath.log(2)


def ap1(mean: F32, var: F32) -> F32:
    return (1 / (1 + np.exp(-mean.astype(np.float64)))).astype(np.float32)


def test_the_posterior_is_the_average_over_all_inputs_and_accurate_in_both_tails() -> None:
    weights, biases = [0.7, 3.1, 9.2], [-60.0, -3.0, 40.0]
    p, not_p = posterior(np.array(weights), np.array(biases))
    with mpmath.workdps(40):
        for i, bias in enumerate(biases):
            want = true_posterior(weights, bias)
            assert p[i] == pytest.approx(float(want), rel=1e-14)
            assert not_p[i] == pytest.approx(float(1 - want), rel=1e-14)


def test_kl_is_zero_for_the_truth_itself_and_positive_for_anything_else() -> None:
    p = np.linspace(0.01, 0.99, 50)
    assert np.abs(kl_bits(p, 1 - p, p, 1 - p)).max() == 0
    assert (kl_bits(p, 1 - p, p[::-1], 1 - p[::-1]) > 0)[p != p[::-1]].all()


def test_curves_are_the_divergence_of_the_rule_given_the_sum_s_mean_and_variance() -> None:
    data = bernoulli_sums({"ap1": ap1}, most=3, points=9)
    with mpmath.workdps(40):
        for weights, biases, curve in zip(data.weights, data.biases, data.kl["ap1"], strict=True):
            for bias, got in zip(biases, curve, strict=True):
                # The rule sees a float32 mean.
                mean = float(np.float32(bias + weights.sum() / 2))
                want = kl(true_posterior(list(weights), float(bias)), logistic(mpmath.mpf(mean)))
                assert got == pytest.approx(float(want), rel=1e-5, abs=1e-12)


def test_the_variance_reaches_the_rule_as_a_variance() -> None:
    seen: list[float] = []

    def rule(mean: F32, var: F32) -> F32:
        seen.extend(set(var.tolist()))
        return ap1(mean, var)

    data = bernoulli_sums({"rule": rule}, most=2, points=3)
    assert sorted(set(seen)) == pytest.approx(sorted(float((w**2).sum() / 4) for w in data.weights))


def test_samples_agree_with_the_expectation_over_how_many_inputs_are_on() -> None:
    # With one input, a 50-sample average depends on a binomial count alone.
    data = bernoulli_sums({}, most=1, points=5)
    mean, low, high = data.sampled[0]
    (weight,) = data.weights[0]
    for i, bias in enumerate(data.biases[0]):
        off, on = (float(logistic(mpmath.mpf(float(z)))) for z in (bias, bias + weight))
        p = float(true_posterior([float(weight)], float(bias)))
        chances = np.array([math.comb(SAMPLES, k) / 2.0**SAMPLES for k in range(SAMPLES + 1)])
        q = [(k * on + (SAMPLES - k) * off) / SAMPLES for k in range(SAMPLES + 1)]
        divergences = np.array([float(kl(mpmath.mpf(p), mpmath.mpf(each))) for each in q])
        expected = float(chances @ divergences)
        error = float(np.sqrt(chances @ (divergences - expected) ** 2 / 1000))
        assert abs(mean[i] - expected) <= 5 * error + 1e-12
        assert low[i] <= mean[i] <= high[i]
