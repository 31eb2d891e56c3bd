"""Ways to find the moments of a network's outputs, what they are by many plain draws, and figures of their errors.

Methods of momentgen are called as a user calls them.  Beside them are linearisation at the mean and three kinds of
plain sampling, whose rows are stacked to as many images at once as are fastest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _trained import Trained, digest
from torch import Tensor, nn

import momentgen
from momentgen import Moments

__all__ = ["METHODS", "SAMPLES", "Answer", "Truth", "contestant", "figures", "inputs", "truth"]

#: samples of the plain baselines
SAMPLES = 64


@dataclass
class Answer:
    """What a method says of ``N`` examples with ``K`` outputs: shapes (N, K), float64.

    Attributes:
        mean: of the outputs.
        std: standard deviations.
        std_error: standard error of the standard deviations; None of methods that state none.
        mean_error: likewise of the means.
        rows: plain rows used, 0 of methods that use none.
    """

    mean: Tensor
    std: Tensor
    std_error: Tensor | None = None
    mean_error: Tensor | None = None
    rows: int = 0


@dataclass
class Truth:
    """Moments by plain draws, of the outputs' shape, float64.

    Attributes:
        samples: draws.
        mean: of the outputs.
        std: standard deviations.
        log_variance: *variance* of the logarithm of the standard deviation, times the number of draws.
    """

    samples: int
    mean: Tensor
    std: Tensor
    log_variance: Tensor


def inputs(one: Trained, var: float, count: int) -> Moments:
    """The first test images, with independent noise of this *variance* on every pixel."""
    x = one.x_test[:count]
    return Moments(x, torch.tensor(var).expand_as(x))


def log_ratios(var: Tensor, expected: Tensor) -> Tensor:
    """log σ over the expected one, of the units that vary, flat; *variances* of shape (N, ...)."""
    std = expected.sqrt()
    counted = std > 0.01 * std.mean()
    return (var[counted] / expected[counted]).log() / 2


# ------------------------------------------------------------------- sampling


def _normal(x: Moments, samples: int) -> Iterator[Tensor]:
    """Standard normal numbers of each sample, of the shape of an image or of the batch; all are independent."""
    for _ in range(samples):
        yield torch.randn(x.mean.shape)


def _antithetic(x: Moments, samples: int) -> Iterator[Tensor]:
    for _ in range(samples // 2):
        drawn = torch.randn(x.mean.shape)
        yield drawn
        yield -drawn


def _sobol(x: Moments, samples: int) -> Iterator[Tensor]:
    """One scrambled sequence, the same for all images of the batch."""
    shape = x.mean.shape[1:]
    engine = torch.quasirandom.SobolEngine(shape.numel(), scramble=True, seed=int(torch.randint(2**31, ())))
    points = engine.draw(samples, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    yield from torch.special.ndtri(points).float().view(samples, 1, *shape)


@torch.no_grad()
def outputs(one: Trained, x: Moments, samples: int, numbers: Callable[..., Iterator[Tensor]] = _normal) -> Tensor:
    """Outputs of the plain network for drawn inputs and its own dropout's draws, shape (samples, N, K)."""
    sigma = x.var.sqrt()
    noisy = bool(sigma.any())
    at_once = max(1, min(samples, one.recipe.rows // len(x.mean)))
    draws = numbers(x, samples) if noisy else iter([torch.zeros(1)] * samples)
    found = []
    for first in range(0, samples, at_once):
        count = min(at_once, samples - first)
        many = torch.stack([x.mean + sigma * next(draws) for _ in range(count)])
        found.append(one.net(many.flatten(0, 1)).view(count, len(x.mean), -1))
    return torch.cat(found)


def _sampled(one: Trained, numbers: Callable[..., Iterator[Tensor]]) -> Callable[[Moments, int], Answer]:
    def run(x: Moments, seed: int) -> Answer:
        with torch.random.fork_rng():
            torch.manual_seed(1000 + seed)
            found = outputs(one, x, SAMPLES, numbers)
        return Answer(found.mean(0).double(), found.std(0).double())

    return run


def truth(one: Trained, x: Moments, folder: Path, quick: bool) -> Truth:
    """Moments by plain draws, from ``folder`` if they were drawn before."""
    samples = 200 if quick else one.recipe.samples
    var = x.var.flatten()[0].item()
    path = folder / f"{one.name}-{digest(one.key, len(x.mean), var, samples, 'answers')}.truth.pt"
    if path.exists():
        return Truth(samples, *torch.load(path, weights_only=True))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        found = outputs(one, x, samples).double()
    mean, std = found.mean(0), found.std(0)
    fourth = ((found - mean) / torch.where(std > 0, std, 1)).pow(4).mean(0)
    moments = mean, std, (fourth - 1) / 4
    torch.save(moments, path)
    return Truth(samples, *moments)


# -------------------------------------------------------------------- figures


def figures(found: list[Any], expected: Truth) -> dict[str, Any]:
    """Errors of the answers of several seeds; the head of ``answers.py`` says what they are."""
    counted = (expected.std > 0.01 * expected.std.mean()) & (expected.std > 0)
    noise = (expected.log_variance[counted].mean() / expected.samples).item()
    logs = torch.stack([(one.std[counted].double() / expected.std[counted]).log() for one in found])
    square = max(logs.square().mean().item() - noise, noise / 10)
    off = torch.stack([(one.mean.double() - expected.mean)[counted] / expected.std[counted] for one in found])
    row: dict[str, Any] = {
        "rms": math.sqrt(square),
        "ratio": logs.mean().exp().item(),
        "mean_error": math.sqrt(max(off.square().mean().item() - 1 / expected.samples, 0.1 / expected.samples)),
        "equal_samples": expected.log_variance[counted].mean().item() / square,
    }
    if found[0].std_error is not None:
        row["rows"] = statistics.mean(one.rows for one in found)
        own = expected.std * (expected.log_variance / expected.samples).sqrt()
        stds = covered([one.std for one in found], [one.std_error for one in found], expected.std, own)
        own = expected.std / expected.samples**0.5
        means = covered([one.mean for one in found], [one.mean_error for one in found], expected.mean, own)
        row["coverage"], row["mean_coverage"] = (part[:, counted].mean().item() for part in (stds, means))
    return row


def covered(values: list[Tensor], errors: list[Tensor | None], expected: Tensor, own: Tensor) -> Tensor:
    """Whether each value is within two errors of what is expected, known to ``own`` itself; 0 and 1."""
    parts = [
        (value - expected).abs() <= 2 * (error.double().square() + own.square()).sqrt()
        for value, error in zip(values, errors, strict=True)
        if error is not None
    ]
    return torch.stack(parts).double()


# -------------------------------------------------------------------- methods


def _converted(net: nn.Module, method: str, **settings: Any) -> Callable[[Moments, int], Answer]:
    made: dict[int, nn.Module] = {}

    def run(x: Moments, seed: int) -> Answer:
        if seed not in made:
            made[seed] = momentgen.convert(net, method, **settings | ({"seed": seed} if method == "controlled" else {}))
        with torch.no_grad():
            found = made[seed](x)
        parts = found.mean, found.std, found.std_error, found.mean_error
        flat = [None if part is None else part.view(len(x.mean), -1) for part in parts]
        return Answer(*flat, found.rows or 0)

    return run


def _linear(net: nn.Module) -> Callable[[Moments, int], Answer]:
    """By the plain network's Jacobian at the mean."""

    def run(x: Moments, _seed: int) -> Answer:
        leaf = x.mean.clone().requires_grad_()
        out = net(leaf).flatten(1)
        rows = [torch.autograd.grad(part.sum(), leaf, retain_graph=True)[0].flatten(1) for part in out.unbind(1)]
        var = (torch.stack(rows, 1).square() * x.var.flatten(1)[:, None]).sum(-1)
        return Answer(out.detach(), var.sqrt())

    return run


#: names of the methods: those whose answer depends on a seed, and those whose does not
METHODS = {
    "controlled, 16 rows": True, "controlled": True, "Monte Carlo": True, "antithetic": True, "Sobol": True,
    "ap2": False, "linearisation": False,
}  # fmt: skip

_NUMBERS = {"Monte Carlo": _normal, "antithetic": _antithetic, "Sobol": _sobol}


def contestant(method: str, one: Trained) -> Callable[[Moments, int], Answer] | None:
    """A method for one network, called with inputs and a seed; None where it is not to be had."""
    if method in _NUMBERS:
        return None if one.recipe.own_noise and method != "Monte Carlo" else _sampled(one, _NUMBERS[method])
    if method == "linearisation":  # the Jacobian by the input knows no noise of the network's own
        return None if one.recipe.own_noise else _linear(one.net)
    if method == "controlled, 16 rows":
        return _converted(one.net, "controlled", max_rows=16)
    return _converted(one.net, method)
