"""Networks as users write them, in plain torch, trained on MNIST; used by ``answers.py``.

Trained weights and Monte Carlo's moments are kept in a folder outside the repository, so that a run again measures
only.  Seeds are fixed, and what is kept is found by all that it depends on.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from _common import console
from _data import Images, read
from torch import Tensor, nn

__all__ = ["DROPOUT", "NETWORKS", "Recipe", "Trained", "cache_folder", "digest", "images", "trained"]

#: share of the values that the dropout variants drop.
DROPOUT = 0.2


# ------------------------------------------------------------------- networks


def mlp(dropout: float = 0.0) -> nn.Module:
    """784-200-200-200-10, as small as trained MLPs on MNIST are."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs in (784, 200, 200):
        layers += [nn.Linear(inputs, 200), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.Linear(200, 10))


def lenet(dropout: float = 0.0) -> nn.Module:
    """LeNet-5 with ReLU and max pools."""

    def drop() -> list[nn.Module]:
        return [nn.Dropout(dropout)] if dropout else []

    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), *drop()),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), *drop()),
        nn.Flatten(),
        *(nn.Linear(400, 120), nn.ReLU(), *drop()),
        *(nn.Linear(120, 84), nn.ReLU(), *drop()),
        nn.Linear(84, 10),
    )


class MnistExample(nn.Module):
    """The network of PyTorch's own example (pytorch/examples, mnist/main.py), line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        x = F.relu(x)
        x = self.conv2(x)
        x = F.relu(x)
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = self.fc1(x)
        x = F.relu(x)
        x = self.dropout2(x)
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet for small images (He et al. 2016), half as wide: three stages of two blocks, 8, 16 and 32 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.stage1 = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 8, 1))
        self.stage2 = nn.Sequential(BasicBlock(8, 16, 2), BasicBlock(16, 16, 1))
        self.stage3 = nn.Sequential(BasicBlock(16, 32, 2), BasicBlock(32, 32, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.stage3(self.stage2(self.stage1(x)))
        return self.fc(torch.flatten(self.pool(x), 1))


def nine_layers(width: float = 0.25) -> nn.Module:
    """The nine convolutions of table 3 of Shekhovtsov & Flach 2018 at a quarter of the width, batch norm in each."""
    sizes = [(3, 1, 96), (3, 1, 96), (3, 2, 96), (3, 1, 192), (3, 1, 192), (3, 2, 192), (3, 1, 192), (1, 1, 192)]
    layers: list[nn.Module] = []
    inputs = 1
    for kernel, stride, depth in sizes:
        outputs = round(depth * width)
        layers += [nn.Conv2d(inputs, outputs, kernel, stride, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.Conv2d(inputs, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.out(x.transpose(1, 2).reshape(batch, length, width))


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Sixteen patches of 7 × 7 and a class token, 64 wide, four blocks."""

    def __init__(self, width: int = 64, blocks: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 7, 7)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.blocks(x + self.position)
        return self.head(self.norm(x)[:, 0])


# -------------------------------------------------------------------- recipes


@dataclass(frozen=True)
class Recipe:
    """A network, how long it is trained, and what noise it is measured with.

    Attributes:
        build: makes it, untrained.
        epochs: of training.
        variances: of independent noise on all pixels; 0 with the network's own dropout.
        count: training images.
        size: pixels a side of the images, which are enlarged to it.
        rate: the largest learning rate of its one cycle.
        rows: images that Monte Carlo runs at once, the number at which it is fastest on a CPU: fewer where a layer is
            large, so that its memory is used again.
        own_noise: whether its dropout stays active in evaluation.
        samples: plain draws that are the truth.
    """

    build: Callable[[], nn.Module]
    epochs: int
    variances: tuple[float, ...]
    count: int = 60_000
    size: int = 28
    rate: float = 3e-3
    rows: int = 512
    own_noise: bool = False
    samples: int = 20_000

    def cases(self) -> dict[str, float]:
        """Variance of the pixels' noise by the name of the case."""
        return {f"dropout {DROPOUT:g}" if self.own_noise else f"noise {v:g}": v for v in self.variances}


VARIANCES = (1e-4, 0.01, 0.1, 1.0)
NETWORKS: dict[str, Recipe] = {
    "mlp": Recipe(mlp, 6, VARIANCES),
    "lenet": Recipe(lenet, 3, VARIANCES, rows=256),
    "mnist_example": Recipe(MnistExample, 1, VARIANCES, count=20_000, rate=2e-3, rows=64),
    "resnet": Recipe(ResNet, 2, VARIANCES, count=20_000, rate=1e-2, rows=64, samples=6_000),
    "nine_layers": Recipe(nine_layers, 1, VARIANCES, count=20_000, size=32, rows=64, samples=6_000),
    "vit": Recipe(ViT, 2, VARIANCES, rate=2e-3, rows=256),
    "mlp_dropout": Recipe(lambda: mlp(DROPOUT), 6, (0.0,), own_noise=True),
    "lenet_dropout": Recipe(lambda: lenet(DROPOUT), 3, (0.0,), rows=256, own_noise=True),
}


