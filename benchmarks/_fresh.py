"""An empty environment of Python with a wheel of momentgen, and what is timed in it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from pathlib import Path

__all__ = ["Fresh"]

_SIZES = """
import json
from importlib.metadata import distributions
sizes = {}
for each in distributions():
    paths = [path.locate() for path in each.files or ()]
    sizes[each.name.lower()] = sum(path.stat().st_size for path in paths if path.is_file())
print(json.dumps(sizes))
"""


class Fresh:
    """An empty environment in a folder, with a cache of kernels of its own.

    Args:
        python: the interpreter's command.
        folder: for all that is written.
        files: wheels that pip installs from; :meth:`download` fills it.
    """

    def __init__(self, python: str, folder: Path, files: Path) -> None:
        self.folder, self.files = folder, files
        subprocess.run([python, "-m", "venv", str(folder / "env")], check=True)
        self.python = str(folder / "env" / "bin" / "python")
        self._environment = {**os.environ, "MOMENTGEN_CACHE": str(folder / "cache")}
        for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
            self._environment.pop(name, None)
        self._first = set(self._all_sizes())

    def run(self, *command: str, **environment: str) -> str:
        """What Python prints."""
        whole = {**self._environment, **environment}
        done = subprocess.run(
            [self.python, *command], env=whole, cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return done.stdout

    def timed(self, *command: str, **environment: str) -> dict[str, float]:
        """Seconds by the clock, and of the processor: on a busy machine the second says more."""
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        self.run(*command, **environment)
        clock, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"seconds": round(clock, 1), "processor seconds": round(processor, 1)}

    def download(self, *wanted: str) -> dict[str, float]:
        """The seconds of pip's download."""
        return self.timed("-m", "pip", "download", "--quiet", "--dest", str(self.files), *wanted)

    def install(self, *wanted: str) -> dict[str, float]:
        """The seconds of an installation from what was downloaded."""
        offline = ("--no-index", "--find-links", str(self.files))
        return self.timed("-m", "pip", "install", "--quiet", *offline, *wanted)

    def _all_sizes(self) -> dict[str, int]:
        found: dict[str, int] = json.loads(self.run("-c", _SIZES))
        return found

    def sizes(self) -> dict[str, int]:
        """Bytes of each package that was installed."""
        return {name: size for name, size in self._all_sizes().items() if name not in self._first}
