"""Hypothesis strategies for the inputs of an op."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from real_rules import settings_of

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
#: points of an example: numpy draws them from a seed that hypothesis draws, which is far quicker than one at a time
SIZE = 100

_LARGE = float(np.float32(2.0**60))
_SMALL = float(np.float32(2.0**-60))
_EDGES = np.float32([0.0, -0.0, 2.0**-149, 2.0**-126, 1e-20, 0.5, 1.0, 3.0, 1e20, 3.4028235e38])
_SEEDS = st.integers(0, 2**64 - 1).map(np.random.default_rng)


def _logarithmic(low: float, high: float, share: F64) -> F64:
    return np.asarray(low * (high / low) ** share)


def points(
    *, ratio: float = 30.0, var: tuple[float, float] = (_SMALL, _LARGE), zero: bool = False
) -> st.SearchStrategy[tuple[F32, F32]]:
    """Means and variances with |mean|/sigma up to ``ratio``; ``zero`` allows a variance of 0."""

    def drawn(rng: np.random.Generator) -> tuple[F32, F32]:
        v = _logarithmic(*var, rng.random(SIZE))
        a = rng.uniform(-ratio, ratio, SIZE)
        # Powers of two, the ends, whole ratios and 0 are where code goes wrong first.
        kind = rng.random(SIZE)
        v = np.where(kind < 0.2, np.exp2(np.round(np.log2(v))), np.where(kind > 0.95, rng.choice(var, SIZE), v))
        v = np.where(zero & (rng.random(SIZE) < 0.1), 0.0, v).astype(np.float32)
        kind = rng.random(SIZE)
        a = np.where(kind < 0.2, np.round(a), np.where(kind > 0.9, rng.choice([0.0, -ratio, ratio], SIZE), a))
        sigma = np.sqrt(np.where(v > 0, v, 1).astype(np.float64))
        mean = (a * sigma).astype(np.float32)
        return np.where(np.abs(mean) < 2.0**-126, np.float32(0), mean), v

    return _SEEDS.map(drawn)


def _anything(rng: np.random.Generator) -> F32:
    """Numbers of any bits, a third of them edges of the range, and a third of common sizes."""
    bits = rng.integers(0, 2**32, SIZE, dtype=np.uint32).view(np.float32)
    edges = rng.choice(_EDGES, SIZE) * rng.choice(np.float32([-1, 1]), SIZE)
    common = np.float32(3) * rng.standard_normal(SIZE, np.float32)
    kind = np.where(np.isfinite(bits), rng.integers(0, 3, SIZE), 1)
    return np.choose(kind, [bits, edges, common])


def anything() -> st.SearchStrategy[tuple[F32, F32]]:
    """Any finite means and any variances from 0, subnormal numbers included, apart from each other."""
    return _SEEDS.map(lambda rng: (_anything(rng), np.abs(_anything(rng))))


def parameters(name: str) -> st.SearchStrategy[dict[str, float]]:
    """Settings of a rule's parameters: the ends of their ranges, defaults, and a value between."""
    return st.sampled_from(settings_of(name))
