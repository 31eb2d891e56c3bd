"""Small networks for the tests of laws: whose units share noise, a trained one, and a function as a network."""

import functools
from collections.abc import Callable
from typing import Any

import sklearn.datasets
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentgen import Moments
from momentgen.runtime import JointMoments


class Of(nn.Module):
    """A function as a network; beside parts of a network's own, by name, the function is first given the network."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function, self.has_parts = function, bool(parts)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs) if self.has_parts else self.function(*args, **kwargs)


class TwoHeads(nn.Module):
    """Attention of two heads, whose last output is read."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(16, 48), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.into(self.norm(x)).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.out(F.gelu(x)[:, -1])


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


@functools.cache
def trained(outputs: int) -> tuple[nn.Module, Tensor]:
    """A perceptron that reads digits, or says which number is written, after a few seconds of training; test images."""
    digits = sklearn.datasets.load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))
    adam = torch.optim.AdamW(net.parameters(), 3e-3)
    for _ in range(12):
        for batch in torch.randperm(1500).split(64):
            out = net(x[batch])
            loss = F.cross_entropy(out, y[batch]) if outputs == 10 else F.mse_loss(out, y[batch, None].float())
            adam.zero_grad()
            loss.backward()
            adam.step()
    return net.eval().requires_grad_(False), x[1500:1512]


def small(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs)).eval()


def noisy(*shape: int) -> Moments:
    torch.manual_seed(1)
    return Moments(torch.randn(shape), 0.1 * torch.rand(shape))


def same(found: Any, expected: Any) -> None:
    """The same bits, covariances included."""
    assert type(found) is type(expected)
    assert all(map(torch.equal, found, expected))
    if isinstance(expected, JointMoments):
        assert torch.equal(found.factor, expected.factor)
