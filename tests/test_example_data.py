"""Readers of data for the examples, on files made here in the layouts that the data are published in."""

import hashlib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType

import numpy as np
import pytest
import torch
from rich.console import Console

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import _classes

    return _classes


def test_har_is_read_in_its_own_division_and_standardised_by_training_data(classes: ModuleType, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = {}
    for part, count in (("train", 40), ("test", 10)):
        place = tmp_path / "UCI HAR Dataset" / part
        place.mkdir(parents=True)
        np.savetxt(place / f"X_{part}.txt", generator.normal(3.0, 2.0, (count, 7)))
        labels[part] = generator.integers(1, 7, count)
        np.savetxt(place / f"y_{part}.txt", labels[part], fmt="%d")
    found = classes.multiclass("HAR", tmp_path, 0, Console())
    assert found.x_train.shape == (40, 7)
    assert found.x_test.shape == (10, 7)
    assert found.x_train.mean(0).abs().max() < 1e-12
    assert found.y_train.tolist() == (labels["train"] - 1).tolist()
    assert found.y_test.tolist() == (labels["test"] - 1).tolist()


def test_sensorless_drive_is_divided_with_all_classes_on_both_sides(classes: ModuleType, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    table = np.column_stack([generator.normal(size=(110, 48)), np.repeat(np.arange(1, 12), 10)])
    np.savetxt(tmp_path / "Sensorless_drive_diagnosis.txt", table)
    found = classes.multiclass("Sensorless", tmp_path, 0, Console())
    assert found.x_train.shape == (82, 48)
    assert found.x_test.shape == (28, 48)
    assert set(found.y_train.tolist()) == set(found.y_test.tolist()) == set(range(11))


@pytest.mark.parametrize("name", ["HAR", "Sensorless"])
def test_a_set_without_its_files_is_none(classes: ModuleType, name: str, tmp_path: Path) -> None:
    assert classes.multiclass(name, tmp_path, 0, Console()) is None
    assert classes.multiclass(name, None, 0, Console()) is None


def test_texts_become_bags_of_the_words_that_training_repeats(classes: ModuleType, tmp_path: Path) -> None:
    for name, words in (("ham", "meeting agenda attached"), ("spam", "free prize attached")):
        place = tmp_path / "text" / "mail" / name
        place.mkdir(parents=True)
        for k in range(20):
            (place / f"{k}.txt").write_text(f"{words} only{name}{k}", encoding="utf-8")
    assert classes.text_sets(tmp_path) == [classes.DOCSTRINGS, "mail"]
    found = classes.text("mail", tmp_path, 3)
    assert found.x_train.shape == (3, 36, 5)
    assert found.x_test.shape == (3, 4, 5)
    assert found.x_train.dtype == torch.float32
    # "attached" is in all, of the others two are in each class.
    assert (found.x_train != 0).sum(-1).unique().tolist() == [3]
    assert not torch.equal(found.y_test[0], found.y_test[1]) or not torch.equal(found.x_test[0], found.x_test[1])


def test_a_text_set_of_three_classes_is_refused(classes: ModuleType, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / "text" / "letters" / name).mkdir(parents=True)
        (tmp_path / "text" / "letters" / name / "1.txt").write_text(name, encoding="utf-8")
    with pytest.raises(SystemExit, match="two classes"):
        classes.text("letters", tmp_path, 1)


def test_docstrings_are_long_and_different(classes: ModuleType) -> None:
    found = classes._docstrings("sklearn")
    assert len(found) > 500
    assert len(set(found)) == len(found)
    assert min(len(doc.split()) for doc in found) >= 30


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[ModuleType, Path]]:
    """The reader of MNIST, and the file that stands for MNIST on a server of this test."""
    home = tmp_path / "server"
    home.mkdir()
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(home))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        import _data

        original = home / "mnist.npz"
        arrays = {"x_train": np.zeros((2, 28, 28)), "x_test": np.ones((1, 28, 28)), "y_train": [1, 2], "y_test": [3]}
        np.savez(original, **arrays)
        monkeypatch.setattr(_data, "URL", f"http://127.0.0.1:{server.server_port}/mnist.npz")
        monkeypatch.setattr(_data, "SHA256", hashlib.sha256(original.read_bytes()).hexdigest())
        yield _data, original
        server.shutdown()


def test_mnist_is_downloaded_once_and_again_where_the_cached_file_is_damaged(served: tuple[ModuleType, Path]) -> None:
    reader, original = served
    assert reader.mnist(None, Console()).y_train.tolist() == [1, 2]
    content = original.read_bytes()
    original.unlink()
    assert reader.mnist(None, Console()).y_train.tolist() == [1, 2]
    (cached,) = [path for path in original.parents[1].rglob("mnist.npz") if path != original]
    cached.write_bytes(content[:-9])
    assert "digits" in reader.mnist(None, Console(quiet=True)).source
    original.write_bytes(content)
    assert reader.mnist(None, Console()).source == "MNIST"
    assert cached.read_bytes() == content


def test_another_file_in_the_place_of_mnist_is_not_used(served: tuple[ModuleType, Path]) -> None:
    reader, original = served
    original.write_bytes(b"something else")
    assert "digits" in reader.mnist(None, Console(quiet=True)).source
    assert [path for path in original.parents[1].rglob("*") if path.is_file() and path != original] == []
