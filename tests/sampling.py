"""A million draws of a few normal values, and what a function of them is on average."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from momentgen.laws import diagonal
from momentgen.laws.law import Law
from momentgen.runtime import Moments

N = 1_000_000
CHUNK = 50_000
#: standard errors within which an exact rule must be
ERRORS = 4.0


@functools.cache
def _pool() -> Tensor:
    """Standard normal numbers, drawn once, of which each value takes a column."""
    return torch.randn(32, N, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def normal_input(
    *shape: int, seed: int = 0, least: float = 0.05, spread: float = 1.0, positive: bool = False
) -> Moments:
    """Moments of independent values; ``positive`` keeps the means five standard deviations above 0."""
    draw = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, generator=draw, dtype=torch.float64)
    var = torch.rand(shape, generator=draw, dtype=torch.float64) * spread + least
    return Moments(5 * var.sqrt() + mean.abs() if positive else mean, var)


def law_of(x: Moments) -> Any:
    return diagonal(x.mean.clone(), x.var.clone())


def sampled(
    plain: Callable[..., Any], inputs: list[Moments], batched: bool = True, n: int = N, chunk: int = CHUNK
) -> tuple[Moments, Moments]:
    """Mean and variance of ``plain`` on ``n`` draws, and the standard errors of both.

    Args:
        plain: a function of tensors.  ``batched``: the first dimension of each input, of size 1, is that of draws.
        inputs: moments of its arguments.
        batched: False to draw each argument by itself, by torch.vmap.
        n: number of draws.
        chunk: how many at a time.
    """
    torch.manual_seed(11)
    run = plain if batched else torch.vmap(plain, randomness="different")
    # A first value near the mean, for the digits of the powers.
    shift: Tensor | None = None
    total: Tensor | None = None
    for start in range(0, n, chunk):
        samples, column = [], 0
        for x in inputs:
            size = x.mean.numel()
            own = _pool()[column : column + size, start : start + chunk].T.reshape(-1, *x.mean.shape)
            column += size
            drawn = x.mean + x.var.sqrt() * own
            samples.append(drawn.squeeze(1) if batched else drawn)
        out = run(*samples)
        out = (out[0] if isinstance(out, tuple) else out).double()
        if shift is None:
            shift = out.mean(0)
        out = out - shift
        square = out * out
        powers = torch.stack([out.mean(0), square.mean(0), (square * out).mean(0), (square * square).mean(0)])
        total = powers if total is None else total + powers
    assert total is not None
    assert shift is not None
    m1, m2, m3, m4 = total / (n // chunk)
    var = m2 - m1**2
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    return Moments(m1 + shift, var), Moments((var / n).sqrt(), ((fourth - var**2).clamp_min(0) / n).sqrt())


def moments_of(found: Any, batched: bool) -> Moments:
    found = found[0] if isinstance(found, tuple) else found
    assert isinstance(found, Law), f"expected a law, got {type(found).__name__}"
    mean, var = found.moments()  # type: ignore[attr-defined]
    assert var.shape == mean.shape
    assert var.dtype == mean.dtype
    return Moments(mean[0], var[0]) if batched else Moments(mean, var)


def errors_of(found: Moments, truth: Moments, error: Moments) -> tuple[float, float]:
    """How many standard errors mean and variance are off, rounding aside."""
    worst = []
    for what in ("mean", "var"):
        got, want, se = (getattr(part, what) for part in (found, truth, error))
        assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, samples have {tuple(want.shape)}"
        off = ((got - want).abs() - 1e-9 * (1 + want.abs())) / se.clamp_min(1e-12)
        worst.append(off.max().item() if bool(off.isfinite().all()) else math.inf)
    return worst[0], worst[1]


def biases_of(found: Moments, truth: Moments) -> tuple[float, float]:
    """Bias of the mean in standard deviations, and the relative bias of the standard deviation."""
    sd = truth.var.sqrt().clamp_min(1e-12)
    of_mean, of_sd = (found.mean - truth.mean).abs() / sd, (found.var.sqrt() / sd - 1).abs()
    return of_mean.max().item(), of_sd.max().item()


def assert_agrees(
    function: Callable[..., Any],
    *inputs: Moments,
    plain: Callable[..., Any] | None = None,
    bias: tuple[float, float] | None = None,
    batched: bool = True,
    n: int = N,
    chunk: int = CHUNK,
) -> None:
    """``function`` on laws has the moments of ``plain`` on draws, within 4 standard errors or the stated ``bias``."""
    with torch.no_grad():
        found = moments_of(function(*[law_of(x) for x in inputs]), batched)
        truth, error = sampled(plain or function, list(inputs), batched, n, chunk)
    if bias is None:
        of_mean, of_var = errors_of(found, truth, error)
        assert of_mean < ERRORS, f"mean: {of_mean:.2f} standard errors"
        assert of_var < ERRORS, f"variance: {of_var:.2f} standard errors"
    else:
        assert found.mean.shape == truth.mean.shape
        of_mean, of_sd = biases_of(found, truth)
        assert of_mean < bias[0], f"mean: off by {of_mean:.4f} standard deviations, allowed {bias[0]}"
        assert of_sd < bias[1], f"standard deviation: off by {of_sd:.2%}, allowed {bias[1]:.2%}"


def draws_of(network: Callable[..., Any], x: Moments, count: int = 2048, *rest: Any) -> Tensor:
    """Outputs of a plain network for draws of its input, one after another: shape ``(count, ...)``."""
    with torch.no_grad():
        return torch.stack([network(x.mean + x.std * torch.randn_like(x.mean), *rest) for _ in range(count)]).double()


def assert_within(found: Moments, drawn: Tensor, errors: float = 4.0, share: float = 0.0) -> None:
    """Mean and σ are those of draws but for the stated errors, those of the draws, and this share of σ."""
    mean, std, root = drawn.mean(0), drawn.std(0), len(drawn) ** 0.5
    spread = (drawn - mean).square().std(0) / (2 * std).clamp_min(1e-30)
    assert found.std_error is not None
    assert found.mean_error is not None
    assert found.mean.shape == mean.shape
    for own, wanted, stated, of_draws in (
        (found.mean, mean, found.mean_error, std),
        (found.std, std, found.std_error, spread),
    ):
        allowed = errors * (stated.square() + (of_draws / root).square()).sqrt() + share * std + 1e-6
        off = (own - wanted).abs() / allowed
        assert (off < 1).all(), off.max()
