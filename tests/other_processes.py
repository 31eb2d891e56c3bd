"""What tests of several processes share: their environment, and compilers that do as they are told."""

from __future__ import annotations

import os
import stat
from pathlib import Path

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
