"""The first paper's Fig. C.2: approximations of E S(X) for a sum of Bernoulli inputs, by KL divergence.

A unit has p(Y = 1 | X) = S(b + sum_i w_i X_i), with n independent Bernoulli(1/2) inputs X_i and weights drawn once
from U[0, 10].  Its true posterior p* is 2^-n sum over the 2^n inputs.  The approximations see only the mean and
variance of the sum, mu = b + sum w_i/2 and v = sum w_i^2/4.  Each line of the figure is KL(Bernoulli(p*) ||
Bernoulli(q)) in bits over the bias, for one n.  Averages over 50 samples of the inputs are the comparison.

Source: Shekhovtsov & Flach 2018, C.3, Figs. C.2 and C.3.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
#: (mean, var) -> E S(X)
MeanRule = Callable[[F32, F32], F32]

SAMPLES = 50
_TRIALS = 1000


@dataclass(frozen=True)
class BernoulliSums:
    """The figure's data; one entry a number of inputs in every tuple.

    Attributes:
        inputs: numbers of Bernoulli inputs.
        weights: the weights of each.
        biases: the abscissae.
        kl: approximation -> KL divergences in bits, at ``biases``.
        sampled: mean, and 5 and 95 percent quantiles over trials, of the KL of a 50-sample average.
    """

    inputs: tuple[int, ...]
    weights: tuple[F64, ...]
    biases: tuple[F64, ...]
    kl: Mapping[str, tuple[F64, ...]]
    sampled: tuple[tuple[F64, F64, F64], ...]


def _logistic(z: F64) -> F64:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-z)))


def posterior(weights: F64, bias: F64) -> tuple[F64, F64]:
    """p(Y = 1) and p(Y = 0) at each bias, over all 2^n inputs.

    >>> posterior(np.array([2.0]), np.array([-1.0]))
    (array([0.5]), array([0.5]))
    """
    states = np.array(list(itertools.product((0.0, 1.0), repeat=weights.size)))
    sums = bias[:, None] + states @ weights
    return _logistic(sums).mean(1), _logistic(-sums).mean(1)


def kl_bits(p: F64, not_p: F64, q: F64, not_q: F64) -> F64:
    """KL(Bernoulli(p) || Bernoulli(q)) in bits; both probabilities and their complements are given, for the tails.

    >>> kl_bits(*(np.array(z) for z in (0.5, 0.5, 0.25, 0.75))).round(4)
    np.float64(0.2075)
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(p * np.log2(p / q) + not_p * np.log2(not_p / not_q))


def bernoulli_sums(
    means: Mapping[str, MeanRule], *, most: int = 5, points: int = 121, seed: int = 2018
) -> BernoulliSums:
    """KL of each approximation for 1 to ``most`` Bernoulli inputs.

    Args:
        means: approximation -> its mean, as a function of the input's mean and *variance*.  Each must treat X and -X
            alike: q(0) is its value at -mu, which is accurate where q(1) is nearly 1.
        most: the largest number of inputs.
        points: biases per curve, from where every sum is at most -10 to where every sum is at least 10.
        seed: of the weights and of the samples.
    """
    rng = np.random.default_rng(seed)
    weights = tuple(rng.uniform(0, 10, n) for n in range(1, most + 1))
    biases = tuple(np.linspace(-10 - w.sum(), 10, points) for w in weights)
    kl: dict[str, list[F64]] = {name: [] for name in means}
    sampled = []
    for w, b in zip(weights, biases, strict=True):
        p, not_p = posterior(w, b)
        mu = np.ascontiguousarray(b + w.sum() / 2, np.float32)
        v = np.full_like(mu, (w**2).sum() / 4)
        for name, rule in means.items():
            on, off = rule(mu, v).astype(np.float64), rule(-mu, v).astype(np.float64)
            # The smaller one is relatively accurate in float32, and settles the other.
            smaller = on <= off
            kl[name].append(kl_bits(p, not_p, np.where(smaller, on, 1 - off), np.where(smaller, 1 - on, off)))
        sums = rng.integers(0, 2, (_TRIALS, SAMPLES, w.size)) @ w
        trials = np.empty((points, _TRIALS))
        for i, bias in enumerate(b):
            q, not_q = _logistic(bias + sums).mean(1), _logistic(-bias - sums).mean(1)
            trials[i] = kl_bits(p[i], not_p[i], q, not_q)
        low, high = np.quantile(trials, (0.05, 0.95), axis=1)
        sampled.append((trials.mean(1), low, high))
    return BernoulliSums(
        tuple(range(1, most + 1)), weights, biases, {name: tuple(k) for name, k in kl.items()}, tuple(sampled)
    )
