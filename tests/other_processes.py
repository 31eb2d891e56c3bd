"""What tests of several processes share: their environment, and compilers that do as they are told."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import momentgen

TESTS = Path(__file__).parent
ROOT = Path(momentgen.__file__).parents[1]


def environment(**changes: str | Path | None) -> dict[str, str]:
    """The environment of this process with ``changes``; None takes a variable away."""
    # The source tree goes last: an installed package is found first.
    found = dict(os.environ, PYTHONPATH=os.pathsep.join([str(TESTS), str(ROOT)]))
    for name, value in changes.items():
        found.pop(name, None)
        if value is not None:
            found[name] = str(value)
    return found


def printed(code: str, *arguments: object, preexec: Callable[[], None] | None = None, **changes: Any) -> str:
    """What a program prints, which must not fail; ``changes`` are those of its environment."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=1800,
        preexec_fn=preexec,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def script(path: Path, text: str) -> Path:
    """A program of the shell."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def counting_compiler(path: Path, seconds: float = 0) -> tuple[Path, Path]:
    """A compiler that takes its time, and the file to which it writes a line for each source but probes."""
    log = path.with_suffix(".log")
    log.touch()
    text = f'case " $* " in *momentgen-probe-*) ;; *" -c "*) echo x >> "{log}"; sleep {seconds};; esac\nexec cc "$@"'
    return script(path, text), log


def noise_images(folder: Path) -> Path:
    """A folder with what passes for MNIST: 300 images of noise."""
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (300, 28, 28), dtype=np.uint8)
    labels = draw.integers(0, 10, 300).astype(np.uint8)
    np.savez(folder / "mnist.npz", x_train=pixels, y_train=labels, x_test=pixels[:50], y_test=labels[:50])
    return folder


def run_example(name: str, folder: Path, out: Path, *settings: str) -> tuple[dict[str, Any], str]:
    """What an example on the data of a folder writes into ``out``, and what it prints."""
    command = [sys.executable, str(ROOT / "examples" / name), "--data", str(folder), "--out", str(out), *settings]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600, env=alone)
    return json.loads(out.read_text()), done.stdout


#: prints by how many bytes a call makes the process grow beyond what it holds before; Linux alone counts that
_GROWTH = """
import sys
def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS:")
{call}
print(status("VmHWM:") - before)
"""
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")


def growth(before: str, call: str, **changes: str | Path | None) -> float:
    """The bytes by which a statement makes a process of one thread grow, once another text has run in it."""
    return float(printed(before + _GROWTH.format(call=call), OMP_NUM_THREADS="1", **changes))
