"""Worker processes for a build: a fresh one per task, which can be stopped in the middle of it.

What one rule file does to its interpreter, as ``sympy.Max = sympy.Min`` does, so reaches no other rule.

A worker is a process group of its own, so that a C compiler that it started ends with it.  It has a folder of its own
for temporary files, which is removed at its end.  A worker also ends if its parent process is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_CONTEXT = multiprocessing.get_context("spawn")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


@dataclass(frozen=True)
class Lost:
    """A task without a result: its worker died, or was stopped.

    Attributes:
        stage: the last one it came to; empty if it came to none.
        timed_out: whether it was stopped since it took too long.
        seconds: how long it had run.
    """

    stage: str
    timed_out: bool
    seconds: float


def run_all(
    tasks: Sequence[Task],
    workers: int,
    work: Callable[[Task, Callable[[str], None]], Result],
    *,
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
    stage: Callable[[Task, str], None] = lambda task, name: None,
) -> Generator[tuple[Task, Result | Lost], None, None]:
    """Do ``tasks``, each in a worker process of its own; yields each with its result as it is done.

    Args:
        tasks: begun in this order.
        workers: how many at a time, at most.
        work: does one task, and says what stage it comes to; picklable, as tasks and results are.
        timeout: seconds that one task may take; without it, as long as it takes.
        environment: variables that workers have from their start, beside those of this process.
        stage: told when a task comes to a stage.
    """
    left = deque(tasks)
    staff: list[_Worker[Task, Result]] = []
    with tempfile.TemporaryDirectory(prefix="momentgen-build-", ignore_cleanup_errors=True) as folder:
        try:
            while left or staff:
                while left and len(staff) < workers:
                    with _environment(environment or {}), _uninterrupted():
                        staff.append(_Worker(work, left.popleft(), Path(folder)))
                limit = min(worker.remaining(timeout) for worker in staff)
                ready = wait([worker.connection for worker in staff], None if limit == float("inf") else limit)
                for worker in list(staff):
                    result: Result | Lost | None = None
                    if worker.connection in ready:
                        result = worker.listen(stage)
                    elif worker.remaining(timeout) <= 0:
                        result = worker.lost(timed_out=True)
                    if result is not None:
                        staff.remove(worker)
                        worker.stop()
                        yield worker.task, result
        finally:
            for worker in staff:
                worker.stop()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the time of a start: a new process may import what reads them before it takes any argument."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold interrupts back: a process that starts meanwhile never sees one, and its parent sees it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker(Generic[Task, Result]):
    """One worker process, and its task."""

    def __init__(self, work: Callable[[Task, Callable[[str], None]], Result], task: Task, folder: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self.connection, other = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(other, str(self._folder), work, task), daemon=True)
        self._process.start()
        other.close()  # so that the end of the worker is the end of the connection
        self.task = task
        self._stage = ""
        self._begun: float | None = None  # its time begins when the worker takes it up

    def remaining(self, timeout: float | None) -> float:
        """Seconds that the task still has."""
        if timeout is None or self._begun is None:
            return float("inf")
        return max(0.0, self._begun + timeout - time.monotonic())

    def listen(self, stage: Callable[[Task, str], None]) -> Result | Lost | None:
        """Take what the worker has sent; the result if that is what it is."""
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):
            return self.lost(timed_out=False)
        if kind == "done":
            result: Result = value
            return result
        if kind == "begun":
            self._begun = time.monotonic()
        else:
            self._stage = value
            stage(self.task, value)
        return None

    def lost(self, *, timed_out: bool) -> Lost:
        """The lack of a result."""
        seconds = 0.0 if self._begun is None else time.monotonic() - self._begun
        return Lost(self._stage, timed_out, seconds)

    def stop(self) -> None:
        """End the process and all that it has started, and remove its temporary files."""
        if self._process.pid is not None and hasattr(os, "killpg"):
            # Only once the group is there, which the worker makes first of all, and while the number is its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if self._process.is_alive() and os.getpgid(self._process.pid) == self._process.pid:
                    os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self.connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _serve(connection: Connection, folder: str, work: Callable[[Any, Callable[[str], None]], Any], task: Any) -> None:
    """What a worker does."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers itself
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # the workers are the threads; more of them only wait
        os.environ.setdefault(name, "1")
    for name in ("TMPDIR", "TEMP", "TMP"):
        os.environ[name] = folder
    tempfile.tempdir = folder
    _keep_freed_memory()
    gc.set_threshold(200_000, 20, 20)  # hundreds of thousands of nodes live long: they are looked at less often
    threading.Thread(target=_end_with_parent, args=(Path(folder),), daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError):
        connection.send(("begun", None))
        connection.send(("done", work(task, lambda name: connection.send(("stage", name)))))
        connection.recv()  # never comes: the parent ends its workers


def _keep_freed_memory() -> None:
    """Arrays of a megabyte come and go by the thousand; giving each back to the system took a third of a build."""
    adjust = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform != "win32" else None  # glibc has it
    if adjust is not None:
        adjust(_M_MMAP_THRESHOLD, 32 << 20)  # its upper limit
        adjust(_M_TRIM_THRESHOLD, 1 << 30)


def _end_with_parent(folder: Path) -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent.join()
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # the last one out takes the build's folder with it
        folder.parent.rmdir()
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
