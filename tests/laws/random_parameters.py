"""Random parameters for the tests of laws: posteriors with correlated neighbours, what takes them, and draws."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from sampling import ERRORS, N
from torch import Tensor, nn

from momentgen import Moments
from momentgen.laws.methods import ALL, current_method


def random_weight(
    mean: Tensor, var: Tensor, *, neighbour: Tensor | None = None, draw: Callable[[], Tensor], method: str
) -> Any:
    """What stands for a random parameter by a method."""
    return ALL[method].weight(mean, lambda: var, lambda: neighbour, draw)


class Posterior(NamedTuple):
    """A normal parameter with a bidiagonal Cholesky factor: its mean, the factor's diagonal and what is below it."""

    mean: Tensor
    diagonal: Tensor
    below: Tensor

    @property
    def var(self) -> Tensor:
        carried = F.pad(self.below, (1, 0)).square() if len(self.below) else 0.0
        return (self.diagonal.square() + carried).view(self.mean.shape)

    @property
    def neighbour(self) -> Tensor:
        return self.diagonal[:-1] * self.below

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Samples, shape ``(count, *shape)``."""
        noise = torch.randn(count, len(self.diagonal), dtype=self.mean.dtype, generator=generator)
        values = noise * self.diagonal
        values[:, 1:] += noise[:, :-1] * self.below
        return self.mean + values.view(count, *self.mean.shape)

    def weight(self, method: str, correlated: bool) -> Any:
        return random_weight(
            self.mean,
            self.var,
            neighbour=self.neighbour if correlated else None,
            draw=lambda: self.draw(1)[0],
            method=method,
        )


def posterior(*shape: int, correlated: bool, seed: int = 0, dtype: torch.dtype = torch.float64) -> Posterior:
    """A parameter whose neighbours have correlations of -0.47, or are independent."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, dtype=torch.float64, generator=generator)
    std = torch.rand(mean.numel(), dtype=torch.float64, generator=generator) + 0.3
    correlation = -0.47 if correlated else 0.0
    pairs = torch.diag_embed(correlation * std[1:] * std[:-1], offset=1)
    root = torch.linalg.cholesky(torch.diag(std.square()) + pairs + pairs.mT)
    return Posterior(mean.to(dtype), root.diagonal().to(dtype), root.diagonal(-1).to(dtype))


def given(*shape: int, seed: int = 1) -> Moments:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, dtype=torch.float64, generator=generator) + 1  # neighbours alike, as pixels are
    return Moments(mean, torch.rand(shape, dtype=torch.float64, generator=generator) / 2)


#: name -> shape of the weight, shape of one input, options
MAPS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "linear": ((3, 5), (1, 5), {}),
    "conv1d": ((4, 2, 3), (1, 4, 6), {"stride": 2, "padding": 1, "groups": 2}),
    "conv2d": ((2, 2, 3, 2), (1, 4, 4, 3), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}),
}


def of_draws(function: Callable[..., Tensor], *draws: Callable[[int], Tensor], chunk: int = 50_000) -> list[Tensor]:
    """Mean and variance of a function of a million draws, and the standard errors of both."""
    run, total, count = torch.vmap(function), None, 0
    shift = run(*[draw(1000) for draw in draws]).mean(0)
    while count < N:
        away = run(*[draw(chunk) for draw in draws]) - shift
        powers = torch.stack([away.pow(k).sum(0) for k in (1, 2, 3, 4)])
        total = powers if total is None else total + powers
        count += chunk
    m1, m2, m3, m4 = total / N  # type: ignore[operator]
    var = m2 - m1**2
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    return [shift + m1, var, (var / N).sqrt(), ((fourth - var**2) / N).sqrt()]


def agree(found: Moments, sampled: list[Tensor]) -> None:
    mean, var, of_mean, of_var = sampled
    assert ((found.mean - mean).abs() <= ERRORS * of_mean).all()
    assert ((found.var - var).abs() <= ERRORS * of_var).all()


def weights_of(own: Posterior, seed: int = 6) -> Callable[[int], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda count: own.draw(count, generator)


class Bayes(nn.Module):
    """A network that sets its parameters anew at each run, from a mean and a standard deviation for each."""

    def __init__(self, net: nn.Module, correlated: bool, noise: float = 0.1) -> None:
        super().__init__()
        self.net, self.correlated = net, correlated
        self.means, self.logs = nn.ParameterList(), nn.ParameterList()
        self.places: list[tuple[str, str]] = []
        for path, part in net.named_modules():
            for name, value in list(part._parameters.items()):
                if value is not None:
                    del part._parameters[name]
                    self.places.append((path, name))
                    self.means.append(nn.Parameter(value.detach()))
                    self.logs.append(nn.Parameter(torch.full_like(value, noise).log()))

    def forward(self, x: Any) -> Any:
        for (path, name), mean, log in zip(self.places, self.means, self.logs, strict=True):
            std = log.exp()
            neighbour = -0.45 * std.flatten()[1:] * std.flatten()[:-1] if self.correlated else None

            def draw(mean: Tensor = mean, std: Tensor = std) -> Tensor:
                return mean + std * torch.randn_like(mean)

            own = current_method(getattr(self, "propagation", None))
            weight = random_weight(mean, std.square(), neighbour=neighbour, draw=draw, method=own)
            self.net.get_submodule(path).__dict__[name] = weight
        return self.net(x)


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))
