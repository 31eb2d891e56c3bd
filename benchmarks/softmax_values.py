"""The softmax as a value, and attention, against sampling, into benchmarks/results/softmax_values.json.

The softmax is compared with the delta method, attention with the delta method on its weights (independent logits that
share the query, to first order) and with queries and keys taken as certain, as SUQ does.  Each entry tells the ratio of
σ to that of sampling: of the typical output (the median), the smallest and the largest, and for the softmax also
weighted by probability.

    OMP_NUM_THREADS=1 python benchmarks/softmax_values.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from _common import console, environment, save
from torch import Tensor

from momentgen.laws.numerics.softmax import log_softmax, softmax
from momentgen.laws.rules.attention import attention

#: classes: rows, samples
CLASSES = {2: (64, 200_000), 10: (16, 200_000), 100: (4, 100_000), 1000: (2, 40_000)}
SIGMAS = (0.1, 0.3, 1.0, 2.0, 3.0, 10.0)
NOISES = (0.1, 0.3, 0.5, 1.0)
SIZES = ((2, 16), (16, 16), (64, 32))  # keys, features
ATTENTION_SAMPLES, QUERIES = 16_000, 8

Moments = tuple[Tensor, Tensor]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    save(
        "softmax_values",
        {
            "environment": environment(),
            "softmax": {
                "logits": "means N(0, 1), variances sigma^2 times uniform(1/2, 3/2)",
                "columns": "error of the worst mean in σ; ratio of σ: median, smallest, largest, weighted by mean",
                "table": [row for classes in CLASSES for row in softmax_rows(classes)],
            },
            "attention": {
                "inputs": "N(0, 1), scale 1/sqrt(features); related: queries, keys and values of the same inputs; "
                "peaked: queries twice and keys 1.5 times as large; noise relative to the mean's standard deviation",
                "columns": "ratio of σ: median, smallest, largest",
                "table": list(attention_rows()),
            },
        },
    )


def softmax_rows(classes: int) -> Any:
    rows, count = CLASSES[classes]
    for sigma in SIGMAS:
        mean, var = torch.randn(rows, classes), sigma**2 * (0.5 + torch.rand(rows, classes))
        entry: dict[str, Any] = {"classes": classes, "sigma": sigma}
        truth = sample(mean, var, count, torch.softmax)
        entry["momentgen"] = compare(softmax(mean, var, -1), truth, truth[0])
        entry["delta"] = compare(delta(mean, var), truth, truth[0])
        logs = sample(mean, var, count, torch.log_softmax)
        entry["log_softmax"] = compare(log_softmax(mean, var, -1), logs, truth[0])
        console.print(entry)
        yield entry


def sample(mean: Tensor, var: Tensor, count: int, function: Callable[[Tensor, int], Tensor]) -> Moments:
    total, squares, done = torch.zeros_like(mean).double(), torch.zeros_like(mean).double(), 0
    centre, chunk = function(mean, -1), max(1, 1_000_000 // mean.numel())
    while done < count:
        noise = var.sqrt() * torch.randn(chunk, *mean.shape)
        for x in (mean + noise, mean - noise):
            p = (function(x, -1) - centre).double()
            total, squares, done = total + p.sum(0), squares + (p * p).sum(0), done + chunk
    return centre + total / done, squares / done - (total / done) ** 2


def delta(mean: Tensor, var: Tensor) -> Moments:
    p = torch.softmax(mean, -1)
    return p, p * p * ((1 - 2 * p) * var + (p * p * var).sum(-1, keepdim=True))


def compare(found: Moments, truth: Moments, weights: Tensor | None = None) -> list[float]:
    ratio, sigma = (found[1].double() / truth[1]).sqrt(), truth[1].sqrt()
    figures = [ratio.median(), ratio.min(), ratio.max()]
    if weights is not None:
        figures = [
            ((found[0] - truth[0]).abs() / sigma).max(),
            *figures,
            (ratio * sigma * weights).sum() / (sigma * weights).sum(),
        ]
    return [float(f"{figure.item():.3g}") for figure in figures]


def attention_rows() -> Any:
    for kind in ("unrelated", "related", "peaked"):
        for keys, size in SIZES:
            for noise in NOISES:
                for value_noise in (noise, 0.0):
                    given = inputs(kind, keys, size, noise, value_noise)
                    truth = sample_attention(*given)
                    pairs, scale = [given[i : i + 2] for i in (0, 2, 4)], size**-0.5
                    found = {
                        "momentgen": attention(*pairs, scale),
                        "delta": attention_delta(*given),
                        "queries and keys certain": attention((given[0], None), (given[2], None), pairs[2], scale),
                    }
                    entry = {"kind": kind, "keys": keys, "features": size, "noise": noise, "value noise": value_noise}
                    yield {**entry, **{name: compare(moments, truth) for name, moments in found.items()}}
        console.print(kind)


def inputs(kind: str, keys: int, size: int, noise: float, value_noise: float) -> tuple[Tensor, ...]:
    key = torch.randn(keys, size)
    query, value = torch.randn(QUERIES, size), torch.randn(keys, size)
    if kind == "related":
        query, value = key[:QUERIES], key
    if kind == "peaked":
        query, key = 2 * query, 1.5 * key

    def noisy(mean: Tensor, noise: float) -> tuple[Tensor, Tensor]:
        return mean, noise**2 * mean.square().mean() * (0.5 + torch.rand(mean.shape))

    return *noisy(query, noise), *noisy(key, noise), *noisy(value, value_noise)


def sample_attention(*given: Tensor) -> Moments:
    total, squares, chunk = 0.0, 0.0, 500
    for _ in range(ATTENTION_SAMPLES // chunk):
        query, key, value = (
            mean + var.sqrt() * torch.randn(chunk, *mean.shape)
            for mean, var in zip(given[::2], given[1::2], strict=True)
        )
        out = (torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, -1) @ value).double()
        total, squares = total + out.sum(0), squares + (out * out).sum(0)
    mean = torch.as_tensor(total) / ATTENTION_SAMPLES
    return mean, torch.as_tensor(squares) / ATTENTION_SAMPLES - mean * mean


def attention_delta(q: Tensor, vq: Tensor, k: Tensor, vk: Tensor, v: Tensor, vv: Tensor) -> Moments:
    """The exact Jacobian at the means."""
    scale = q.shape[-1] ** -0.5
    p = torch.softmax(scale * q @ k.mT, -1)
    mean = p @ v
    gain = p[..., None] * (v - mean[:, None])  # of the output with respect to the logits, (L, S, Ev)
    by_query = scale * torch.einsum("se,lsv->lev", k, gain)
    by_key = scale**2 * ((q * q) @ vk.mT)
    return mean, (vq[..., None] * by_query**2).sum(1) + (by_key[..., None] * gain**2).sum(1) + p**2 @ vv


if __name__ == "__main__":
    main()
