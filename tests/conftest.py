"""What all tests share: how hypothesis runs, how many threads a worker has, and the command line."""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None, print_blob=True, max_examples=50)
# On a build server a failure must be the change's own: the same examples every time, of which more say little.
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, max_examples=30)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Workers of pytest-xdist share the cores: with a thread a core in each of them the suite takes half as long again.
# Processes that tests start inherit it.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    _share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(_share, 1)))


@pytest.fixture(autouse=True)
def _one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of networks are many small ones: one thread each is quickest."""
    if request.path.parent.name not in ("inference", "laws", "networks", "nn"):
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _as_written(request: pytest.FixtureRequest) -> Iterator[None]:
    """Attention runs by the functions that a network calls: torch's layers skip their own modules without gradients."""
    if request.path.parent.name not in ("laws", "networks"):
        yield
        return
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(0)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


@pytest.fixture
def method() -> str:
    """The method that runs on laws, where a test says nothing else of its methods."""
    return "ap2"


@pytest.fixture(autouse=True)
def _no_figures() -> Iterator[None]:
    """Figures that a test draws are closed: pyplot keeps them for whoever asks next, as the pages of the site do."""
    yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")


@pytest.fixture(autouse=True)
def _moments_are_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.testing.assert_close`` compares sequences by index, which chooses examples of moments."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    from momentgen.runtime import Moments

    def pairs(value: Any) -> Any:
        if isinstance(value, Moments):
            return tuple(tuple.__iter__(value))
        if isinstance(value, tuple | list):
            return type(value)(map(pairs, value)) if type(value) in (tuple, list) else value
        return {name: pairs(part) for name, part in value.items()} if isinstance(value, dict) else value

    compare = torch.testing.assert_close
    monkeypatch.setattr(torch.testing, "assert_close", lambda *both, **settings: compare(*map(pairs, both), **settings))


class Said(NamedTuple):
    """What a command exits with, and what it prints."""

    code: int
    out: str
    err: str


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """The command line of momentgen as a function of its arguments, which returns what it says."""

    def run(*arguments: object) -> Said:
        from momentgen.commands.cli import main

        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["momentgen", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        code = exit_info.value.code
        return Said(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run
