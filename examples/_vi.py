"""What the examples of variational inference share: training that goes on where it stopped, errors, 32 × 32 images."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _data import Images, mnist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from momentgen import Moments

__all__ = ["Training", "colour_images", "first", "scaled", "share_wrong", "to_device"]


class Training:
    """One training run: its batches, its history, and a checkpoint from which a later run goes on.

    Args:
        path: of the checkpoint, written every minute and at the end.
        parts: what has a state: the network, the optimizer, the schedule of learning rates.
        settings: a checkpoint that was made with other ones is not read.
        seed: of the order of the images.

    Attributes:
        step: how many steps are made.
        seconds: what these took, without the script's looking on.
        history: what was noted on the way, ``step`` and ``loss`` among it.
    """

    def __init__(
        self, path: Path, parts: dict[str, Any], settings: dict[str, Any], seed: int, console: Console
    ) -> None:
        self.path, self.parts, self.settings, self.seed, self.console = path, parts, settings, seed, console
        self.step, self.seconds = 0, 0.0
        self.history: dict[str, list[float]] = {"step": [], "loss": []}
        self._losses: list[Tensor] = []
        if path.exists() and (found := torch.load(path, weights_only=True))["settings"] == settings:
            for name, state in found["parts"].items():
                parts[name].load_state_dict(state)
            self.step, self.seconds, self.history = found["step"], found["seconds"], found["history"]
            self._losses = found["losses"]
            torch.set_rng_state(found["random"])
            torch.cuda.set_rng_state_all(found["random_cuda"])

    def batches(self, images: Images, size: int, steps: int, label: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the training images, each epoch in another order, beside a progress bar."""
        x, y = images.x_train, images.y_train
        per_epoch = max(1, len(x) // size)
        saved = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True) as progress:
            task = progress.add_task(label, total=steps, completed=self.step)
            while self.step < steps:
                epoch, begin = divmod(self.step, per_epoch)
                order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 * self.seed + epoch))
                for chosen in order[: per_epoch * size].to(x.device).split(size)[begin : begin + steps - self.step]:
                    self.step += 1
                    started = time.perf_counter()
                    yield x[chosen], y[chosen]
                    self.seconds += time.perf_counter() - started
                    progress.update(task, completed=self.step)
                    if time.monotonic() - saved > 60:
                        self.save()
                        saved = time.monotonic()
        self.save()

    def add(self, loss: Tensor) -> None:
        """Remember the loss of this step."""
        self._losses.append(loss.detach())

    def note(self, **measured: Callable[[], float]) -> None:
        """Add the mean loss of the last steps and what functions measure to the history; their time does not count."""
        started = time.perf_counter()
        loss = torch.stack(self._losses).double().mean().item()
        if loss != loss:
            raise FloatingPointError(f"the loss is NaN within {len(self._losses)} steps before step {self.step}")
        self._losses.clear()
        for name, value in (("step", self.step), ("loss", loss), *((key, call()) for key, call in measured.items())):
            self.history.setdefault(name, []).append(value)
        self.seconds -= time.perf_counter() - started

    def save(self) -> None:
        """Write the checkpoint; one that is half written never takes the place of a whole one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "settings": self.settings,
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "step": self.step,
            "seconds": self.seconds,
            "history": self.history,
            "losses": self._losses,
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all(),
        }
        draft = self.path.with_suffix(".part")
        torch.save(state, draft)
        os.replace(draft, self.path)


@torch.no_grad()
def share_wrong(network: torch.nn.Module, images: Images, count: int | None = None) -> float:
    """Share of test images whose largest output (its mean, of a random one) is not their label's; without dropout."""
    x, y = images.x_test[:count], images.y_test[:count]
    training = network.training
    network.eval()
    outputs = [network(part) for part in x.split(1000)]
    network.train(training)
    found = torch.cat([(out.mean if isinstance(out, Moments) else out).argmax(1) for out in outputs])
    return (found != y).double().mean().item()


def scaled(paper: dict[str, Any], here: dict[str, Any]) -> dict[str, str]:
    """What of the paper's settings is another here, in words."""
    return {name: f"{here[name]} (paper: {value})" for name, value in paper.items() if here[name] != value}


def first(images: Images, train: int) -> Images:
    """The same with the first ``train`` training images."""
    return replace(images, x_train=images.x_train[:train], y_train=images.y_train[:train])


def to_device(images: Images, device: str) -> Images:
    """The images on a device, channels last in memory: convolutions and max-pools on a CPU are faster by a third."""
    tensors = {name: value.to(device) for name, value in vars(images).items() if isinstance(value, Tensor)}
    for name in ("x_train", "x_test"):
        tensors[name] = tensors[name].to(memory_format=torch.channels_last)
    return replace(images, **tensors)


def colour_images(folder: Path | None, console: Console) -> Images:
    """Images of 32 × 32, values in 0..1: CIFAR-10 or SVHN where ``folder`` has them, else MNIST with a black edge.

    CIFAR-10 as its python batches (in ``folder``, or ``cifar-10-batches-py`` in it) or ``cifar10.npz`` with ``x_train``
    and ``x_test`` of shape (N, 32, 32, 3), ``y_train`` and ``y_test``; SVHN as ``train_32x32.mat``, ``test_32x32.mat``.
    """
    for place in [folder, folder / "cifar-10-batches-py"] if folder else []:
        if (place / "data_batch_1").exists():
            train = [_python_batch(place / f"data_batch_{number}") for number in range(1, 6)]
            x, y = (np.concatenate(parts) for parts in zip(*train, strict=True))
            return _images("CIFAR-10", x, y, *_python_batch(place / "test_batch"))
        if (place / "cifar10.npz").exists():
            with np.load(place / "cifar10.npz") as arrays:
                parts = [arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")]
            return _images(
                "CIFAR-10", parts[0].transpose(0, 3, 1, 2), parts[1], parts[2].transpose(0, 3, 1, 2), parts[3]
            )
        if (place / "train_32x32.mat").exists():
            return _images("SVHN", *_matlab(place / "train_32x32.mat"), *_matlab(place / "test_32x32.mat"))
    found = mnist(folder, console)
    source = f"{found.source}, one channel, with a black edge of 2 pixels (no 32 × 32 data at hand)"
    x_train, x_test = (torch.nn.functional.pad(x, (2, 2, 2, 2)) for x in (found.x_train, found.x_test))
    return replace(found, source=source, x_train=x_train, x_test=x_test)


def _python_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with path.open("rb") as file:
        batch = pickle.load(file, encoding="bytes")  # as its authors publish it; a pickle can run code
    return batch[b"data"].reshape(-1, 3, 32, 32), np.array(batch[b"labels"])


def _matlab(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat

    content = loadmat(path)
    return content["X"].transpose(3, 2, 0, 1), content["y"] % 10  # its label of the digit 0 is 10


def _images(source: str, *arrays: np.ndarray) -> Images:
    x_train, y_train, x_test, y_test = arrays
    x = (torch.tensor(pixels).float() / 255 for pixels in (x_train, x_test))
    y = (torch.tensor(labels).long().flatten() for labels in (y_train, y_test))
    train, test = zip(x, y, strict=True)
    return Images(source, *train, *test)
