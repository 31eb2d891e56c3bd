"""What each way of propagation says of a network's output and hidden layers; used by ``correlation.py``.

Monte Carlo, of many samples as the truth and of few as a contestant; plain linearisation; and momentgen's methods by
their public calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from _trained import Trained, digest
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.laws.border import METHODS
from momentgen.laws.propagations import PROPAGATIONS

__all__ = ["MONTE_CARLO", "Answer", "Layers", "Truth", "answer", "hidden", "known_methods", "runner", "truth"]

#: samples of the baselines.
MONTE_CARLO = {"Monte Carlo 30": 30, "Monte Carlo 96": 96}
#: mean and variance of each call of each layer, float64, by the layer's name.
Layers = dict[str, list[Moments]]


@dataclass
class Answer:
    """What a method says of ``N`` examples with ``K`` outputs, in float64.

    Attributes:
        mean: shape (N, K).
        covariance: shape (N, K, K); diagonal of a method that has variances only.
        posterior: E softmax(output), shape (N, K).
        spread: variance of softmax(output), which Monte Carlo's error needs; of Monte Carlo only.
    """

    mean: Tensor
    covariance: Tensor
    posterior: Tensor
    spread: Tensor | None = field(default=None)

    @property
    def var(self) -> Tensor:
        return self.covariance.diagonal(dim1=-2, dim2=-1)


@dataclass
class Truth:
    """Monte Carlo's answer for the output, by ``samples``, and for the hidden layers, by ``deep_samples``."""

    samples: int
    deep_samples: int
    output: Answer
    layers: Layers


# ---------------------------------------------------------------- Monte Carlo


@torch.no_grad()
def sampled(one: Trained, x: Moments, samples: int, seed: int) -> Answer:
    """Moments of the plain network's output under drawn inputs, and its own dropout's draws, by running sums."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        batch, sigma = len(x.mean), x.var.sqrt()
        noisy = bool(sigma.any())
        centre = one.net(x.mean).flatten(1).double()
        total, products = torch.zeros_like(centre), torch.zeros(*centre.shape, centre.shape[1], dtype=torch.float64)
        posterior, squares = torch.zeros_like(centre), torch.zeros_like(centre)
        at_once = max(1, min(samples, one.recipe.rows // batch))
        for first in range(0, samples, at_once):
            count = min(at_once, samples - first)
            many = x.mean.expand(count, *x.mean.shape)
            if noisy:
                many = many + sigma * torch.randn(many.shape)
            out = one.net(many.flatten(0, 1)).double().view(count, *centre.shape)
            away, q = out - centre, out.softmax(-1)
            total += away.sum(0)
            products += torch.einsum("snk,snl->nkl", away, away)
            posterior += q.sum(0)
            squares += q.square().sum(0)
    shift, q = total / samples, posterior / samples
    covariance = (products - samples * shift[:, :, None] * shift[:, None]) / (samples - 1)
    return Answer(centre + shift, covariance, q, (squares / samples - q.square()).clamp_min(0))


def truth(one: Trained, x: Moments, samples: int, deep: Moments, deep_samples: int, folder: Path) -> Truth:
    """Monte Carlo's moments of the output and of the hidden layers, from ``folder`` if they were sampled before.

    Args:
        one: the network.
        x: its inputs.
        samples: of the output, an input.
        deep: inputs for which hidden layers are looked at.
        deep_samples: of these, an input.
        folder: where it is kept.
    """
    var = x.var.flatten()[0].item()
    path = folder / f"{one.name}-{digest(one.key, len(x.mean), var, samples, len(deep.mean), deep_samples)}.truth.pt"
    if path.exists():
        kept = torch.load(path, weights_only=True)
        layers = {name: [Moments(*call) for call in calls] for name, calls in kept["layers"].items()}
        return Truth(samples, deep_samples, Answer(*kept["output"]), layers)
    output = sampled(one, x, samples, seed=1)
    layers = {name: [] for name in hidden_names(one.net)}
    found = momentgen.monte_carlo(one.net, deep, deep_samples, rows=one.recipe.rows, seed=2, progress=False)
    for name, moments in found.layers.items():
        layer = name.partition(":")[0]
        if layer in layers:
            layers[layer].append(moments)
    plain = {name: [tuple(part.float() for part in call) for call in calls] for name, calls in layers.items()}
    torch.save({"output": [output.mean, output.covariance, output.posterior, output.spread], "layers": plain}, path)
    return Truth(samples, deep_samples, output, layers)


# ------------------------------------------------------------- hidden layers


def hidden_names(net: nn.Module) -> dict[str, nn.Module]:
    """The layers to be looked at: modules without children that do something, but for the one of the output."""
    idle = (nn.Flatten, nn.Identity)
    found = {
        name: part
        for name, part in net.named_modules()
        if not any(part.children())
        and not isinstance(part, idle)
        and (part.training or not isinstance(part, nn.Dropout))
    }
    return dict(list(found.items())[:-1])


@contextlib.contextmanager
def recording(net: nn.Module) -> Iterator[Layers]:
    """Within it, mean and variance of the laws that the layers return are collected."""
    found: Layers = {name: [] for name in hidden_names(net)}

    def record(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: object, out: Any) -> None:
            if hasattr(out, "moments"):
                mean, var = out.moments()
            elif getattr(out, "_mean", None) is not None and getattr(out, "_var", None) is not None:
                mean, var = out._mean, out._var
            else:
                return
            found[name].append(Moments(mean.detach(), var.detach()))

        return hook

    handles = [part.register_forward_hook(record(name)) for name, part in hidden_names(net).items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def hidden(run: Callable[[Moments], object], net: nn.Module, x: Moments, expected: Layers) -> Layers | None:
    """Moments of the hidden layers of ``net``, which ``run`` calls; None where they do not come out.

    One example at a time, since methods that run a network under ``torch.vmap`` do not do so for a batch of one.  Of a
    method that runs the network several times, the last run counts.
    """
    rows: list[Layers] = []
    for mean, var in zip(x.mean.split(1), x.var.split(1), strict=True):
        with recording(net) as found, torch.no_grad():
            run(Moments(mean, var))
        rows.append({name: calls[-len(expected[name]) :] for name, calls in found.items()})
    for name, wanted in expected.items():
        if any(
            len(row[name]) != len(wanted) or got.mean.shape[1:] != one.mean.shape[1:]
            for row in rows
            for got, one in zip(row[name], wanted, strict=False)
        ):
            return None
    return {
        name: [
            Moments(*(torch.cat([row[name][call][part] for row in rows]).double() for part in (0, 1)))
            for call in range(len(wanted))
        ]
        for name, wanted in expected.items()
    }


# -------------------------------------------------------------------- methods


def known_methods() -> list[str]:
    """The baselines, and momentgen's methods that the installed library has."""
    own = [name for name in METHODS if name == "ap2" or name in PROPAGATIONS]
    return [*own, "linear", *MONTE_CARLO]