# ----------------------------------------------------------------------- data


def images(folder: Path | None) -> Images:
    """MNIST from ``folder/mnist.npz``; without a folder ten made-up shapes, for a run that only shows that it runs."""
    if folder is None:
        draw = torch.Generator().manual_seed(0)
        shapes = F.interpolate(torch.rand(10, 1, 7, 7, generator=draw), size=28, mode="bilinear")
        y = torch.randint(0, 10, (320,), generator=draw)
        x = (shapes[y] + 0.1 * torch.randn(320, 1, 28, 28, generator=draw)).clamp(0, 1)
        return Images("made up", x[:256], y[:256], x[256:], y[256:])
    return read(folder / "mnist.npz", "MNIST")


def at_size(x: Tensor, size: int) -> Tensor:
    """The images enlarged to ``size`` pixels a side."""
    return x if x.shape[-1] == size else F.interpolate(x, size=(size, size), mode="bilinear")


# ------------------------------------------------------------------- training


@dataclass
class Trained:
    """A trained network in evaluation, its dropout active if that is the noise to be measured.

    Attributes:
        accuracy: share of right answers among the test images, without noise.
        seconds: that training took, when it was trained.
        key: names the weights; what is kept of this network is named by it.
    """

    name: str
    recipe: Recipe
    net: nn.Module
    accuracy: float
    seconds: float
    key: str
    x_test: Tensor = field(repr=False)


def cache_folder() -> Path:
    """Where checkpoints are kept if nothing is said."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "momentgen" / "trained"


def digest(*parts: object) -> str:
    """A short name of what ``parts`` say."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def trained(name: str, data: Images, folder: Path, quick: bool, seed: int = 0) -> Trained:
    """The network ``name``, from ``folder`` if it was trained before.

    Args:
        name: a key of :data:`NETWORKS`.
        data: the images.
        folder: of checkpoints.
        quick: whether it is hardly trained.
        seed: of weights and batches.
    """
    recipe = NETWORKS[name]
    torch.manual_seed(seed)
    net = recipe.build()
    count = 256 if quick else min(recipe.count, len(data.x_train))
    key = digest(str(net), recipe.epochs, recipe.rate, recipe.size, data.source, count, seed)
    path = folder / f"{name}-{key}.pt"
    x_test = at_size(data.x_test, recipe.size)
    if path.exists():
        kept = torch.load(path, weights_only=True)
        net.load_state_dict(kept["weights"])
        accuracy, seconds = kept["accuracy"], kept["seconds"]
    else:
        started = time.perf_counter()
        x = at_size(data.x_train[:count], recipe.size)
        train(net, recipe, x, data.y_train[:count], 1 if quick else recipe.epochs)
        seconds = time.perf_counter() - started
        accuracy = share_right(net, x_test, data.y_test)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"weights": net.state_dict(), "accuracy": accuracy, "seconds": seconds}, path)
    console.print(f"{name}: {accuracy:.2%} of the test right, trained in {seconds:.0f} s", highlight=False)
    net.eval().requires_grad_(False)
    for part in net.modules():
        if isinstance(part, nn.Dropout):
            part.train(recipe.own_noise)
    return Trained(name, recipe, net, accuracy, seconds, key, x_test)


def train(net: nn.Module, recipe: Recipe, x: Tensor, y: Tensor, epochs: int) -> None:
    """AdamW, batches of 128, one cycle of the learning rate."""
    net.train()
    batches = [batch for _ in range(epochs) for batch in torch.randperm(len(x)).split(128)]
    adam = torch.optim.AdamW(net.parameters(), lr=recipe.rate, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(adam, recipe.rate, total_steps=len(batches))
    for batch in batches:
        loss = F.cross_entropy(net(x[batch]), y[batch])
        adam.zero_grad()
        loss.backward()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"training {type(net).__name__}: the loss is {loss.item()}")
        adam.step()
        rate.step()


@torch.no_grad()
def share_right(net: nn.Module, x: Tensor, y: Tensor) -> float:
    net.eval()
    right = torch.cat([net(part).argmax(1) for part in x.split(500)]) == y
    return right.double().mean().item()
