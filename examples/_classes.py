"""Data with classes for the examples of density filtering: what scikit-learn ships, MNIST, and sets from a folder."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _data import mnist
from numpy.typing import ArrayLike
from rich.console import Console
from sklearn.datasets import load_breast_cancer, load_digits, load_files, load_wine
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor

__all__ = [
    "DOCSTRINGS",
    "TABULAR",
    "TrainTest",
    "multiclass",
    "random_splits",
    "tabular",
    "text",
    "text_sets",
    "versions",
]

#: two classes each
TABULAR = ("breast cancer", "wine, first class", "digits, 3 and 8")
#: the text set that needs no folder
DOCSTRINGS = "docstrings of SciPy or scikit-learn"


@dataclass(frozen=True)
class TrainTest:
    """Features ``(n, d)`` and labels ``(n,)``, or splits of them, ``(splits, n, d)`` and ``(splits, n)``."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def standard(x_train: ArrayLike, y_train: ArrayLike, x_test: ArrayLike, y_test: ArrayLike) -> TrainTest:
    """With features in standard units of the training data."""
    scale = StandardScaler().fit(x_train)
    return TrainTest(*map(torch.tensor, (scale.transform(x_train), y_train, scale.transform(x_test), y_test)))


# ------------------------------------------------------------------ many classes


def multiclass(name: str, folder: Path | None, train: int, console: Console) -> TrainTest | None:
    """A set by name; None where it needs files that ``folder`` lacks.

    digits
        scikit-learn's.
    MNIST
        ``mnist.npz`` (see ``_data.py``); pixels are divided by their standard deviation: what is black stays 0.
    HAR
        ``UCI HAR Dataset``, the folder as its authors publish it, with its own division.
    Sensorless
        ``Sensorless_drive_diagnosis.txt``, of which a quarter tests.
    """
    if name == "digits":
        return standard(*_divided(*load_digits(return_X_y=True)))
    if name == "MNIST":
        found = mnist(folder, console)
        scale = found.x_train.std()
        x_train, x_test = (x.flatten(1) / scale for x in (found.x_train[:train], found.x_test))
        return TrainTest(x_train, found.y_train[:train], x_test, found.y_test)
    if name == "HAR":
        place = folder / "UCI HAR Dataset" if folder else None
        if place is None or not place.exists():
            return None
        parts = []
        for part in ("train", "test"):
            parts.append(np.loadtxt(place / part / f"X_{part}.txt"))
            parts.append(np.loadtxt(place / part / f"y_{part}.txt", dtype=np.int64) - 1)
        return standard(*parts)
    if name == "Sensorless":
        path = folder / "Sensorless_drive_diagnosis.txt" if folder else None
        if path is None or not path.exists():
            return None
        table = np.loadtxt(path)
        return standard(*_divided(table[:, :-1], table[:, -1].astype(np.int64) - 1))
    raise ValueError(f"expected digits, MNIST, HAR or Sensorless, got {name}")


def _divided(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=0, stratify=y)
    return x_train, y_train, x_test, y_test


# ------------------------------------------------------------------- two classes


def tabular(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels 0 or 1 of a set of :data:`TABULAR`."""
    if name == "digits, 3 and 8":
        x, y = load_digits(return_X_y=True)
        return x[(y == 3) | (y == 8)], y[(y == 3) | (y == 8)] == 8
    if name == "wine, first class":
        x, y = load_wine(return_X_y=True)
        return x, y == 0
    return load_breast_cancer(return_X_y=True)


def random_splits(x: np.ndarray, y: np.ndarray, count: int) -> TrainTest:
    """Random divisions, 90 % training, as one batch; features in standard units of each training part."""
    parts = []
    for seed in range(count):
        x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.1, random_state=seed, stratify=y)
        one = standard(x_train, y_train, x_test, y_test)
        parts.append((one.x_train, one.y_train, one.x_test, one.y_test))
    return TrainTest(*(torch.stack(column) for column in zip(*parts, strict=True)))


def text_sets(folder: Path | None) -> list[str]:
    """Names of sets for :func:`text`: one is always there, others are folders in ``folder/text``."""
    place = folder / "text" if folder else None
    return [DOCSTRINGS, *(sorted(path.name for path in place.iterdir()) if place and place.is_dir() else [])]


def text(name: str, folder: Path | None, splits: int) -> TrainTest:
    """Two classes of texts as bags of words, random divisions, 90 % training, as one batch, float32.

    A feature is whether a word is there; words of a single training text, and those that occur anywhere else than in
    training, are left out.  Features are divided by their standard deviation as a whole: a word that is not there
    stays 0.  A set of a folder is ``folder/text/NAME/CLASS/*``, a text a file.
    """
    if name == DOCSTRINGS:
        documents = [_docstrings("scipy"), _docstrings("sklearn")]
        least = min(map(len, documents))
        chosen = [np.random.default_rng(0).permutation(part)[: min(1000, least)] for part in documents]
        texts, labels = np.concatenate(chosen), np.repeat([0, 1], [len(part) for part in chosen])
    else:
        if folder is None:
            raise ValueError(f"expected a folder that holds text/{name}, got none")
        found = load_files(folder / "text" / name, encoding="utf-8", decode_error="replace", random_state=0)
        if len(found.target_names) != 2:
            raise SystemExit(f"expected two classes in {folder}/text/{name}, got {found.target_names}")
        texts, labels = np.array(found.data, dtype=object), found.target
    parts, words = [], []
    for seed in range(splits):
        train, test, y_train, y_test = train_test_split(
            texts, labels, test_size=0.1, random_state=seed, stratify=labels
        )
        counter = CountVectorizer(binary=True, min_df=2, stop_words=["scipy", "sklearn", "scikit"], dtype=np.float32)
        x_train, x_test = counter.fit_transform(train), counter.transform(test)
        scale = np.sqrt(x_train.mean() * (1 - x_train.mean()))
        parts.append([torch.tensor(a) for a in (x_train.toarray() / scale, y_train, x_test.toarray() / scale, y_test)])
        words.append(x_train.shape[1])
    # Splits differ in how many words they know; columns of zeros change nothing.
    for part in parts:
        for k in (0, 2):
            part[k] = torch.nn.functional.pad(part[k], (0, max(words) - part[k].shape[1])).float()
    return TrainTest(*(torch.stack(column) for column in zip(*parts, strict=True)))


def _docstrings(package: str) -> list[str]:
    """Of all functions and classes of an installed package, at least 30 words long, without repetition.

    Its files are read, not imported; its tests and what it vendors are left out.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"expected {package} to be installed")
    root = Path(spec.submodule_search_locations[0])
    found: dict[str, None] = {}
    for path in sorted(root.rglob("*.py")):
        if {"tests", "externals", "_lib", "src"} & set(path.relative_to(root).parts):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                doc = ast.get_docstring(node)
                if doc and len(doc.split()) >= 30:
                    found[doc] = None
    return list(found)


def versions() -> dict[str, str]:
    """Of the packages whose docstrings are a set."""
    return {name: importlib.metadata.version(name) for name in ("scipy", "scikit-learn")}