def runner(method: str, one: Trained) -> tuple[Callable[[Moments], Any], nn.Module | None]:
    """The method as a user calls it, and the network whose hidden layers can be looked at."""
    if method in MONTE_CARLO:
        return lambda x: sampled(one, x, MONTE_CARLO[method], seed=3), None
    if method == "linear":
        return lambda x: linear(one.net, x), None
    net = momentgen.convert(one.net, method=method)

    def run(x: Moments) -> Any:
        with torch.no_grad():
            return net(x)

    return run, net


def linear(net: nn.Module, x: Moments) -> tuple[Tensor, Tensor]:
    """Mean and covariance by the plain network's Jacobian at the mean."""
    inputs = x.mean.clone().requires_grad_()
    out = net(inputs).flatten(1)
    rows = [torch.autograd.grad(out[:, k].sum(), inputs, retain_graph=True)[0].flatten(1) for k in range(out.shape[1])]
    jacobian = torch.stack(rows, 1)
    return out.detach(), jacobian * x.var.flatten(1)[:, None] @ jacobian.mT


def answer(found: Any) -> Answer:
    """Whatever a method returned, its posterior by 4,096 points of a fixed scrambled Sobol sequence."""
    if isinstance(found, Answer):
        return found
    if hasattr(found, "covariance"):
        mean, covariance = found.mean, found.covariance
    elif isinstance(found, Moments):
        mean, covariance = found.mean, found.var.flatten(1).diag_embed()
    else:
        mean, covariance = found[0], found[-1]
    mean, covariance = mean.detach().flatten(1).double(), covariance.detach().double()
    return Answer(mean, covariance, posterior(mean, covariance))


def posterior(mean: Tensor, covariance: Tensor) -> Tensor:
    """E softmax of normal logits, shapes (N, K) and (N, K, K)."""
    uniform = torch.quasirandom.SobolEngine(mean.shape[1], scramble=True, seed=0).draw(4096, dtype=torch.float64)
    normal = torch.special.ndtri(uniform.clamp(1e-12, 1 - 1e-12))
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(0).sqrt()[:, None]
    return (mean[:, None] + normal @ root.mT).softmax(-1).mean(1)
