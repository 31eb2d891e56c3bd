"""Images for the examples: MNIST from a folder, from a cache, by download, or scikit-learn's digits instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

__all__ = ["Images", "mnist"]

URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"


@dataclass
class Images:
    """Grey images of 28 × 28 with values in 0..1, shape (N, 1, 28, 28), and their labels."""

    source: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def mnist(folder: Path | None, console: Console) -> Images:
    """MNIST from ``folder/mnist.npz``; without a folder from the cache or the net; failing that, digits, saying so."""
    if folder is not None:
        return read(folder / "mnist.npz", f"MNIST ({folder.name}/mnist.npz)")
    import pooch
    from requests import RequestException

    download = pooch.HTTPDownloader(timeout=20)
    try:  # a file of the cache is used only if its hash is right
        path = pooch.retrieve(URL, SHA256, "mnist.npz", pooch.os_cache("momentgen"), downloader=download)
    except (RequestException, ValueError) as reason:  # a ValueError of pooch's is another hash
        console.print(f"MNIST cannot be had ({reason}); scikit-learn's 8×8 digits, enlarged, stand in")
        return digits()
    return read(Path(path), "MNIST")


def read(path: Path, source: str) -> Images:
    with np.load(path) as arrays:
        x_train, x_test = (torch.tensor(arrays[name]).float()[:, None] / 255 for name in ("x_train", "x_test"))
        y_train, y_test = (torch.tensor(arrays[name]).long() for name in ("y_train", "y_test"))
    return Images(source, x_train, y_train, x_test, y_test)


def digits() -> Images:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8)[order] / 16
    x = torch.nn.functional.interpolate(x, size=(28, 28), mode="bilinear")
    y = torch.tensor(labels)[order]
    return Images("scikit-learn digits, enlarged to 28×28 (not MNIST)", x[:1300], y[:1300], x[1300:], y[1300:])
